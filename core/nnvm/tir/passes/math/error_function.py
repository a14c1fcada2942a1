"""erf of float32, without a division.

Up to 1: x * (1 + p(x**2)). Beyond: 1 - 2**g(|x|) with g near log2(erfc), a polynomial, as in N. Juffa's erff.
Both by Remez exchange; error 2**-28.3 and 2**-29.8. 33 instructions.

1 + erf, which gelu asks for, needs no other branch than the sign: erfc(|x|) or 2 - erfc(|x|). The absolute error counts
alone, and no result near -1 cancels. 22 instructions.
"""

from __future__ import annotations

from nnvm.te.expr import Expr
from nnvm.tir.passes.math.exponential import EXP2_P, power_of_two
from nnvm.tir.passes.math.vector import Vector

__all__ = ["erf", "erf_plus_one"]

#: erf(x) / x - 1 as a polynomial of x**2 on [0, 1].
ERF_P = (0.12837916591378257, -0.37612627136124600, 0.11283600177950814, -0.026854444661274224, 0.0051895354683885115,
         -0.00080208423847270170, 7.8891230758561470e-05)  # fmt: skip
#: log2(erfc(x)) on [1, 4], its error weighted by erfc.
LOG2_ERFC = (-0.00049271677578992730, -1.6260459715096610, -0.92064840984776450, -0.14875158124307072,
             0.031505655350402220, -0.0042525690215036200, 0.00026888801254261860)  # fmt: skip
#: log2(erfc(x)) on [0, 4.2], least greatest error (2**-26) of erfc itself; from there on it falls faster than erfc.
LOG2_ERFC_FROM_0 = (2.1712246223160037e-08, -1.6279093257816462, -0.91840981580165950, -0.14850664263875255,
                    0.028301878238731410, -0.00082515694993089230, -0.0014603860154780409, 0.00043694539711508400,
                    -4.4352964221676046e-05)  # fmt: skip
#: Where that polynomial is about -127, and 2 to its nearest integer, with a biased exponent of 0, is 0.
_ERFC_ZERO = 7.07
_ONE = 4.0  # erf is 1 from 3.92 on


def erf(v: Vector, x: Expr) -> Expr:
    y = v.abs(x)
    small = v.fma(v.polynomial(v.mul(x, x), ERF_P), x, x)
    g = v.polynomial(v.binary("min", y, _ONE), LOG2_ERFC)
    return v.select(v.compare("lt", y, 1.0), small, v.copysign(v.sub(1.0, _power(v, g)), x))


def erf_plus_one(v: Vector, x: Expr) -> Expr:
    """`1 + erf(x)`, exactly 0 from -7.07 on."""
    erfc = _power(v, v.polynomial(v.binary("min", v.abs(x), _ERFC_ZERO), LOG2_ERFC_FROM_0))
    return v.select(v.compare("lt", x, 0.0), erfc, v.sub(2.0, erfc))


def _power(v: Vector, g: Expr) -> Expr:
    """2**g for g <= 0 of normal results; 0 where g is nearest to -127."""
    magic = v.format.magic + v.format.bias
    z = v.add(g, magic)
    return v.mul(v.polynomial(v.sub(g, v.sub(z, magic)), (1.0, *EXP2_P[v.dtype])), power_of_two(v, z))
