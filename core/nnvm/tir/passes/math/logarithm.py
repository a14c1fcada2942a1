"""log, log2, log10 and log1p.

x = 2**i * m with m in [2/3, 4/3), so that i = 0 around 1 and nothing cancels there; f = m - 1.
float32: log(1+f) = f - f**2/2 + f**3 * q(f), q minimax (Remez exchange), error 2**-27.7.
float64: log(1+f) = f - (f**2/2 - s * (f**2/2 + R(s**2))), s = f / (2 + f), the method of FreeBSD's e_log.c with a
polynomial R fitted to this range, error 2**-55.
"""

from __future__ import annotations

from math import frexp, inf, ldexp, nan

from nnvm.dtype import F32, F64, I32
from nnvm.te.expr import Bitcast, Cast, Expr
from nnvm.tir.passes.math.exponential import LN2_PARTS, LOG2E
from nnvm.tir.passes.math.vector import Vector

__all__ = ["exponent", "exponent_part", "log", "log1p", "log2", "log10"]

LOG10E = 0.43429448190325183
#: log10(2) in two parts; i times the first is exact.
LOG10_2_PARTS = {F32: (0.301025390625, 4.605038981195214e-06), F64: (0.3010299956640665, -8.532344317057107e-14)}
#: What rounding the factor to the type leaves out.
_LOW_PART = {
    (LOG2E, F32): 1.9259629911266175e-08, (LOG2E, F64): 2.0355273740931033e-17,
    (LOG10E, F32): -1.0103050052231683e-08, (LOG10E, F64): 1.098319650216765e-17,
}  # fmt: skip
LOG_Q = (0.33333215989320160, -0.24999797678351895, 0.20010405597319940, -0.16680487124548840, 0.14005873537927654,
         -0.12184263640525494, 0.13984416895609386, -0.12891675577864780)  # fmt: skip
#: (2 * atanh(s) / s - 2) / s**2 as a polynomial of s**2.
LOG_R = (0.66666666666672820, 0.39999999996102360, 0.28571429405932164, 0.22222137632371264, 0.18186391667249222,
         0.15249476319773894, 0.15373730707389502)  # fmt: skip
_TWO_THIRDS = {F32: 0x3F2AAAAB, F64: 0x3FE5555555555555}


def exponent_part(v: Vector, x: Expr) -> Expr:
    """Bits of `i << mantissa`, x = 2**i * m with m in [2/3, 4/3); a positive normal x."""
    above = v.sub(v.bits(x), _TWO_THIRDS[v.dtype])
    return v.binary("and", above, -(1 << v.format.mantissa))


def exponent(v: Vector, part: Expr) -> Expr:
    """The number i of `exponent_part`."""
    if v.dtype == F32:
        return v.mul(Cast(Bitcast(part, I32), F32), 2.0**-23)
    # Before AVX-512 no instruction converts 64-bit integers: put i + bias into the low bits of 2**52.
    shifted = v.shift_right(v.add(part, v.format.bias << 52), 52)
    return v.sub(v.from_bits(v.binary("or", shifted, 0x4330000000000000)), 2.0**52 + v.format.bias)


def _split(v: Vector, x: Expr) -> tuple[Expr, Expr]:
    """(i, f) with x = 2**i * (1 + f), for x > 0."""
    denormal = v.compare("lt", x, v.format.least)
    scaled = v.select(denormal, v.mul(x, 2.0**v.format.mantissa), x)
    part = exponent_part(v, scaled)
    i = v.add(exponent(v, part), v.select(denormal, -float(v.format.mantissa), 0.0))
    return i, v.sub(v.from_bits(v.sub(v.bits(scaled), part)), 1.0)


def _curvature(v: Vector, f: Expr, scale: float = 1.0) -> Expr:
    """`scale * (log(1 + f) - f)`, -1/3 <= f < 1/3."""
    square = v.mul(f, f)
    if v.dtype == F32:
        return v.mul(v.fma(v.polynomial(f, [scale * c for c in LOG_Q]), f, -0.5 * scale), square)
    s = v.div(f, v.add(f, 2.0))
    z = v.mul(s, s)
    half_square = v.mul(square, 0.5)
    out = v.sub(v.mul(s, v.fma(v.polynomial(z, LOG_R), z, half_square)), half_square)
    return out if scale == 1.0 else v.mul(out, scale)


def _log_sum(v: Vector, i: Expr, f: Expr) -> Expr:
    """`i * ln2 + log(1 + f)`"""
    high, low = LN2_PARTS[v.dtype]
    return v.fma(i, high, v.add(f, v.fma(i, low, _curvature(v, f))))


def _log_scaled(v: Vector, f: Expr, scale: float, rest: Expr | None = None) -> Expr:
    """`scale * log(1 + f) + rest`, where only the last sum's rounding counts: `scale * f` is taken in two parts."""
    curvature = _curvature(v, f, scale)
    if v.has_fma:
        small = v.fma(f, _LOW_PART[scale, v.dtype], curvature)
        return v.fma(f, scale, small if rest is None else v.add(small, rest))
    # The upper half of f's bits times that of the factor is exact.
    dropped = (v.format.mantissa + 2) // 2
    head = v.from_bits(v.binary("and", v.bits(f), -(1 << dropped)))
    factor = _upper_half(scale, v.format.mantissa - dropped)
    small = v.add(v.add(v.mul(v.sub(f, head), scale), v.mul(head, scale - factor)), curvature)
    return v.add(v.mul(head, factor), small if rest is None else v.add(small, rest))


def _upper_half(number: float, bits: int) -> float:
    fraction, exponent = frexp(number)
    return ldexp(round(fraction * 2.0**bits), exponent - bits)


def _ends(v: Vector, x: Expr, zero: float, result: Expr) -> Expr:
    """The logarithm at its ends: -inf at `zero`, NaN below and for NaN, inf at inf."""
    outside = v.select(v.compare("eq", x, zero), -inf, nan)
    inside = v.select(v.compare("gt", x, zero), result, outside)
    return v.select(v.compare("eq", x, inf), inf, inside)


def log(v: Vector, x: Expr) -> Expr:
    return _ends(v, x, 0.0, _log_sum(v, *_split(v, x)))


def log2(v: Vector, x: Expr) -> Expr:
    i, f = _split(v, x)
    return _ends(v, x, 0.0, v.add(_log_scaled(v, f, LOG2E), i))


def log10(v: Vector, x: Expr) -> Expr:
    i, f = _split(v, x)
    high, low = LOG10_2_PARTS[v.dtype]
    return _ends(v, x, 0.0, v.fma(i, high, _log_scaled(v, f, LOG10E, v.mul(i, low))))


def log1p(v: Vector, x: Expr) -> Expr:
    """i from the rounded 1 + x, but f = x * 2**-i + (2**-i - 1) from x itself, so that nothing is lost."""
    part = exponent_part(v, v.add(x, 1.0))
    scaled = v.from_bits(v.sub(v.bits(x), part))
    power = v.from_bits(v.sub(v.bits(v.number(4.0)), part))  # 4 * 2**-i, which is normal for every i
    f = v.add(scaled, v.fma(power, 0.25, -1.0))
    return _ends(v, x, -1.0, v.copysign(_log_sum(v, exponent(v, part), f), x))
