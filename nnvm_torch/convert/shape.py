"""Views and rearrangements: reshape, transpose, broadcast, slice, concatenate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nnvm.dim import Dim, numel
from nnvm.dtype import I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Unsupported, Value, converts, normal_axes, normal_axis
from nnvm_torch.tensors import dim_of

__all__: list[str] = []


@converts("view.default", "_unsafe_view.default", "reshape.default", "_reshape_copy.default", "view_copy.default",
          "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze_copy.default",
          "flatten.using_ints", "unflatten.int", "_reshape_alias.default", "prims.squeeze.default",
          "prims.collapse_view.default", "prims.split_dim.default")  # fmt: skip
def _reshape(c: Context, x: NodeEntry, *_: Any) -> Value:
    return c.reshape(x, c.shape)


@converts("expand.default", "expand_copy.default", "expand_as.default", "broadcast_to.default")
def _expand(c: Context, x: NodeEntry, *_: Any, **__: Any) -> Value:
    return c.broadcast(x, c.shape)


@converts("prims.broadcast_in_dim.default")
def _broadcast_in_dim(c: Context, x: NodeEntry, shape: Sequence[Dim], axes: Sequence[int]) -> Value:
    inner: list[Dim] = [1] * len(shape)
    for axis, size in zip(axes, x.type.shape):
        inner[axis] = size
    return c.broadcast(c.reshape(x, tuple(inner)), c.shape)


@converts("permute.default", "permute_copy.default", "prims.transpose.default")
def _permute(c: Context, x: NodeEntry, axes: Sequence[int]) -> Value:
    return c.transpose(x, normal_axes(axes, x.type.rank) if axes else ())


@converts("t.default", "t_copy.default", "numpy_T.default")
def _t(c: Context, x: NodeEntry) -> Value:
    return c.transpose(x, tuple(reversed(range(x.type.rank))))


@converts("transpose.int", "transpose_copy.int", "swapaxes.default")
def _transpose(c: Context, x: NodeEntry, a: int, b: int) -> Value:
    rank = x.type.rank
    return c.swap(x, normal_axis(a, rank), normal_axis(b, rank)) if rank else x


@converts("slice.Tensor", "slice_copy.Tensor")
def _slice(c: Context, x: NodeEntry, dim: int = 0, start: Dim | None = None, end: Dim | None = None,
           step: int = 1) -> Value:  # fmt: skip
    axis = normal_axis(dim, x.type.rank)
    if not isinstance(step, int):
        raise Unsupported("a symbolic step")
    return c.slice(x, axis, begin_of(c, 2, "start", c.args[0].shape[axis]), c.shape[axis], step)


def begin_of(c: Context, position: int, name: str, size: int | torch.SymInt) -> Dim:
    """Where a slice of an axis of `size` begins, by an argument of the call, with PyTorch's meaning of negative and too
    large numbers. Where only the call knows them, how they compare is a guard, which tracing has set before."""
    start = c.traced(position, name)
    if start is None:
        return 0
    if start < 0:
        start = start + size
    if start < 0:
        return 0
    return dim_of(size if start > size else start)


@converts("select.int", "select_copy.int")
def _select(c: Context, x: NodeEntry, dim: int, index: Dim) -> Value:
    axis = normal_axis(dim, x.type.rank)
    begin = begin_of(c, 2, "index", c.args[0].shape[axis])
    return c.reshape(c.slice(x, axis, begin, 1), c.shape)


def _split(c: Context, x: NodeEntry, axis: int) -> Value:
    """Pieces along `axis` as long as the results that torch gives."""
    out: list[NodeEntry] = []
    begin: Dim = 0
    for piece in c.outs:
        out.append(c.slice(x, axis, begin, piece.shape[axis]))
        begin = begin + piece.shape[axis]
    return tuple(out)


@converts("split.Tensor", "split_with_sizes.default", "split.sizes", "unsafe_split.Tensor", "chunk.default",
          "unsafe_split_with_sizes.default", "split_copy.Tensor", "split_with_sizes_copy.default")  # fmt: skip
def _split_sizes(c: Context, x: NodeEntry, sizes: Any, dim: int = 0) -> Value:
    return _split(c, x, normal_axis(dim, x.type.rank))


@converts("unbind.int", "unbind_copy.int")
def _unbind(c: Context, x: NodeEntry, dim: int = 0) -> Value:
    axis = normal_axis(dim, x.type.rank)
    return tuple(c.reshape(c.slice(x, axis, i, 1), t.shape) for i, t in enumerate(c.outs))


@converts("cat.default")
def _cat(c: Context, xs: Sequence[NodeEntry], dim: int = 0) -> Value:
    # a tensor of shape (0,) may be joined to anything and adds nothing
    parts = [x for x in xs if x.type.shape != (0,) or len(c.shape) == 1]
    if not parts:
        return c.full(c.shape, 0, c.dtype)
    axis = normal_axis(dim, len(c.shape))
    return c.concat([c.cast(x, c.dtype) for x in parts], axis)


@converts("prims.cat.default")
def _prims_cat(c: Context, xs: Sequence[NodeEntry], dim: int) -> Value:
    return _cat(c, xs, dim)


@converts("stack.default")
def _stack(c: Context, xs: Sequence[NodeEntry], dim: int = 0) -> Value:
    axis = normal_axis(dim, len(c.shape))
    one = (*c.shape[:axis], 1, *c.shape[axis + 1 :])
    return c.concat([c.reshape(c.cast(x, c.dtype), one) for x in xs], axis)


@converts("flip.default", "prims.rev.default")
def _flip(c: Context, x: NodeEntry, dims: Sequence[int]) -> Value:
    return c.op("flip", x, axes=normal_axes(dims, x.type.rank)) if dims and x.type.rank else x


@converts("roll.default")
def _roll(c: Context, x: NodeEntry, shifts: Any, dims: Sequence[int] = ()) -> Value:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    if numel(x.type.shape) == 0:
        return x
    if not dims:
        flat = c.reshape(x, (numel(x.type.shape),))
        return c.reshape(c.op("roll", flat, shifts=(sum(shifts),), axes=(0,)), c.shape)
    axes = normal_axes(dims, x.type.rank)
    totals: dict[int, int] = {}
    for axis, shift in zip(axes, shifts):
        totals[axis] = totals.get(axis, 0) + shift
    return c.op("roll", x, shifts=tuple(totals.values()), axes=tuple(totals))


@converts("repeat.default", "tile.default")
def _repeat(c: Context, x: NodeEntry, repeats: Sequence[Dim]) -> Value:
    lead = max(len(repeats) - x.type.rank, 0)
    counts = (*(1,) * max(x.type.rank - len(repeats), 0), *repeats)
    shape = (*(1,) * lead, *x.type.shape)
    apart = tuple(d for s in shape for d in (1, s))
    spread = tuple(d for n, s in zip(counts, shape) for d in (n, s))
    return c.reshape(c.broadcast(c.reshape(x, apart), spread), c.shape)


@converts("tril.default")
def _tril(c: Context, x: NodeEntry, diagonal: int = 0) -> Value:
    return c.op("tril", x, k=diagonal)


@converts("triu.default")
def _triu(c: Context, x: NodeEntry, diagonal: int = 0) -> Value:
    return c.op("triu", x, k=diagonal)


@converts("diagonal.default", "diagonal_copy.default")
def _diagonal(c: Context, x: NodeEntry, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rank = x.type.rank
    a, b = normal_axis(dim1, rank), normal_axis(dim2, rank)
    rows, cols, length = x.type.shape[a], x.type.shape[b], c.shape[-1]
    if not (isinstance(rows, int) and isinstance(cols, int) and isinstance(length, int)):
        raise Unsupported("a diagonal of symbolic length")
    rest = [i for i in range(rank) if i not in (a, b)]
    moved = c.transpose(x, (*rest, a, b))
    flat = c.reshape(moved, (*moved.type.shape[:-2], rows * cols))
    first = offset if offset >= 0 else -offset * cols
    index = c.const_tensor(first + np.arange(length, dtype=np.int64) * (cols + 1), I64)
    return c.op("take", flat, index, axis=rank - 2, mode="clip")


@converts("unfold.default", "unfold_copy.default")
def _unfold(c: Context, x: NodeEntry, dimension: int, size: int, step: int) -> Value:
    if x.type.rank == 0:
        return c.reshape(x, c.shape)
    axis = normal_axis(dimension, x.type.rank)
    windows = c.shape[axis]
    if not (isinstance(windows, int) and isinstance(size, int) and isinstance(step, int)):
        raise Unsupported("symbolic windows")
    index = np.arange(windows, dtype=np.int64)[:, None] * step + np.arange(size, dtype=np.int64)
    taken = c.op("take", x, c.const_tensor(index, I64), axis=axis, mode="clip")
    order = [i for i in range(taken.type.rank) if i != axis + 1]
    return c.transpose(taken, (*order, axis + 1))


@converts("prims.slice.default")
def _prims_slice(c: Context, x: NodeEntry, begin: Sequence[Dim], end: Sequence[Dim],
                 steps: Sequence[int] | None = None) -> Value:  # fmt: skip
    for axis in range(x.type.rank):
        x = c.slice(x, axis, begin[axis], c.shape[axis], steps[axis] if steps else 1)
    return x


@converts("native_channel_shuffle.default", "channel_shuffle.default")
def _channel_shuffle(c: Context, x: NodeEntry, groups: int) -> Value:
    n, channels, *rest = x.type.shape
    split = c.reshape(x, (n, groups, channels // groups, *rest))
    return c.reshape(c.swap(split, 1, 2), c.shape)


@converts("pixel_shuffle.default")
def _pixel_shuffle(c: Context, x: NodeEntry, r: int) -> Value:
    *lead, channels, h, w = x.type.shape
    n = len(lead)
    split = c.reshape(x, (*lead, channels // (r * r), r, r, h, w))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return c.reshape(c.transpose(split, order), c.shape)


@converts("pixel_unshuffle.default")
def _pixel_unshuffle(c: Context, x: NodeEntry, r: int) -> Value:
    *lead, channels, h, w = x.type.shape
    n = len(lead)
    split = c.reshape(x, (*lead, channels, h // r, r, w // r, r))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return c.reshape(c.transpose(split, order), c.shape)


@converts("narrow_copy.default")
def _narrow_copy(c: Context, x: NodeEntry, dim: int, start: Dim, length: Dim) -> Value:
    axis = normal_axis(dim, x.type.rank)
    return c.slice(x, axis, begin_of(c, 2, "start", c.args[0].shape[axis]), length)
