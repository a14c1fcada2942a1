"""Gradients of matrix products, normalisations, softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnvm.dim import numel
from nnvm.graph.passes.gradient import NotDifferentiableError
from nnvm.ops.gradient_terms import Call, Value, array, gradient_of, unbroadcast, zeros
from nnvm.ops.shape_rules import resolve_axes, resolve_axis

__all__: list[str] = []


@gradient_of("dense")
def _dense(call: Call, g: Value) -> list[Value]:
    data, weight = call.inputs[:2]
    if weight.rank != 2 or call.attrs["units"] is not None:
        raise NotDifferentiableError("dense with a packed weight; differentiate before AlterOpLayout")
    rows = numel(data.shape[:-1])
    flat = g.reshape(rows, g.shape[-1])
    by_weight = flat.op("matmul", data.reshape(rows, data.shape[-1]), transpose_a=True)
    grads = [g.op("dense", weight.transpose(1, 0)), by_weight]
    return grads if len(call.inputs) == 2 else [*grads, flat.sum((0,))]


@gradient_of("matmul")
def _matmul(call: Call, g: Value) -> list[Value]:
    (a, b), ta, tb = call.inputs, call.attrs["transpose_a"], call.attrs["transpose_b"]
    if ta:
        by_a = b.op("matmul", g, transpose_a=tb, transpose_b=True)
    else:
        by_a = g.op("matmul", b, transpose_b=not tb)
    if tb:
        by_b = g.op("matmul", a, transpose_a=True, transpose_b=ta)
    else:
        by_b = a.op("matmul", g, transpose_a=not ta)
    return [unbroadcast(by_a, a), unbroadcast(by_b, b)]


@gradient_of("softmax")
def _softmax(call: Call, g: Value) -> Value:
    y = call.out
    axis = (resolve_axis(call.attrs["axis"], y.rank),) if y.rank else ()
    return y * (g - (g * y).sum(axis, keepdims=True))


@gradient_of("log_softmax")
def _log_softmax(call: Call, g: Value) -> Value:
    y = call.out
    axis = (resolve_axis(call.attrs["axis"], y.rank),) if y.rank else ()
    return g - y.op("exp") * g.sum(axis, keepdims=True)


def _standardised(x: Value, axes: Sequence[int], eps: float) -> tuple[Value, Value]:
    """(x - mean) / deviation, and 1 / deviation."""
    centred = x - x.mean(axes, keepdims=True)
    scale = ((centred * centred).mean(axes, keepdims=True) + eps).op("rsqrt")
    return centred * scale, scale


def _by_standardised(g: Value, normal: Value, scale: Value, axes: Sequence[int]) -> Value:
    """The gradient of x from that of its standardised form."""
    return scale * (g - g.mean(axes, keepdims=True) - normal * (g * normal).mean(axes, keepdims=True))


@gradient_of("layer_norm")
def _layer_norm(call: Call, g: Value) -> list[Value]:
    x, *affine = call.inputs
    first = resolve_axis(call.attrs["axis"], x.rank)
    axes, lead = tuple(range(first, x.rank)), tuple(range(first))
    normal, scale = _standardised(x, axes, call.attrs["eps"])
    grads = [(g * normal).sum(lead), g.sum(lead)]
    return [_by_standardised(g * affine[0] if affine else g, normal, scale, axes), *grads[: len(affine)]]


@gradient_of("rms_norm")
def _rms_norm(call: Call, g: Value) -> list[Value]:
    x, *gamma = call.inputs
    first = resolve_axis(call.attrs["axis"], x.rank)
    axes, lead = tuple(range(first, x.rank)), tuple(range(first))
    scale = ((x * x).mean(axes, keepdims=True) + call.attrs["eps"]).op("rsqrt")
    normal = x * scale
    head = g * gamma[0] if gamma else g
    by_x = scale * (head - normal * (head * normal).mean(axes, keepdims=True))
    return [by_x, (g * normal).sum(lead)] if gamma else [by_x]


@gradient_of("group_norm", "instance_norm")
def _group_norm(call: Call, g: Value) -> list[Value]:
    x, *affine = call.inputs
    groups = call.attrs.get("num_groups", x.shape[1])
    rows = (x.shape[0], groups, numel(x.shape[1:]) // groups)
    normal, scale = _standardised(x.reshape(*rows), (2,), call.attrs["eps"])
    others = (0, *range(2, x.rank))
    per_channel = (1, x.shape[1], *(1,) * (x.rank - 2))
    head = g * affine[0].reshape(*per_channel) if affine else g
    by_x = _by_standardised(head.reshape(*rows), normal, scale, (2,)).reshape(*x.shape)
    return [by_x, *[(g * normal.reshape(*x.shape)).sum(others), g.sum(others)][: len(affine)]]


@gradient_of("batch_norm")
def _batch_norm(call: Call, g: Value) -> list[Value | None]:
    """With the moving statistics as inputs like others: they are not those of the batch here."""
    x, gamma, _, mean, var = call.inputs
    axis = resolve_axis(call.attrs["axis"], x.rank)
    others = tuple(a for a in range(x.rank) if a != axis)
    channels = tuple(d if a == axis else 1 for a, d in enumerate(x.shape))
    scale = (var + call.attrs["epsilon"]).op("rsqrt")
    centred = x - mean.reshape(*channels)
    total, along = g.sum(others), (g * centred).sum(others)
    factor = scale * gamma if call.attrs["scale"] else scale
    by_gamma = along * scale if call.attrs["scale"] else None
    by_beta = total if call.attrs["center"] else None
    by_var = along * factor * (scale * scale) * -0.5
    return [g * factor.reshape(*channels), by_gamma, by_beta, -(total * factor), by_var]


@gradient_of("l2_normalize")
def _l2_normalize(call: Call, g: Value) -> Value:
    (x,), eps = call.inputs, call.attrs["eps"]
    axes = resolve_axes(call.attrs["axis"], x.rank)
    size = (x * x).sum(axes, keepdims=True)
    scale = size.op("maximum", eps).op("rsqrt")
    along = ((g * x).sum(axes, keepdims=True) * (scale * scale * scale)).where(size.op("greater", eps))
    return g * scale - x * along


@gradient_of("lrn")
def _lrn(call: Call, g: Value) -> Value:
    (x,), a = call.inputs, call.attrs
    axis, size = resolve_axis(a["axis"], x.rank), a["size"]
    before, after = size // 2, (size - 1) // 2
    share = a["alpha"] / size
    base: Value = _window_sum(x * x, axis, before, after) * share + a["bias"]
    scale: Value = base.op("power", -a["beta"])
    # element j is in the window of i where i is in the mirrored window of j
    spread = _window_sum(g * x * scale / base, axis, after, before)
    factor: float = 2 * share * a["beta"]
    return g * scale - x * spread * factor


def _window_sum(x: Value, axis: int, before: int, after: int) -> Value:
    widths = [(0, 0)] * x.rank
    widths[axis] = (before, after)
    padded = x.op("pad", pad_width=tuple(widths))
    none, total = (None,) * axis, None
    for k in range(before + after + 1):
        part = padded.op("slice", begin=(*none, k), end=(*none, x.shape[axis] + k))
        total = part if total is None else total + part
    assert total is not None
    return total


@gradient_of("attention")
def _attention(call: Call, g: Value) -> list[Value | None]:
    """From the weights computed once more. A row that may attend to nothing has weights 0."""
    q, k, v, *mask = call.inputs
    a, groups = call.attrs, call.attrs["groups"]
    scale = a["scale"] if a["scale"] is not None else _inverse_root(q)
    keys, values = (x.op("repeat", repeats=groups, axis=x.rank - 3) if groups > 1 else x for x in (k, v))
    scores = q.op("matmul", keys, transpose_b=True) * scale
    lowest = array(np.asarray(-np.inf), q.dtype)
    if mask and mask[0].dtype.is_bool:
        scores = mask[0].op("where", scores, lowest)
    elif mask:
        scores = scores + mask[0]
    if a["causal"]:
        allowed = (zeros(scores) + 1).op("tril").op("greater", 0)
        scores = allowed.op("where", scores, lowest)
    nothing = scores.op("max", axis=(-1,), keepdims=True).op("equal", lowest)
    weights = scores.op("softmax", axis=-1).unless(nothing)
    by_weights = g.op("matmul", values, transpose_b=True)
    by_scores = weights * (by_weights - (weights * by_weights).sum((weights.rank - 1,), keepdims=True))
    by_k = _per_group((by_scores * scale).op("matmul", q, transpose_a=True), groups)
    by_v = _per_group(weights.op("matmul", g, transpose_a=True), groups)
    by_mask = unbroadcast(by_scores, mask[0]) if mask and mask[0].dtype.is_float else None
    return [(by_scores * scale).op("matmul", keys), by_k, by_v, by_mask][: len(call.inputs)]


def _inverse_root(q: Value) -> float:
    width = q.shape[-1]
    if not isinstance(width, int):
        raise NotDifferentiableError("attention needs a known width of the heads, or scale=")
    return 1 / math.sqrt(width) if width else 1.0


def _per_group(x: Value, groups: int) -> Value:
    """Summed over the query heads that share a head of keys and values."""
    if groups == 1:
        return x
    return x.reshape(*x.shape[:-3], x.shape[-3] // groups, groups, *x.shape[-2:]).sum((x.rank - 2,))
