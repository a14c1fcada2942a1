"""A kernel over flat memory: params of one dimension, as long as the memory that the tensor spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnvm.dim import Dim, row_major, symbols
from nnvm.schedules.access import Source
from nnvm.te.expr import THREADS, Buffer, is_size
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Space
from nnvm.tir.stmt import Allocate, PrimFunc, Stmt
from nnvm.tir.visitor import free_vars, stmts

__all__ = ["flat_kernel", "name_apart", "sizes_of", "span"]

Strides = Mapping[Tensor, tuple[Dim, ...]]


def span(shape: Sequence[Dim], strides: Sequence[Dim]) -> Dim:
    """Elements from the first to the last, both included."""
    if any(d == 0 for d in shape):
        return 0
    total: Dim = 1
    for d, s in zip(shape, strides, strict=True):
        total = total + (d - 1) * s
    return total


def sizes_of(tensors: Sequence[Tensor], strides: Strides) -> tuple[str, ...]:
    """Names of the sizes that shapes and strides depend on, sorted."""
    names: set[str] = set()
    for t in tensors:
        for d in (*t.shape, *strides.get(t, ())):
            names |= symbols(d)
    return tuple(sorted(names))


def flat_kernel(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], name: str, strides: Strides,
    write: Callable[[dict[Tensor, Source], Space], Stmt],
) -> PrimFunc:  # fmt: skip
    """The kernel whose body `write` makes of where the tensors are."""
    sources: dict[Tensor, Source] = {}
    params: list[Buffer] = []
    for i, t in enumerate((*inputs, *outputs)):
        s = strides.get(t) or row_major(t.shape)
        label = f"in{i}" if i < len(inputs) else f"out{i - len(inputs)}"
        buffer = Buffer(label, (span(t.shape, s),), t.dtype)
        params.append(buffer)
        sources[t] = Source(buffer, s)
    body = write(sources, Space())
    name_apart(body, {b.name for b in params})
    sizes = {*sizes_of((*inputs, *outputs), strides), *_sizes_in(body)}
    return PrimFunc(name, tuple(params), len(outputs), tuple(sorted(sizes)), body)


def _sizes_in(body: Stmt) -> set[str]:
    """Names of the sizes that a loop nest uses, also where no argument has them."""
    names = {v.name for v in free_vars(body) if is_size(v) and v.name != THREADS}
    for s in stmts(body):
        if isinstance(s, Allocate):
            names.update(n for d in s.buffer.shape for n in symbols(d))
    return names


def name_apart(body: Stmt, taken: set[str]) -> None:
    """Gives allocated buffers that share a name names of their own."""
    for s in stmts(body):
        if isinstance(s, Allocate):
            name, k = s.buffer.name, 1
            while s.buffer.name in taken:
                s.buffer.name = f"{name}_{k}"
                k += 1
            taken.add(s.buffer.name)
