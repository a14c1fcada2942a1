"""Gradients of normalisations of rows, and over a batch, from the statistics that the forward pass kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, numel
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import as_float, over, rounded
from nnvm.ops.params import integer, integers
from nnvm.ops.reduce import kept_index, reduce_stage
from nnvm.ops.shape_rules import check_kind, reduced_shape, resolve_axes, resolve_axis, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _rows(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return tuple(range(resolve_axis(attrs["axis"], rank), rank))


def _type(attrs: Attrs, inputs: Types) -> Types:
    grad, data, mean, scale, *gamma = inputs
    check_kind(data, "f")
    if data.rank == 0:
        raise ValueError("a scalar has no axis to normalise over")
    axes = _rows(attrs, data.rank)
    kept: tuple[Dim, ...] = tuple(1 if a in axes else d for a, d in enumerate(data.shape))
    wanted = (("grad", grad, data.shape), ("mean", mean, kept), ("scale", scale, kept),
              *(("gamma", g, tuple(data.shape[a] for a in axes)) for g in gamma))  # fmt: skip
    for name, t, shape in wanted:
        check_kind(t, "f", name)
        if t.shape != shape:
            raise ValueError(f"{name} {show(t.shape)} must have the shape {show(shape)} for data {show(data.shape)}")
    return (data,)


def _compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    grad, x, mean, scale, *gamma = inputs
    axes, at, to = _rows(attrs, len(x.shape)), x.dtype.compute, outputs[0].dtype
    facts = {"row_axes": len(x.shape) - len(axes)}

    def head(i: tuple[Expr, ...]) -> Expr:
        value = te.cast(grad[i], at)
        return value * te.cast(gamma[0][tuple(i[a] for a in axes)], at) if gamma else value

    def normal(i: tuple[Expr, ...]) -> Expr:
        row = kept_index(i, axes, True)
        return (te.cast(x[i], at) - te.cast(mean[row], at)) * te.cast(scale[row], at)

    total = reduce_stage(grad, axes, True, "head_sum", te.sum, head, facts)
    along = reduce_stage(x, axes, True, "normal_sum", te.sum, lambda i: head(i) * normal(i), facts)
    count = numel(tuple(x.shape[a] for a in axes))
    means = [over(t.shape, f"{t.name}_mean", lambda *i, t=t: t[i] / as_float(count, at), facts) for t in (total, along)]

    def element(*i: Expr) -> Expr:
        row = kept_index(i, axes, True)
        value = head(i) - means[0][row] - normal(i) * means[1][row]
        return te.cast(value * te.cast(scale[row], at), to)

    return [over(x.shape, "row_norm_grad", element, facts)]


def _array(attrs: Attrs, grad: Array, data: Array, mean: Array, scale: Array, gamma: Array | None = None) -> tuple[Any]:
    axes = _rows(attrs, data.ndim)
    head, normal = (a.astype(np.float64) for a in (grad, data))
    if gamma is not None:
        head = head * gamma
    normal = (normal - mean) * scale
    along = np.mean(head * normal, axes, keepdims=True)
    return (scale * (head - head.mean(axes, keepdims=True) - normal * along),)


register(
    "row_norm_grad", inputs=["grad", "data", "mean", "scale", "gamma?"],
    params={"axis": Param("first of the normalised axes, which run to the last", integer, -1)},
    doc="The gradient of data in y = n * gamma + beta for n = (data - mean) * scale, of which mean and scale are the "
        "row's own: scale * (h - mean(h) - n * mean(h * n)) for h = grad * gamma, means over the last axes.",
    infer_type=_type, pattern=OpPattern.OUT_FUSABLE, compute=_compute, reference=_array, inplace=((0, 0), (1, 0)),
    flops=lambda attrs, inputs, outputs: inputs[1].numel * 12,
)  # fmt: skip


# -- sums that the gradient of a batch's norm needs


def _sums_type(attrs: Attrs, inputs: Types) -> Types:
    grad, data, mean = inputs
    for t in inputs:
        check_kind(t, "f")
    axes = resolve_axes(attrs["axis"], data.rank)
    kept = reduced_shape(data.shape, axes, True)
    if grad.shape != data.shape or mean.shape != kept:
        raise ValueError(f"grad {show(grad.shape)} must have the shape of data {show(data.shape)}, and mean "
                         f"{show(mean.shape)} the shape {show(kept)}")  # fmt: skip
    out = TensorType(kept, data.dtype, data.device)
    return out, out


def _sums_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    grad, x, mean = inputs
    at = x.dtype.compute
    axes = resolve_axes(attrs["axis"], len(x.shape))

    def along(i: tuple[Expr, ...]) -> Expr:
        return te.cast(grad[i], at) * (te.cast(x[i], at) - te.cast(mean[kept_index(i, axes, True)], at))

    sums = (reduce_stage(grad, axes, True, "head_sum", te.sum), reduce_stage(x, axes, True, "along_sum", te.sum, along))
    return [rounded(s, outputs[0].dtype) for s in sums]


def _sums_array(attrs: Attrs, grad: Array, data: Array, mean: Array) -> tuple[Any, Any]:
    axes = resolve_axes(attrs["axis"], data.ndim)
    head = grad.astype(np.float64)
    return head.sum(axes, keepdims=True), (head * (data.astype(np.float64) - mean)).sum(axes, keepdims=True)


register(
    "norm_sums", inputs=["grad", "data", "mean"], num_outputs=2,
    params={"axis": Param("axes to sum over", integers, ())},
    doc="sum(grad) and sum(grad * (data - mean)) over axes, kept as extent 1: what the gradient of a normalisation "
        "over these axes needs, in one look at both.",
    infer_type=_sums_type, pattern=OpPattern.REDUCE, compute=_sums_compute, reference=_sums_array,
    flops=lambda attrs, inputs, outputs: inputs[1].numel * 4,
)  # fmt: skip
