"""One call of a program as one Python function, written for it: everything that is known is in its text.

Of a graph of two inputs, of which native code reads one, and an output::

    def maker(count, limited, free, take, address, absent, call, failed, make0):
        def run(args):
            threads = count()
            if threads > 1:
                threads = limited(threads)
            try:
                arena = free.pop()
            except IndexError:
                arena = take(threads)
            if arena.capacity < 832 + 256 * threads:
                arena = take(threads)
            start = arena.address
            out0 = make0()
            code = call(start + 768, threads, start, address(args[1]) or absent(args[1]), address(out0))
            if len(free) < 16:
                free.append(arena)
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
from nnvm.runtime.instances import MAX_FREE, ArenaPool
from nnvm.runtime.memory import ALIGNMENT, Memory
from nnvm.runtime.program import Program

__all__ = ["call_function", "call_source"]


def call_source(read: Sequence[int], outputs: int, arena: int, workspace: int) -> str:
    """The text for arguments at the positions `read`, and so many outputs; `arena`: bytes of activations, `workspace`:
    bytes that a thread needs."""
    outs, makes = ([f"{name}{i}" for i in range(outputs)] for name in ("out", "make"))
    given = (f"address(args[{p}]) or absent(args[{p}])" for p in read)
    addresses = ", ".join(["start", *given, *(f"address({o})" for o in outs)])
    body = [
        "threads = count()",
        "if threads > 1:",
        "    threads = limited(threads)",
        "try:",
        "    arena = free.pop()",
        "except IndexError:",
        "    arena = take(threads)",
        f"if arena.capacity < {arena + ALIGNMENT} + {workspace} * threads:",
        "    arena = take(threads)",
        "start = arena.address",
        *(f"{out} = {make}()" for out, make in zip(outs, makes)),
        f"code = call(start + {arena}, threads, {addresses})",
        f"if len(free) < {MAX_FREE}:",
        "    free.append(arena)",
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


_NAMES = ("count", "limited", "free", "take", "address", "absent", "call", "failed")


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
    maker = _maker(call_source([p for p, _ in read], len(outputs), arenas.arena_bytes, arenas.workspace_bytes))
    found = memory.address, memory.absent
    fixed = (*openmp.pool.counting(), arenas.free, arenas.take, *found, call, program.failed)
    run: Callable[[Sequence[Any]], list[Any]] = maker(*fixed, *(make for _, make in outputs))
    return run
