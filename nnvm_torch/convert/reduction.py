"""Reductions and scans. Half types accumulate in float32 inside the operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nnvm.dtype import F64, I64, DType
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Scalar, Unsupported, Value, converts, normal_axes, normal_axis

__all__ = ["check_ties"]

Axes = Sequence[int] | int | None


def _reduce(c: Context, name: str, x: NodeEntry, axes: Axes, keepdim: bool = False) -> NodeEntry:
    if x.type.rank == 0:  # one element: it is the answer, whatever axis was named
        return x
    return c.op(name, x, axis=normal_axes(axes, x.type.rank), keepdims=keepdim)


@converts("sum.default", "sum.dim_IntList", "prims.sum.default")
def _sum(c: Context, x: NodeEntry, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return c.cast(_reduce(c, "sum", c.cast(x, c.dtype), dim, keepdim), c.dtype)


@converts("mean.default", "mean.dim")
def _mean(c: Context, x: NodeEntry, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return _reduce(c, "mean", c.cast(x, c.dtype), dim, keepdim)


@converts("prod.default", "prod.dim_int", "prims.prod.default")
def _prod(c: Context, x: NodeEntry, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return c.cast(_reduce(c, "prod", c.cast(x, c.dtype), dim, keepdim), c.dtype)


@converts("amax.default", "max.default", "prims.amax.default")
def _amax(c: Context, x: NodeEntry, dim: Axes = None, keepdim: bool = False) -> Value:
    return _reduce(c, "max", x, dim, keepdim)


@converts("amin.default", "min.default", "prims.amin.default")
def _amin(c: Context, x: NodeEntry, dim: Axes = None, keepdim: bool = False) -> Value:
    return _reduce(c, "min", x, dim, keepdim)


@converts("any.default", "any.dim", "any.dims")
def _any(c: Context, x: NodeEntry, dim: Axes = None, keepdim: bool = False) -> Value:
    return c.cast(_reduce(c, "any", c.truth(x), dim, keepdim), c.dtype)


@converts("all.default", "all.dim", "all.dims")
def _all(c: Context, x: NodeEntry, dim: Axes = None, keepdim: bool = False) -> Value:
    return c.cast(_reduce(c, "all", c.truth(x), dim, keepdim), c.dtype)


def _arg(c: Context, name: str, x: NodeEntry, dim: int | None, keepdim: bool) -> NodeEntry:
    if x.type.rank == 0:
        return c.full((), 0, I64)
    axis = None if dim is None else normal_axis(dim, x.type.rank)
    return c.op(name, x, axis=axis, keepdims=keepdim)


@converts("argmax.default")
def _argmax(c: Context, x: NodeEntry, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(c, "argmax", x, dim, keepdim)


@converts("argmin.default")
def _argmin(c: Context, x: NodeEntry, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(c, "argmin", x, dim, keepdim)


@converts("max.dim")
def _max_dim(c: Context, x: NodeEntry, dim: int, keepdim: bool = False) -> Value:
    return _reduce(c, "max", x, dim, keepdim), _arg(c, "argmax", x, dim, keepdim)


@converts("min.dim")
def _min_dim(c: Context, x: NodeEntry, dim: int, keepdim: bool = False) -> Value:
    return _reduce(c, "min", x, dim, keepdim), _arg(c, "argmin", x, dim, keepdim)


@converts("aminmax.default")
def _aminmax(c: Context, x: NodeEntry, *, dim: int | None = None, keepdim: bool = False) -> Value:
    return _reduce(c, "min", x, dim, keepdim), _reduce(c, "max", x, dim, keepdim)


def _variance(c: Context, x: NodeEntry, dim: Axes, correction: Scalar | None, keepdim: bool) -> NodeEntry:
    one = 1 if correction is None else correction
    if not isinstance(one, (int, float)):
        raise Unsupported("a symbolic correction")
    if x.type.rank == 0:
        x, dim, keepdim = c.reshape(x, (1,)), None, False
    return c.op("variance", x, axis=normal_axes(dim, x.type.rank), correction=float(one), keepdims=keepdim)


def _wide(c: Context, x: NodeEntry) -> NodeEntry:
    """`x` in the type that eager computes moments in: float64 on a CPU (the variance of very small or large float32
    numbers has no float32), float32 on a GPU."""
    return c.cast(x, F64) if c.args[0].device.type == "cpu" else c.compute(x)


@converts("var.correction", "prims.var.default")
def _var(c: Context, x: NodeEntry, dim: Axes = None, correction: Scalar | None = None, keepdim: bool = False) -> Value:
    return c.cast(_variance(c, _wide(c, x), dim, correction, keepdim), c.dtype)


@converts("std.correction")
def _std(c: Context, x: NodeEntry, dim: Axes = None, *, correction: Scalar | None = None,
         keepdim: bool = False) -> Value:  # fmt: skip
    return c.cast(c.op("sqrt", _variance(c, _wide(c, x), dim, correction, keepdim)), c.dtype)


@converts("var_mean.correction")
def _var_mean(c: Context, x: NodeEntry, dim: Axes = None, *, correction: Scalar | None = None,
              keepdim: bool = False) -> Value:  # fmt: skip
    wide = _wide(c, x)
    moments = _variance(c, wide, dim, correction, keepdim), _reduce(c, "mean", wide, dim, keepdim)
    return tuple(c.cast(m, c.dtype) for m in moments)


@converts("logsumexp.default")
def _logsumexp(c: Context, x: NodeEntry, dim: Axes, keepdim: bool = False) -> Value:
    if x.type.rank == 0:
        return c.cast(x, c.dtype)
    return _reduce(c, "logsumexp", c.cast(x, c.dtype), dim, keepdim)


@converts("linalg_vector_norm.default")
def _vector_norm(c: Context, x: NodeEntry, ord: float = 2, dim: Axes = None, keepdim: bool = False, *,
                 dtype: Any = None) -> Value:  # fmt: skip
    x = c.cast(x, c.dtype.compute)
    if x.type.rank == 0 and ord != 0:
        return c.cast(c.op("abs", x), c.dtype)
    size = c.op("abs", x)
    if math.isinf(ord):
        return c.cast(_reduce(c, "max" if ord > 0 else "min", size, dim, keepdim), c.dtype)
    t = x.type.dtype
    if ord == 0:
        some = c.cast(c.op("not_equal", x, c.const(0, t)), t)
        return c.cast(_reduce(c, "sum", some, dim, keepdim), c.dtype)
    if ord == 1:
        return c.cast(_reduce(c, "sum", size, dim, keepdim), c.dtype)
    if ord == 2:
        return c.cast(c.op("sqrt", _reduce(c, "sum", c.op("square", x), dim, keepdim)), c.dtype)
    powers = _reduce(c, "sum", c.op("power", size, c.const(ord, t)), dim, keepdim)
    return c.cast(c.op("power", powers, c.const(1.0 / ord, t)), c.dtype)


def check_ties(c: Context, t: DType) -> None:
    """Unsupported where the places of selected elements are wanted and many elements are equal: which of them a
    selection names is nowhere said, and eager's choice is that of its own algorithm."""
    if c.used[1] and (not t.is_float or t.is_half):
        raise Unsupported(f"the place of a selected one among {t} elements, of which many are equal")


