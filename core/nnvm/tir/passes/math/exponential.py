"""exp, exp2, expm1 and what is made of one exponential: sigmoid, tanh.

All rest on x = n * ln2 + r with an integer n and |r| <= ln2 / 2, and a minimax polynomial (Remez exchange, error
relative to the result) for exp(r) = 1 + r + r**2 * q(r). Adding the format's magic number rounds to n and leaves n in
the low bits of the sum, so that powers of two are made by shifts. A result may be as small as a denormal or as large
as the format allows: 2**n is the product of two powers with exponents of about n/2, so the only rounding to a
denormal is that of the last product.

Operations with FMA, float32: exp 18, exp2 17, expm1 18, tanh 26 and sigmoid 17 (each with one division); 1 + exp 14,
1 + tanh 17.
"""

from __future__ import annotations

from nnvm.dtype import F32, F64
from nnvm.te.expr import Expr
from nnvm.tir.passes.math.vector import Vector

__all__ = [
    "exp", "exp2", "exp_plus_one", "exp_to_one", "expm1", "power_of_two", "sigmoid", "tanh", "tanh_plus_one",
]  # fmt: skip

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
#: ln2 in two parts; n times the first is exact.
LN2_PARTS = {
    F32: (0.693359375, -2.1219444005469058e-4),
    F64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
#: q(r) on |r| <= ln2 / 2, error of exp: 2**-28.3, 2**-57.9.
EXP_Q = {
    F32: (0.49999993447804620, 0.16666520631748300, 0.041668388046206150, 0.0083687168776980290,
          0.0013814598527602410),
    F64: (0.50000000000000110, 0.16666666666666413, 0.041666666666530250, 0.0083333333334943100,
          0.0013888888943601485, 0.00019841269506839800, 2.4801493131945270e-05, 2.7557586202887880e-06,
          2.7630235540168947e-07, 2.5000095166644775e-08),
}  # fmt: skip
#: (2**f - 1) / f on |f| <= 1/2, error 2**-28.9, 2**-58.0.
EXP2_P = {
    F32: (0.69314720285754940, 0.24022647913304660, 0.055503324650746685, 0.0096184373830610990,
          0.0013398876974073163, 0.00015353359478718407),
    F64: (0.69314718055994530, 0.24022650695910130, 0.055504108664820084, 0.0096181291075941150,
          0.0013333558146774627, 0.00015403530457119520, 1.5252733493125315e-05, 1.3215435278291830e-06,
          1.0178199570379033e-07, 7.0737839857658770e-09, 4.4347719911668500e-10),
}  # fmt: skip
#: (tanh(x) / x - 1) / x**2 as a polynomial of x**2, 0 <= x <= 0.65, error 2**-27.1, 2**-59.9.
TANH_P = {
    F32: (-0.33333259848094127, 0.13330830343358144, -0.053688022859342970, 0.020469419014195210,
          -0.0055151629202935510),
    F64: (-0.33333333333333287, 0.13333333333325784, -0.053968253963954190, 0.021869488413168970,
          -0.0088632334643071700, 0.0035921058826702025, -0.0014556752170312099, 0.00058924150461248540,
          -0.00023643849722851772, 9.0570999730920800e-05, -2.9212976402122204e-05, 5.6229336755803170e-06),
}  # fmt: skip
#: Beyond these exp and exp2 are 0 or inf.
_EXP_RANGE = {F32: (-104.0, 89.0), F64: (-746.0, 710.0)}
#: -bias * ln2, about.
_EXP_ZERO = {F32: -88.0, F64: -709.0}
#: exp of its negative is a normal number, with a factor of two to spare.
_NORMAL_EXP = {F32: 86.0, F64: 706.0}
_EXP2_RANGE = {F32: (-151.0, 129.0), F64: (-1076.0, 1025.0)}
#: From here on expm1 is -1, and inf.
_EXPM1_RANGE = {F32: (-25.0, 89.0), F64: (-50.0, 710.0)}
_TANH_SPLIT = 0.65
#: From here on tanh is 1.
_TANH_ONE = {F32: 10.0, F64: 20.0}


def _times_power(v: Vector, p: Expr, z: Expr) -> Expr:
    """`p * 2**n` rounded once, where `z` is the magic number + 2 * bias + n."""
    m = v.format.mantissa
    word = v.bits(z)
    half = v.shift_right(word, 1)  # its low bits: n1 + bias, n1 = n // 2
    first = v.from_bits(v.shift_left(half, m))
    second = v.from_bits(v.shift_left(v.sub(word, half), m))  # n - n1 + bias
    return v.mul(v.mul(p, first), second)


def power_of_two(v: Vector, z: Expr) -> Expr:
    """2**n, where `z` is the magic number + bias + n and 2**n is normal."""
    return v.from_bits(v.shift_left(v.bits(z), v.format.mantissa))


def _reduce(v: Vector, x: Expr, n: Expr) -> Expr:
    """`x - n * ln2`"""
    high, low = LN2_PARTS[v.dtype]
    return v.fma(n, -low, v.fma(n, -high, x))


def exp(v: Vector, x: Expr) -> Expr:
    x = v.clamp(x, *_EXP_RANGE[v.dtype])
    magic = v.format.magic + 2 * v.format.bias
    z = v.fma(x, LOG2E, magic)
    r = _reduce(v, x, v.sub(z, magic))
    return _times_power(v, v.polynomial(r, (1.0, 1.0, *EXP_Q[v.dtype])), z)


def exp_to_one(v: Vector, x: Expr) -> Expr:
    """exp(x) for x <= 0 beside an exponential of 1, of which denormals do not count: they may be 0. 12 operations.

    The clamp is at an n of -bias, whose power of two has an exponent field of 0 and is 0. With FMA one ln2, rounded,
    does: what it is off, times n, is less than a tenth of a unit in the last place of 1 where exp(x) is the factor."""
    x = v.binary("max", x, _EXP_ZERO[v.dtype])
    r, t = _reduced_exp(v, x, 1.0, 0, coarse=v.has_fma)
    return v.mul(v.polynomial(r, (1.0, 1.0, *EXP_Q[v.dtype])), t)


def exp2(v: Vector, x: Expr) -> Expr:
    x = v.clamp(x, *_EXP2_RANGE[v.dtype])
    magic = v.format.magic + 2 * v.format.bias
    z = v.add(x, magic)
    f = v.sub(x, v.sub(z, magic))
    return _times_power(v, v.polynomial(f, (1.0, *EXP2_P[v.dtype])), z)


def expm1(v: Vector, x: Expr) -> Expr:
    """2 * (h * e + (h - 1/2)) with h = 2**(n - 1), e = exp(r) - 1; h is finite even where 2**n is not."""
    clamped = v.clamp(x, *_EXPM1_RANGE[v.dtype])
    magic = v.format.magic + (v.format.bias - 1)  # for 2**(n - 1)
    z = v.fma(clamped, LOG2E, magic)
    n = v.sub(z, magic)
    r = _reduce(v, clamped, n)
    square, q = v.mul(r, r), v.polynomial(r, EXP_Q[v.dtype])
    if v.has_fma:
        e = v.fma(q, square, r)
    else:  # what r lost in rounding counts where 1 cancels
        high, low = LN2_PARTS[v.dtype]
        lost = v.sub(v.sub(v.fma(n, -high, clamped), r), v.mul(n, low))
        e = v.add(r, v.fma(q, square, lost))
    h = power_of_two(v, z)
    half = v.fma(h, e, v.sub(h, 0.5))
    return v.copysign(v.add(half, half), x)  # -0 stays -0


def _reduced_exp(v: Vector, x: Expr, factor: float, shift: int, coarse: bool = False) -> tuple[Expr, Expr]:
    """`r` and `t = 2**(n - shift)` of factor * x = n * ln2 + factor * r, for a factor of +-1 or +-2; `coarse`: with
    ln2 in one part.

    The caller has clamped x so that n - shift is an exponent of normal numbers."""
    magic = v.format.magic + (v.format.bias - shift)
    z = v.fma(x, factor * LOG2E, magic)
    n = v.sub(z, magic)
    if coarse:
        return v.fma(n, -LN2 / factor, x), power_of_two(v, z)
    high, low = LN2_PARTS[v.dtype]
    return v.fma(n, -low / factor, v.fma(n, -high / factor, x)), power_of_two(v, z)


def exp_plus_one(v: Vector, x: Expr, factor: float = 1.0) -> Expr:
    """`1 + exp(factor * x)`: beside 1 no power of two need be a denormal, so one product does, and the sum is rounded
    with it. As 2 * exp(r) * 2**(n - 1) it reaches inf where it should."""
    bound = _EXP_RANGE[v.dtype][1]
    x = v.clamp(x, *sorted((-_NORMAL_EXP[v.dtype] / factor, bound / factor)))
    r, t = _reduced_exp(v, x, factor, 1)
    doubled = [2.0 * c * factor**k for k, c in enumerate((1.0, 1.0, *EXP_Q[v.dtype]))]
    return v.fma(v.polynomial(r, doubled), t, 1.0)


def sigmoid(v: Vector, x: Expr) -> Expr:
    """1 / (1 + exp(-x)); within 2 units in the last place of float32 for each argument."""
    return _logistic(v, x, 1.0)


def tanh_plus_one(v: Vector, x: Expr) -> Expr:
    """`1 + tanh(x)` as 2 / (1 + exp(-2 * x)), which loses nothing where tanh is near -1."""
    return _logistic(v, x, 2.0)


def _logistic(v: Vector, x: Expr, k: float) -> Expr:
    """k / (1 + exp(-k * x)), k 1 or 2, as k * s / ((t * e + s) + t): exp(-k * x) = (1 + e) * 2**n, t = s * 2**n.

    With s = 2**-64 (float64: 2**-512) nothing overflows on the way, and the division gives denormals exactly. Where
    t * e counts it is small beside the other two, so that in effect the sum of the three is rounded once.
    """
    low = _EXP_RANGE[v.dtype][0] - 1  # twice exp of it is 0 too
    shift = (v.format.bias + 1) // 2
    r, t = _reduced_exp(v, v.clamp(x, low / k, _NORMAL_EXP[v.dtype] / (2 * k)), -k, shift)
    q = v.polynomial(r, [c * (-k) ** (i + 2) for i, c in enumerate(EXP_Q[v.dtype])])
    e = v.fma(q, v.mul(r, r), v.neg(r) if k == 1 else v.mul(r, -k))
    s = 2.0**-shift
    return _over(v, k * s, v.add(v.fma(t, e, s), t))


def _over(v: Vector, a: float, b: Expr) -> Expr:
    """`a / b`, a power of 2 over what is far from overflow."""
    return v.mul(v.unary("inverse", b), a) if v.dtype == F32 else v.div(a, b)


def tanh(v: Vector, x: Expr) -> Expr:
    """An odd polynomial up to 0.65, 1 - 2 / (exp(2|x|) + 1) beyond."""
    y = v.abs(x)
    s = v.mul(x, x)
    small = v.fma(v.mul(v.polynomial(s, TANH_P[v.dtype]), s), x, x)
    clamped = v.binary("min", y, _TANH_ONE[v.dtype])
    magic = v.format.magic + v.format.bias
    z = v.fma(clamped, 2 * LOG2E, magic)
    r = v.fma(v.sub(z, magic), -LN2 / 2, clamped)  # a coarse ln2 will do: the exponential's weight is small
    doubled = [c * 2.0**k for k, c in enumerate((1.0, 1.0, *EXP_Q[v.dtype]))]
    e = v.mul(v.polynomial(r, doubled), power_of_two(v, z))
    large = v.sub(1.0, _over(v, 2.0, v.add(e, 1.0)))
    return v.copysign(v.select(v.compare("lt", y, _TANH_SPLIT), small, large), x)  # -0 stays -0
