"""Attention as ONNX Runtime's optimiser fuses it: Attention, MultiHeadAttention, GroupQueryAttention."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from nnvm.dim import Dim
from nnvm.dtype import BOOL, F32, I64
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.microsoft import MICROSOFT, rotated
from nnvm.frontend.onnx.convert.nn import matmul
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__: list[str] = []


def _heads(x: NodeEntry, count: int) -> NodeEntry:
    """[B, S, N * D] as [B, N, S, D]."""
    b, s, width = x.type.shape
    return emit("transpose", emit("reshape", x, shape=(b, s, count, width // count)), axes=(0, 2, 1, 3))


def _joined(x: NodeEntry) -> NodeEntry:
    """The reverse of `_heads`."""
    b, n, s, d = x.type.shape
    return emit("reshape", emit("transpose", x, axes=(0, 2, 1, 3)), shape=(b, s, n * d))


def _before(keys: Dim, lengths: NodeEntry) -> NodeEntry:
    """[B, 1, 1, keys]: whether a key is among the first `lengths` [B]."""
    if not isinstance(keys, int):
        raise Unsupported("lengths for a symbolic number of keys")
    position = of_array(np.arange(keys).reshape(1, 1, 1, keys), I64)
    return emit("less", position, emit("reshape", cast(lengths, I64), shape=(lengths.type.shape[0], 1, 1, 1)))


def _masked(keep: NodeEntry, value: float, like: NodeEntry) -> NodeEntry:
    """A mask to add: `value` where keys are not kept."""
    t = like.type.dtype
    return emit("where", keep, scalar(0, t), scalar(value, t))


def _padding(c: Context, i: int, q: NodeEntry, k: NodeEntry, value: float) -> NodeEntry | None:
    """The mask to add that input `i` stands for: lengths [B], or 0 and 1 for [B, T], [B, S, T] or [B, 1, S, T]."""
    if not c.has(i):
        return None
    mask = c[i]
    batch, keys = q.type.shape[0], k.type.shape[2]
    if mask.type.rank == 1:
        if mask.type.shape != (batch,):
            raise Unsupported(f"a mask {mask.type} for a batch of {batch}")
        return _masked(_before(keys, mask), value, q)
    keep = emit("not_equal", mask, scalar(0, mask.type.dtype)) if mask.type.dtype != BOOL else mask
    if mask.type.rank == 2:
        keep = emit("reshape", keep, shape=(mask.type.shape[0], 1, 1, mask.type.shape[1]))
    elif mask.type.rank == 3:
        keep = emit("expand_dims", keep, axis=1)
    elif keep.type.shape[2:] != (q.type.shape[2], keys):
        raise Unsupported(f"a mask {mask.type} for {q.type.shape[2]} queries and {keys} keys")
    return _masked(keep, value, q)


def _sum(*masks: NodeEntry | None) -> NodeEntry | None:
    total: NodeEntry | None = None
    for mask in masks:
        if mask is not None:
            total = mask if total is None else emit("add", total, mask)
    return total


def _attention(c: Context, q: NodeEntry, k: NodeEntry, v: NodeEntry, mask: NodeEntry | None, causal: bool,
               groups: int = 1) -> NodeEntry:  # fmt: skip
    """Attention of [B, N, S, D] with an additive mask. Causal: the last query sees the last key."""
    queries, keys = q.type.shape[2], k.type.shape[2]
    if causal and (mask is not None or queries != keys):
        if not isinstance(queries, int) or not isinstance(keys, int):
            raise Unsupported("causal attention over a symbolic number of positions, with a mask or a past")
        seen = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
        hidden = np.where(seen, 0.0, -math.inf).reshape(1, 1, queries, keys)
        t = q.type.dtype
        mask, causal = _sum(mask, cast(of_array(hidden.astype(np.float32), F32), t)), False
    scale = c.attrs.get("scale", 0.0) or 1 / math.sqrt(int(q.type.shape[3]))  # type: ignore[arg-type]
    given = [] if mask is None else [mask]
    return emit("attention", q, k, v, *given, scale=float(scale), causal=causal, groups=groups)


def _with_past(past: NodeEntry | None, new: NodeEntry) -> NodeEntry:
    return new if past is None else emit("concatenate", past, new, axis=2)


@converts("Attention", domain=MICROSOFT)
def attention(c: Context) -> list[NodeEntry | None]:
    x, count = c[0], c.attrs["num_heads"]
    if c.attrs.get("do_rotary", 0) or c.attrs.get("past_present_share_buffer", 0) or c.has(6):
        raise Unsupported("do_rotary or a shared buffer of the past")
    total = c[1].type.shape[1]
    sizes = c.attrs.get("qkv_hidden_sizes") or (total // 3,) * 3
    projected = matmul(c.like(x, c[1]))
    projected = emit("add", projected, c[2]) if c.has(2) else projected
    parts: list[NodeEntry] = []
    begin: Dim = 0
    for size in sizes:
        parts.append(_heads(cut(projected, 2, begin, begin + size), count))
        begin = begin + size
    q, k, v = parts
    if c.has(4):
        past = c[4]
        k, v = (_with_past(emit("reshape", cut(past, 0, i, i + 1), shape=past.type.shape[1:]), new)
                for i, new in ((0, k), (1, v)))  # fmt: skip
    present = None
    if len(c.outputs) > 1 and c.outputs[1]:
        present = emit("concatenate", *(emit("expand_dims", t, axis=0) for t in (k, v)), axis=0)
    mask = _sum(_padding(c, 3, q, k, c.attrs.get("mask_filter_value", -10000.0)), c.optional(5))
    return [_joined(_attention(c, q, k, v, mask, bool(c.attrs.get("unidirectional", 0)))), present]


@converts("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(c: Context) -> list[NodeEntry | None]:
    count, query = c.attrs["num_heads"], c[0]
    if any(c.has(i) for i in (8, 9)) or any(c.outputs[3:]):
        raise Unsupported("a shared buffer of the past, beams, or scores as an output")
    if query.type.rank != 3 or not c.has(1):
        raise Unsupported("packed queries, keys and values")
    if c.has(2) and c[1].type.rank not in (3, 4):
        raise Unsupported(f"keys {c[1].type}")
    if not c.has(2):
        raise Unsupported("packed keys and values")
    rows = [query, c[1], c[2]]
    if c.has(3):
        begin: Dim = 0
        for i, row in enumerate(rows):
            width = row.type.shape[-1] if row.type.rank == 3 else count * row.type.shape[-1]
            if row.type.rank == 3:
                rows[i] = emit("add", row, cut(c[3], 0, begin, begin + width))
            begin = begin + width
    q, k, v = (_heads(r, count) if r.type.rank == 3 else r for r in rows)
    k, v = _with_past(c.optional(6), k), _with_past(c.optional(7), v)
    mask = _sum(_padding(c, 4, q, k, c.attrs.get("mask_filter_value", -10000.0)), c.optional(5))
    out = _attention(c, q, k, v, mask, bool(c.attrs.get("unidirectional", 0)))
    return [_joined(out), k, v]


@converts("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(c: Context) -> list[NodeEntry | None]:
    """Without a buffer that the past shares with the present: the present is the past and the new keys.

    ``seqlens_k`` [B] is the number of valid keys less 1; a batch of one needs no mask for it.
    """
    count, kv_count = c.attrs["num_heads"], c.attrs["kv_num_heads"]
    unusual = [k for k in ("softcap", "smooth_softmax", "kv_cache_bit_width", "qk_output", "sliding_window_cache")
               if c.attrs.get(k, 0) not in (0, 0.0, -1)]  # fmt: skip
    if unusual or c.attrs.get("local_window_size", -1) != -1 or any(c.has(i) for i in range(10, 17)):
        raise Unsupported(f"attributes or inputs beyond masks and rotary positions {', '.join(unusual)}".rstrip())
    if c.attrs.get("causal", 1) != 1 or any(c.outputs[3:]):
        raise Unsupported("attention that is not causal, or scores as an output")
    rows = [c[0]]
    if not c.has(1):  # packed along the last axis
        size = c[0].type.shape[2] // (count + 2 * kv_count)
        edges = (0, count * size, (count + kv_count) * size, (count + 2 * kv_count) * size)
        rows = [cut(c[0], 2, a, b) for a, b in pairwise(edges)]
    else:
        rows = [c[0], c[1], c[2]]
    q, k, v = (_heads(r, n) for r, n in zip(rows, (count, kv_count, kv_count)))
    batch, length = q.type.shape[0], q.type.shape[2]
    past = c[3].type.shape[2] if c.has(3) else 0
    if batch != 1:
        raise Unsupported(f"a batch of {batch} sequences, whose lengths may differ")
    if c.attrs.get("do_rotary", 0):
        if not isinstance(length, int) or not isinstance(past, int):
            raise Unsupported("rotary positions of a symbolic number of steps")
        at = cast(c[9], I64) if c.has(9) else of_array(past + np.arange(length)[None], I64)
        cos, sin = (emit("expand_dims", emit("take", c[i], at, axis=0, mode="wrap"), axis=1) for i in (7, 8))
        if 2 * cos.type.shape[-1] != q.type.shape[-1]:  # type: ignore[operator]
            raise Unsupported("rotary positions of a part of each head")
        q, k = (rotated(x, cos, sin, bool(c.attrs.get("rotary_interleaved", 0))) for x in (q, k))
    k, v = _with_past(c.optional(3) if past != 0 else None, k), _with_past(c.optional(4) if past != 0 else None, v)
    out = _attention(c, q, k, v, None, True, count // kv_count)
    return [_joined(out), k, v]
