"""Sums of squared deviations from a mean in the pass that sums, so that long rows are read once.

    pass 0: s = sum of x;  pass 1: q = sum of (x - s / n)²   ->   pass 0: s = sum of x, q = deviations of x

A row that is held in registers keeps its two passes, which are as exact as can be and cost nothing. One that is walked
block by block updates a mean and the deviations from it in each lane (B. P. Welford, 1962, in the form of D. H. D.
West, 1979), and parts of rows, lanes too, are combined as T. F. Chan, G. H. Golub and R. J. LeVeque (1983) do.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from nnvm.dim import Dim
from nnvm.schedules.access import At, Held, Index, children, parts
from nnvm.schedules.row_program import DEVIATIONS, Pass, Reduction, RowProgram
from nnvm.te.expr import Binary, Cast, Const, Expr
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Space, affine

__all__ = ["with_moments", "without_unused"]


def with_moments(program: RowProgram, space: Space) -> RowProgram:
    """`program` with its deviations from a mean in the pass of the mean's sum; the same object where it has none.

    Found by structure: the sum of the square of ``x - s / n`` where ``s`` is the sum of an equal ``x`` in the pass
    before, and n the elements of a row.
    """
    keys = _Keys()
    passes = [Pass(list(p.reductions), list(p.writes)) for p in program.passes]
    found = False
    for before, p in pairwise(passes):
        for r in list(p.reductions):
            total = _total_of(r, before, program.row_numel, keys)
            if total is not None:
                p.reductions.remove(r)
                before.reductions.append(Reduction(r.tensor, DEVIATIONS, total.source, about=total.tensor))
                found = True
    if not found:
        return program
    passes = [p for p in passes if p.reductions or p.writes]
    return _without_doubles(replace(program, passes=passes), space, keys)


def _total_of(r: Reduction, before: Pass, count: Dim, keys: _Keys) -> Reduction | None:
    """The reduction of `before` around whose mean `r` sums squares; None where it is anything else."""
    square = r.source
    if r.op != "sum" or not isinstance(square, Binary) or square.op != "mul" or not square.dtype.is_float:
        return None
    if square.a is not square.b and keys.of(square.a) != keys.of(square.b):
        return None
    if not isinstance(square.a, Binary) or square.a.op != "sub":
        return None
    for x, mean in ((square.a.a, square.a.b), (square.a.b, square.a.a)):
        total = _mean_of(mean, count)
        for other in before.reductions:
            if other.tensor is total and other.op == "sum" and keys.of(other.source) == keys.of(x):
                return other
    return None


def _mean_of(e: Expr, count: Dim) -> Tensor | None:
    """The tensor that `e` divides by the number of elements of a row."""
    if not isinstance(e, Binary) or e.op != "div" or not isinstance(e.a, Held):
        return None
    n = e.b
    if isinstance(n, Const):
        return e.a.tensor if n.value == count else None
    if isinstance(n, Cast) and isinstance(n.a, Index):
        return e.a.tensor if n.a.value == affine(count) else None
    return None


def _without_doubles(program: RowProgram, space: Space, keys: _Keys) -> RowProgram:
    """`program` with one of several equal reductions of a pass: a mean and a variance both sum what they are of."""
    same: dict[Tensor, Tensor] = {}
    passes: list[Pass] = []
    for p in program.passes:
        first: dict[object, Tensor] = {}
        kept: list[Reduction] = []
        for r in p.reductions:
            key = (r.op, keys.of(r.source), None if r.index is None else keys.of(r.index))
            if (other := first.setdefault(key, r.tensor)) is r.tensor:
                kept.append(r if r.about is None else replace(r, about=same.get(r.about, r.about)))
            else:
                same[r.tensor] = other
        passes.append(Pass(kept, p.writes))
    if not same:
        return program
    memo: dict[int, Expr] = {id(x): Held(same[x.tensor], x.indices) for x in _held(program) if x.tensor in same}
    return replace(program, passes=[p.rewrite(space, {}, memo) for p in passes],
                   results=[w.rewrite(space, {}, memo) for w in program.results])  # fmt: skip


def without_unused(program: RowProgram) -> RowProgram:
    """`program` without reductions that nothing needs: the sum, where only the deviations were asked for."""
    used = {x.tensor for x in _held(program)}
    return replace(program, passes=[Pass([r for r in p.reductions if r.tensor in used], p.writes)
                                    for p in program.passes])  # fmt: skip


def _held(program: RowProgram) -> list[Held]:
    roots = [e for p in program.passes for e in p.roots] + [w.value for w in program.results]
    return [x for x in parts(*roots) if isinstance(x, Held)]


class _Keys:
    """Numbers of expressions: equal for equal ones."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._known: dict[int, int] = {}
        self._alive: list[Expr] = []

    def of(self, root: Expr) -> int:
        self._alive.append(root)  # ids stay valid as long as the objects live
        for e in parts(root):
            if id(e) not in self._known:
                self._known[id(e)] = self._numbers.setdefault(self._key(e), len(self._numbers))
        return self._known[id(root)]

    def _key(self, e: Expr) -> object:
        if isinstance(e, At):
            return At, e.source.buffer, e.address
        if isinstance(e, Index):
            return Index, e.value
        if isinstance(e, Held):
            return Held, e.tensor, e.indices
        own = [getattr(e, f) for f in type(e).__dataclass_fields__]  # type: ignore[attr-defined]
        return (
            type(e),
            *(x for x in own if not isinstance(x, (Expr, tuple))),
            *(self._known[id(c)] for c in children(e)),
        )
