"""Functions of float32 computed in float64, where a short exponential and logarithm of 40 bits leave room for all that
cancels: pow, sinh, cosh, asinh, acosh, atanh, tan, erfc. The conversion back rounds to denormals and to inf.
"""

from __future__ import annotations

from math import inf, nan

from nnvm.dtype import F32, F64
from nnvm.te.expr import Cast, Expr, Unary
from nnvm.tir.passes.math.exponential import LN2, LOG2E, power_of_two
from nnvm.tir.passes.math.logarithm import exponent, exponent_part
from nnvm.tir.passes.math.trigonometric import COS_P, PI_HALF, SIN_P, TWO_OVER_PI
from nnvm.tir.passes.math.vector import Vector

__all__ = ["acosh", "asinh", "atanh", "cosh", "erfc", "pow", "sinh", "tan"]

#: (2 * atanh(s) / s - 2) / s**2 as a polynomial of s**2 to 41 bits, and (2**f - 1) / f to 40.
LOG_R = (0.66666666710868780, 0.39999984474009104, 0.28573196549858830, 0.22134715537202979, 0.20127008662504683)
EXP2_P = (0.69314718054821100, 0.24022650698110717, 0.055504109352741984, 0.0096181286161462780, 0.0013333454852109843,
          0.00015403825423767928, 1.530915853086794e-05, 1.31789454776387e-06)  # fmt: skip
#: (sinh(x) / x - 1) / x**2 as a polynomial of x**2 up to 1, error 2**-34.
SINH_P = (0.16666666488716667, 0.0083333505982107410, 0.00019836066217631174, 2.8174398209620485e-06)
#: log2(erfc(x)) on [0, 10.1], error 2**-27.7.
LOG2_ERFC = (
    -4.578445779512011e-09, -1.6279065836246862, -0.9184553793723138, -0.14822332934340904, 0.027439239187010137,
    0.0006294571420497972, -0.002901015822740066, 0.0012903673783773897, -0.0003400727727863603,
    5.3498448837262314e-05, -1.60345986627165e-06, -1.7531706750724053e-06, 5.792146230479828e-07,
    -1.0909467839399498e-07, 1.436612279243422e-08, -1.3853390252971258e-09, 9.81251728860679e-11,
    -4.990730293444036e-12, 1.729539369711245e-13, -3.662396441499225e-15, 3.578657044900138e-17,
)  # fmt: skip
_ERFC_ZERO = 10.1  # beyond, erfc is less than half the least float32
_LARGEST_TAN = {True: 2.0**30, False: 2.0**20}  # by whether there is an FMA


def _log2(d: Vector, x: Expr) -> Expr:
    """log2 of a number >= 0 that is no float64 denormal, to 2**-41 relative; -inf at 0, inf at inf, NaN for NaN."""
    part = exponent_part(d, x)
    f = d.sub(d.from_bits(d.sub(d.bits(x), part)), 1.0)
    s = d.div(f, d.add(f, 2.0))
    z = d.mul(s, s)
    near_1 = d.mul(s, d.polynomial(z, (2.0, *LOG_R)))
    out = d.fma(near_1, LOG2E, exponent(d, part))
    out = d.select(d.compare("lt", x, inf), out, x)
    return d.select(d.compare("eq", x, 0.0), -inf, out)


def _exp2(d: Vector, x: Expr) -> Expr:
    """2**x to 2**-40, for x in the range of float32; far outside 0 or a number beyond the greatest float32."""
    x = d.clamp(x, -160.0, 130.0)
    magic = d.format.magic + d.format.bias
    z = d.add(x, magic)
    return d.mul(d.polynomial(d.sub(x, d.sub(z, magic)), (1.0, *EXP2_P)), power_of_two(d, z))


def pow(v: Vector, x: Expr, y: Expr) -> Expr:
    """2**(y * log2|x|), then the special cases of IEEE 754."""
    d = v.as_type(F64)
    magnitude = v.abs(x)
    product = d.mul(Cast(y, F64), _log2(d, Cast(magnitude, F64)))
    # 1**y and x**0 are 1, for NaN and infinite y and x too.
    is_one = v.binary("or", v.compare("eq", magnitude, 1.0), v.compare("eq", y, 0.0))
    power = Cast(_exp2(d, d.select(is_one, 0.0, product)), F32)

    half = v.mul(y, 0.5)
    floor = v.unary("floor", y)
    is_odd = v.binary("and", v.compare("eq", floor, y), v.compare("ne", v.unary("floor", half), half))
    signed = v.select(is_odd, v.copysign(power, x), power)
    finite_negative = v.binary("and", v.compare("lt", x, 0.0), v.compare("gt", x, -inf))
    return v.select(v.binary("and", finite_negative, v.compare("ne", floor, y)), nan, signed)


