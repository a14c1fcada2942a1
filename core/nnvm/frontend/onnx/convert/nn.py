"""Layers: convolutions, pooling, products, normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim
from nnvm.dtype import F32
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, scalar
from nnvm.graph import NodeEntry

__all__ = ["Pads", "conv", "matmul", "per_channel", "window_padding"]

#: (low, high) per axis
Pads = tuple[tuple[int, int], ...]


def window_padding(c: Context, extents: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int],
             dilation: Sequence[int]) -> Pads:  # fmt: skip
    """(low, high) per axis, from ``pads`` or ``auto_pad``."""
    rank = len(kernel)
    auto = c.attrs.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        pads = c.attrs.get("pads", (0,) * (2 * rank))
        return tuple(zip(pads[:rank], pads[rank:]))
    if auto == "VALID":
        return ((0, 0),) * rank
    out = []
    for n, k, s, d in zip(extents, kernel, strides, dilation):
        if not isinstance(n, int):
            if s != 1:
                raise Unsupported(f"auto_pad {auto} with strides on a symbolic axis")
            n = 1
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        half = total // 2
        out.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    return tuple(out)


def _spatial(c: Context, weight: NodeEntry) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Spatial rank, kernel size, strides and dilation."""
    kernel = c.attrs.get("kernel_shape") or weight.type.shape[2:]
    if weight.type.shape[2:] != tuple(kernel):
        raise Unsupported(f"kernel_shape {kernel} of a weight {weight.type}")
    rank = len(kernel)
    if not 1 <= rank <= 3:
        raise Unsupported(f"{rank} spatial axes")
    return rank, tuple(kernel), tuple(c.attrs.get("strides", (1,) * rank)), tuple(c.attrs.get("dilations", (1,) * rank))


@converts("Conv")
def conv(c: Context) -> NodeEntry:
    x, weight = c[0], c[1]
    rank, kernel, strides, dilation = _spatial(c, weight)
    padding = window_padding(c, x.type.shape[2:], kernel, strides, dilation)
    bias = [c[2]] if c.has(2) else []
    return emit(f"conv{rank}d", x, weight, *bias, strides=strides, padding=padding, dilation=dilation,
                groups=c.attrs.get("group", 1))  # fmt: skip


