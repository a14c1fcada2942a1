"""Normalisations: softmax and its like over one axis, layer, group and batch normalisation.

Each is a chain of stages in the compute type; the last one rounds to the output's type. All stages of an op that
normalises rows carry the attribute ``row_axes``: how many of their leading axes count rows, where rows lie last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, numel
from nnvm.graph.node import Node, NodeEntry, apply, constant
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import as_float, over, read, reduce_axes
from nnvm.ops.params import boolean, integer, integers, number
from nnvm.ops.reduce import kept_index, mean_stage, reduce_stage, squared_deviation_stage
from nnvm.ops.shape_rules import check_kind, resolve_axes, resolve_axis, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]
_EPS = Param("added to the variance", number, 1e-5)


def _float_type(attrs: Attrs, inputs: Types) -> Types:
    check_kind(inputs[0], "f")
    resolve_axis(attrs["axis"], inputs[0].rank)
    return (inputs[0],)


def _row_facts(rank: int, axes: Sequence[int]) -> dict[str, Any]:
    """`row_axes` where the axes normalised over are the last ones."""
    first = rank - len(axes)
    return {"row_axes": first} if tuple(axes) == tuple(range(first, rank)) else {}


def _softmax_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    exps, total, facts = _exponentials(attrs, inputs[0])
    axis, to = _softmax_axis(attrs, inputs[0]), outputs[0].dtype
    return [over(exps.shape, "softmax", lambda *i: te.cast(exps[i] / total[kept_index(i, axis, True)], to), facts)]


def _softmax_axis(attrs: Attrs, x: Tensor) -> tuple[int, ...]:
    return resolve_axes((attrs["axis"],), len(x.shape))


def _exponentials(attrs: Attrs, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """exp(x - max) and its sum over the axis (kept with extent 1)."""
    axis = _softmax_axis(attrs, x)
    facts = _row_facts(len(x.shape), axis)
    top = reduce_stage(x, axis, True, "row_max", te.max, attrs=facts)
    exps = over(
        x.shape, "exps", lambda *i: te.unary("exp", te.cast(x[i], top.dtype) - top[kept_index(i, axis, True)]), facts
    )
    return exps, reduce_stage(exps, axis, True, "row_sum", te.sum, attrs=facts), facts


def _log_softmax_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axis, to = _softmax_axis(attrs, x), outputs[0].dtype
    facts = _row_facts(len(x.shape), axis)
    top = reduce_stage(x, axis, True, "row_max", te.max, attrs=facts)

    def shifted(i: tuple[Expr, ...]) -> Expr:
        return te.cast(x[i], top.dtype) - top[kept_index(i, axis, True)]

    total = reduce_stage(x, axis, True, "row_sum", te.sum, lambda i: te.unary("exp", shifted(i)), facts)
    logs = over(total.shape, "row_log", lambda *i: te.unary("log", total[i]), facts)
    return [over(x.shape, "log_softmax", lambda *i: te.cast(shifted(i) - logs[kept_index(i, axis, True)], to), facts)]


def _softmax_array(attrs: Attrs, x: Array) -> tuple[Any]:
    axis = attrs["axis"] if x.ndim else None
    e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return (e / np.sum(e, axis=axis, keepdims=True),)


def _log_softmax_array(attrs: Attrs, x: Array) -> tuple[Any]:
    axis = attrs["axis"] if x.ndim else None
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)),)


for _name, _compute, _reference, _doc in [
    ("softmax", _softmax_compute, _softmax_array, "exp(x) / sum(exp(x)) along an axis; NaN where all of it is -inf."),
    ("log_softmax", _log_softmax_compute, _log_softmax_array, "The logarithm of softmax."),
]:
    register(
        _name, inputs=["data"], params={"axis": Param("normalised over", integer, -1)}, doc=_doc,
        infer_type=_float_type, pattern=OpPattern.OUT_FUSABLE, compute=_compute, reference=_reference,
        inplace=((0, 0),), flops=lambda attrs, inputs, outputs: inputs[0].numel * 5,
    )  # fmt: skip


def _check_affine(x: TensorType, shape: tuple[Dim, ...], affine: Types, what: str) -> None:
    check_kind(x, "f")
    for t, name in zip(affine, ("gamma", "beta")):
        check_kind(t, "f", name)
        if t.shape != shape:
            raise ValueError(f"{name} {show(t.shape)} must have the shape {show(shape)} of {what} of {show(x.shape)}")


def _affine(value: Expr, affine: Sequence[Tensor], at: tuple[Expr, ...]) -> Expr:
    """value * gamma + beta, as far as they are given."""
    if affine:
        value = value * te.cast(affine[0][at], value.dtype)
    return value + te.cast(affine[1][at], value.dtype) if len(affine) > 1 else value


def _rows(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return tuple(range(resolve_axis(attrs["axis"], rank), rank))


def _row_type(attrs: Attrs, inputs: Types) -> Types:
    x = inputs[0]
    if x.rank == 0:
        raise ValueError("a scalar has no axis to normalise over")
    axes = _rows(attrs, x.rank)
    _check_affine(x, tuple(x.shape[a] for a in axes), inputs[1:], f"axes {axes}")
    return (x,)


def _layer_norm_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    x, *affine = inputs
    axes, to = _rows(attrs, len(x.shape)), outputs[0].dtype
    facts = _row_facts(len(x.shape), axes)
    mean = mean_stage(x, axes, True, "mean", facts)
    squares = squared_deviation_stage(x, mean, axes, True, "squares", facts)
    scale = _inverse_deviation(squares, numel(tuple(x.shape[a] for a in axes)), attrs["eps"], facts)

    def element(*i: Expr) -> Expr:
        at = kept_index(i, axes, True)
        value = (te.cast(x[i], mean.dtype) - mean[at]) * scale[at]
        return te.cast(_affine(value, affine, tuple(i[a] for a in axes)), to)

    return [over(x.shape, "layer_norm", element, facts)]


def _inverse_deviation(squares: Tensor, count: Dim, eps: float, facts: dict[str, Any]) -> Tensor:
    """1 / sqrt(sum of squares / count + eps)."""
    n = as_float(count, squares.dtype)
    return over(squares.shape, "scale", lambda *i: te.unary("rsqrt", squares[i] / n + eps), facts)


def _sum_of_squares(x: Tensor, axes: Sequence[int], facts: dict[str, Any]) -> Tensor:
    """Sums over `axes`. Squares are a stage: a sum of products of two reads would be a matrix product."""

    def square(*i: Expr) -> Expr:
        e = te.cast(x[i], x.dtype.compute)
        return e * e

    return reduce_stage(over(x.shape, "square", square, {"cheap": True}), axes, True, "squares", te.sum, attrs=facts)


def _rms_norm_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    x, *affine = inputs
    axes, to, at_type = _rows(attrs, len(x.shape)), outputs[0].dtype, x.dtype.compute
    facts = _row_facts(len(x.shape), axes)

    squares = _sum_of_squares(x, axes, facts)
    scale = _inverse_deviation(squares, numel(tuple(x.shape[a] for a in axes)), attrs["eps"], facts)

    def element(*i: Expr) -> Expr:
        value = te.cast(x[i], at_type) * scale[kept_index(i, axes, True)]
        return te.cast(_affine(value, affine, tuple(i[a] for a in axes)), to)

    return [over(x.shape, "rms_norm", element, facts)]


def _layer_norm_array(attrs: Attrs, x: Array, *affine: Array) -> tuple[Any]:
    axes = _rows(attrs, x.ndim)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    return (_affine_array(centred / np.sqrt(np.mean(centred**2, axes, keepdims=True) + attrs["eps"]), affine),)


def _rms_norm_array(attrs: Attrs, x: Array, *affine: Array) -> tuple[Any]:
    wide = x.astype(np.float64)
    return (
        _affine_array(wide / np.sqrt(np.mean(wide**2, _rows(attrs, x.ndim), keepdims=True) + attrs["eps"]), affine),
    )


def _affine_array(value: Any, affine: Sequence[Array]) -> Any:
    value = value * affine[0] if affine else value
    return value + affine[1] if len(affine) > 1 else value


_AXIS_FROM = Param("first of the normalised axes, which run to the last", integer, -1)
register(
    "layer_norm", inputs=["data", "gamma?", "beta?"], params={"axis": _AXIS_FROM, "eps": _EPS},
    doc="(x - mean) / sqrt(variance + eps) over the last axes, times gamma, plus beta. Two passes, as exact as eager.",
    infer_type=_row_type, pattern=OpPattern.OUT_FUSABLE, compute=_layer_norm_compute, reference=_layer_norm_array,
    inplace=((0, 0),), flops=lambda attrs, inputs, outputs: inputs[0].numel * 8,
)  # fmt: skip
register(
    "rms_norm", inputs=["data", "gamma?"], params={"axis": _AXIS_FROM, "eps": _EPS},
    doc="x / sqrt(mean(x²) + eps) over the last axes, times gamma.", infer_type=_row_type, inplace=((0, 0),),
    pattern=OpPattern.OUT_FUSABLE, compute=_rms_norm_compute, reference=_rms_norm_array,
    flops=lambda attrs, inputs, outputs: inputs[0].numel * 5,
)  # fmt: skip


def _group_type(attrs: Attrs, inputs: Types) -> Types:
    x = inputs[0]
    groups = attrs.get("num_groups")
    if x.rank < 2:
        raise ValueError(f"data {show(x.shape)} needs a batch and a channel axis")
    if groups is not None and (groups < 1 or x.shape[1] % groups != 0):
        raise ValueError(f"{x.shape[1]} channels of {show(x.shape)} do not divide into {groups} groups")
    _check_affine(x, (x.shape[1],), inputs[1:], "the channels")
    return (x,)


def _group_norm_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    x, *affine = inputs
    groups: Dim = attrs["num_groups"] if "num_groups" in attrs else x.shape[1]
    each: Dim = x.shape[1] // groups
    at, to = x.dtype.compute, outputs[0].dtype
    count = numel((each, *x.shape[2:]))
    facts: dict[str, Any] = {"row_axes": 2}

    def total(name: str, element: Callable[[tuple[Expr, ...]], Expr]) -> Tensor:
        reduced = reduce_axes([each, *x.shape[2:]])

        def body(n: Expr, g: Expr) -> Expr:
            channel = g if each == 1 else g * te.const(each) + reduced[0].var
            kept = reduced[1:] if each == 1 else reduced
            value = element((n, g, n, channel, *(r.var for r in reduced[1:])))
            return te.sum(value, kept) if kept else value

        return te.compute((x.shape[0], groups), body, name, facts)

    sums = total("mean_sum", lambda i: te.cast(x[i[2:]], at))
    mean = over(sums.shape, "mean", lambda *i: sums[i] / as_float(count, at), facts)

    def squared(i: tuple[Expr, ...]) -> Expr:
        d = te.cast(x[i[2:]], at) - mean[i[0], i[1]]
        return d * d

    scale = _inverse_deviation(total("squares", squared), count, attrs["eps"], facts)

    def element(*i: Expr) -> Expr:
        row = (i[0], i[1] if each == 1 else i[1] // te.const(each))
        return te.cast(_affine((te.cast(x[i], at) - mean[row]) * scale[row], affine, (i[1],)), to)

    return [over(x.shape, "group_norm", element, {**facts, "row_factor": each})]


def _group_norm_array(attrs: Attrs, x: Array, *affine: Array) -> tuple[Any]:
    groups = attrs.get("num_groups", x.shape[1])
    rows = x.astype(np.float64).reshape(x.shape[0], groups, x.shape[1] // groups * int(np.prod(x.shape[2:])))
    rows = rows - rows.mean(2, keepdims=True)
    rows = rows / np.sqrt(np.mean(rows**2, 2, keepdims=True) + attrs["eps"])
    return (_affine_array(rows.reshape(x.shape), [a.reshape(-1, *[1] * (x.ndim - 2)) for a in affine]),)


register(
    "group_norm", inputs=["data", "gamma?", "beta?"],
    params={"num_groups": Param("groups of channels", integer), "eps": _EPS},
    doc="data [N, C, ...] normalised over each group of channels and all positions; gamma and beta are per channel.",
    infer_type=_group_type, pattern=OpPattern.OUT_FUSABLE, compute=_group_norm_compute, reference=_group_norm_array,
    inplace=((0, 0),), flops=lambda attrs, inputs, outputs: inputs[0].numel * 8,
)  # fmt: skip
register(
    "instance_norm", inputs=["data", "gamma?", "beta?"], params={"eps": _EPS},
    doc="data [N, C, ...] normalised over all positions of each channel; gamma and beta are per channel.",
    infer_type=_group_type, pattern=OpPattern.OUT_FUSABLE, compute=_group_norm_compute, reference=_group_norm_array,
    inplace=((0, 0),), flops=lambda attrs, inputs, outputs: inputs[0].numel * 8,
)  # fmt: skip


def _batch_norm_type(attrs: Attrs, inputs: Types) -> Types:
    x, axis = inputs[0], resolve_axis(attrs["axis"], inputs[0].rank)
    check_kind(x, "f")
    for t, name in zip(inputs[1:], ("gamma", "beta", "moving_mean", "moving_var")):
        check_kind(t, "f", name)
        if t.shape != x.shape[axis : axis + 1]:
            raise ValueError(f"{name} {show(t.shape)} must have one element per step of axis {axis} of {show(x.shape)}")
    return (x,)


def _batch_norm_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    x, gamma, beta, mean, var = inputs
    axis, at, to = resolve_axis(attrs["axis"], len(x.shape)), x.dtype.compute, outputs[0].dtype

    def element(*i: Expr) -> Expr:
        c = i[axis]
        scale = te.unary("rsqrt", te.cast(var[c], at) + attrs["epsilon"])
        scale = scale * te.cast(gamma[c], at) if attrs["scale"] else scale
        shift = -te.cast(mean[c], at) * scale
        shift = shift + te.cast(beta[c], at) if attrs["center"] else shift
        return te.cast(te.cast(x[i], at) * scale + shift, to)

    return [over(x.shape, "batch_norm", element)]


def _batch_norm_array(attrs: Attrs, x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> tuple[Any]:
    shape = [-1 if d == attrs["axis"] % x.ndim else 1 for d in range(x.ndim)]
    scale = 1 / np.sqrt(var.astype(np.float64) + attrs["epsilon"]) * (gamma if attrs["scale"] else 1)
    shift = (beta if attrs["center"] else 0) - mean * scale
    return (x * scale.reshape(shape) + shift.reshape(shape),)


def _simplify_batch_norm(node: Node) -> NodeEntry:
    """x * scale + shift, with scale = gamma / sqrt(var + epsilon) and shift = beta - mean * scale."""
    x, gamma, beta, mean, var = node.inputs
    at = x.type.dtype.compute

    def op(name: str, *args: NodeEntry, **attrs: Any) -> NodeEntry:
        return apply(name, args, attrs, source=node.source)[0]

    def as_computed(e: NodeEntry) -> NodeEntry:
        return e if e.type.dtype == at else op("cast", e, dtype=at)

    gamma, beta, mean, var = map(as_computed, (gamma, beta, mean, var))
    eps = constant(np.asarray(node.attrs["epsilon"], at.numpy), TensorType((), at, x.type.device))
    scale = op("rsqrt", op("add", var, eps))
    scale = op("multiply", scale, gamma) if node.attrs["scale"] else scale
    shift = op("negative", op("multiply", mean, scale))
    shift = op("add", beta, shift) if node.attrs["center"] else shift
    after = x.type.rank - 1 - resolve_axis(node.attrs["axis"], x.type.rank)
    if after:
        scale, shift = (op("expand_dims", e, axis=1, num_newaxis=after) for e in (scale, shift))
    out = op("add", op("multiply", as_computed(x), scale), shift)
    return out if x.type.dtype == at else op("cast", out, dtype=x.type.dtype)


register(
    "batch_norm", inputs=["data", "gamma", "beta", "moving_mean", "moving_var"],
    params={"axis": Param("of the channels", integer, 1), "epsilon": _EPS,
            "scale": Param("use gamma", boolean, True), "center": Param("use beta", boolean, True)},
    doc="(x - mean) / sqrt(var + epsilon) * gamma + beta with the moving statistics: batch normalisation at inference.",
    infer_type=_batch_norm_type, pattern=OpPattern.BROADCAST, compute=_batch_norm_compute, reference=_batch_norm_array,
    simplify_inference=_simplify_batch_norm, inplace=((0, 0),), mutable_inputs=(3, 4),
)  # fmt: skip


def _l2_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return resolve_axes(attrs["axis"], rank)


def _l2_type(attrs: Attrs, inputs: Types) -> Types:
    check_kind(inputs[0], "f")
    _l2_axes(attrs, inputs[0].rank)
    return (inputs[0],)


def _l2_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axes, at, to = _l2_axes(attrs, len(x.shape)), x.dtype.compute, outputs[0].dtype
    facts = _row_facts(len(x.shape), axes)

    squares = _sum_of_squares(x, axes, facts)
    norm = over(
        squares.shape, "norm", lambda *i: te.unary("sqrt", te.maximum(squares[i], te.const(attrs["eps"], at))), facts
    )
    return [
        over(
            x.shape, "l2_normalize", lambda *i: te.cast(te.cast(x[i], at) / norm[kept_index(i, axes, True)], to), facts
        )
    ]


def _l2_array(attrs: Attrs, x: Array) -> tuple[Any]:
    squares = np.sum(x.astype(np.float64) ** 2, axis=_l2_axes(attrs, x.ndim), keepdims=True)
    return (x / np.sqrt(np.maximum(squares, attrs["eps"])),)


register(
    "l2_normalize", inputs=["data"], doc="x / sqrt(max(sum(x²), eps)) over axes.", infer_type=_l2_type,
    params={"axis": Param("axes summed over", integers, (-1,)), "eps": Param("least sum of squares", number, 1e-12)},
    pattern=OpPattern.OUT_FUSABLE, compute=_l2_compute, reference=_l2_array, inplace=((0, 0),),
)  # fmt: skip


def _lrn_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axis, size, at, to = resolve_axis(attrs["axis"], len(x.shape)), attrs["size"], x.dtype.compute, outputs[0].dtype
    r = te.reduce_axis(size, "r")

    def square(*i: Expr) -> Expr:
        c = i[axis] + (r.var - size // 2)
        inside = (c >= 0) & (c < te.const(x.shape[axis]))
        e = te.select(inside, te.cast(read(x, *i[:axis], c, *i[axis + 1 :]), at), te.const(0, at))
        return te.sum(e * e, [r])

    squares = over(x.shape, "squares", square)

    def element(*i: Expr) -> Expr:
        base = squares[i] * (attrs["alpha"] / size) + attrs["bias"]
        return te.cast(te.cast(x[i], at) / te.binary("pow", base, te.const(attrs["beta"], at)), to)

    return [over(x.shape, "lrn", element)]


def _lrn_array(attrs: Attrs, x: Array) -> tuple[Any]:
    axis, size = attrs["axis"] % x.ndim, attrs["size"]
    grow = [(0, 0)] * x.ndim
    grow[axis] = (size // 2, (size - 1) // 2)
    squares = np.lib.stride_tricks.sliding_window_view(np.pad(x.astype(np.float64) ** 2, grow), size, axis).sum(-1)
    return (x / (squares * (attrs["alpha"] / size) + attrs["bias"]) ** attrs["beta"],)


register(
    "lrn", inputs=["data"], infer_type=_float_type, pattern=OpPattern.OUT_FUSABLE, compute=_lrn_compute,
    doc="x / (bias + alpha / size * sum of squares of `size` neighbouring channels) ** beta.", reference=_lrn_array,
    params={"size": Param("channels summed", integer, 5), "axis": Param("of the channels", integer, 1),
            "alpha": Param("factor of the sum", number, 1e-4), "beta": Param("exponent", number, 0.75),
            "bias": Param("added to it", number, 1.0)},
)  # fmt: skip
