"""The fused operators of ONNX Runtime's optimiser (domain com.microsoft) but attention and quantised ones.

Source of their meaning: ONNX Runtime's document "ContribOperators".
"""

from __future__ import annotations

import numpy as np

from nnvm.dtype import I32, I64
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.nn import conv, gemm, matmul
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__ = ["MICROSOFT", "rotated"]

MICROSOFT = "com.microsoft"


@converts("Gelu", "BiasGelu", domain=MICROSOFT)
def gelu(c: Context) -> NodeEntry:
    return emit("gelu", emit("add", c[0], c[1]) if c.op == "BiasGelu" else c[0])


@converts("FastGelu", domain=MICROSOFT)
def fast_gelu(c: Context) -> NodeEntry:
    return emit("gelu", emit("add", c[0], c[1]) if c.has(1) else c[0], approximate="tanh")


@converts("QuickGelu", domain=MICROSOFT)
def quick_gelu(c: Context) -> NodeEntry:
    x = c[0]
    return emit("multiply", x, emit("sigmoid", emit("multiply", x, scalar(c.attrs.get("alpha", 1.702), x.type.dtype))))


@converts("FusedMatMul", domain=MICROSOFT)
def fused_matmul(c: Context) -> NodeEntry:
    a, b = c[0], c[1]
    if c.attrs.get("transBatchA", 0) or c.attrs.get("transBatchB", 0):
        raise Unsupported("transBatchA or transBatchB")
    a, b = (_transposed(x) if c.attrs.get(f"trans{k}", 0) and x.type.rank > 1 else x for k, x in (("A", a), ("B", b)))
    product, alpha = matmul(c.like(a, b)), c.attrs.get("alpha", 1.0)
    return product if alpha == 1 else emit("multiply", product, scalar(alpha, product.type.dtype))


def _transposed(x: NodeEntry) -> NodeEntry:
    r = x.type.rank
    return emit("transpose", x, axes=(*range(r - 2), r - 1, r - 2))


def _activated(x: NodeEntry, name: str, params: tuple[float, ...]) -> NodeEntry:
    """The activation that a fused op ends with; `params` are its alpha, beta, ... as far as given."""
    plain = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Softplus": "softplus"}
    if name in plain:
        return emit(plain[name], x)
    if name == "LeakyRelu":
        return emit("leaky_relu", x, alpha=params[0] if params else 0.01)
    if name == "Clip":
        return emit("clip", x, a_min=params[0], a_max=params[1])
    if name == "HardSigmoid":
        alpha, beta = params or (0.2, 0.5)
        t = x.type.dtype
        line = emit("add", emit("multiply", x, scalar(alpha, t)), scalar(beta, t))
        return emit("clip", line, a_min=0.0, a_max=1.0)
    raise Unsupported(f"the activation {name}")


@converts("FusedConv", domain=MICROSOFT)
def fused_conv(c: Context) -> NodeEntry:
    out = conv(c.like(*c.inputs[:3]))
    out = emit("add", out, c[3]) if c.has(3) else out
    if "activation" not in c.attrs:
        return out
    return _activated(out, c.attrs["activation"], c.attrs.get("activation_params", ()))


@converts("FusedGemm", domain=MICROSOFT)
def fused_gemm(c: Context) -> NodeEntry:
    given = tuple(c.attrs[k] for k in ("activation_alpha", "activation_beta") if k in c.attrs)
    return _activated(gemm(c), c.attrs.get("activation", "Relu"), given)


@converts("NhwcConv", domain=MICROSOFT)
def nhwc_conv(c: Context) -> NodeEntry:
    rank = c[0].type.rank
    inner = (0, rank - 1, *range(1, rank - 1))
    out = conv(c.like(*(emit("transpose", c[i], axes=inner) for i in (0, 1)), *c.inputs[2:3]))
    return emit("transpose", out, axes=(0, *range(2, rank), 1))


@converts("BiasAdd", domain=MICROSOFT)
def bias_add(c: Context) -> NodeEntry:
    return emit("add", emit("add", c[0], c[1]), c[2])


