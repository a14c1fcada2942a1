"""Scaled dot-product attention, as the fused operator."""

from __future__ import annotations

import math
from typing import Any

from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Unsupported, Value, converts

__all__: list[str] = []


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


def _shared(c: Context, x: NodeEntry, heads: Any) -> NodeEntry:
    *lead, own, length, depth = x.type.shape
    if own == heads:
        return x
    groups = heads // own
    spread = c.broadcast(c.reshape(x, (*lead, own, 1, length, depth)), (*lead, own, groups, length, depth))
    return c.reshape(spread, (*lead, heads, length, depth))