def _scan(c: Context, name: str, x: NodeEntry, dim: int) -> NodeEntry:
    x = c.cast(x, c.dtype)
    return x if x.type.rank == 0 else c.op(name, x, axis=normal_axis(dim, x.type.rank), dtype=c.dtype)


@converts("cumsum.default")
def _cumsum(c: Context, x: NodeEntry, dim: int, *, dtype: Any = None) -> Value:
    return _scan(c, "cumsum", x, dim)


@converts("cumprod.default")
def _cumprod(c: Context, x: NodeEntry, dim: int, *, dtype: Any = None) -> Value:
    return _scan(c, "cumprod", x, dim)


def _row(name: str) -> Any:
    def convert(c: Context, x: NodeEntry, dim: int, *_: Any, **__: Any) -> Value:
        x = c.cast(x, c.dtype)
        if x.type.rank == 0:
            return c.reshape(c.op(name, c.reshape(x, (1,)), axis=0), ())
        return c.op(name, x, axis=normal_axis(dim, x.type.rank))

    return convert


converts("_softmax.default", "softmax.int")(_row("softmax"))
converts("_log_softmax.default", "log_softmax.int")(_row("log_softmax"))


@converts("topk.default")
def _topk(c: Context, x: NodeEntry, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Value:
    if x.type.rank == 0:
        return x, c.full((), 0, I64)
    check_ties(c, x.type.dtype)
    return c.op_outputs("topk", x, k=k, axis=normal_axis(dim, x.type.rank), largest=largest)


@converts("sort.default")
def _sort(c: Context, x: NodeEntry, dim: int = -1, descending: bool = False) -> Value:
    return _sort_stable(c, x, dim=dim, descending=descending)


@converts("sort.stable")
def _sort_stable(c: Context, x: NodeEntry, *, stable: bool | None = None, dim: int = -1,
                 descending: bool = False) -> Value:  # fmt: skip
    if x.type.rank == 0:
        return x, c.full((), 0, I64)
    if not stable:
        check_ties(c, x.type.dtype)
    axis = normal_axis(dim, x.type.rank)
    return c.op_outputs("sort", x, axis=axis, descending=descending, stable=True)


@converts("dist.default")
def _dist(c: Context, x: NodeEntry, y: NodeEntry, p: float = 2) -> Value:
    return _vector_norm(c, c.op("subtract", c.cast(x, c.dtype), c.cast(y, c.dtype)), p)
