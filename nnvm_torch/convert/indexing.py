"""Reading and writing at indices. Bounds are checked by the operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnvm.dtype import I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Scalar, Unsupported, Value, converts, normal_axis

__all__: list[str] = []

Indices = Sequence["NodeEntry | None"]


@converts("embedding.default")
def _embedding(c: Context, weight: NodeEntry, index: NodeEntry, *_: Any, **__: Any) -> Value:
    return c.op("take", weight, index, axis=0, mode="raise")


@converts("index_select.default")
def _index_select(c: Context, x: NodeEntry, dim: int, index: NodeEntry) -> Value:
    if x.type.rank == 0:
        return x if index.type.rank == 0 else c.reshape(x, c.shape)
    taken = c.op("take", x, c.reshape(index, (index.type.numel,)), axis=normal_axis(dim, x.type.rank), mode="raise")
    return c.reshape(taken, c.shape)


@converts("gather.default")
def _gather(c: Context, x: NodeEntry, dim: int, index: NodeEntry, *, sparse_grad: bool = False) -> Value:
    if x.type.rank == 0 or index.type.rank == 0:
        flat = c.reshape(x, (x.type.numel,))
        return c.reshape(c.op("take", flat, c.reshape(index, (index.type.numel,)), axis=0, mode="raise"), c.shape)
    return c.op("gather", x, index, axis=normal_axis(dim, x.type.rank))


def _given(x: NodeEntry, indices: Indices) -> tuple[tuple[int, ...], list[NodeEntry]]:
    """Axes that are indexed, and by what."""
    pairs = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    for _, i in pairs:
        if not i.type.dtype.is_int or i.type.dtype.name == "uint8":
            raise Unsupported(f"an index of dtype {i.type.dtype}")
    return tuple(a for a, _ in pairs), [i for _, i in pairs]


@converts("index.Tensor", "_unsafe_index.Tensor")
def _index(c: Context, x: NodeEntry, indices: Indices) -> Value:
    axes, given = _given(x, indices)
    if not given:
        return x
    return c.op("index", x, *(c.cast(i, I64) for i in given), axes=axes)


@converts("index_put.default", "_unsafe_index_put.default")
def _index_put(c: Context, x: NodeEntry, indices: Indices, values: NodeEntry, accumulate: bool = False) -> Value:
    masks = [i for i in indices if i is not None]
    if len(masks) == 1 and indices[0] is not None and masks[0].type.dtype.is_bool:
        return _masked_put(c, x, masks[0], values, accumulate)
    axes, given = _given(x, indices)
    return c.op("index_put", x, c.cast(values, x.type.dtype), *(c.cast(i, I64) for i in given), axes=axes,
                accumulate=accumulate)  # fmt: skip


def _masked_put(c: Context, x: NodeEntry, mask: NodeEntry, values: NodeEntry, accumulate: bool) -> NodeEntry:
    """x[mask] = value, for one value (how many there are to write is not known)."""
    if values.type.numel != 1:
        raise Unsupported("as many values as a mask has true elements")
    shape = (*mask.type.shape, *(1,) * (x.type.rank - mask.type.rank))
    value = c.reshape(c.cast(values, x.type.dtype), ())
    if accumulate:
        value = c.op("add", x, value)
    return c.op("where", c.reshape(mask, shape), value, x)


def _scatter(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry, reduce: str,
             include_self: bool = True) -> NodeEntry:  # fmt: skip
    if x.type.rank == 0 or index.type.rank == 0:
        lifted = [c.reshape(t, (t.type.numel,)) for t in (x, index, src)]
        return c.reshape(c.op("scatter", *lifted, axis=0, reduce=reduce, include_self=include_self), c.shape)
    for axis, size in enumerate(index.type.shape):
        src = c.slice(src, axis, 0, size)
    return c.op("scatter", x, index, src, axis=normal_axis(dim, x.type.rank), reduce=reduce, include_self=include_self)


_REDUCE = {"add": "add", "multiply": "prod", "sum": "add", "prod": "prod", "amax": "amax", "amin": "amin",
           "mean": "mean"}  # fmt: skip


def _filled(c: Context, index: NodeEntry, value: Scalar, like: NodeEntry) -> NodeEntry:
    return c.broadcast(c.stored(value, like.type.dtype), index.type.shape)


@converts("scatter.src")
def _scatter_src(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry) -> Value:
    return _scatter(c, x, dim, index, src, "none")


@converts("scatter.value")
def _scatter_value(c: Context, x: NodeEntry, dim: int, index: NodeEntry, value: Scalar) -> Value:
    return _scatter(c, x, dim, index, _filled(c, index, value, x), "none")


@converts("scatter.reduce")
def _scatter_with(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry, *, reduce: str) -> Value:
    return _scatter(c, x, dim, index, src, _REDUCE[reduce])


@converts("scatter.value_reduce")
def _scatter_value_with(c: Context, x: NodeEntry, dim: int, index: NodeEntry, value: Scalar, *, reduce: str) -> Value:
    return _scatter(c, x, dim, index, _filled(c, index, value, x), _REDUCE[reduce])


@converts("scatter_add.default")
def _scatter_add(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry) -> Value:
    return _scatter(c, x, dim, index, src, "add")


@converts("scatter_reduce.two")
def _scatter_reduce(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry, reduce: str, *,
                    include_self: bool = True) -> Value:  # fmt: skip
    if reduce not in _REDUCE:
        raise Unsupported(f"scatter_reduce with {reduce}")
    return _scatter(c, x, dim, index, src, _REDUCE[reduce], include_self)


def _along(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry, reduce: str) -> NodeEntry:
    """Slices of `src` written to x along `dim` where the one-dimensional `index` says."""
    if x.type.rank == 0 or src.type.rank == 0:
        shape = (index.type.numel,)
        lifted = [c.reshape(x, (1,)), c.reshape(index, shape), c.reshape(src, shape)]
        return c.reshape(c.op("scatter", *lifted, axis=0, reduce=reduce, include_self=True), c.shape)
    axis = normal_axis(dim, x.type.rank)
    ones: list[Any] = [1] * x.type.rank
    ones[axis] = index.type.numel
    everywhere = c.broadcast(c.reshape(index, tuple(ones)), src.type.shape)
    return c.op("scatter", x, everywhere, src, axis=axis, reduce=reduce, include_self=True)


@converts("index_add.default")
def _index_add(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry, *, alpha: Scalar = 1) -> Value:
    src = c.cast(src, x.type.dtype)
    if alpha != 1:
        src = c.op("multiply", src, c.stored(alpha, x.type.dtype))
    return _along(c, x, dim, index, src, "add")


@converts("index_copy.default")
def _index_copy(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry) -> Value:
    return _along(c, x, dim, index, src, "none")


@converts("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(c: Context, x: NodeEntry, dim: int, index: NodeEntry, value: NodeEntry | Scalar) -> Value:
    """As `index_copy`, but negative indices count from the end."""
    lifted = x if x.type.rank else c.reshape(x, (1,))
    index = c.cast(c.reshape(index, (index.type.numel,)), I64)
    axes = (normal_axis(dim, lifted.type.rank),)
    return c.reshape(c.op("index_put", lifted, c.stored(value, c.dtype), index, axes=axes), c.shape)


@converts("index_reduce.default")
def _index_reduce(c: Context, x: NodeEntry, dim: int, index: NodeEntry, src: NodeEntry, reduce: str, *,
                  include_self: bool = True) -> Value:  # fmt: skip
    if reduce not in _REDUCE or not include_self:
        raise Unsupported(f"index_reduce with {reduce}, include_self={include_self}")
    return _along(c, x, dim, index, src, _REDUCE[reduce])


@converts("max_pool2d_with_indices_backward.default")
def _max_pool_backward(c: Context, grad: NodeEntry, x: NodeEntry, *rest: Any) -> Value:
    """The gradient goes where the greatest element of each window was."""
    index: NodeEntry = rest[-1]
    *lead, height, width = x.type.shape
    rows = [c.reshape(t, (*lead, t.type.shape[-2] * t.type.shape[-1])) for t in (grad, index)]
    zeros = c.full((*lead, height * width), 0, c.dtype)
    out = c.op("scatter", zeros, rows[1], rows[0], axis=len(lead), reduce="add", include_self=True)
    return c.reshape(out, c.shape)


@converts("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(c: Context, weight: NodeEntry, index: NodeEntry, offsets: NodeEntry,
                   scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
                   per_sample: NodeEntry | None = None, include_last_offset: bool = False,
                   padding_idx: int = -1) -> Value:  # fmt: skip
    """Rows of a table combined by bag: each index belongs to the last bag that begins at or before it."""
    if any(c.used[1:]):
        raise Unsupported("what the backward pass of an embedding bag needs")
    if include_last_offset and mode != 0:
        raise Unsupported("a mean or maximum of bags whose last offset is given")
    count, bags = index.type.numel, c.shape[0]
    if not isinstance(count, int) or not isinstance(offsets.type.numel, int) or count == 0 or bags == 0:
        raise Unsupported(f"embedding bags of {count} indices")
    t = c.dtype.compute
    rows = c.cast(c.op("take", weight, c.cast(index, I64), axis=0, mode="raise"), t)
    if per_sample is not None:
        rows = c.op("multiply", rows, c.reshape(c.cast(per_sample, t), (count, 1)))
    # reading each offset from the numbers up to `count` checks it
    numbers = c.op("arange", start=0, step=1, length=count + 1, dtype=I64)
    offsets = c.op("take", numbers, c.cast(offsets, I64), axis=0, mode="raise")
    begins, numbers = c.slice(offsets, 0, 0, bags), c.slice(numbers, 0, 0, count)
    bag = c.op("subtract", c.op("searchsorted", begins, numbers, right=True), c.const(1, I64))
    room, rest = bags, c.dim_value(bags)
    # what is padding, or behind the last bag, goes to a bag of its own after the others
    if padding_idx >= 0:
        padding = c.op("equal", c.cast(index, I64), c.const(padding_idx, I64))
        bag, room = c.op("where", padding, rest, bag), bags + 1
    if include_last_offset:
        behind = c.op("greater_equal", numbers, c.slice(offsets, 0, bags, 1))
        bag, room = c.op("where", behind, rest, bag), bags + 1
    places = c.broadcast(c.reshape(bag, (count, 1)), (count, c.shape[1]))
    reduce = ("add", "mean", "amax")[mode]
    zeros = c.full((room, c.shape[1]), 0, t)
    out = c.op("scatter", zeros, places, rows, axis=0, reduce=reduce, include_self=mode == 0)
    out = c.slice(out, 0, 0, bags)
    return c.cast(out, c.dtype), *(None,) * (len(c.outs) - 1)
