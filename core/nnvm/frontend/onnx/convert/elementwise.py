"""Elementwise operators."""

from __future__ import annotations

import numpy as np

from nnvm.dtype import BOOL, F32, F64, I8, I64, U8, DType
from nnvm.frontend.onnx.formats import Format, Narrow, format_of
from nnvm.frontend.onnx.narrow import decode, encode
from nnvm.frontend.onnx.protos import element_type
from nnvm.frontend.onnx.table import Context, Unsupported, Value, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__ = ["cast"]

UNARY = {
    "Abs": "abs", "Neg": "negative", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
    "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh",
    "Acosh": "acosh", "Atanh": "atanh", "Erf": "erf", "Sigmoid": "sigmoid", "Relu": "relu", "Not": "logical_not",
    "BitwiseNot": "bitwise_not", "IsNaN": "isnan", "Identity": "identity", "Softplus": "softplus", "Mish": "mish",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "PRelu": "prelu",
}  # fmt: skip


def cast(x: NodeEntry, dtype: DType) -> NodeEntry:
    return x if x.type.dtype == dtype else emit("cast", x, dtype=dtype)


@converts(*UNARY)
def unary(c: Context) -> NodeEntry:
    return c[0] if c.op == "Identity" else emit(UNARY[c.op], c[0])


@converts(*BINARY)
def binary(c: Context) -> NodeEntry:
    return emit(BINARY[c.op], c[0], c[1])


@converts("Div")
def div(c: Context) -> NodeEntry:
    return emit("divide" if c[0].type.dtype.is_float else "trunc_divide", c[0], c[1])


@converts("Mod")
def mod(c: Context) -> NodeEntry:
    if c.attrs.get("fmod", 0):
        return emit("fmod", c[0], c[1])
    return emit("remainder", c[0], c[1])


@converts("Pow")
def power(c: Context) -> NodeEntry:
    base, exponent = c[0], c[1]
    if base.type.dtype.is_float:
        return emit("power", base, cast(exponent, base.type.dtype))
    if exponent.type.dtype.is_float:
        return cast(emit("power", cast(base, F64), cast(exponent, F64)), base.type.dtype)
    if base.type.dtype != exponent.type.dtype:
        if exponent.type.dtype.bits > base.type.dtype.bits:
            return cast(emit("power", cast(base, exponent.type.dtype), exponent), base.type.dtype)
        exponent = cast(exponent, base.type.dtype)
    return emit("power", base, exponent)


@converts("Max", "Min", "Sum", "Mean")
def variadic(c: Context) -> NodeEntry:
    op = {"Max": "maximum", "Min": "minimum"}.get(c.op, "add")
    result = c[0]
    for i in range(1, len(c.inputs)):
        result = emit(op, result, c[i])
    return emit("divide", result, scalar(len(c.inputs), result.type.dtype)) if c.op == "Mean" else result


@converts("Where")
def where(c: Context) -> NodeEntry:
    return emit("where", c[0], c[1], c[2])


@converts("Clip", until=10)
def clip_to(c: Context) -> NodeEntry:
    return emit("clip", c[0], a_min=c.attrs.get("min"), a_max=c.attrs.get("max"))


@converts("Clip", since=11)
def clip(c: Context) -> NodeEntry:
    x = c[0]
    if (low := c.optional(1)) is not None:
        x = emit("maximum", x, low)
    if (high := c.optional(2)) is not None:
        x = emit("minimum", x, high)
    return x


@converts("Cast")
def cast_to(c: Context) -> Value:
    f = format_of(c.attrs["to"])
    return _converted(c, f if f is not None else element_type(c.attrs["to"]))


@converts("CastLike")
def cast_like(c: Context) -> Value:
    like = c.inputs[1]
    return _converted(c, like.format if isinstance(like, Narrow) else c[1].type.dtype)


def _converted(c: Context, to: DType | Format) -> Value:
    """Input 0 as another type, of which either may be a narrow one."""
    value = c.inputs[0]
    if isinstance(value, Narrow) and value.format == to:
        return value
    x = decode(value) if isinstance(value, Narrow) else c[0]
    if isinstance(to, DType):
        return cast(x, to)
    return encode(x, to, bool(c.attrs.get("saturate", 1)), c.attrs.get("round_mode", "up"))


@converts("Constant")
def constant(c: Context) -> Value:
    if isinstance(value := c.attrs.get("value"), Narrow):
        return value
    if "value" in c.attrs:
        return of_array(*c.attrs["value"])
    for name, dtype in (("value_float", F32), ("value_floats", F32), ("value_int", I64), ("value_ints", I64)):
        if name in c.attrs:
            return of_array(np.asarray(c.attrs[name], dtype.numpy), dtype)
    raise Unsupported(f"a constant from {', '.join(c.attrs)}")


