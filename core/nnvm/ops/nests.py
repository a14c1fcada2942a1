"""Loop nests for ops that are no tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnvm import te
from nnvm.dim import Dim, symbols
from nnvm.graph.types import TensorType
from nnvm.te.expr import Buffer, Expr, Var
from nnvm.tir.stmt import Assert, For, If, PrimFunc, Seq, Stmt, Store, seq

__all__ = ["argument_buffers", "assert_index", "function", "loop", "nest", "store"]


def argument_buffers(inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> tuple[list[Buffer], list[Buffer]]:
    """Buffers for the arguments of a kernel with these inputs and outputs."""
    return (
        [Buffer(f"p{i}", t.shape, t.dtype) for i, t in enumerate(inputs)],
        [Buffer(f"out{i}", t.shape, t.dtype) for i, t in enumerate(outputs)],
    )


def function(name: str, inputs: Sequence[Buffer], outputs: Sequence[Buffer], body: Sequence[Stmt]) -> PrimFunc:
    """The kernel of these arguments; it takes the named sizes of their shapes in alphabetical order."""
    params = (*inputs, *outputs)
    names = sorted({s for b in params for d in b.shape for s in symbols(d)})
    return PrimFunc(name, params, len(outputs), tuple(names), seq(list(body)))


def loop(name: str, extent: Dim | Expr, body: Callable[[Expr], Stmt | Sequence[Stmt]], kind: str = "serial") -> Stmt:
    """`for name in range(extent): body(name)`."""
    var = Var(name)
    inner = body(var)
    return For(var, te.const(extent), inner if isinstance(inner, Stmt) else seq(list(inner)), kind)


def nest(
    extents: Sequence[Dim], body: Callable[[tuple[Expr, ...]], Stmt | Sequence[Stmt]], prefix: str = "i",
    parallel: bool = False,
) -> Stmt:  # fmt: skip
    """Loops over all `extents`, the outermost parallel where asked; without extents just the body."""
    variables = tuple(Var(f"{prefix}{d}") for d in range(len(extents)))
    inner = body(variables)
    out = inner if isinstance(inner, Stmt) else seq(list(inner))
    for d in reversed(range(len(extents))):
        out = For(variables[d], te.const(extents[d]), out, "parallel" if parallel and d == 0 else "serial")
    return out


def store(buffer: Buffer, indices: Sequence[Expr | int], value: Expr) -> Stmt:
    """`buffer[indices] = value`, converted to the buffer's type."""
    return Store(buffer, tuple(te.const(i) for i in indices), te.cast(value, buffer.dtype))


def assert_index(inside: Expr, message: str, then: Stmt) -> Stmt:
    """`then`, where the index is in bounds; the kernel fails where it is not."""
    return Seq((Assert(inside, message), If(inside, then)))
