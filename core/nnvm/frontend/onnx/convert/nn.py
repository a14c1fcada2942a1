"""Layers: convolutions, pooling, products, normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnvm.dim import Dim
from nnvm.dtype import F32, I64
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry, apply

__all__ = ["per_channel"]

Pads = tuple[tuple[int, int], ...]


def _padding(c: Context, extents: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int],
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
    padding = _padding(c, x.type.shape[2:], kernel, strides, dilation)
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
    if wanted is None:
        pads = c.attrs.get("pads", (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
        padding = list(zip(pads[:rank], pads[rank:]))
    else:
        padding = []
        for n, k, s, d, m, w in zip(x.type.shape[2:], kernel, strides, dilation, more, wanted[-rank:]):
            total = s * (n - 1) + m + (k - 1) * d + 1 - w
            if not isinstance(total, int):
                raise Unsupported("output_shape on a symbolic axis")
            if total < 0:
                raise Unsupported("an output_shape larger than what the kernel reaches")
            half = total // 2
            padding.append((total - half, half) if auto != "SAME_UPPER" else (half, total - half))
    bias = [c[2]] if c.has(2) else []
    low = tuple((a, b) for a, b in padding)
    over = tuple(max(0, m - max(s, d) + 1) for m, s, d in zip(more, strides, dilation))
    if any(over):
        raise Unsupported(f"output_padding {more} with strides {strides}")
    return emit(f"conv{rank}d_transpose", x, weight, *bias, strides=strides, padding=low, dilation=dilation,
                groups=c.attrs.get("group", 1), output_padding=more)  # fmt: skip


def _widely_padded(x: NodeEntry, padding: Pads, kernel: Sequence[int], value: float) -> tuple[NodeEntry, Pads]:
    """(data, padding left to the pool): padding over half of the window, which pools do not take, is done first."""
    if all(max(p) <= k // 2 for p, k in zip(padding, kernel)):
        return x, padding
    width = ((0, 0), (0, 0), *padding)
    return emit("pad", x, pad_width=width, mode="constant", value=value), ((0, 0),) * len(kernel)


@converts("MaxPool", "AveragePool")
def pool(c: Context) -> NodeEntry | list[NodeEntry]:
    x = c[0]
    kernel = tuple(c.attrs["kernel_shape"])
    rank = len(kernel)
    if not 1 <= rank <= 3:
        raise Unsupported(f"{rank} spatial axes")
    strides = tuple(c.attrs.get("strides", (1,) * rank))
    dilation = tuple(c.attrs.get("dilations", (1,) * rank))
    padding = _padding(c, x.type.shape[2:], kernel, strides, dilation)
    ceil_mode = bool(c.attrs.get("ceil_mode", 0))
    if len(c.outputs) == 1 and not ceil_mode and (c.op == "MaxPool" or c.attrs.get("count_include_pad", 0)):
        x, padding = _widely_padded(x, padding, kernel, x.type.dtype.min if c.op == "MaxPool" else 0)
    common = {"pool_size": kernel, "strides": strides, "padding": padding, "ceil_mode": ceil_mode}
    if c.op == "AveragePool":
        if any(d != 1 for d in dilation):
            raise Unsupported("dilations")
        return emit(f"avg_pool{rank}d", x, **common, count_include_pad=bool(c.attrs.get("count_include_pad", 0)))
    if not x.type.dtype.is_float:
        raise Unsupported(f"elements of type {x.type.dtype}")
    if len(c.outputs) == 1:
        return emit(f"max_pool{rank}d", x, **common, dilation=dilation)
    if c.attrs.get("storage_order", 0):
        raise Unsupported("storage_order 1")
    node = apply(f"max_pool{rank}d_with_indices", [x], {**common, "dilation": dilation})
    # ONNX counts positions in the whole tensor, not in each plane
    n, ch, *space = x.type.shape
    if not all(isinstance(d, int) for d in x.type.shape):
        raise Unsupported("indices in a tensor of symbolic shape")
    planes = np.arange(n * ch, dtype=np.int64) * int(np.prod(space))  # type: ignore[operator,arg-type]
    offset = of_array(planes.reshape((n, ch, *[1] * rank)), I64)  # type: ignore[arg-type]
    return [node[0], emit("add", node[1], offset)]


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
def batch_norm(c: Context) -> NodeEntry:
    if c.attrs.get("training_mode", 0) or len([o for o in c.outputs if o]) > 1:
        raise Unsupported("training")
    if c.attrs.get("spatial", 1) != 1:
        raise Unsupported("statistics of single positions")
    x = c[0]
    rest = [c[i] for i in range(1, 5)]
    if any(r.type.dtype != x.type.dtype for r in rest):
        rest = [cast(r, x.type.dtype) for r in rest]
    return emit("batch_norm", x, *rest, axis=1, epsilon=c.attrs.get("epsilon", 1e-5))


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


@converts("LpPool", "GlobalLpPool")
def lp_pool(c: Context) -> NodeEntry:
    x, p = c[0], c.attrs.get("p", 2)
    t = x.type.dtype
    size = emit("abs", x)
    raised = size if p == 1 else emit("multiply", x, x) if p == 2 else emit("power", size, scalar(p, t))
    if c.op == "GlobalLpPool":
        total = emit("sum", raised, axis=tuple(range(2, x.type.rank)), keepdims=True)
    else:
        kernel = tuple(c.attrs["kernel_shape"])
        rank = len(kernel)
        if not 1 <= rank <= 3 or set(c.attrs.get("dilations", (1,))) != {1}:
            raise Unsupported("dilations, or more than 3 spatial axes")
        strides = tuple(c.attrs.get("strides", (1,) * rank))
        padding = _padding(c, x.type.shape[2:], kernel, strides, (1,) * rank)
        if not c.attrs.get("ceil_mode", 0):
            raised, padding = _widely_padded(raised, padding, kernel, 0)
        total = emit(f"avg_pool{rank}d", raised, pool_size=kernel, strides=strides, padding=padding,
                     ceil_mode=bool(c.attrs.get("ceil_mode", 0)), divisor_override=1)  # fmt: skip
    return total if p == 1 else emit("sqrt", total) if p == 2 else emit("power", total, scalar(1 / p, t))
