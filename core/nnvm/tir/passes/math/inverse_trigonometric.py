"""asin, acos and atan of float32, by odd minimax polynomials (Remez exchange) on a quarter of their range.

asin(x) = pi/2 - 2 * asin(sqrt((1 - x) / 2)) beyond 1/2, atan(x) = pi/2 - atan(1 / x) beyond 1.
"""

from __future__ import annotations

from math import pi

from nnvm.te.expr import Expr
from nnvm.tir.passes.math.vector import Vector

__all__ = ["acos", "asin", "atan"]

#: (asin(x) / x - 1) / x**2 as a polynomial of x**2 up to 1/2, error 2**-31.7.
ASIN_P = (0.16666659852614094, 0.075005121479899770, 0.044515468350681200, 0.031819840149241115, 0.014393731252269778,
          0.037578255780175930)  # fmt: skip
#: (atan(x) / x - 1) / x**2 as a polynomial of x**2 up to 1, error 2**-28.7.
ATAN_P = (
    -0.3333330280909809, 0.19998662927025654, -0.1426547619667836, 0.10958680431778739, -0.08422456500047186,
    0.05828276680399554, -0.03150122700326979, 0.011087750866836596, -0.0018322080880694637,
)  # fmt: skip
#: What float32 leaves out of pi/2.
_PI_HALF_LOW = -4.3711388286737930e-08


def _below_pi_half(v: Vector, a: Expr) -> Expr:
    """`pi/2 - a`"""
    return v.add(v.sub(pi / 2, a), _PI_HALF_LOW)


def _asin_parts(v: Vector, x: Expr) -> tuple[Expr, Expr]:
    """(|x| > 1/2, asin(|x|)) or, beyond 1/2, asin(sqrt((1 - |x|) / 2)); NaN beyond 1."""
    y = v.abs(x)
    is_large = v.compare("gt", y, 0.5)
    z = v.select(is_large, v.fma(y, -0.5, 0.5), v.mul(x, x))
    t = v.select(is_large, v.unary("sqrt", z), y)
    return is_large, v.fma(v.mul(v.polynomial(z, ASIN_P), z), t, t)


def asin(v: Vector, x: Expr) -> Expr:
    is_large, p = _asin_parts(v, x)
    return v.copysign(v.select(is_large, _below_pi_half(v, v.add(p, p)), p), x)


def acos(v: Vector, x: Expr) -> Expr:
    is_large, p = _asin_parts(v, x)
    double = v.add(p, p)
    from_pi = v.add(v.sub(pi, double), 2 * _PI_HALF_LOW)
    large = v.select(v.compare("lt", x, 0.0), from_pi, double)
    return v.select(is_large, large, _below_pi_half(v, v.copysign(p, x)))


def atan(v: Vector, x: Expr) -> Expr:
    y = v.abs(x)
    is_large = v.compare("gt", y, 1.0)
    t = v.select(is_large, v.div(1.0, y), y)
    s = v.mul(t, t)
    p = v.fma(v.mul(v.polynomial(s, ATAN_P), s), t, t)
    return v.copysign(v.select(is_large, _below_pi_half(v, p), p), x)
