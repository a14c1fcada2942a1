"""Quantised operators, computed as what they stand for; sums of integer products are int32, as ONNX has them."""

from __future__ import annotations

from collections.abc import Callable

from nnvm.dim import Dim
from nnvm.dtype import F32, F64, I32, U8, DType
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.nn import conv, matmul
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.formats import Format, Narrow, format_of
from nnvm.frontend.onnx.narrow import decode, encode
from nnvm.frontend.onnx.protos import element_type
from nnvm.frontend.onnx.table import Context, Unsupported, Value, converts, emit, materialise
from nnvm.graph import NodeEntry

__all__ = ["centred", "quantized"]


def _along(v: NodeEntry, x: NodeEntry, axis: int, block: int = 0) -> NodeEntry:
    """A scale or zero point so that it broadcasts with `x`: one for all, one for each position on an axis, or one for
    each `block` positions of it (a whole tensor of them)."""
    if v.type.rank == 0 or (v.type.shape == (1,) and not block):
        return emit("reshape", v, shape=())
    if block:
        if v.type.rank != x.type.rank:
            raise Unsupported(f"blocks of {block} with scales {v.type}")
        return cut(emit("repeat", v, repeats=block, axis=axis), axis, 0, x.type.shape[axis])
    if v.type.rank != 1:
        raise Unsupported("scales of several axes without a block_size")
    shape: list[Dim] = [1] * x.type.rank
    shape[axis] = v.type.shape[0]
    return emit("reshape", v, shape=tuple(shape))


def _wide(value: Value, to: DType) -> NodeEntry:
    """The elements of a value of any type as `to`."""
    return cast(decode(value) if isinstance(value, Narrow) else materialise(value), to)


def quantized(x: NodeEntry, zero: NodeEntry | None, to: DType | Format, saturate: bool = True) -> Value:
    """Rounds to even, adds the zero point, saturates. `x` and `zero` are float32."""
    if isinstance(to, Format) and to.kind == "f":
        return encode(x if zero is None else emit("add", x, zero), to, saturate)
    if isinstance(to, DType) and (to.bits > 16 or not to.is_int):
        raise Unsupported(f"quantised to {to}")
    low, high = (to.low, to.high) if isinstance(to, Format) else (to.min, to.max)
    x = emit("round", x)
    x = emit("add", x, zero) if zero is not None else x
    clipped = emit("clip", x, a_min=float(low), a_max=float(high))
    return Narrow(cast(clipped, to.store), to) if isinstance(to, Format) else cast(clipped, to)


@converts("QuantizeLinear")
def quantize(c: Context) -> Value:
    x, axis, block = c[0], c.axis(1, max(2, c[0].type.rank)), c.attrs.get("block_size", 0)
    if c.attrs.get("precision", 0) and element_type(c.attrs["precision"]) != F32:
        raise Unsupported(f"the precision {element_type(c.attrs['precision'])}")
    zero = None
    to: DType | Format = U8
    if (point := c.inputs[2] if c.has(2) else None) is not None:
        to = point.format if isinstance(point, Narrow) else materialise(point).type.dtype
        zero = _along(_wide(point, F32), x, axis, block)
    elif code := c.attrs.get("output_dtype", 0):
        to = format_of(code) or element_type(code)
    scaled = emit("divide", cast(x, F32), _along(cast(c[1], F32), x, axis, block))
    return quantized(scaled, zero, to, bool(c.attrs.get("saturate", 1)))


@converts("DequantizeLinear")
def dequantize(c: Context) -> NodeEntry:
    value = c.inputs[0]
    if value is None:
        raise Unsupported("input 0 is missing")
    floats = isinstance(value, Narrow) and value.format.kind == "f"
    x = _wide(value, F32 if floats else I32)
    axis, block = c.axis(1, max(2, x.type.rank)), c.attrs.get("block_size", 0)
    to = element_type(c.attrs["output_dtype"]) if c.attrs.get("output_dtype", 0) else c[1].type.dtype
    if (point := c.inputs[2] if c.has(2) else None) is not None:
        x = emit("subtract", x, _along(_wide(point, x.type.dtype), x, axis, block))
    return cast(emit("multiply", cast(x, F32), _along(cast(c[1], F32), x, axis, block)), to)


def centred(x: NodeEntry, zero: NodeEntry | None, axis: int) -> NodeEntry:
    """The integers that quantised values stand for, as int32."""
    wide = cast(x, I32)
    return wide if zero is None else emit("subtract", wide, cast(_along(zero, x, axis), I32))


def _product(c: Context, op: Callable[[Context], object], a: NodeEntry, b: NodeEntry) -> NodeEntry:
    result = op(Context(c.op, [a, b], c.attrs, c.opset, c.outputs, c.params))
    assert isinstance(result, NodeEntry)
    return result


@converts("MatMulInteger")
def matmul_integer(c: Context) -> NodeEntry:
    a = centred(c[0], c.optional(2), c[0].type.rank - 2)
    b = centred(c[1], c.optional(3), c[1].type.rank - 1)
    return _product(c, matmul, a, b)


@converts("ConvInteger")
def conv_integer(c: Context) -> NodeEntry:
    return _product(c, conv, centred(c[0], c.optional(2), 1), centred(c[1], c.optional(3), 0))


def _requantize(c: Context, total: NodeEntry, factors: tuple[NodeEntry, NodeEntry, NodeEntry], zero: NodeEntry,
                axis: int) -> NodeEntry:  # fmt: skip
    a, b, y = (cast(_along(f, total, axis), F64) for f in factors)
    scaled = emit("divide", emit("multiply", cast(total, F64), emit("multiply", a, b)), y)
    quantised = quantized(cast(scaled, F32), _along(cast(zero, F32), total, axis), zero.type.dtype)
    return materialise(quantised)


@converts("QLinearMatMul")
def qlinear_matmul(c: Context) -> NodeEntry:
    if c[1].type.numel != 1 or c[4].type.numel != 1 or c[6].type.numel != 1:
        raise Unsupported("scales of rows or columns")
    a, b = centred(c[0], c[2], c[0].type.rank - 2), centred(c[3], c[5], c[3].type.rank - 1)
    return _requantize(c, _product(c, matmul, a, b), (c[1], c[4], c[6]), c[7], 0)


@converts("QLinearConv")
def qlinear_conv(c: Context) -> NodeEntry:
    total = _product(c, conv, centred(c[0], c[2], 1), centred(c[3], c[5], 0))
    if c.has(8):
        total = emit("add", total, _along(c[8], total, 1))
    return _requantize(c, total, (c[1], c[4], c[6]), c[7], 1)


