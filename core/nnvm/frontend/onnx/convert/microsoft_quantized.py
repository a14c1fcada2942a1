"""The quantised operators of ONNX Runtime's domain com.microsoft."""

from __future__ import annotations

import numpy as np

from nnvm.dtype import F32, I32, U8
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.microsoft import MICROSOFT
from nnvm.frontend.onnx.convert.nn import matmul
from nnvm.frontend.onnx.convert.quantize import centred, quantized
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.table import Context, Unsupported, axis_of, converts, emit, materialise, of_array, scalar
from nnvm.graph import NodeEntry

__all__: list[str] = []


def _real(c: Context, i: int) -> NodeEntry:
    """Inputs `i` to `i` + 2, quantised values with a scale and perhaps a zero point, as float32."""
    return emit("multiply", cast(centred(c[i], c.optional(i + 2), 1), F32), emit("reshape", c[i + 1], shape=()))


def _stored(c: Context, x: NodeEntry, scale: int, like: NodeEntry) -> NodeEntry:
    """float32 values quantised by the scale and zero point that are inputs `scale` and the next, as `like` is."""
    zero = c.optional(scale + 1)
    scaled = emit("divide", x, emit("reshape", c[scale], shape=()))
    point = None if zero is None else emit("reshape", cast(zero, F32), shape=())
    return materialise(quantized(scaled, point, like.type.dtype if zero is None else zero.type.dtype))


@converts("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(c: Context) -> NodeEntry:
    op = "add" if c.op == "QLinearAdd" else "multiply"
    return _stored(c, emit(op, _real(c, 0), _real(c, 3)), 6, c[0])


@converts("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(c: Context) -> NodeEntry:
    x = _real(c, 0)
    y = emit("sigmoid", x) if c.op == "QLinearSigmoid" else emit("leaky_relu", x, alpha=c.attrs.get("alpha", 0.01))
    return _stored(c, y, 3, c[0])


@converts("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(c: Context) -> NodeEntry:
    rank = c[0].type.rank
    axes = tuple(range(1, rank - 1)) if c.attrs.get("channels_last", 0) else tuple(range(2, rank))
    return _stored(c, emit("mean", _real(c, 0), axis=axes, keepdims=True), 3, c[0])


@converts("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(c: Context) -> NodeEntry:
    parts = [_real(c, i) for i in range(2, len(c.inputs), 3)]
    return _stored(c, emit("concatenate", *parts, axis=axis_of(c.attrs["axis"], parts[0].type.rank)), 0, c[2])


@converts("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(c: Context) -> NodeEntry:
    a, b = c[0], c[1]
    product = matmul(c.like(centred(a, c.optional(4), a.type.rank - 2), centred(b, c.optional(5), b.type.rank - 1)))
    scaled = emit("multiply", emit("multiply", cast(product, F32), c[2]), c[3])
    return emit("add", scaled, c[6]) if c.has(6) else scaled


@converts("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(c: Context) -> NodeEntry:
    a, b = c[0], c[1]
    zero = scalar(0, F32)
    low = emit("minimum", emit("min", a, axis=None, keepdims=False), zero)
    high = emit("maximum", emit("max", a, axis=None, keepdims=False), zero)
    scale = emit("divide", emit("subtract", high, low), scalar(255, F32))
    point = emit("clip", emit("round", emit("divide", emit("negative", low), scale)), a_min=0.0, a_max=255.0)
    whole = emit("clip", emit("add", emit("round", emit("divide", a, scale)), point), a_min=0.0, a_max=255.0)
    left = emit("subtract", cast(whole, I32), cast(point, I32))
    product = matmul(c.like(left, centred(b, c.optional(3), b.type.rank - 1)))
    scaled = emit("multiply", cast(product, F32), emit("multiply", scale, c[2]))
    return emit("add", scaled, c[4]) if c.has(4) else scaled


@converts("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(c: Context) -> NodeEntry:
    """A times the transpose of a matrix [N, K] of 2, 4 or 8 bits, in blocks along K that share a scale."""
    rows, columns, bits, block = (c.attrs[k] for k in ("N", "K", "bits", "block_size"))
    if bits not in (2, 4, 8) or c.has(4) or c.attrs.get("weight_prepacked", 0):
        raise Unsupported(f"{bits} bits, an order of groups, or weights that are packed for one machine")
    a, t = c[0], c[0].type.dtype
    count = -(-columns // block)
    codes = _unpacked(emit("reshape", c[1], shape=(rows, count, block * bits // 8)), bits)
    if c.has(3) and c[3].type.dtype == U8:
        packed = emit("reshape", c[3], shape=(rows, -(-count * bits // 8)))
        zero = cast(cut(_unpacked(packed, bits), 1, 0, count), F32)
    elif c.has(3):
        zero = emit("reshape", cast(c[3], F32), shape=(rows, count))
    else:
        zero = of_array(np.full((rows, count), 1 << bits - 1, np.float32), F32)
    centred_ = emit("subtract", cast(codes, F32), emit("expand_dims", zero, axis=2))
    scale = emit("reshape", cast(c[2], F32), shape=(rows, count, 1))
    weight = emit("reshape", emit("multiply", centred_, scale), shape=(rows, count * block))
    bias = [cast(c[5], t)] if c.has(5) else []
    return emit("dense", a, cast(cut(weight, 1, 0, columns), t), *bias)


def _unpacked(x: NodeEntry, bits: int) -> NodeEntry:
    """Bytes [..., n] as codes [..., n * 8 / bits], the lowest bits first."""
    if bits == 8:
        return x
    last, mask = x.type.rank, scalar((1 << bits) - 1, U8)
    parts = [emit("bitwise_and", emit("right_shift", x, scalar(shift, U8)), mask) for shift in range(0, 8, bits)]
    spread = emit("concatenate", *(emit("expand_dims", p, axis=last) for p in parts), axis=last)
    return emit("reshape", spread, shape=(*x.type.shape[:-1], x.type.shape[-1] * (8 // bits)))
