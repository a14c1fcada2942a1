"""sin and cos.

x = n * pi/2 + r by Cody and Waite's reduction in three parts, |r| <= pi/4; minimax polynomials of r (Remez exchange)
give both functions, n says which and with what sign. The reduction is good up to a bound; a vector that has a larger
argument (or infinity) in any lane is left to the math library as a whole: the Select on one scalar condition is
meant to become a branch, so that the common case pays for a comparison only.
"""

from __future__ import annotations

from nnvm.dtype import F32, F64
from nnvm.te.expr import Expr, Unary
from nnvm.tir.passes.math.vector import Vector

__all__ = ["cos", "sin"]

TWO_OVER_PI = 0.63661977236758134
#: pi/2 in parts. Without FMA the products with n must be exact, so all but the last are short.
PI_HALF = {
    (F32, True): (1.5707963705062866, -4.3711388286737930e-08, -1.7151245100058819e-15),
    (F32, False): (1.5703125, 4.8375129699707031e-04, 7.5495336204767230e-08, 2.5633440682570896e-12),
    (F64, True): (1.5707963267948966, 6.1232339957367660e-17, -1.4973849048591698e-33),
    (F64, False): (1.5707963267341256, 6.0771005063039660e-11, 2.0222662487111665e-21, 8.4784276603689000e-32),
}
#: Largest |x| for which the reduction keeps its precision.
_LARGEST = {(F32, True): 71476.0, (F32, False): 8192.0, (F64, True): 2.0**30, (F64, False): 2.0**20}
#: (sin(r) / r - 1) / r**2 and (cos(r) - 1 + r**2/2) / r**4 as polynomials of r**2.
SIN_P = {
    F32: (-0.16666654908622208, 0.0083321758457935960, -0.00019516977406807590),
    F64: (-0.16666666666666666, 0.0083333333333333230, -0.00019841269841255123, 2.7557319214219234e-06,
          -2.5052104919247785e-08, 1.6058367622430950e-10, -7.5787480966661030e-13),
}  # fmt: skip
COS_P = {
    F32: (0.041666646807205620, -0.0013887364486080630, 2.4438091012072110e-05),
    F64: (0.041666666666666664, -0.0013888888888888874, 2.4801587301571523e-05, -2.7557319215387610e-07,
          2.0876754368796517e-09, -1.1470293564002147e-11, 4.7381224016375810e-14),
}  # fmt: skip


def _wave(v: Vector, x: Expr, name: str, quarter: int) -> Expr:
    """sin(x + quarter * pi/2), `name` being the library's function of x."""
    magic = v.format.magic
    z = v.fma(x, TWO_OVER_PI, magic)
    n = v.sub(z, magic)
    r = x
    for part in PI_HALF[v.dtype, v.has_fma]:
        r = v.fma(n, -part, r)
    s = v.mul(r, r)
    sine = v.fma(v.mul(v.polynomial(s, SIN_P[v.dtype]), s), r, r)
    cosine = v.fma(v.polynomial(s, COS_P[v.dtype]), v.mul(s, s), v.fma(s, -0.5, 1.0))
    turns = v.add(v.bits(z), quarter) if quarter else v.bits(z)
    is_cosine = v.compare("ne", v.binary("and", turns, 1), 0)
    sign = v.shift_left(v.binary("and", turns, 2), v.format.word.bits - 2)
    wave = v.from_bits(v.binary("xor", v.bits(v.select(is_cosine, cosine, sine)), sign))
    if name == "sin":
        wave = v.select(v.compare("eq", x, 0.0), x, wave)  # -0 stays -0
    large = v.any(v.compare("gt", v.abs(x), _LARGEST[v.dtype, v.has_fma]))
    return v.select(large, Unary(name, x), wave)


def sin(v: Vector, x: Expr) -> Expr:
    return _wave(v, x, "sin", 0)


def cos(v: Vector, x: Expr) -> Expr:
    return _wave(v, x, "cos", 1)
