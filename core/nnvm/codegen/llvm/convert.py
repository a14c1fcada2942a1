"""Conversions between element types, with eager PyTorch's results on x86 and without LLVM's poison.

Half types go through float32: float16 with the processor's F16C conversions where it has them, with integer
arithmetic where not; bfloat16 always with integer arithmetic, rounding to nearest even.
"""

from __future__ import annotations

from llvmlite.binding import llvm_version_info

from nnvm.codegen.llvm.builder import Builder
from nnvm.codegen.llvm.lltype import literal, mask_type, register_type, vector
from nnvm.dtype import F32, I32, I64, DType
from nnvm.target import Target

__all__ = ["convert", "from_half", "to_half"]


def convert(b: Builder, target: Target, a: str, source: DType, to: DType, lanes: int) -> str:
    """`a` as type `to`."""
    if source == to:
        return a
    if to.is_bool:
        return _to_bool(b, target, a, source, lanes)
    if source.is_half:
        return convert(b, target, from_half(b, target, a, source, lanes), F32, to, lanes)
    if to.is_half:
        return to_half(b, target, convert(b, target, a, source, F32, lanes), to, lanes)
    from_, into = register_type(source, lanes), register_type(to, lanes)
    if source.is_float and to.is_float:
        return b.convert("fpext" if to.bits > source.bits else "fptrunc", from_, a, into)
    if source.is_float:
        return _float_to_int(b, a, source, to, lanes)
    signed = source.is_signed
    if to.is_float:
        return b.convert("sitofp" if signed else "uitofp", from_, a, into)
    if to.bits == source.bits:
        return a
    return b.convert("trunc" if to.bits < source.bits else "sext" if signed else "zext", from_, a, into)


def _to_bool(b: Builder, target: Target, a: str, source: DType, lanes: int) -> str:
    if source.is_half:
        a, source = from_half(b, target, a, source, lanes), F32
    zero = literal(0, source, lanes)
    return b.binary("fcmp une" if source.is_float else "icmp ne", register_type(source, lanes), a, zero)


def _float_to_int(b: Builder, a: str, source: DType, to: DType, lanes: int) -> str:
    """Through int32 or int64, whose least value stands for whatever does not fit, as cvttss2si gives; then wraps.

    Eager converts the narrow types through int32 (float64 to uint8 through int64), and uint32 and uint64 through the
    signed type of their width, less half its range where the value is that large.
    """
    wide = I32 if to.bits <= 32 and not (to.bits == 8 and not to.is_signed and source.bits == 64) else I64
    value = _truncate(b, a, source, wide, lanes)
    if to.bits != wide.bits:
        return b.convert("trunc", register_type(wide, lanes), value, register_type(to, lanes))
    if to.is_signed:
        return value
    from_, into = register_type(source, lanes), register_type(to, lanes)
    half = literal(2.0 ** (to.bits - 1), source, lanes)
    high = _truncate(b, b.binary("fsub", from_, a, half), source, wide, lanes)
    flipped = b.binary("xor", into, high, literal(int(wide.min), wide, lanes))
    return b.select(mask_type(lanes), b.binary("fcmp oge", from_, a, half), into, flipped, value)


def _truncate(b: Builder, a: str, source: DType, wide: DType, lanes: int) -> str:
    from_, into, mask = register_type(source, lanes), register_type(wide, lanes), mask_type(lanes)
    limit = 2.0 ** (wide.bits - 1)
    above = b.binary("fcmp oge", from_, a, literal(-limit, source, lanes))
    below = b.binary("fcmp olt", from_, a, literal(limit, source, lanes))
    fits = b.binary("and", mask, above, below)
    # fptosi is poison out of range; select drops it there
    return b.select(mask, fits, into, b.convert("fptosi", from_, a, into), literal(-int(limit), wide, lanes))


