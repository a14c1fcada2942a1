"""Reductions over axes. Half types accumulate in float32, integers and bools in int64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, numel
from nnvm.dtype import BOOL, I64, U8, DType
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import as_float, over, reduce_axes, rounded
from nnvm.ops.params import axis_param, element_type, integer, keepdims_param, number, optional
from nnvm.ops.shape_rules import check_kind, reduced_shape, resolve_axes, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import IterVar, Tensor

__all__ = ["mean_stage", "reduce_stage", "squared_deviation_stage"]

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]
Combine = Callable[[Expr, Sequence[IterVar]], te.Reduce]
_AXES = {"axis": axis_param, "keepdims": keepdims_param}


def reduce_stage(
    x: Tensor, axes: Sequence[int], keepdims: bool, name: str, combine: Combine,
    element: Callable[[tuple[Expr, ...]], Expr] | None = None, attrs: dict[str, Any] | None = None,
) -> Tensor:  # fmt: skip
    """One stage that combines `element(indices of x)`, by default x itself in its compute type, over `axes`."""
    reduced = reduce_axes([x.shape[a] for a in axes])

    def body(*i: Expr) -> Expr:
        at = full_index(i, axes, [r.var for r in reduced], len(x.shape), keepdims)
        return combine(te.cast(x[at], x.dtype.compute) if element is None else element(at), reduced)

    if not reduced:
        return over(x.shape, name, lambda *i: te.cast(x[i], x.dtype.compute) if element is None else element(i), attrs)
    return over(reduced_shape(x.shape, axes, keepdims), name, body, attrs)


def full_index(
    kept: Sequence[Expr], axes: Sequence[int], reduced: Sequence[Expr], rank: int, keepdims: bool
) -> tuple[Expr, ...]:
    """Indices of the unreduced tensor from those of the reduced one and the reduce variables."""
    inner = iter(reduced)
    outer = iter(kept)
    out: list[Expr] = []
    for d in range(rank):
        if d in axes:
            out.append(next(inner))
            if keepdims:
                next(outer)
        else:
            out.append(next(outer))
    return tuple(out)


def kept_index(full: Sequence[Expr], axes: Sequence[int], keepdims: bool) -> tuple[Expr, ...]:
    """Indices of the reduced tensor at an element of the unreduced one."""
    return tuple(te.const(0) if d in axes else e for d, e in enumerate(full) if keepdims or d not in axes)


def mean_stage(
    x: Tensor, axes: Sequence[int], keepdims: bool, name: str, attrs: dict[str, Any] | None = None
) -> Tensor:
    """The mean over `axes` in x's compute type: a sum and a division."""
    total = reduce_stage(x, axes, keepdims, f"{name}_sum", te.sum, attrs=attrs)
    count = numel(tuple(x.shape[a] for a in axes))
    return over(total.shape, name, lambda *i: total[i] / as_float(count, total.dtype), attrs)


def squared_deviation_stage(
    x: Tensor, mean: Tensor, axes: Sequence[int], keepdims: bool, name: str, attrs: dict[str, Any] | None = None
) -> Tensor:
    """The sum of (x - mean)² over `axes`: the second pass of a variance."""

    def element(at: tuple[Expr, ...]) -> Expr:
        d = te.cast(x[at], mean.dtype) - mean[kept_index(at, axes, keepdims)]
        return d * d

    return reduce_stage(x, axes, keepdims, name, te.sum, element, attrs)


def _axes_of(attrs: Attrs, rank: int) -> tuple[int, ...]:
    axis = attrs["axis"]
    return resolve_axes((axis,) if isinstance(axis, int) else axis, rank)


def _reduced(attrs: Attrs, x: TensorType, dtype: DType) -> Types:
    shape = reduced_shape(x.shape, _axes_of(attrs, x.rank), attrs["keepdims"])
    return (TensorType(shape, dtype, x.device),)


def _not_empty(attrs: Attrs, x: TensorType) -> None:
    if any(x.shape[a] == 0 for a in _axes_of(attrs, x.rank)):
        raise ValueError(f"nothing to reduce: the shape {show(x.shape)} has extent 0 along axis {attrs['axis']}")


def _accumulated(attrs: Attrs, t: DType) -> DType:
    """Result type of sum and prod."""
    return attrs["dtype"] or (t if t.is_float else I64)


def _over_axes(fn: Callable[..., Any]) -> Callable[..., tuple[Any]]:
    """A reference that calls numpy with (array, axis=, keepdims=)."""
    return lambda attrs, x: (fn(x, axis=_axes_of(attrs, x.ndim), keepdims=attrs["keepdims"]),)


