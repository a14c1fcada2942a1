"""Tensors of narrow element types: moved, and converted to and from types that are computed with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from nnvm.dtype import F32, I8, I32, U8
from nnvm.frontend.onnx.formats import Format, Narrow
from nnvm.frontend.onnx.table import Context, Converter, Results, Unsupported, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__ = ["LOOKS", "MOVES", "decode", "encode", "looking", "moving"]

Array = np.ndarray[Any, Any]


@cache
def _values(f: Format) -> Array:
    codes = np.arange(1 << f.bits, dtype=np.uint8)
    return codes.view(f.numpy).astype(np.float32)


def decode(value: Narrow) -> NodeEntry:
    """Floats as float32, integers as they are stored."""
    if value.format.kind != "f":
        return value.entry
    return emit("take", of_array(_values(value.format), F32), emit("cast", value.entry, dtype=I32), axis=0, mode="clip")


def encode(x: NodeEntry, f: Format, saturate: bool = True, round_mode: str = "up") -> Narrow:
    """`x` rounded to the nearest value of the format, ties to even; integers truncate and wrap.

    `saturate` makes what is too large the largest value instead of an infinity or NaN. `round_mode` is for float8e8m0,
    whose values are powers of two.
    """
    t = x.type.dtype
    if f.kind != "f":
        wide = emit("cast", x, dtype=I32)
        by = scalar(32 - f.bits, I32)
        if f.kind == "u":
            return Narrow(emit("cast", emit("bitwise_and", wide, scalar(f.high, I32)), dtype=U8), f)
        return Narrow(emit("cast", emit("right_shift", emit("left_shift", wide, by), by), dtype=I8), f)
    if not (t == F32 or t.is_half or t.is_bool or (t.is_int and t.bits <= 16)):
        raise Unsupported(f"{t} as {f.name}: it would be rounded twice")
    x = x if t == F32 else emit("cast", x, dtype=F32)
    if f.name == "float8e8m0":
        return Narrow(_power_of_two(x, saturate, round_mode), f)
    return Narrow(_float_code(x, f, saturate), f)


def _int(number: int) -> NodeEntry:
    return scalar(number, I32)


def _bits(x: NodeEntry) -> NodeEntry:
    return emit("bitcast", x, dtype=I32)


def _float_code(x: NodeEntry, f: Format, saturate: bool) -> NodeEntry:
    least = 1 - f.bias  # exponent of the smallest normal value
    bits = _bits(x)
    size = emit("abs", x)
    is_nan = emit("isnan", x)
    clipped = emit("where", is_nan, scalar(0, F32), emit("minimum", size, scalar(2 * f.largest, F32)))
    exponent = emit("subtract", emit("right_shift", _bits(clipped), _int(23)), _int(127))
    exponent = emit("maximum", exponent, _int(least))
    # a step between neighbours as a float: a power of two, made from its exponent
    scale = emit("bitcast", emit("left_shift", emit("add", exponent, _int(127 - f.mantissa)), _int(23)), dtype=F32)
    rounded = emit("multiply", emit("round", emit("divide", clipped, scale)), scale)
    normal = emit("subtract", emit("right_shift", _bits(rounded), _int(23 - f.mantissa)),
                  _int((127 - f.bias) << f.mantissa))  # fmt: skip
    small = emit("cast", emit("multiply", rounded, scalar(2.0 ** (f.mantissa - least), F32)), dtype=I32)
    code = emit("where", emit("less", rounded, scalar(2.0**least, F32)), small, normal)
    too_large = emit("greater", rounded, scalar(f.largest, F32))
    if saturate or f.nan is None:
        over = _top(f)
    else:
        over = _int(f.nan if f.infinity is None else f.infinity)
    code = emit("where", too_large, over, code)
    sign = emit("left_shift", emit("bitwise_and", emit("right_shift", bits, _int(31)), _int(1)), _int(f.bits - 1))
    signed = emit("bitwise_or", code, sign)
    if not f.has_negative_zero:
        signed = emit("where", emit("equal", code, _int(0)), _int(0), signed)
    if f.nan is not None:
        nan = emit("bitwise_or", _int(f.nan), sign)
        signed = emit("where", is_nan, nan, signed)
    return emit("cast", signed, dtype=U8)


def _top(f: Format) -> NodeEntry:
    """The code of the largest finite value."""
    values = _values(f)[: 1 << f.bits - 1]
    return _int(int(np.flatnonzero(values == f.largest)[0]))


def _power_of_two(x: NodeEntry, saturate: bool, round_mode: str) -> NodeEntry:
    """The exponent field of the power of two beside |x|: above, below or the nearest, ties away from 0."""
    bits = emit("bitwise_and", _bits(x), _int(0x7FFFFFFF))
    exponent = emit("right_shift", bits, _int(23))
    fraction = emit("bitwise_and", bits, _int(0x7FFFFF))
    if round_mode == "nearest":
        half = emit("where", emit("greater", exponent, _int(0)), _int(0x400000), _int(0x400001))
        up = emit("greater_equal", fraction, half)
    elif round_mode == "up":
        up = emit("greater", fraction, _int(0))
    elif round_mode == "down":
        return emit("cast", exponent, dtype=U8)
    else:
        raise Unsupported(f"round_mode {round_mode}")
    last = 0xFD if saturate else 0xFE  # the highest exponent that may grow; 0xFF stands for infinities and NaN
    up = emit("logical_and", up, emit("less_equal", exponent, _int(last)))
    return emit("cast", emit("add", exponent, emit("cast", up, dtype=I32)), dtype=U8)


#: Ops that move elements and never look at them.
MOVES = frozenset({
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Expand", "Tile",
    "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Compress", "ReverseSequence",
})  # fmt: skip
#: Ops that look at the shape alone.
LOOKS = frozenset({"Shape", "Size"})


def looking(converter: Converter, c: Context) -> Results:
    """What a converter gives that sees the stored elements."""
    c.inputs = [v.entry if isinstance(v, Narrow) else v for v in c.inputs]
    return converter(c)


def moving(converter: Converter, c: Context) -> Results:
    """The same where the outputs are of the inputs' narrow type."""
    formats = {v.format for v in c.inputs if isinstance(v, Narrow)}
    if len(formats) != 1:
        raise Unsupported(f"elements of types {', '.join(sorted(f.name for f in formats))}")
    (f,) = formats
    moved = looking(converter, c)
    outputs = list(moved) if isinstance(moved, Sequence) else [moved]
    return [Narrow(v, f) if isinstance(v, NodeEntry) else v for v in outputs]
