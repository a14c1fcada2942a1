"""Scaled dot-product attention: softmax(q kᵀ * scale + mask) v, as stages that a schedule runs by blocks of rows.

Stages: `scores` (contraction over D), `masked`, `row_max`, `exps`, `row_sum`, `weighted` (contraction over keys) and
the division. All but the contractions are float32 or wider. A row that may attend to nothing gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, read, read_broadcast
from nnvm.ops.params import boolean, integer, number, optional
from nnvm.ops.reduce import kept_index, reduce_stage
from nnvm.ops.shape_rules import broadcast_shapes, check_kind, same_dtype, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _type(attrs: Attrs, inputs: Types) -> Types:
    q, k, v, *mask = inputs
    same_dtype(q, k, v)
    check_kind(q, "f", "q, k and v")
    groups = attrs["groups"]
    if min(q.rank, k.rank, v.rank) < 2 or q.rank != k.rank or k.rank != v.rank:
        raise ValueError(f"q {show(q.shape)}, k {show(k.shape)} and v {show(v.shape)} must be matrices of equal rank")
    heads = (*k.shape[:-3], k.shape[-3] * groups) if k.rank > 2 else ()
    if (
        q.shape[-1] != k.shape[-1]
        or k.shape[-2] != v.shape[-2]
        or k.shape[:-2] != v.shape[:-2]
        or q.shape[:-2] != heads
    ):
        raise ValueError(f"q {show(q.shape)}, k {show(k.shape)} and v {show(v.shape)} do not fit (groups={groups})")
    if mask:
        check_kind(mask[0], "fb", "mask")
        scores = (*q.shape[:-1], k.shape[-2])
        if broadcast_shapes(mask[0].shape, scores) != scores:
            raise ValueError(f"mask {show(mask[0].shape)} does not broadcast to the scores {show(scores)}")
    return (q.with_shape((*q.shape[:-1], v.shape[-1])),)


def _scale(attrs: Attrs, depth: Dim) -> float:
    if attrs["scale"] is not None:
        return float(attrs["scale"])
    if not isinstance(depth, int):
        raise ValueError(f"the default scale needs a known head size, not {depth}")
    return 1 / math.sqrt(depth) if depth else 1.0


def _head(i: tuple[Expr, ...], groups: int) -> tuple[Expr, ...]:
    """Batch indices of k and v for those of q."""
    return (*i[:-1], i[-1] // groups) if groups > 1 else i


def _compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    q, k, v = inputs[:3]
    at, groups, lead = q.dtype.compute, attrs["groups"], len(q.shape) - 1
    facts: dict[str, Any] = {"row_axes": lead}
    scale = _scale(attrs, q.shape[-1])
    depth = te.reduce_axis(q.shape[-1], "d")

    def score(*i: Expr) -> Expr:
        key = read(k, *_head(i[:-2], groups), i[-1], depth.var)
        return te.sum(te.cast(read(q, *i[:-1], depth.var), at) * te.cast(key, at), [depth])

    scores = over((*q.shape[:-1], k.shape[-2]), "scores", score, {**facts, "causal": attrs["causal"]})
    mask = inputs[3] if len(inputs) > 3 else None
    least = te.const(-math.inf, at)

    def masked(*i: Expr) -> Expr:
        value = scores[i] if scale == 1 else scores[i] * scale
        if mask is not None:
            m = read_broadcast(mask, i, scores.shape)
            value = te.select(m, value, least) if mask.dtype.is_bool else value + te.cast(m, at)
        return te.select(i[-1] <= i[-2], value, least) if attrs["causal"] else value

    logits = over(scores.shape, "masked", masked, facts)
    last = (lead,)
    top = reduce_stage(logits, last, True, "row_max", te.max, attrs=facts)
    can_be_empty = mask is not None or not isinstance(k.shape[-2], int) or k.shape[-2] == 0
    zero = te.const(0, at)

    def exp(*i: Expr) -> Expr:
        shift = top[kept_index(i, last, True)]
        # a row of -inf: its exponentials shall be 0, not NaN
        shift = te.select(shift.equal(least), zero, shift) if can_be_empty else shift
        return te.unary("exp", logits[i] - shift)

    exps = over(scores.shape, "exps", exp, facts)
    total = reduce_stage(exps, last, True, "row_sum", te.sum, attrs=facts)
    key = te.reduce_axis(k.shape[-2], "j")

    def weigh(*i: Expr) -> Expr:
        value = read(v, *_head(i[:-2], groups), key.var, i[-1])
        return te.sum(read(exps, *i[:-1], key.var) * te.cast(value, at), [key])

    weighted = over(outputs[0].shape, "weighted", weigh, facts)

    def divide(*i: Expr) -> Expr:
        s = total[kept_index(i, last, True)]
        value = weighted[i] / s
        return te.cast(te.select(s.equal(zero), zero, value) if can_be_empty else value, q.dtype)

    return [over(outputs[0].shape, "attention", divide, facts)]


def _array(attrs: Attrs, q: Array, k: Array, v: Array, mask: Array | None = None) -> tuple[Array]:
    wide = np.float64
    if attrs["groups"] > 1:
        k, v = (np.repeat(t, attrs["groups"], -3) for t in (k, v))
    scores = np.matmul(q.astype(wide), np.swapaxes(k, -1, -2)) * _scale(attrs, q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else scores + mask
    if attrs["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:]) != 0, scores, -np.inf)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    exps = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = exps.sum(-1, keepdims=True)
    out = np.matmul(exps, v.astype(wide)) / total
    return (np.where(total == 0, 0, out),)


def _flops(attrs: Attrs, inputs: Types, outputs: Types) -> Dim:
    q, k = inputs[:2]
    return q.numel * k.shape[-2] * 2 + outputs[0].numel * k.shape[-2] * 2


register(
    "attention", inputs=["q", "k", "v", "mask?"],
    doc="softmax(q kᵀ * scale + mask) v for q [..., Lq, D], k [..., Lk, D], v [..., Lk, Dv]. A mask broadcasts to the "
        "scores [..., Lq, Lk]: bool (true: attend) or added. A row that may attend to nothing gives zeros.",
    params={"scale": Param("of the scores; None: 1 / sqrt(D)", optional(number), None),
            "causal": Param("key j only for queries i >= j", boolean, False),
            "groups": Param("queries' heads (axis -3) that share one head of k and v", integer, 1)},
    infer_type=_type, pattern=OpPattern.OUT_FUSABLE, compute=_compute, reference=_array, flops=_flops,
)  # fmt: skip