def from_half(b: Builder, target: Target, a: str, source: DType, lanes: int) -> str:
    """Half bits as float32, exactly."""
    narrow, wide, single = vector("i16", lanes), vector("i32", lanes), vector("float", lanes)
    if source.name == "bfloat16":
        bits = b.binary("shl", wide, b.convert("zext", narrow, a, wide), literal(16, I32, lanes))
        return b.convert("bitcast", wide, bits, single)
    if _has_f16(target):
        return b.convert("fpext", vector("half", lanes), b.convert("bitcast", narrow, a, vector("half", lanes)), single)
    # Shift exponent and mantissa into place, scale by 2**112 (which makes denormals normal), mend inf and NaN.
    bits = b.convert("zext", narrow, a, wide)
    magnitude = b.binary("shl", wide, b.binary("and", wide, bits, literal(0x7FFF, I32, lanes)), literal(13, I32, lanes))
    scaled = b.binary("fmul", single, b.convert("bitcast", wide, magnitude, single), literal(2.0**112, F32, lanes))
    special = b.binary("icmp uge", wide, magnitude, literal(0x7C00 << 13, I32, lanes))
    infinite = b.binary("or", wide, magnitude, literal(0x7F800000, I32, lanes))
    out = b.select(mask_type(lanes), special, wide, infinite, b.convert("bitcast", single, scaled, wide))
    sign = b.binary("shl", wide, b.binary("and", wide, bits, literal(0x8000, I32, lanes)), literal(16, I32, lanes))
    return b.convert("bitcast", wide, b.binary("or", wide, out, sign), single)


def to_half(b: Builder, target: Target, a: str, to: DType, lanes: int) -> str:
    """float32 rounded to nearest even into half bits; NaN stays NaN, too large becomes inf."""
    narrow, wide, single = vector("i16", lanes), vector("i32", lanes), vector("float", lanes)
    mask = mask_type(lanes)
    if to.name == "bfloat16":
        bits = b.convert("bitcast", single, a, wide)
        odd = b.binary("and", wide, b.binary("lshr", wide, bits, literal(16, I32, lanes)), literal(1, I32, lanes))
        rounded = b.binary("add", wide, b.binary("add", wide, bits, literal(0x7FFF, I32, lanes)), odd)
        nan = b.binary("fcmp uno", single, a, a)
        chosen = b.select(mask, nan, wide, literal(0x7FC00000, I32, lanes), rounded)
        return b.convert("trunc", wide, b.binary("lshr", wide, chosen, literal(16, I32, lanes)), narrow)
    if _has_f16(target):
        return b.convert(
            "bitcast", vector("half", lanes), b.convert("fptrunc", single, a, vector("half", lanes)), narrow
        )
    return _to_f16_by_integers(b, a, lanes)


def _has_f16(target: Target) -> bool:
    """Whether `half` may be used: LLVM 15 crashes on vector operations that it narrows to it."""
    if llvm_version_info[0] < 17:
        return False
    return target.has("f16c") or target.has("avx512f") or target.triple.startswith("aarch64")


def _to_f16_by_integers(b: Builder, a: str, lanes: int) -> str:
    """Giesen's conversion (float_to_half_fast3_rtne): denormals by a float addition, the rest by an integer one."""
    narrow, wide, single = vector("i16", lanes), vector("i32", lanes), vector("float", lanes)
    mask = mask_type(lanes)

    def number(value: int) -> str:
        return literal(value, I32, lanes)

    bits = b.convert("bitcast", single, a, wide)
    sign = b.binary("and", wide, bits, number(-(1 << 31)))
    magnitude = b.binary("xor", wide, bits, sign)
    nan = b.binary("icmp ugt", wide, magnitude, number(0x7F800000))
    large = b.select(mask, nan, wide, number(0x7E00), number(0x7C00))
    magic = literal(0.5, F32, lanes)
    shifted = b.binary("fadd", single, b.convert("bitcast", wide, magnitude, single), magic)
    tiny = b.binary("sub", wide, b.convert("bitcast", single, shifted, wide), number(0x3F000000))
    odd = b.binary("and", wide, b.binary("lshr", wide, magnitude, number(13)), number(1))
    rebias = ((15 - 127) << 23) + 0xFFF
    rounded = b.binary("add", wide, b.binary("add", wide, magnitude, number(rebias)), odd)
    normal = b.binary("lshr", wide, rounded, number(13))
    small = b.binary("icmp ult", wide, magnitude, number(113 << 23))
    out = b.select(mask, small, wide, tiny, normal)
    out = b.select(mask, b.binary("icmp uge", wide, magnitude, number((127 + 16) << 23)), wide, large, out)
    top = b.binary("lshr", wide, sign, number(16))
    return b.convert("trunc", wide, b.binary("or", wide, out, top), narrow)
