"""Quantised operators, computed as what they stand for; sums of integer products are int32, as ONNX has them."""

from __future__ import annotations

from collections.abc import Callable

from nnvm.dim import Dim
from nnvm.dtype import F32, F64, I32, U8, DType
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.nn import conv, matmul
from nnvm.frontend.onnx.protos import element_type
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit
from nnvm.graph import NodeEntry

__all__: list[str] = []


def _along(v: NodeEntry, x: NodeEntry, axis: int) -> NodeEntry:
    """A scale or zero point, one for all or one for each position on an axis, so that it broadcasts with `x`."""
    if v.type.rank == 0 or v.type.shape == (1,):
        return emit("reshape", v, shape=())
    if v.type.rank != 1:
        raise Unsupported("blocks of scales")
    shape: list[Dim] = [1] * x.type.rank
    shape[axis] = v.type.shape[0]
    return emit("reshape", v, shape=tuple(shape))


def _quantize(x: NodeEntry, zero: NodeEntry | None, to: DType) -> NodeEntry:
    """Rounds to even, adds the zero point, saturates. `x` is float32."""
    if to.bits > 16 or not to.is_int:
        raise Unsupported(f"quantised to {to}")
    x = emit("round", x)
    x = emit("add", x, cast(zero, F32)) if zero is not None else x
    return cast(emit("clip", x, a_min=float(to.min), a_max=float(to.max)), to)


@converts("QuantizeLinear")
def quantize(c: Context) -> NodeEntry:
    if c.attrs.get("block_size", 0) or c.attrs.get("precision", 0):
        raise Unsupported("blocks of scales, or a precision")
    x, axis = c[0], c.axis(1, max(2, c[0].type.rank))
    to = element_type(c.attrs["output_dtype"]) if c.attrs.get("output_dtype", 0) else U8
    zero = _along(c[2], x, axis) if c.has(2) else None
    to = c[2].type.dtype if c.has(2) else to
    scaled = emit("divide", cast(x, F32), cast(_along(c[1], x, axis), F32))
    return _quantize(scaled, zero, to)


@converts("DequantizeLinear")
def dequantize(c: Context) -> NodeEntry:
    if c.attrs.get("block_size", 0):
        raise Unsupported("blocks of scales")
    x, axis = c[0], c.axis(1, max(2, c[0].type.rank))
    to = element_type(c.attrs["output_dtype"]) if c.attrs.get("output_dtype", 0) else c[1].type.dtype
    whole = cast(x, I32)
    whole = emit("subtract", whole, cast(_along(c[2], x, axis), I32)) if c.has(2) else whole
    return cast(emit("multiply", cast(whole, F32), cast(_along(c[1], x, axis), F32)), to)


def _centred(x: NodeEntry, zero: NodeEntry | None, axis: int) -> NodeEntry:
    """The integers that quantised values stand for, as int32."""
    wide = cast(x, I32)
    return wide if zero is None else emit("subtract", wide, cast(_along(zero, x, axis), I32))


def _product(c: Context, op: Callable[[Context], object], a: NodeEntry, b: NodeEntry) -> NodeEntry:
    result = op(Context(c.op, [a, b], c.attrs, c.opset, c.outputs, c.params))
    assert isinstance(result, NodeEntry)
    return result


@converts("MatMulInteger")
def matmul_integer(c: Context) -> NodeEntry:
    a = _centred(c[0], c.optional(2), c[0].type.rank - 2)
    b = _centred(c[1], c.optional(3), c[1].type.rank - 1)
    return _product(c, matmul, a, b)


@converts("ConvInteger")
def conv_integer(c: Context) -> NodeEntry:
    return _product(c, conv, _centred(c[0], c.optional(2), 1), _centred(c[1], c.optional(3), 0))


def _requantize(c: Context, total: NodeEntry, factors: tuple[NodeEntry, NodeEntry, NodeEntry], zero: NodeEntry,
                axis: int) -> NodeEntry:  # fmt: skip
    a, b, y = (cast(_along(f, total, axis), F64) for f in factors)
    scaled = emit("divide", emit("multiply", cast(total, F64), emit("multiply", a, b)), y)
    return _quantize(cast(scaled, F32), _along(zero, total, axis), zero.type.dtype)


@converts("QLinearMatMul")
def qlinear_matmul(c: Context) -> NodeEntry:
    if c[1].type.numel != 1 or c[4].type.numel != 1 or c[6].type.numel != 1:
        raise Unsupported("scales of rows or columns")
    a, b = _centred(c[0], c[2], c[0].type.rank - 2), _centred(c[3], c[5], c[3].type.rank - 1)
    return _requantize(c, _product(c, matmul, a, b), (c[1], c[4], c[6]), c[7], 0)


@converts("QLinearConv")
def qlinear_conv(c: Context) -> NodeEntry:
    total = _product(c, conv, _centred(c[0], c[2], 1), _centred(c[3], c[5], 0))
    if c.has(8):
        total = emit("add", total, _along(c[8], total, 1))
    return _requantize(c, total, (c[1], c[4], c[6]), c[7], 1)