@converts("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(c: Context) -> NodeEntry:
    x = emit("add", c[0], c[1])
    last, n = x.type.rank - 1, x.type.shape[-1]
    return emit("multiply", cut(x, last, 0, n // 2), emit("gelu", cut(x, last, n // 2, n)))


def _layer_normed(x: NodeEntry, gamma: NodeEntry, beta: NodeEntry | None, eps: float) -> NodeEntry:
    affine = [gamma] if beta is None else [gamma, beta]
    return emit("layer_norm", x, *affine, axis=x.type.rank - 1, eps=eps)


def _wanted(c: Context, i: int) -> bool:
    return i < len(c.outputs) and c.outputs[i]


@converts("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(c: Context) -> list[NodeEntry | None]:
    """Normalises input + skip (+ bias), over the last axis; the sum is output 3."""
    simplified = c.op.startswith("SkipSimplified")
    if _wanted(c, 1) or _wanted(c, 2):
        raise Unsupported("its mean and deviation")
    x = emit("add", c[0], c[1])
    bias = c.optional(3 if simplified else 4)
    x = x if bias is None else emit("add", x, bias)
    eps = c.attrs.get("epsilon", 1e-12 if not simplified else 1e-5)
    if simplified:
        return [emit("rms_norm", x, c[2], axis=x.type.rank - 1, eps=eps), None, None, x]
    return [_layer_normed(x, c[2], c.optional(3), eps), None, None, x]


@converts("SimplifiedLayerNormalization")
@converts("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_norm(c: Context) -> list[NodeEntry | None]:
    if _wanted(c, 1):
        raise Unsupported("its deviation")
    x = c[0]
    return [emit("rms_norm", x, c[1], axis=c.axis(-1, x.type.rank), eps=c.attrs.get("epsilon", 1e-5))]


@converts("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(c: Context) -> list[NodeEntry | None]:
    ids = c[0]
    batch, length = ids.type.shape
    total = emit("take", c[2], cast(ids, I64), axis=0, mode="wrap")
    if c.has(8):
        total = emit("add", total, emit("take", c[3], cast(c[8], I64), axis=0, mode="wrap"))
    else:
        total = emit("add", total, cut(c[3], 0, 0, length))
    if c.has(1) and c.has(4):
        total = emit("add", total, emit("take", c[4], cast(c[1], I64), axis=0, mode="wrap"))
    if c.has(7):
        valid = emit("sum", cast(c[7], I32), axis=(1,), keepdims=False)
        count = cast(valid, I32)
    else:
        count = emit("full", shape=(batch,), dtype=I32, value=0)
    normed = _layer_normed(total, c[5], c[6], c.attrs.get("epsilon", 1e-12))
    return [normed, count, total]


@converts("GroupNorm", domain=MICROSOFT)
def group_norm(c: Context) -> NodeEntry:
    x, last = c[0], bool(c.attrs.get("channels_last", 1))
    rank = x.type.rank
    x = emit("transpose", x, axes=(0, rank - 1, *range(1, rank - 1))) if last else x
    gamma, beta = (cast(c[i], x.type.dtype) for i in (1, 2))
    y = emit("group_norm", x, gamma, beta, num_groups=c.attrs["groups"], eps=c.attrs.get("epsilon", 1e-5))
    y = emit("multiply", y, emit("sigmoid", y)) if c.attrs.get("activation", 0) else y
    return emit("transpose", y, axes=(0, *range(2, rank), 1)) if last else y


def rotated(x: NodeEntry, cos: NodeEntry, sin: NodeEntry, interleaved: bool) -> NodeEntry:
    """Rotary position embedding (Su et al., arXiv:2104.09864) of x [..., D]: pairs of elements turn by an angle.

    The pairs are neighbours where interleaved, else halves; cos and sin [..., D / 2] broadcast.
    """
    s, last = x.type.shape, x.type.rank
    half = s[-1] // 2
    if interleaved:
        pairs = emit("reshape", x, shape=(*s[:-1], half, 2))
        a, b = (emit("reshape", cut(pairs, last, k, k + 1), shape=(*s[:-1], half)) for k in range(2))
    else:
        a, b = cut(x, last - 1, 0, half), cut(x, last - 1, half, s[-1])
    turned = (
        emit("subtract", emit("multiply", a, cos), emit("multiply", b, sin)),
        emit("add", emit("multiply", a, sin), emit("multiply", b, cos)),
    )
    if not interleaved:
        return emit("concatenate", *turned, axis=last - 1)
    joined = emit("concatenate", *(emit("expand_dims", t, axis=last) for t in turned), axis=last)
    return emit("reshape", joined, shape=s)


@converts("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(c: Context) -> NodeEntry:
    x, positions, cos, sin = c[0], cast(c[1], I64), c[2], c[3]
    if c.attrs.get("is_packed_batching", 0) or c.attrs.get("scale", 1.0) != 1:
        raise Unsupported("packed batches or a scale")
    flat = x.type.rank == 3
    if flat:
        batch, length, hidden = x.type.shape
        heads = c.attrs.get("num_heads", 0)
        width = c.attrs.get("rotary_embedding_dim", 0) or 0
        if not heads and width:
            raise Unsupported("rotary_embedding_dim without num_heads")
        size = hidden // heads if heads else 2 * cos.type.shape[1]
        x = emit("transpose", emit("reshape", x, shape=(batch, length, hidden // size, size)), axes=(0, 2, 1, 3))
    batch, _, length, size = x.type.shape
    if positions.type.numel == 1:
        if not isinstance(length, int):
            raise Unsupported("an offset for a symbolic number of positions")
        along = of_array(np.arange(length)[None], I64)
        positions = emit("add", emit("reshape", positions, shape=(1, 1)), along)
    turns = [emit("expand_dims", emit("take", t, positions, axis=0, mode="wrap"), axis=1) for t in (cos, sin)]
    width = 2 * cos.type.shape[1]  # type: ignore[operator,assignment]
    part = x if width == size else cut(x, 3, 0, width)
    y = rotated(part, turns[0], turns[1], bool(c.attrs.get("interleaved", 0)))
    y = y if width == size else emit("concatenate", y, cut(x, 3, width, size), axis=3)
    return emit("reshape", emit("transpose", y, axes=(0, 2, 1, 3)), shape=c[0].type.shape) if flat else y


@converts("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(c: Context) -> NodeEntry:
    x, bias = c[0], c[1]
    axis = c.axis(1, x.type.rank)
    if not c.attrs["is_inner_broadcast"] and bias.type.rank != x.type.rank:
        raise Unsupported("a bias for outer axes")
    total = emit("add", x, bias)
    flat = emit("reshape", total, shape=(*x.type.shape[:axis], -1))
    return emit("reshape", emit("softmax", flat, axis=axis), shape=x.type.shape)
