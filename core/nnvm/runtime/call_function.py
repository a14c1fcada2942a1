"""One call of a program as one Python function, written for it: everything that is known is in its text.

Of a graph of two inputs, of which native code reads one, and an output::

    def maker(max_threads, take, give, address, call, failed, make0):
        def run(args):
            threads = max_threads()
            arena = take(threads)
            out0 = make0()
            code = call(arena.workspace, threads, arena.address, address(args[1]), address(out0))
            give(arena)
            if code:
                raise failed(code)
            return [out0]
        return run
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from nnvm.runtime import openmp
from nnvm.runtime.instances import ArenaPool
from nnvm.runtime.memory import Memory
from nnvm.runtime.program import Program

__all__ = ["call_function", "call_source"]


def call_source(read: Sequence[int], outputs: int) -> str:
    """The text for arguments at the positions `read`, and so many outputs."""
    outs, makes = ([f"{name}{i}" for i in range(outputs)] for name in ("out", "make"))
    addresses = ", ".join(["arena.address", *(f"address(args[{p}])" for p in read), *(f"address({o})" for o in outs)])
    body = [
        "threads = max_threads()",
        "arena = take(threads)",
        *(f"{out} = {make}()" for out, make in zip(outs, makes)),
        f"code = call(arena.workspace, threads, {addresses})",
        "give(arena)",
        "if code:",
        "    raise failed(code)",
        f"return [{', '.join(outs)}]",
    ]
    return "\n".join([
        f"def maker({', '.join([*_NAMES, *makes])}):",
        "    def run(args):",
        *(f"        {line}" for line in body),
        "    return run",
    ])  # fmt: skip


_NAMES = ("max_threads", "take", "give", "address", "call", "failed")


@lru_cache(maxsize=256)
def _maker(source: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(source, "<nnvm call>", "exec"), names)
    return names["maker"]


def call_function(program: Program, bases: Sequence[int], read: Sequence[tuple[int, int]],
                  outputs: Sequence[tuple[int, Callable[[], Any]]], arenas: ArenaPool, memory: Memory,
                  keep: Any) -> Callable[[Sequence[Any]], list[Any]]:  # fmt: skip
    """A function of the arguments of a call that gives its outputs, new tensors.

    Args:
        bases: the table of addresses; base 0 is the arena's.
        read: (position among the arguments, base) of those whose address native code reads.
        outputs: (base, what makes a new tensor).
        keep: what has the memory of the other bases.
    """
    call = program.on(bases, [0, *(base for _, base in read), *(base for base, _ in outputs)], keep)
    maker = _maker(call_source([p for p, _ in read], len(outputs)))
    fixed = (openmp.max_threads, arenas.take, arenas.give, memory.address, call, program.failed)
    run: Callable[[Sequence[Any]], list[Any]] = maker(*fixed, *(make for _, make in outputs))
    return run