@converts("Dropout")
def dropout(c: Context) -> list[NodeEntry | None]:
    trains = c.has(2) and bool(c.value(2, "training_mode").any())
    if trains and (not c.has(1) or c.value(1, "the ratio").any()):
        raise Unsupported("training: what is dropped is random")
    mask = emit("full", shape=c[0].type.shape, dtype=BOOL, value=1) if len(c.outputs) > 1 else None
    return [c[0], mask]


@converts("IsInf")
def isinf(c: Context) -> NodeEntry:
    x = c[0]
    negative, positive = c.attrs.get("detect_negative", 1), c.attrs.get("detect_positive", 1)
    if negative and positive:
        return emit("isinf", x)
    if not negative and not positive:
        return emit("full", shape=x.type.shape, dtype=BOOL, value=0)
    return emit("logical_and", emit("isinf", x), emit("greater" if positive else "less", x, scalar(0, x.type.dtype)))


@converts("BitShift")
def shift(c: Context) -> NodeEntry:
    x, by = c[0], c[1]
    bits = scalar(x.type.dtype.bits, by.type.dtype)
    op = "left_shift" if c.attrs["direction"] == "LEFT" else "right_shift"
    shifted = emit(op, x, emit("minimum", by, scalar(x.type.dtype.bits - 1, by.type.dtype)))
    if op == "right_shift" and x.type.dtype.is_signed:
        return shifted  # the sign is left over, as after a shift by all bits but one
    return emit("where", emit("less", by, bits), shifted, scalar(0, x.type.dtype))


@converts("HardSigmoid")
def hard_sigmoid(c: Context) -> NodeEntry:
    t = c[0].type.dtype
    alpha, beta = scalar(c.attrs.get("alpha", 0.2), t), scalar(c.attrs.get("beta", 0.5), t)
    line = emit("add", emit("multiply", c[0], alpha), beta)
    return emit("clip", line, a_min=0.0, a_max=1.0)


@converts("HardSwish")
def hard_swish(c: Context) -> NodeEntry:
    return emit("hardswish", c[0])


@converts("Elu")
def elu(c: Context) -> NodeEntry:
    return emit("elu", c[0], alpha=c.attrs.get("alpha", 1.0))


@converts("Selu")
def selu(c: Context) -> NodeEntry:
    return emit("elu", c[0], alpha=c.attrs.get("alpha", 1.67326319217681884765625),
                scale=c.attrs.get("gamma", 1.05070102214813232421875))  # fmt: skip


@converts("Celu")
def celu(c: Context) -> NodeEntry:
    alpha = c.attrs.get("alpha", 1.0)
    return emit("elu", c[0], alpha=alpha, input_scale=1.0 / alpha)


@converts("LeakyRelu")
def leaky_relu(c: Context) -> NodeEntry:
    return emit("leaky_relu", c[0], alpha=c.attrs.get("alpha", 0.01))


@converts("ThresholdedRelu")
def thresholded_relu(c: Context) -> NodeEntry:
    t = c[0].type.dtype
    return emit("where", emit("greater", c[0], scalar(c.attrs.get("alpha", 1.0), t)), c[0], scalar(0, t))


@converts("Shrink")
def shrink(c: Context) -> NodeEntry:
    x, t = c[0], c[0].type.dtype
    if not t.is_float:
        raise Unsupported(f"elements of type {t}")
    limit, bias = c.attrs.get("lambd", 0.5), scalar(c.attrs.get("bias", 0.0), t)
    above = emit("where", emit("greater", x, scalar(limit, t)), emit("subtract", x, bias), scalar(0, t))
    return emit("where", emit("less", x, scalar(-limit, t)), emit("add", x, bias), above)


@converts("Softsign")
def softsign(c: Context) -> NodeEntry:
    return emit("divide", c[0], emit("add", emit("abs", c[0]), scalar(1, c[0].type.dtype)))


@converts("Gelu")
def gelu(c: Context) -> NodeEntry:
    return emit("gelu", c[0], approximate=c.attrs.get("approximate", "none"))


@converts("Swish")
def swish(c: Context) -> NodeEntry:
    x, alpha = c[0], c.attrs.get("alpha", 1.0)
    return emit("multiply", x, emit("sigmoid", emit("multiply", x, scalar(alpha, x.type.dtype))))


@converts("BitCast")
def bitcast(c: Context) -> NodeEntry:
    to = element_type(c.attrs["to"])
    if c[0].type.dtype == BOOL and to in (I8, U8):
        return cast(c[0], to)  # a bool is a byte of 0 or 1
    return c[0] if to == c[0].type.dtype else emit("bitcast", c[0], dtype=to)
