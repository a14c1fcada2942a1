"""Scaled dot-product attention, as the fused operator."""

from __future__ import annotations

import math
from typing import Any

from nnvm.dim import numel
from nnvm.dtype import I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Unsupported, Value, converts

__all__: list[str] = []

#: Scores that the backward pass writes down: as many as stay in the second cache (two matrices of them). ATen's blocks,
#: which do without, are as fast for more.
MAX_SCORES = 1 << 18


@converts("_scaled_dot_product_flash_attention_for_cpu.default")
def _attention(c: Context, q: NodeEntry, k: NodeEntry, v: NodeEntry, dropout_p: float = 0.0, is_causal: bool = False, *,
               attn_mask: NodeEntry | None = None, scale: float | None = None) -> Value:  # fmt: skip
    if dropout_p:
        raise Unsupported("attention with dropout")
    if c.used[1]:
        raise Unsupported("attention whose log-sum-exp is used (training)")
    return attend(c, q, k, v, attn_mask, is_causal, scale), None


def attend(c: Context, q: NodeEntry, k: NodeEntry, v: NodeEntry, mask: NodeEntry | None, causal: bool,
           scale: float | None) -> NodeEntry:  # fmt: skip
    """softmax(q k^T * scale + mask) v; fewer heads of k and v than of q are shared out among those of q."""
    depth = q.type.shape[-1]
    if scale is None:
        if not isinstance(depth, int):
            raise Unsupported("attention of symbolic depth")
        scale = 1.0 / math.sqrt(depth) if depth else 1.0
    heads = q.type.shape[-3]
    k, v = _shared(c, k, heads), _shared(c, v, heads)
    inputs = [q, k, v]
    if mask is not None:
        inputs.append(mask if mask.type.dtype.is_bool else c.cast(mask, q.type.dtype))
    return c.op("attention", *inputs, scale=float(scale), causal=causal)


@converts("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _attention_backward(c: Context, grad: NodeEntry, q: NodeEntry, k: NodeEntry, v: NodeEntry, out: NodeEntry,
                        lse: NodeEntry, dropout_p: float, is_causal: bool, *, attn_mask: NodeEntry | None = None,
                        scale: float | None = None) -> Value:  # fmt: skip
    """The gradients of q, k and v by way of the weights P = exp(scores - log-sum-exp), which are computed again:

        dV = Pᵀ dO      dS = P (dO Vᵀ - sum(dO O))      dQ = dS K scale      dK = dSᵀ Q scale

    (Dao et al., FlashAttention, 2022, appendix B.2; here with whole matrices of scores)."""
    if dropout_p:
        raise Unsupported("attention with dropout")
    shape = (*q.type.shape[:-1], k.type.shape[-2])
    count, depth = numel(shape), q.type.shape[-1]
    if not isinstance(count, int) or count > MAX_SCORES:
        raise Unsupported("the gradient of attention over long sequences, whose scores would fill the memory")
    if k.type.shape[:-2] != q.type.shape[:-2]:
        raise Unsupported("the gradient of attention with heads of k and v that several of q share")
    grad, q, k, v, out, lse = (c.compute(x) for x in (grad, q, k, v, out, lse))
    t = q.type.dtype
    factor = c.const(1.0 / math.sqrt(depth) if scale is None else scale, t)  # type: ignore[arg-type]
    scores = c.op("multiply", c.op("matmul", q, k, transpose_b=True), factor)
    if attn_mask is not None:
        bare = attn_mask.type.dtype.is_bool
        least = c.const(-math.inf, t)
        scores = c.op("where", attn_mask, scores, least) if bare else c.op("add", scores, c.cast(attn_mask, t))
    row = c.reshape(lse, (*shape[:-1], 1))
    weights = c.op("exp", c.op("subtract", scores, row))
    if is_causal:
        query, key = (c.op("arange", start=0, step=1, length=n, dtype=I64) for n in shape[-2:])
        seen = c.op("greater_equal", c.reshape(query, (shape[-2], 1)), c.reshape(key, (1, shape[-1])))
        weights = c.op("where", seen, weights, c.const(0.0, t))
    own = c.op("sum", c.op("multiply", grad, out), axis=(-1,), keepdims=True)
    by_weights = c.op("subtract", c.op("matmul", grad, v, transpose_b=True), own)
    by_scores = c.op("multiply", c.op("multiply", weights, by_weights), factor)
    grads = (c.op("matmul", by_scores, k), c.op("matmul", by_scores, q, transpose_a=True),
             c.op("matmul", weights, grad, transpose_a=True))  # fmt: skip
    return tuple(c.cast(g, o.dtype) for g, o in zip(grads, c.outs, strict=True))


def _shared(c: Context, x: NodeEntry, heads: Any) -> NodeEntry:
    *lead, own, length, depth = x.type.shape
    if own == heads:
        return x
    groups = heads // own
    spread = c.broadcast(c.reshape(x, (*lead, own, 1, length, depth)), (*lead, own, groups, length, depth))
    return c.reshape(spread, (*lead, heads, length, depth))
