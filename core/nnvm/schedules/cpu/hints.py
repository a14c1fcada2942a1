"""Memory asked for ahead: cache lines of what is read next, spread evenly over the work that is done before.

    for the pieces of work on one panel:           number = 0 .. times - 1
      prefetch lines [number * lines / times, ...) of the next panel
      work

A core has few lines on their way at a time, and what misses the first cache waits behind a burst of them: each piece of
work asks for its share, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnvm.te.expr import INDEX, Const, Expr, Var, binary
from nnvm.tir.stmt import Stmt, seq

__all__ = ["FETCHED", "LINE", "hints", "next_iteration"]

#: Bytes of a cache line.
LINE = 64
#: Bytes of a weight from which on it is fetched ahead.
FETCHED = 1 << 17


def hints(number: Expr, times: int, lines: int, hint: Callable[[Expr], Stmt], beyond: bool = False) -> Stmt:
    """What piece `number` of `times` pieces of work asks for: the `hint` of each of its share of `lines` lines.

    `beyond`: whether there may be more pieces of work; they ask for no other lines.
    """
    start = binary("floordiv", binary("mul", number, lines), times)
    if beyond:
        start = binary("min", start, lines)
    return seq([hint(binary("add", start, n)) for n in range(-(-lines // times))])


def next_iteration(loops: Sequence[tuple[Var, int | None]]) -> dict[Var, Expr]:
    """The variables of nested loops, outermost first, when the innermost has moved on: what it carries moves the next.

    Each loop comes with its number of steps; the outermost, or one of an unknown number (None), is taken to go on.
    """
    env: dict[Var, Expr] = {}
    carry: Expr = Const(1, INDEX)
    for position, (var, steps) in reversed(list(enumerate(loops))):
        after = binary("add", var, carry)
        if position == 0 or steps is None:
            env[var] = after
            break
        env[var], carry = binary("floormod", after, steps), binary("floordiv", after, steps)
    return env