def _accumulate(name: str, combine: Combine, reference: Callable[..., Any], doc: str) -> None:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        t = outputs[0].dtype
        inner = reduce_stage(x, _axes_of(attrs, len(x.shape)), attrs["keepdims"], name, combine,
                             lambda at: te.cast(x[at], t.compute))  # fmt: skip
        return [rounded(inner, t)]

    def in_numpy(attrs: Attrs, x: Array) -> tuple[Any]:
        t = attrs["dtype"]
        wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64) if t is None else x.astype(t.compute.numpy)
        if wide.dtype.kind == "b":
            fn = np.any if combine is te.sum else np.all
            return (fn(wide, axis=_axes_of(attrs, x.ndim), keepdims=attrs["keepdims"]),)
        out = reference(wide, axis=_axes_of(attrs, x.ndim), keepdims=attrs["keepdims"], dtype=wide.dtype)
        return (out,)

    register(
        name, inputs=["data"], doc=doc, pattern=OpPattern.REDUCE, compute=compute, reference=in_numpy,
        params={**_AXES, "dtype": Param("of the result; None: the input's, int64 for ints and bools",
                                        optional(element_type), None)},
        infer_type=lambda attrs, inputs: _reduced(attrs, inputs[0], _accumulated(attrs, inputs[0].dtype)),
        flops=lambda attrs, inputs, outputs: inputs[0].numel,
    )  # fmt: skip


_accumulate("sum", te.sum, np.sum, "The sum over axes; 0 for an empty one.")
_accumulate("prod", te.prod, np.prod, "The product over axes; 1 for an empty one.")


def _mean_type(attrs: Attrs, inputs: Types) -> Types:
    check_kind(inputs[0], "f")
    return _reduced(attrs, inputs[0], inputs[0].dtype)


def _mean_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    x = inputs[0]
    return [rounded(mean_stage(x, _axes_of(attrs, len(x.shape)), attrs["keepdims"], "mean"), outputs[0].dtype)]


def _mean_array(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = math.prod(x.shape[a] for a in axis)
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=np.float64) / np.float64(count)


register(
    "mean", inputs=["data"], params=_AXES, doc="The arithmetic mean over axes; NaN for an empty one.",
    infer_type=_mean_type, pattern=OpPattern.REDUCE, compute=_mean_compute, reference=_over_axes(_mean_array),
    flops=lambda attrs, inputs, outputs: inputs[0].numel,
)  # fmt: skip


def _extreme(name: str, combine: Combine, reference: Callable[..., Any], doc: str) -> None:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        _not_empty(attrs, inputs[0])
        return _reduced(attrs, inputs[0], inputs[0].dtype)

    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        how = {"max": te.any, "min": te.all}[name] if x.dtype.is_bool else combine
        stage = reduce_stage(x, _axes_of(attrs, len(x.shape)), attrs["keepdims"], name, how)
        return [rounded(stage, x.dtype)]

    register(
        name, inputs=["data"], params=_AXES, doc=doc, infer_type=infer_type, pattern=OpPattern.REDUCE, compute=compute,
        reference=_over_axes(reference), flops=lambda attrs, inputs, outputs: inputs[0].numel,
    )  # fmt: skip


_extreme("max", te.max, np.max, "The greatest element over axes; NaN where there is one.")
_extreme("min", te.min, np.min, "The least element over axes; NaN where there is one.")


def _truth(name: str, combine: Combine, reference: Callable[..., Any], doc: str) -> None:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        axes = _axes_of(attrs, len(x.shape))
        return [reduce_stage(x, axes, attrs["keepdims"], name, combine, lambda at: te.cast(x[at], BOOL))]

    register(
        name, inputs=["data"], params=_AXES, doc=doc, pattern=OpPattern.REDUCE, compute=compute,
        infer_type=lambda attrs, inputs: _reduced(attrs, inputs[0], BOOL), reference=_over_axes(reference),
    )  # fmt: skip


_truth("any", te.any, np.any, "Is any element not 0 (NaN is not); false for an empty axis.")
_truth("all", te.all, np.all, "Is every element not 0; true for an empty axis.")


