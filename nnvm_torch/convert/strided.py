"""`as_strided`: a look at a tensor's memory, as a rearrangement of its values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from nnvm.dim import Dim, is_static, numel, row_major
from nnvm.dtype import I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, NeedsMemory, Value, converts
from nnvm_torch.tensors import dim_of, strides_of

__all__: list[str] = []


@converts("as_strided.default", "as_strided_copy.default")
def _as_strided(c: Context, x: NodeEntry, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    meta, strides = c.args[0], tuple(dim_of(s) for s in c.args[2])
    offset = c.traced(3, "storage_offset")
    begins_there = offset is None or offset == meta.storage_offset()
    if tuple(x.type.shape) == c.shape and tuple(meta.stride()) == tuple(c.args[2]) and begins_there:
        return x
    flat, _, begin = _memory(c, x, c.args[1], c.args[2], offset)
    if begin == 0 and numel(c.shape) == flat.type.numel and strides == row_major(c.shape):
        return c.reshape(flat, c.shape)
    if numel(c.shape) == 0:
        return c.full(c.shape, 0, c.dtype)
    sliced = _sliced(c, flat, begin, strides) if is_static((*c.shape, *strides, begin, *flat.type.shape)) else None
    if sliced is not None:
        return sliced
    return c.op("take", flat, _positions(c, c.shape, strides, begin), axis=0, mode="clip")


@converts("as_strided_scatter.default")
def _as_strided_scatter(c: Context, x: NodeEntry, src: NodeEntry, size: Any, stride: Any,
                        storage_offset: Any = None) -> Value:  # fmt: skip
    flat, axes, begin = _memory(c, x, c.args[2], c.args[3], c.traced(4, "storage_offset"))
    if src.type.numel == 0:
        return x
    where = _positions(c, src.type.shape, tuple(dim_of(s) for s in c.args[3]), begin)
    count = (src.type.numel,)
    written = c.op("scatter", flat, c.reshape(where, count), c.reshape(c.cast(src, c.dtype), count), axis=0,
                   reduce="none", include_self=True)  # fmt: skip
    moved = c.reshape(written, tuple(x.type.shape[a] for a in axes))
    return c.transpose(moved, tuple(axes.index(i) for i in range(len(axes))))


def _memory(c: Context, x: NodeEntry, size: Any, stride: Any, offset: Any) -> tuple[NodeEntry, list[int], Dim]:
    """The elements of `x` as they lie in memory, the axes of `x` from the outermost in memory to the innermost, and the
    position of the first element that is looked at. NeedsMemory where elements beyond those of `x` are looked at."""
    meta = c.args[0]
    own = meta.storage_offset()
    begin = 0 if offset is None else offset - own
    axes = list(range(x.type.rank))
    if strides_of(meta) is not None:
        strides = tuple(dim_of(s) for s in meta.stride())
        if not is_static((*strides, *x.type.shape)):
            raise NeedsMemory("as_strided of a tensor of symbolic sizes that does not lie in order")
        axes.sort(key=lambda a: (-int(strides[a]), -int(x.type.shape[a])))  # type: ignore[arg-type]
        expected: Dim = 1
        for a in reversed(axes):
            if x.type.shape[a] != 1 and strides[a] != expected:
                raise NeedsMemory("as_strided of a tensor with gaps, or whose elements overlap")
            expected = expected * x.type.shape[a]
    last = begin + sum((n - 1) * s for n, s in zip(size, stride))
    count = 1
    for n in meta.shape:
        count = count * n
    is_empty = any(isinstance(n, int) and n == 0 for n in size)
    if not is_empty and not (_is_known(begin >= 0) and _is_known(last < count)):
        raise NeedsMemory("as_strided looks beyond the elements of its argument, at other memory")
    return c.reshape(c.transpose(x, axes), (x.type.numel,)), axes, dim_of(begin)


def _is_known(condition: bool | torch.SymBool) -> bool:
    return bool(statically_known_true(condition))


def _positions(c: Context, shape: Sequence[Dim], strides: Sequence[Dim], begin: Dim) -> NodeEntry:
    """int64 of `shape`: begin + i * strides[0] + j * strides[1] + ..."""
    total = c.broadcast(c.dim_value(begin), tuple(1 for _ in shape))
    for axis, (n, s) in enumerate(zip(shape, strides)):
        if n == 1 or s == 0:
            continue
        line: list[Dim] = [1] * len(shape)
        line[axis] = n
        steps = c.op("multiply", c.op("arange", start=0, step=1, length=n, dtype=I64), c.dim_value(s))
        total = c.op("add", total, c.reshape(steps, tuple(line)))
    return c.broadcast(total, tuple(shape))


def _sliced(c: Context, flat: NodeEntry, begin: Any, strides: Sequence[Any]) -> NodeEntry | None:
    """The result as slices and reshapes of `flat`, where each axis lies within one step of the next outer one; None
    elsewhere, as for windows that overlap."""
    shape: tuple[Any, ...] = c.shape
    inside = [a for a in range(len(shape)) if shape[a] != 1 and strides[a] != 0]
    axes = sorted(inside, key=lambda a: -strides[a])
    if any(strides[a] % strides[b] or strides[a] < strides[b] * shape[b] for a, b in pairwise(axes)):
        return None
    span = shape[axes[0]] * strides[axes[0]] if axes else 1
    if span > flat.type.numel - begin:  # type: ignore[operator]
        return None
    x = c.slice(flat, 0, begin, span)
    lead: tuple[Any, ...] = ()
    for i, a in enumerate(axes):
        x = c.reshape(x, (*lead, shape[a], strides[a]))
        lead = (*lead, shape[a])
        inner = shape[axes[i + 1]] * strides[axes[i + 1]] if i + 1 < len(axes) else 1
        x = c.slice(x, len(lead), 0, inner)
    x = c.transpose(c.reshape(x, lead), [axes.index(a) for a in inside])
    return c.broadcast(c.reshape(x, tuple(n if a in inside else 1 for a, n in enumerate(shape))), shape)
