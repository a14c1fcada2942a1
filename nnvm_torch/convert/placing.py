"""Writing elements to places that are computed: masks, flat positions, diagonals, pooled maxima put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnvm.dim import numel
from nnvm.dtype import BOOL, I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.shape_edit import check_apart
from nnvm_torch.convert.table import Context, Unsupported, Value, converts, normal_axis

__all__: list[str] = []


@converts("masked_scatter.default")
def _masked_scatter(c: Context, x: NodeEntry, mask: NodeEntry, source: NodeEntry) -> Value:
    """The k-th place where the mask holds gets element k of the source; one too few in it is an index error."""
    n = numel(c.shape)
    x, mask = c.broadcast(c.cast(x, c.dtype), c.shape), c.broadcast(mask, c.shape)
    if source.type.numel == 0 or n == 0:
        raise Unsupported("masked_scatter of nothing")
    flat = c.reshape(mask, (n,))
    place = c.op("subtract", c.op("cumsum", c.cast(flat, I64), axis=0), c.const(1, I64))
    place = c.op("where", flat, place, c.const(0, I64))
    taken = c.op("take", c.reshape(source, (source.type.numel,)), place, axis=0, mode="raise")
    return c.op("where", mask, c.reshape(c.cast(taken, c.dtype), c.shape), x)


@converts("put.default")
def _put(c: Context, x: NodeEntry, index: NodeEntry, source: NodeEntry, accumulate: bool = False) -> Value:
    n, count = x.type.numel, index.type.numel
    parts = c.reshape(x, (n,)), c.reshape(c.cast(source, c.dtype), (count,)), c.reshape(c.cast(index, I64), (count,))
    return c.reshape(c.op("index_put", *parts, axes=(0,), accumulate=accumulate), c.shape)


@converts("diagonal_scatter.default")
def _diagonal_scatter(c: Context, x: NodeEntry, source: NodeEntry, offset: int = 0, dim1: int = 0,
                      dim2: int = 1) -> Value:  # fmt: skip
    check_apart(c.args[0])
    rank = x.type.rank
    a, b = normal_axis(dim1, rank), normal_axis(dim2, rank)
    rows, cols, length = x.type.shape[a], x.type.shape[b], source.type.shape[-1]
    if not all(isinstance(d, int) for d in (rows, cols, length)):
        raise Unsupported("a diagonal of symbolic length")
    if length == 0:
        return x
    others = [i for i in range(rank) if i not in (a, b)]
    order = (*others, a, b)
    last = c.transpose(x, order)
    # element k of the diagonal belongs to row k + max(-offset, 0): spread over rows, it is taken where the mask holds
    begin = max(-offset, 0)
    lead = tuple(x.type.shape[i] for i in others)
    padded = c.op("pad", c.cast(source, c.dtype), pad_width=(*((0, 0),) * len(lead), (begin, rows - begin - length)),
                  mode="constant", value=0)  # fmt: skip
    mask = c.const_tensor(np.eye(rows, cols, offset, dtype=np.bool_), BOOL)  # type: ignore[arg-type]
    written = c.op("where", mask, c.reshape(padded, (*lead, rows, 1)), last)
    return c.transpose(c.broadcast(written, last.type.shape), [order.index(i) for i in range(rank)])


@converts("max_unpool3d.default")
def _max_unpool3d(c: Context, x: NodeEntry, index: NodeEntry, size: Sequence[int], *_: Any) -> Value:
    """Values put back where pooling took them. (max_unpool2d, of more memory formats than one, is decomposed.)"""
    lead, spatial = c.shape[:-3], numel(c.shape[-3:])
    taken = numel(x.type.shape[-3:])
    if 0 in (*x.type.shape, *c.shape):
        raise Unsupported("unpooling of an empty tensor")
    rows = [c.reshape(t, (*lead, taken)) for t in (index, x)]
    zeros = c.full((*lead, spatial), 0, c.dtype)
    return c.reshape(c.op("scatter", zeros, *rows, axis=len(lead), reduce="none", include_self=True), c.shape)


@converts("_cdist_forward.default")
def _cdist(c: Context, x: NodeEntry, y: NodeEntry, p: float, compute_mode: int | None = None) -> Value:
    """Distances of all pairs of rows."""
    t = c.dtype
    x, y = (c.cast(v, t.compute) for v in (x, y))
    m, d = y.type.shape[-2:]
    if d == 0:
        return c.full(c.shape, 0, t)
    left = c.reshape(x, (*x.type.shape[:-1], 1, d))
    right = c.reshape(y, (*y.type.shape[:-2], 1, m, d))
    return c.cast(_norm(c, c.op("abs", c.op("subtract", left, right)), float(p)), t)


@converts("_pdist_forward.default")
def _pdist(c: Context, x: NodeEntry, p: float = 2) -> Value:
    n, d = x.type.shape
    if not isinstance(n, int) or n < 2 or d == 0:
        raise Unsupported(f"distances of {n} rows of {d} elements")
    pairs = np.triu_indices(n, 1)
    rows = [c.op("take", x, c.const_tensor(i.astype(np.int64), I64), axis=0, mode="clip") for i in pairs]
    return c.cast(_norm(c, c.op("abs", c.op("subtract", *rows)), float(p)), c.dtype)


def _norm(c: Context, size: NodeEntry, p: float) -> NodeEntry:
    """The p-norm along the last axis of sizes that are at least 0."""
    axis, t = (size.type.rank - 1,), size.type.dtype
    if p == float("inf"):
        return c.op("max", size, axis=axis, keepdims=False)
    if p == 0:
        return c.op("sum", c.cast(c.op("not_equal", size, c.const(0, t)), t), axis=axis, keepdims=False)
    if p == 1:
        return c.op("sum", size, axis=axis, keepdims=False)
    if p == 2:
        return c.op("sqrt", c.op("sum", c.op("square", size), axis=axis, keepdims=False))
    total = c.op("sum", c.op("power", size, c.const(p, t)), axis=axis, keepdims=False)
    return c.op("power", total, c.const(1 / p, t))
