"""Writing at positions, and what is told from values that are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnvm.dim import is_static, numel
from nnvm.dtype import I64
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.indexing import REDUCE, coordinates
from nnvm.frontend.onnx.table import Context, Unsupported, axis_of, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@converts("ScatterND")
def scatter_nd(c: Context) -> NodeEntry:
    data, indices, updates = c[0], c[1], c[2]
    reduction = c.attrs.get("reduction", "none")
    at = coordinates(data, indices, 0)
    if reduction in ("none", "add"):
        return emit("index_put", data, updates, *at, axes=tuple(range(len(at))), accumulate=reduction == "add")
    if not is_static(data.type.shape):
        raise Unsupported(f"reduction {reduction} into a tensor of symbolic shape")
    # rows of a matrix: the indexed axes, all others
    lead, rest = data.type.shape[: len(at)], numel(data.type.shape[len(at) :])
    row = at[0]
    for position, size in zip(at[1:], lead[1:]):
        row = emit("add", emit("multiply", row, scalar(size, I64)), position)
    count = row.type.numel
    index = emit("broadcast_to", emit("reshape", row, shape=(count, 1)), shape=(count, rest))
    table = emit("reshape", data, shape=(numel(lead), rest))
    source = emit("reshape", updates, shape=(count, rest))
    written = emit("scatter", table, index, source, axis=0, reduce=REDUCE[reduction])
    return emit("reshape", written, shape=data.type.shape)


@converts("ReverseSequence")
def reverse_sequence(c: Context) -> NodeEntry:
    x, lengths = c[0], cast(c[1], I64)
    time, batch = c.attrs.get("time_axis", 0), c.attrs.get("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise Unsupported(f"time axis {time} and batch axis {batch}")
    n, entries = x.type.shape[time], x.type.shape[batch]
    if not isinstance(n, int) or not isinstance(entries, int):
        raise Unsupported("sequences of symbolic shape")
    along = [1, 1]
    along[time] = n
    position = of_array(np.arange(n).reshape(along), I64)
    along = [1, 1]
    along[batch] = entries
    lengths = emit("reshape", lengths, shape=tuple(along))
    mirrored = emit("subtract", emit("subtract", lengths, scalar(1, I64)), position)
    source = emit("where", emit("less", position, lengths), mirrored, position)
    which = of_array(np.arange(entries).reshape(along), I64)
    return emit("index", x, *((source, which) if time == 0 else (which, source)), axes=(0, 1))


@converts("TensorScatter")
def tensor_scatter(c: Context) -> NodeEntry:
    """A cache with a stretch of one axis overwritten, from a place that each entry of the batch tells."""
    cache, update = c[0], c[1]
    rank = cache.type.rank
    axis = axis_of(c.attrs.get("axis", -2), rank)
    batch, room, count = cache.type.shape[0], cache.type.shape[axis], update.type.shape[axis]
    if axis == 0 or not is_static((batch, room, count)):
        raise Unsupported("a cache of symbolic shape, or one that is written along its batch axis")
    start = cast(c[2], I64) if c.has(2) else of_array(np.zeros(int(batch), np.int64), I64)  # type: ignore[arg-type]
    at = emit("add", emit("reshape", start, shape=(batch, 1)), of_array(np.arange(int(count))[None], I64))  # type: ignore[arg-type]
    if c.attrs.get("mode", "linear") == "circular":
        at = emit("remainder", at, scalar(room, I64))
    which = of_array(np.arange(int(batch))[:, None], I64)  # type: ignore[arg-type]
    order = (0, axis, *(i for i in range(1, rank) if i != axis))
    table, rows = (emit("transpose", v, axes=order) for v in (cache, update))
    written = emit("index_put", table, rows, which, at, axes=(0, 1), accumulate=False)
    return emit("transpose", written, axes=tuple(int(i) for i in np.argsort(order)))


@converts("MaxUnpool")
def max_unpool(c: Context) -> NodeEntry:
    x, indices = c[0], cast(c[1], I64)
    kernel = c.attrs["kernel_shape"]
    rank = len(kernel)
    strides, pads = c.attrs.get("strides", (1,) * rank), c.attrs.get("pads", (0,) * (2 * rank))
    if not is_static(x.type.shape):
        raise Unsupported("a symbolic shape")
    extents = [(n - 1) * s - pads[i] - pads[rank + i] + k
               for i, (n, s, k) in enumerate(zip(x.type.shape[2:], strides, kernel))]  # fmt: skip
    shape = (*x.type.shape[:2], *extents)
    empty = emit("full", shape=(numel(shape),), dtype=x.type.dtype, value=0)
    flat = (emit("reshape", v, shape=(x.type.numel,)) for v in (x, indices))
    out = emit("reshape", emit("index_put", empty, *flat, axes=(0,), accumulate=False), shape=shape)
    if not c.has(2):
        return out
    more = [w - n for w, n in zip(c.ints(2, "output_shape"), shape)]  # type: ignore[operator]
    if any(m < 0 for m in more):
        raise Unsupported("an output_shape smaller than what the windows cover")
    return emit("pad", out, pad_width=tuple((0, m) for m in more), mode="constant", value=0)


@converts("Col2Im")
def col2im(c: Context) -> NodeEntry:
    size, kernel = c.ints(1, "image_shape"), c.ints(2, "block_shape")
    rank = len(size)
    pads = c.attrs.get("pads", (0,) * (2 * rank))
    return emit("col2im", c[0], output_size=size, kernel_size=kernel, padding=tuple(zip(pads[:rank], pads[rank:])),
                strides=tuple(c.attrs.get("strides", (1,) * rank)),
                dilation=tuple(c.attrs.get("dilations", (1,) * rank)))  # fmt: skip


@converts("NonZero")
def non_zero(c: Context) -> NodeEntry:
    """Of values that are known: how many there are decides the shape."""
    return of_array(np.stack(np.nonzero(np.atleast_1d(c.value(0, "what is looked through")))).astype(np.int64), I64)


@converts("Unique")
def unique(c: Context) -> list[NodeEntry | None]:
    """Of values that are known."""
    x, t = c.value(0, "the values"), c[0].type.dtype
    if t.is_half:
        raise Unsupported(f"elements of type {t}")
    axis = c.attrs.get("axis")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    if not c.attrs.get("sorted", 1):
        order = np.argsort(first)
        rank = np.argsort(order)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    indices = (of_array(a.ravel().astype(np.int64), I64) for a in (first, inverse, counts))
    return [of_array(values, t), *indices]


@converts("Det")
def det(c: Context) -> NodeEntry:
    """By cofactors, so up to 4 rows."""
    x = c[0]
    n = x.type.shape[-1]
    if not isinstance(n, int) or x.type.shape[-2] != n or not 1 <= n <= 4:
        raise Unsupported(f"the determinant of {x.type}")
    batch, last = x.type.shape[:-2], x.type.rank - 2
    entries = [[_entry(x, last, i, j, batch) for j in range(n)] for i in range(n)]
    return _det(entries, list(range(n)))


def _entry(x: NodeEntry, last: int, i: int, j: int, batch: tuple[Any, ...]) -> NodeEntry:
    begin, end = [0] * x.type.rank, list(x.type.shape)
    begin[last:], end[last:] = [i, j], [i + 1, j + 1]
    part = emit("slice", x, begin=tuple(begin), end=tuple(end), step=(1,) * x.type.rank)
    return emit("reshape", part, shape=batch)


def _det(rows: list[list[NodeEntry]], columns: list[int]) -> NodeEntry:
    if len(columns) == 1:
        return rows[0][columns[0]]
    total: NodeEntry | None = None
    for k, j in enumerate(columns):
        term = emit("multiply", rows[0][j], _det(rows[1:], columns[:k] + columns[k + 1 :]))
        total = term if total is None else emit("subtract" if k % 2 else "add", total, term)
    assert total is not None
    return total
