"""erf of float32, without a division.

Up to 1: x * (1 + p(x**2)). Beyond: 1 - 2**g(|x|) with g near log2(erfc), a polynomial, as in N. Juffa's erff.
Both by Remez exchange; error 2**-28.3 and 2**-29.8. 33 instructions.
"""

from __future__ import annotations

from nnvm.te.expr import Expr
from nnvm.tir.passes.math.exponential import EXP2_P, power_of_two
from nnvm.tir.passes.math.vector import Vector

__all__ = ["erf"]

#: erf(x) / x - 1 as a polynomial of x**2 on [0, 1].
ERF_P = (0.12837916591378257, -0.37612627136124600, 0.11283600177950814, -0.026854444661274224, 0.0051895354683885115,
         -0.00080208423847270170, 7.8891230758561470e-05)  # fmt: skip
#: log2(erfc(x)) on [1, 4], its error weighted by erfc.
LOG2_ERFC = (-0.00049271677578992730, -1.6260459715096610, -0.92064840984776450, -0.14875158124307072,
             0.031505655350402220, -0.0042525690215036200, 0.00026888801254261860)  # fmt: skip
_ONE = 4.0  # erf is 1 from 3.92 on


def erf(v: Vector, x: Expr) -> Expr:
    y = v.abs(x)
    small = v.fma(v.polynomial(v.mul(x, x), ERF_P), x, x)
    g = v.polynomial(v.binary("min", y, _ONE), LOG2_ERFC)
    magic = v.format.magic + v.format.bias
    z = v.add(g, magic)
    erfc = v.mul(v.polynomial(v.sub(g, v.sub(z, magic)), (1.0, *EXP2_P[v.dtype])), power_of_two(v, z))
    return v.select(v.compare("lt", y, 1.0), small, v.copysign(v.sub(1.0, erfc), x))
