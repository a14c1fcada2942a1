"""Order statistics and running extremes."""

from __future__ import annotations

from typing import Any

from nnvm.dtype import I64, DType
from nnvm.graph import NodeEntry
from nnvm_torch.convert.reduction import check_ties
from nnvm_torch.convert.table import Context, Scalar, Unsupported, Value, converts, normal_axis

__all__: list[str] = []


def _running(name: str) -> Any:
    def convert(c: Context, x: NodeEntry, dim: int) -> Value:
        if x.type.rank == 0:
            return x, c.full((), 0, I64)
        return c.op_outputs(name, x, axis=normal_axis(dim, x.type.rank))

    return convert


converts("cummax.default")(_running("cummax"))
converts("cummin.default")(_running("cummin"))


@converts("logcumsumexp.default")
def _logcumsumexp(c: Context, x: NodeEntry, dim: int) -> Value:
    return x if x.type.rank == 0 else c.op("logcumsumexp", x, axis=normal_axis(dim, x.type.rank))


def _picked(c: Context, x: NodeEntry, axis: int, place: int, keepdim: bool) -> tuple[NodeEntry, NodeEntry]:
    """Element `place` of the sorted lines along `axis`, and where it was."""
    values, order = c.op_outputs("sort", x, axis=axis, descending=False, stable=True)
    found = c.slice(values, axis, place, 1), c.slice(order, axis, place, 1)
    return tuple(c.reshape(f, t.shape) for f, t in zip(found, c.outs))  # type: ignore[return-value]


@converts("kthvalue.default")
def _kthvalue(c: Context, x: NodeEntry, k: Any, dim: int = -1, keepdim: bool = False) -> Value:
    if x.type.rank == 0:
        return x, c.full((), 0, I64)
    if c.used[1]:  # that of an element among equal ones, or of one NaN of several, is a matter of eager's own search
        raise Unsupported("the place of the k-th element")
    if not isinstance(k, int):
        raise Unsupported("a symbolic k")
    return _picked(c, x, normal_axis(dim, x.type.rank), k - 1, keepdim)


@converts("median.dim")
def _median_dim(c: Context, x: NodeEntry, dim: int, keepdim: bool = False) -> Value:
    if x.type.rank == 0:
        return x, c.full((), 0, I64)
    t = x.type.dtype
    check_ties(c, t)
    axis = normal_axis(dim, x.type.rank)
    n = x.type.shape[axis]
    if not isinstance(n, int) or n == 0:
        raise Unsupported(f"a median of {n} elements")
    values, places = _picked(c, x, axis, (n - 1) // 2, keepdim)
    if not t.is_float:
        return values, places
    # a NaN is the median, and its place that of the first one
    nan = c.op("isnan", x)
    spoilt = c.reshape(c.op("any", nan, axis=(axis,), keepdims=False), c.outs[0].shape)
    first = c.reshape(c.op("argmax", nan, axis=axis, keepdims=False), c.outs[0].shape)
    return c.op("where", spoilt, c.const(float("nan"), t), values), c.op("where", spoilt, first, places)


@converts("median.default")
def _median(c: Context, x: NodeEntry) -> Value:
    n = x.type.numel
    if not isinstance(n, int) or n == 0:
        raise Unsupported(f"a median of {n} elements")
    flat = c.reshape(x, (n,))
    values = c.op("sort", flat, axis=0, descending=False, stable=True)
    middle = c.reshape(c.slice(values, 0, (n - 1) // 2, 1), ())
    if not x.type.dtype.is_float:
        return middle
    last = c.reshape(c.slice(values, 0, n - 1, 1), ())  # NaN sorts last
    return c.op("where", c.op("isnan", last), last, middle)


def _nan_middle(c: Context, x: NodeEntry, axis: int) -> tuple[NodeEntry, NodeEntry, NodeEntry]:
    """Sorted values and order along `axis`, and the place of the median of those that are not NaN."""
    values, order = c.op_outputs("sort", x, axis=axis, descending=False, stable=True)
    numbers = c.cast(c.op("logical_not", c.op("isnan", x)), I64)
    count = c.op("sum", numbers, axis=(axis,), keepdims=True)
    below = c.op("maximum", c.op("subtract", count, c.const(1, I64)), c.const(0, I64))
    return values, order, c.op("floor_divide", below, c.const(2, I64))


@converts("nanmedian.dim")
def _nanmedian_dim(c: Context, x: NodeEntry, dim: int, keepdim: bool = False) -> Value:
    if x.type.rank == 0 or not x.type.dtype.is_float:
        return _median_dim(c, x, dim, keepdim)
    check_ties(c, x.type.dtype)
    axis = normal_axis(dim, x.type.rank)
    if x.type.shape[axis] == 0:
        raise Unsupported("a median of no elements")
    values, order, place = _nan_middle(c, x, axis)
    found = (c.op("gather", v, place, axis=axis) for v in (values, order))
    return tuple(c.reshape(f, t.shape) for f, t in zip(found, c.outs))


@converts("nanmedian.default")
def _nanmedian(c: Context, x: NodeEntry) -> Value:
    if not x.type.dtype.is_float:
        return _median(c, x)
    n = x.type.numel
    if not isinstance(n, int) or n == 0:
        raise Unsupported(f"a median of {n} elements")
    values, _, place = _nan_middle(c, c.reshape(x, (n,)), 0)
    return c.reshape(c.op("gather", values, place, axis=0), ())


@converts("bucketize.Tensor")
def _bucketize(c: Context, x: NodeEntry, edges: NodeEntry, *, out_int32: bool = False, right: bool = False) -> Value:
    return _search(c, edges, x, c.result_type(*c.args[:2]), right)


@converts("bucketize.Scalar")
def _bucketize_one(c: Context, x: Scalar, edges: NodeEntry, *, out_int32: bool = False, right: bool = False) -> Value:
    t = c.result_type(*c.args[:2])
    return _search(c, edges, c.value(x, t), t, right)


@converts("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(c: Context, edges: NodeEntry, x: NodeEntry | Scalar, *, out_int32: bool = False, right: bool = False,
                  side: str | None = None, sorter: NodeEntry | None = None) -> Value:  # fmt: skip
    t = c.result_type(*c.args[:2])
    if sorter is not None:
        edges = c.op("gather", edges, sorter, axis=edges.type.rank - 1)
    return _search(c, edges, c.value(x, t), t, right or side == "right")


def _search(c: Context, edges: NodeEntry, values: NodeEntry, t: DType, right: bool) -> NodeEntry:
    flat = c.reshape(values, (1,)) if values.type.rank == 0 else values
    found = c.op("searchsorted", c.cast(edges, t), c.cast(flat, t), right=right)
    return c.cast(c.reshape(found, values.type.shape), c.dtype)