@converts("ConvTranspose")
def conv_transpose(c: Context) -> NodeEntry:
    x, weight = c[0], c[1]
    rank, kernel, strides, dilation = _spatial(c, weight)
    more = tuple(c.attrs.get("output_padding", (0,) * rank))
    auto = c.attrs.get("auto_pad", "NOTSET")
    wanted = c.attrs.get("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(x.type.shape[2:], strides))
    missing: list[int] = []
    if wanted is None:
        pads = c.attrs.get("pads", (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
        padding = list(zip(pads[:rank], pads[rank:]))
    else:
        padding = []
        for n, k, s, d, m, w in zip(x.type.shape[2:], kernel, strides, dilation, more, wanted[-rank:]):
            total = s * (n - 1) + m + (k - 1) * d + 1 - w
            if not isinstance(total, int):
                raise Unsupported("output_shape on a symbolic axis")
            missing.append(max(0, -total))  # what the kernel does not reach lies at the end
            total = max(0, total)
            half = total // 2
            padding.append((total - half, half) if auto != "SAME_UPPER" else (half, total - half))
    over = tuple(max(0, m - max(s, d) + 1) for m, s, d in zip(more, strides, dilation))
    if any(over):
        raise Unsupported(f"output_padding {more} with strides {strides}")
    bias = [c[2]] if c.has(2) and not any(missing) else []
    out = emit(f"conv{rank}d_transpose", x, weight, *bias, strides=strides, padding=tuple(padding), dilation=dilation,
               groups=c.attrs.get("group", 1), output_padding=more)  # fmt: skip
    if not any(missing):
        return out
    out = emit("pad", out, pad_width=((0, 0), (0, 0), *((0, m) for m in missing)), mode="constant", value=0)
    return emit("add", out, per_channel(c[2], rank + 2)) if c.has(2) else out


@converts("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Context) -> NodeEntry:
    axes = tuple(range(2, c[0].type.rank))
    return emit("mean" if c.op == "GlobalAveragePool" else "max", c[0], axis=axes, keepdims=True)


@converts("MatMul")
def matmul(c: Context) -> NodeEntry:
    a, b = c[0], c[1]
    left, right = a.type.rank == 1, b.type.rank == 1
    a = emit("expand_dims", a, axis=0) if left else a
    b = emit("expand_dims", b, axis=1) if right else b
    out = emit("matmul", a, b)
    shape = list(out.type.shape)
    if right:
        shape.pop()
    if left:
        shape.pop(-1 if right else -2)
    return emit("reshape", out, shape=tuple(shape)) if left or right else out


@converts("Gemm")
def gemm(c: Context) -> NodeEntry:
    a, b, t = c[0], c[1], c[0].type.dtype
    if not t.is_float:
        raise Unsupported(f"elements of type {t}")
    alpha, beta = c.attrs.get("alpha", 1.0), c.attrs.get("beta", 1.0)
    a = emit("transpose", a, axes=(1, 0)) if c.attrs.get("transA", 0) else a
    if c.attrs.get("transB", 0):
        bias = c.optional(2)
        if alpha == beta == 1 and bias is not None and bias.type.shape == b.type.shape[:1]:
            return emit("dense", a, b, bias)
        out = emit("dense", a, b)
    else:
        out = emit("matmul", a, b)
    out = emit("multiply", out, scalar(alpha, t)) if alpha != 1 else out
    if not c.has(2) or beta == 0:
        return out
    return emit("add", out, c[2] if beta == 1 else emit("multiply", c[2], scalar(beta, t)))


@converts("Softmax", "LogSoftmax")
def softmax(c: Context) -> NodeEntry:
    x, op = c[0], "softmax" if c.op == "Softmax" else "log_softmax"
    if c.opset >= 13:
        return emit(op, x, axis=c.axis(-1, x.type.rank))
    axis = c.axis(1, x.type.rank)
    if axis == x.type.rank - 1:
        return emit(op, x, axis=axis)
    flat = emit("reshape", x, shape=(*x.type.shape[:axis], -1))
    return emit("reshape", emit(op, flat, axis=axis), shape=x.type.shape)


def per_channel(v: NodeEntry, rank: int) -> NodeEntry:
    """A vector [C] so that it broadcasts with [N, C, ...]."""
    return emit("reshape", v, shape=(v.type.shape[0], *[1] * (rank - 2)))


@converts("BatchNormalization")
def batch_norm(c: Context) -> NodeEntry | list[NodeEntry | None]:
    if c.attrs.get("spatial", 1) != 1:
        raise Unsupported("statistics of single positions")
    x = c[0]
    if c.attrs.get("training_mode", 0):
        return _batch_norm_training(c, x)
    if len([o for o in c.outputs if o]) > 1:
        raise Unsupported("training")
    rest = [c[i] for i in range(1, 5)]
    if any(r.type.dtype != x.type.dtype for r in rest):
        rest = [cast(r, x.type.dtype) for r in rest]
    return emit("batch_norm", x, *rest, axis=1, epsilon=c.attrs.get("epsilon", 1e-5))


def _batch_norm_training(c: Context, x: NodeEntry) -> list[NodeEntry | None]:
    """By the batch's own statistics; the running ones move towards them."""
    axes = (0, *range(2, x.type.rank))
    mean = emit("mean", x, axis=axes, keepdims=False)
    spread = emit("variance", x, axis=axes, keepdims=False, correction=0.0)
    y = emit("batch_norm", x, cast(c[1], x.type.dtype), cast(c[2], x.type.dtype), mean, spread, axis=1,
             epsilon=c.attrs.get("epsilon", 1e-5))  # fmt: skip
    kept = c.attrs.get("momentum", 0.9)
    running: list[NodeEntry | None] = []
    for old, new in ((c[3], mean), (c[4], spread)):
        t = old.type.dtype
        share = emit("multiply", cast(new, t), scalar(1 - kept, t))
        running.append(emit("add", emit("multiply", old, scalar(kept, t)), share))
    return [y, *running]


@converts("InstanceNormalization")
def instance_norm(c: Context) -> NodeEntry:
    return emit("instance_norm", c[0], c[1], c[2], eps=c.attrs.get("epsilon", 1e-5))


@converts("GroupNormalization", since=21)
def group_norm(c: Context) -> NodeEntry:
    return emit("group_norm", c[0], c[1], c[2], num_groups=c.attrs["num_groups"], eps=c.attrs.get("epsilon", 1e-5))


@converts("LayerNormalization")
def layer_norm(c: Context) -> NodeEntry | list[NodeEntry | None]:
    x = c[0]
    axis, eps = c.axis(-1, x.type.rank), c.attrs.get("epsilon", 1e-5)
    affine = _full_affine(c, x, axis)
    if affine is not None:
        y = emit("layer_norm", x, *affine, axis=axis, eps=eps)
    else:
        y = emit("multiply", emit("layer_norm", x, axis=axis, eps=eps), c[1])
        y = emit("add", y, c[2]) if c.has(2) else y
    if not any(c.outputs[1:]):
        return y
    axes = tuple(range(axis, x.type.rank))
    wide = cast(x, F32)
    mean = emit("mean", wide, axis=axes, keepdims=True)
    spread = emit("variance", wide, axis=axes, keepdims=True, correction=0.0)
    return [y, mean, emit("rsqrt", emit("add", spread, scalar(eps, F32)))]


def _full_affine(c: Context, x: NodeEntry, axis: int) -> list[NodeEntry] | None:
    """Scale (and bias) where they have exactly the shape of the normalised axes."""
    given = [c[i] for i in (1, 2) if c.has(i)]
    return given if all(g.type.shape == x.type.shape[axis:] for g in given) else None


@converts("RMSNormalization")
def rms_norm(c: Context) -> NodeEntry:
    x = c[0]
    axis, eps = c.axis(-1, x.type.rank), c.attrs.get("epsilon", 1e-5)
    if c[1].type.shape == x.type.shape[axis:] and c[1].type.dtype == x.type.dtype:
        return emit("rms_norm", x, c[1], axis=axis, eps=eps)
    return emit("multiply", cast(emit("rms_norm", x, axis=axis, eps=eps), c[1].type.dtype), c[1])


@converts("LRN")
def lrn(c: Context) -> NodeEntry:
    if c.attrs["size"] % 2 == 0:
        raise Unsupported("an even size")
    return emit("lrn", c[0], size=c.attrs["size"], axis=1, alpha=c.attrs.get("alpha", 1e-4),
                beta=c.attrs.get("beta", 0.75), bias=c.attrs.get("bias", 1.0))  # fmt: skip


@converts("LpNormalization")
def lp_norm(c: Context) -> NodeEntry:
    x = c[0]
    axis = (c.axis(-1, x.type.rank),)
    if c.attrs.get("p", 2) == 1:
        norm = emit("sum", emit("abs", x), axis=axis, keepdims=True)
    else:
        norm = emit("sqrt", emit("sum", emit("multiply", x, x), axis=axis, keepdims=True))
    zero = scalar(0, x.type.dtype)
    return emit("where", emit("equal", norm, zero), zero, emit("divide", x, norm))


@converts("MeanVarianceNormalization")
def mean_variance_norm(c: Context) -> NodeEntry:
    x, axes = c[0], tuple(c.attrs.get("axes", (0, 2, 3)))
    centred = emit("subtract", x, emit("mean", x, axis=axes, keepdims=True))
    deviation = emit("sqrt", emit("variance", x, axis=axes, keepdims=True, correction=0.0))
    return emit("divide", centred, emit("add", deviation, scalar(1e-9, x.type.dtype)))
