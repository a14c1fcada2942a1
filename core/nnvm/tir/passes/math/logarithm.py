"""log, log2, log10, log1p and pow.

x = 2**i * m with m in [2/3, 4/3), so that i = 0 around 1 and nothing cancels there; f = m - 1.
float32: log(1+f) = f - f**2/2 + f**3 * q(f), q minimax (Remez exchange), error 2**-27.7.
float64: log(1+f) = f - (f**2/2 - s * (f**2/2 + R(s**2))), s = f / (2 + f), the method of FreeBSD's e_log.c with a
polynomial R fitted to this range, error 2**-55.
"""

from __future__ import annotations

from math import inf, nan

from nnvm.dtype import F32, F64, I32
from nnvm.te.expr import Bitcast, Cast, Expr
from nnvm.tir.passes.math.exponential import LN2_PARTS, LOG2E, power_of_two
from nnvm.tir.passes.math.vector import Vector, rounded

__all__ = ["log", "log1p", "log2", "log10", "pow"]

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
#: The same to 41 bits, and (2**f - 1) / f to 40.
LOG_R_SHORT = (0.66666666710868780, 0.39999984474009104, 0.28573196549858830, 0.22134715537202979,
               0.20127008662504683)  # fmt: skip
EXP2_SHORT = (0.69314718054821100, 0.24022650698110717, 0.055504109352741984, 0.0096181286161462780,
              0.0013333454852109843, 0.00015403825423767928, 1.530915853086794e-05, 1.31789454776387e-06)  # fmt: skip
_TWO_THIRDS = {F32: 0x3F2AAAAB, F64: 0x3FE5555555555555}


def _exponent_part(v: Vector, x: Expr) -> Expr:
    """Bits of `i << mantissa`, x = 2**i * m with m in [2/3, 4/3); a positive normal x."""
    above = v.sub(v.bits(x), _TWO_THIRDS[v.dtype])
    return v.binary("and", above, -(1 << v.format.mantissa))


def _exponent(v: Vector, part: Expr) -> Expr:
    """The number i of `_exponent_part`."""
    if v.dtype == F32:
        return v.mul(Cast(Bitcast(part, I32), F32), 2.0**-23)
    # Before AVX-512 no instruction converts 64-bit integers: put i + bias into the low bits of 2**52.
    shifted = v.shift_right(v.add(part, v.format.bias << 52), 52)
    return v.sub(v.from_bits(v.binary("or", shifted, 0x4330000000000000)), 2.0**52 + v.format.bias)


def _split(v: Vector, x: Expr) -> tuple[Expr, Expr]:
    """(i, f) with x = 2**i * (1 + f), for x > 0."""
    denormal = v.compare("lt", x, v.format.least)
    scaled = v.select(denormal, v.mul(x, 2.0**v.format.mantissa), x)
    part = _exponent_part(v, scaled)
    i = v.add(_exponent(v, part), v.select(denormal, -float(v.format.mantissa), 0.0))
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
    """`scale * log(1 + f) + rest` with one rounding that counts: `scale` in two parts, as f is exact."""
    high = rounded(scale, v.dtype)
    small = v.fma(f, _LOW_PART[scale, v.dtype], _curvature(v, f, scale))
    return v.fma(f, high, small if rest is None else v.add(small, rest))


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
    part = _exponent_part(v, v.add(x, 1.0))
    scaled = v.from_bits(v.sub(v.bits(x), part))
    power = v.from_bits(v.sub(v.bits(v.number(4.0)), part))  # 4 * 2**-i, which is normal for every i
    f = v.add(scaled, v.fma(power, 0.25, -1.0))
    return _ends(v, x, -1.0, v.copysign(_log_sum(v, _exponent(v, part), f), x))


def pow(v: Vector, x: Expr, y: Expr) -> Expr:
    """float32 only: 2**(y * log2|x|) in float64 to 40 bits, then the special cases of IEEE 754."""
    if v.dtype != F32:
        raise TypeError("pow is expanded for float32")
    d = v.as_type(F64)
    magnitude = v.abs(x)
    wide = Cast(magnitude, F64)
    exponent = d.mul(Cast(y, F64), _log2_wide(d, wide))
    # 1**y and x**0 are 1, for NaN and infinite y and x too.
    is_one = v.binary("or", v.compare("eq", magnitude, 1.0), v.compare("eq", y, 0.0))
    power = Cast(_exp2_wide(d, d.select(is_one, 0.0, exponent)), F32)

    half = v.mul(y, 0.5)
    is_integer = v.compare("eq", v.unary("floor", y), y)
    is_odd = v.binary("and", is_integer, v.compare("ne", v.unary("floor", half), half))
    signed = v.select(is_odd, v.copysign(power, x), power)
    finite_negative = v.binary("and", v.compare("lt", x, 0.0), v.compare("gt", x, -inf))
    not_real = v.binary("and", finite_negative, v.compare("ne", v.unary("floor", y), y))
    return v.select(not_real, nan, signed)


def _log2_wide(d: Vector, x: Expr) -> Expr:
    """log2 of a float32 >= 0 held as float64, to 2**-41 relative; -inf at 0, inf at inf, NaN for NaN."""
    part = _exponent_part(d, x)
    f = d.sub(d.from_bits(d.sub(d.bits(x), part)), 1.0)
    s = d.div(f, d.add(f, 2.0))
    z = d.mul(s, s)
    near_1 = d.mul(s, d.polynomial(z, (2.0, *LOG_R_SHORT)))
    out = d.fma(near_1, LOG2E, _exponent(d, part))
    out = d.select(d.compare("lt", x, inf), out, x)
    return d.select(d.compare("eq", x, 0.0), -inf, out)


def _exp2_wide(d: Vector, x: Expr) -> Expr:
    """2**x to 2**-40, for x in the range of float32; far outside 0 or a number beyond the greatest float32."""
    x = d.clamp(x, -160.0, 130.0)
    magic = d.format.magic + d.format.bias
    z = d.add(x, magic)
    return d.mul(d.polynomial(d.sub(x, d.sub(z, magic)), (1.0, *EXP2_SHORT)), power_of_two(d, z))