def _argument(name: str, combine: Callable[[Expr, Expr, Sequence[IterVar]], te.Reduce], pick: Any, doc: str) -> None:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        _not_empty(attrs, inputs[0])
        return _reduced(attrs, inputs[0], I64)

    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        axes = _axes_of(attrs, len(x.shape))
        as_number = U8 if x.dtype.is_bool else x.dtype.compute
        if not axes:
            return [over(x.shape, name, lambda *i: te.const(0, I64))]
        reduced = reduce_axes([x.shape[a] for a in axes])

        def body(*i: Expr) -> Expr:
            at = full_index(i, axes, [r.var for r in reduced], len(x.shape), attrs["keepdims"])
            return combine(te.cast(x[at], as_number), _row_major([r.var for r in reduced], [r.extent for r in reduced]),
                           reduced)  # fmt: skip

        return [over(outputs[0].shape, name, body)]

    def reference(attrs: Attrs, x: Array) -> tuple[Any]:
        axes = _axes_of(attrs, x.ndim)
        kept = [d for d in range(x.ndim) if d not in axes]
        together = math.prod(x.shape[d] for d in axes)
        flat = np.transpose(x, [*kept, *axes]).reshape([*(x.shape[d] for d in kept), together])
        out = pick(flat, axis=-1) if axes else np.zeros(x.shape, np.int64)
        return (out.reshape(reduced_shape(x.shape, axes, attrs["keepdims"])),)

    register(
        name, inputs=["data"], doc=doc, infer_type=infer_type, pattern=OpPattern.REDUCE, compute=compute,
        reference=reference,
        params={**_AXES, "axis": Param("axis searched; None: all, as if flat", optional(integer), None)},
    )  # fmt: skip


def _row_major(indices: Sequence[Expr], extents: Sequence[Dim]) -> Expr:
    """The position of an element in a contiguous array."""
    out: Expr = indices[0]
    for i, extent in zip(indices[1:], extents[1:]):
        out = out * te.const(extent) + i
    return out


_argument("argmax", te.argmax, np.argmax, "Where the greatest element is: the first of equal ones, the first NaN.")
_argument("argmin", te.argmin, np.argmin, "Where the least element is: the first of equal ones, the first NaN.")


def _variance_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axes, keepdims = _axes_of(attrs, len(x.shape)), attrs["keepdims"]
    mean = mean_stage(x, axes, keepdims, "mean")
    squares = squared_deviation_stage(x, mean, axes, keepdims, "squares")
    count = numel(tuple(x.shape[a] for a in axes))
    t = squares.dtype
    if isinstance(count, int):
        divisor: Expr = te.const(max(0.0, count - attrs["correction"]), t)
    else:
        divisor = te.maximum(as_float(count, t) - attrs["correction"], te.const(0, t))
    return [rounded(over(squares.shape, "variance", lambda *i: squares[i] / divisor), outputs[0].dtype)]


def _variance_array(attrs: Attrs, x: Array) -> tuple[Any]:
    axes = _axes_of(attrs, x.ndim)
    wide = x.astype(np.float64)
    count = math.prod(x.shape[a] for a in axes)
    mean = np.sum(wide, axis=axes, keepdims=True) / np.float64(count)
    squares = np.sum((wide - mean) ** 2, axis=axes, keepdims=attrs["keepdims"])
    return (squares / np.float64(max(0.0, count - attrs["correction"])),)


register(
    "variance", inputs=["data"], infer_type=_mean_type, pattern=OpPattern.REDUCE, compute=_variance_compute,
    doc="Mean squared deviation over axes, in two passes: sum((x - mean)²) / max(0, n - correction).",
    reference=_variance_array,
    params={**_AXES, "correction": Param("subtracted from n; 1 is Bessel's correction", number, 1.0)},
    flops=lambda attrs, inputs, outputs: inputs[0].numel * 4,
)  # fmt: skip


def _logsumexp_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axes, keepdims = _axes_of(attrs, len(x.shape)), attrs["keepdims"]
    top = reduce_stage(x, axes, keepdims, "row_max", te.max)
    zero = te.const(0, top.dtype)
    # an infinite maximum is not subtracted: inf - inf would be NaN
    shift = over(top.shape, "shift", lambda *i: te.select(te.unary("isinf", top[i]), zero, top[i]))

    def element(at: tuple[Expr, ...]) -> Expr:
        return te.unary("exp", te.cast(x[at], shift.dtype) - shift[kept_index(at, axes, keepdims)])

    total = reduce_stage(x, axes, keepdims, "exp_sum", te.sum, element)
    return [rounded(over(total.shape, "logsumexp", lambda *i: te.unary("log", total[i]) + shift[i]), outputs[0].dtype)]


def _logsumexp_array(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isinf(top), 0, top)
    out = np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=True)) + shift
    return out if keepdims else np.squeeze(out, axis)


register(
    "logsumexp", inputs=["data"], params=_AXES, doc="log(sum(exp(x))) over axes, without overflow.",
    infer_type=_mean_type, pattern=OpPattern.REDUCE, compute=_logsumexp_compute, reference=_over_axes(_logsumexp_array),
    flops=lambda attrs, inputs, outputs: inputs[0].numel * 4,
)  # fmt: skip