def sinh(v: Vector, x: Expr) -> Expr:
    """A polynomial up to 1, (e - 1/e) / 2 beyond."""
    d = v.as_type(F64)
    s = v.mul(x, x)
    small = v.fma(v.mul(v.polynomial(s, SINH_P), s), x, x)
    e = _exp2(d, d.mul(Cast(x, F64), LOG2E))
    large = Cast(d.mul(d.sub(e, d.div(1.0, e)), 0.5), F32)
    return v.select(v.compare("lt", v.abs(x), 1.0), small, large)


def cosh(v: Vector, x: Expr) -> Expr:
    d = v.as_type(F64)
    e = _exp2(d, d.mul(Cast(v.abs(x), F64), LOG2E))
    return Cast(d.mul(d.add(e, d.div(1.0, e)), 0.5), F32)


def _near_0(v: Vector, x: Expr, cubic: float, result: Expr) -> Expr:
    """`x + cubic * x**3` for |x| < 2**-10, with the sign of x everywhere."""
    small = v.fma(v.mul(v.mul(x, x), cubic), x, x)
    return v.copysign(v.select(v.compare("lt", v.abs(x), 2.0**-10), small, result), x)


def asinh(v: Vector, x: Expr) -> Expr:
    d = v.as_type(F64)
    y = Cast(v.abs(x), F64)
    sum_ = d.add(y, d.unary("sqrt", d.fma(y, y, 1.0)))
    return _near_0(v, x, -1 / 6, Cast(d.mul(_log2(d, sum_), LN2), F32))


def acosh(v: Vector, x: Expr) -> Expr:
    d = v.as_type(F64)
    y = Cast(x, F64)
    root = d.unary("sqrt", d.mul(d.sub(y, 1.0), d.add(y, 1.0)))
    out = Cast(d.mul(_log2(d, d.add(y, root)), LN2), F32)
    return v.select(v.compare("lt", x, 1.0), nan, out)


def atanh(v: Vector, x: Expr) -> Expr:
    d = v.as_type(F64)
    y = Cast(v.abs(x), F64)
    quotient = d.div(d.add(y, 1.0), d.sub(1.0, y))
    out = _near_0(v, x, 1 / 3, Cast(d.mul(_log2(d, quotient), LN2 / 2), F32))
    return v.select(v.compare("gt", v.abs(x), 1.0), nan, out)


def tan(v: Vector, x: Expr) -> Expr:
    """sin / cos or -cos / sin, by the quarter turn; huge arguments as in `nnvm.tir.passes.math.trigonometric`."""
    d = v.as_type(F64)
    wide = Cast(x, F64)
    magic = d.format.magic
    z = d.fma(wide, TWO_OVER_PI, magic)
    n = d.sub(z, magic)
    r: Expr = wide
    for part in PI_HALF[F64, v.has_fma]:
        r = d.fma(n, -part, r)
    s = d.mul(r, r)
    sine = d.fma(d.mul(d.polynomial(s, SIN_P[F32]), s), r, r)
    cosine = d.fma(d.polynomial(s, COS_P[F32]), d.mul(s, s), d.fma(s, -0.5, 1.0))
    is_odd = d.compare("ne", d.binary("and", d.bits(z), 1), 0)
    quotient = d.div(d.select(is_odd, d.neg(cosine), sine), d.select(is_odd, sine, cosine))
    narrow = v.select(v.compare("eq", x, 0.0), x, Cast(quotient, F32))  # -0 stays -0
    return v.select(v.any(v.compare("gt", v.abs(x), _LARGEST_TAN[v.has_fma])), Unary("tan", x), narrow)


def erfc(v: Vector, x: Expr) -> Expr:
    """2**g(|x|), and 2 minus that for x < 0."""
    d = v.as_type(F64)
    y = v.binary("min", v.abs(x), _ERFC_ZERO)
    e = _exp2(d, d.polynomial(Cast(y, F64), LOG2_ERFC))
    return Cast(d.select(v.compare("lt", x, 0.0), d.sub(2.0, e), e), F32)
