"""Sums and the like, orders and products."""

from __future__ import annotations

from nnvm.dim import numel
from nnvm.dtype import F32, I64
from nnvm.frontend.mxnet.table import (
    Context,
    Refused,
    Results,
    axes_of,
    axis_of,
    cast,
    converts,
    cut,
    emit,
    like,
    rows,
    type_named,
)
from nnvm.graph import NodeEntry

__all__: list[str] = []

_REDUCTIONS = {"sum": "sum", "sum_axis": "sum", "mean": "mean", "max": "max", "max_axis": "max", "min": "min",
               "min_axis": "min", "prod": "prod"}  # fmt: skip


def _axes(c: Context, rank: int) -> tuple[int, ...]:
    axes = axes_of(c.attrs.integers("axis", None), rank)
    if c.attrs.flag("exclude", False):
        return tuple(a for a in range(rank) if a not in axes)
    return axes


def _with_an_axis(x: NodeEntry) -> NodeEntry:
    """Tensors of MXNet's have one axis at least."""
    return emit("reshape", x, shape=(1,)) if x.type.rank == 0 else x


@converts(*_REDUCTIONS)
def _reduce(c: Context) -> NodeEntry:
    x = c[0]
    keep = c.attrs.flag("keepdims", False)
    return _with_an_axis(emit(_REDUCTIONS[c.op], x, axis=_axes(c, x.type.rank), keepdims=keep))


@converts("nansum", "nanprod")
def _without_nan(c: Context) -> NodeEntry:
    x, neutral = c[0], 0 if c.op == "nansum" else 1
    kept = emit("where", emit("isnan", x), like(neutral, x), x)
    return _with_an_axis(emit(c.op[3:], kept, axis=_axes(c, x.type.rank), keepdims=c.attrs.flag("keepdims", False)))


@converts("norm")
def _norm(c: Context) -> NodeEntry:
    x, order = c[0], c.attrs.integer("ord", 2)
    axes, keep = axes_of(c.attrs.integers("axis", None), c[0].type.rank), c.attrs.flag("keepdims", False)
    if order == 1:
        return _with_an_axis(emit("sum", emit("abs", x), axis=axes, keepdims=keep))
    if order != 2:
        raise Refused(f"ord={order}")
    return _with_an_axis(emit("sqrt", emit("sum", emit("square", x), axis=axes, keepdims=keep)))


@converts("argmax", "argmin", "argmax_channel")
def _arg(c: Context) -> NodeEntry:
    """Positions, as floats."""
    x = c[0]
    axis, keep = c.attrs.integer("axis", None), c.attrs.flag("keepdims", False)
    if c.op == "argmax_channel":
        axis, keep = 1, False
    if axis is None:
        x, axis = emit("reshape", x, shape=(x.type.numel,)), 0
    found = emit("argmin" if c.op == "argmin" else "argmax", x, axis=axis_of(axis, x.type.rank), keepdims=keep)
    return _with_an_axis(cast(found, F32))


def _line(c: Context) -> tuple[NodeEntry, int]:
    """The data and the axis that it is put in order along."""
    x, axis = c[0], c.attrs.integer("axis", -1)
    if axis is None:
        return emit("reshape", x, shape=(x.type.numel,)), 0
    return x, axis_of(axis, x.type.rank)


@converts("sort", "argsort")
def _sort(c: Context) -> NodeEntry:
    x, axis = _line(c)
    found = emit(c.op, x, axis=axis, descending=not c.attrs.flag("is_ascend", True), stable=True)
    return found if c.op == "sort" else cast(found, type_named(c.attrs))


@converts("topk")
def _topk(c: Context) -> Results:
    (x, axis), k = _line(c), c.attrs.integer("k", 1)
    kind = c.attrs.choice("ret_typ", ("value", "indices", "both"), "indices")
    size = x.type.shape[axis]
    if isinstance(size, int) and not 0 < k <= size:
        k = size
    order = emit("argsort", x, axis=axis, descending=not c.attrs.flag("is_ascend", False), stable=True)
    first = cut(order, axis, 0, k)
    indices = cast(first, type_named(c.attrs))
    values = emit("gather", x, first, axis=axis)
    if kind == "both":
        return [values, indices]
    return values if kind == "value" else indices


# products


def _swapped(x: NodeEntry, wanted: bool) -> NodeEntry:
    rank = x.type.rank
    return emit("transpose", x, axes=(*range(rank - 2), rank - 1, rank - 2)) if wanted else x


@converts("dot")
def _dot(c: Context) -> NodeEntry:
    """The last axis of the first with the first axis of the second."""
    a, b = c[0], c[1]
    if c.attrs.flag("transpose_a", False):
        a = emit("transpose", a, axes=(*range(1, a.type.rank), 0)) if a.type.rank > 2 else _flipped(a)
    if c.attrs.flag("transpose_b", False):
        b = emit("transpose", b, axes=(b.type.rank - 1, *range(b.type.rank - 1))) if b.type.rank > 2 else _flipped(b)
    lead, rest, k = a.type.shape[:-1], b.type.shape[1:], b.type.shape[0]
    out = emit("matmul", emit("reshape", a, shape=(numel(lead), k)), rows(b))
    return emit("reshape", out, shape=(*lead, *rest) or (1,))


def _flipped(x: NodeEntry) -> NodeEntry:
    return emit("transpose", x, axes=(1, 0)) if x.type.rank == 2 else x


@converts("batch_dot", "_linalg_gemm2", "linalg_gemm2")
def _batch_dot(c: Context) -> NodeEntry:
    a, b = (_swapped(c[i], c.attrs.flag(f"transpose_{n}", False)) for i, n in ((0, "a"), (1, "b")))
    out = emit("matmul", a, b)
    alpha = c.attrs.number("alpha", 1.0)
    return out if alpha == 1 else emit("multiply", out, like(alpha, out))


@converts("cumsum")
def _cumsum(c: Context) -> NodeEntry:
    x, axis = c[0], c.attrs.integer("axis", None)
    if axis is None:
        x, axis = emit("reshape", x, shape=(x.type.numel,)), 0
    return emit("cumsum", x, axis=axis_of(axis, x.type.rank), dtype=type_named(c.attrs, default=x.type.dtype))


@converts("one_hot")
def _one_hot(c: Context) -> NodeEntry:
    dtype, depth = type_named(c.attrs), c.attrs.integer("depth")
    hot = cast(emit("equal", emit("expand_dims", cast(c[0], I64), axis=c[0].type.rank),
                    emit("arange", start=0, step=1, length=depth, dtype=I64)), dtype)  # fmt: skip
    on, off = c.attrs.number("on_value", 1.0), c.attrs.number("off_value", 0.0)
    if (on, off) == (1, 0):
        return hot
    return emit("add", emit("multiply", hot, like(on - off, hot)), like(off, hot))
