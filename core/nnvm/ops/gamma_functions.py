"""polygamma: the derivatives of log(gamma(x)), of which digamma is the first. Computed in float64.

For positive x, from recurrence and the asymptotic series (Abramowitz and Stegun, 6.3.18 and 6.4.11); for negative x, by
reflection (6.4.7), with the derivatives of cot as polynomials in cot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dtype import F64
from nnvm.graph.op import Param, add_alias
from nnvm.ops.elemwise import define_unary
from nnvm.ops.params import integer
from nnvm.te.expr import Expr

__all__: list[str] = []

Array = np.ndarray[Any, Any]

#: Bernoulli numbers B_2, B_4, ...
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
#: Terms taken by recurrence before the series begins; each further derivative takes one more.
_SHIFT = 10
#: Above it factorials leave the range of float64 on the way.
_MOST = 60


@dataclass(frozen=True)
class _Functions:
    """The functions that the formula needs, on expressions or on arrays."""

    number: Callable[[float], Any]
    unary: Callable[[str, Any], Any]
    select: Callable[[Any, Any, Any], Any]


def _polygamma(x: Any, n: int, at_pole: Any, f: _Functions) -> Any:
    """`at_pole`: pi x rounded in the type of computation, from which PyTorch has a finite trigamma at a pole."""
    zero, one = f.number(0.0), f.number(1.0)
    negative = x < zero
    positive = _of_positive(f.select(negative, one - x, x), n, f)
    rest = x - f.unary("round", x)
    angle = rest * f.number(math.pi)
    if n == 1:
        angle = f.select(f.unary("abs", rest) > zero, angle, at_pole)
    reflected = _by_cot(f.unary("cos", angle) / f.unary("sin", angle), n, f) * f.number(-(math.pi ** (n + 1)))
    mirrored = positive if n % 2 == 0 else zero - positive
    below = reflected + mirrored
    if n % 2 == 0:  # the limits from the two sides differ
        below = f.select(f.unary("abs", rest) > zero, below, f.number(math.nan))
    value = f.select(negative, below, positive)
    if n < 2:
        return value
    pole = f.select(x <= zero, f.number((-1.0) ** (n + 1) * math.inf), value)
    return f.select(f.unary("abs", rest) > zero, value, pole)


def _of_positive(x: Any, n: int, f: _Functions) -> Any:
    """The function where x > 0."""
    one, count = f.number(1.0), _SHIFT + n
    total = _power(one / x, n + 1)
    for k in range(1, count):
        total = total + _power(one / (x + f.number(float(k))), n + 1)
    inverse = one / (x + f.number(float(count)))
    square = inverse * inverse
    if n == 0:
        series = f.number(0.0)
        for j in range(len(_BERNOULLI), 0, -1):
            series = (series + f.number(_BERNOULLI[j - 1] / (2 * j))) * square
        return f.unary("log", x + f.number(float(count))) - inverse * f.number(0.5) - series - total
    # B_2j / (2j)! (n + 1) ... (n + 2j - 1)
    series = f.number(0.0)
    for j in range(len(_BERNOULLI), 0, -1):
        factor = _BERNOULLI[j - 1] / math.factorial(2 * j) * math.prod(range(n + 1, n + 2 * j))
        series = (series + f.number(factor)) * square
    tail = _power(inverse, n) * (f.number(1 / n) + inverse * f.number(0.5) + series)
    return (total + tail) * f.number((-1.0) ** (n + 1) * math.factorial(n))


def _by_cot(c: Any, n: int, f: _Functions) -> Any:
    """The n-th derivative of cot, from its value c."""
    value = f.number(0.0)
    for coefficient in reversed(_cot_derivative(n)):
        value = value * c + f.number(float(coefficient))
    return value


def _cot_derivative(n: int) -> list[int]:
    """Coefficients of the n-th derivative of cot as a polynomial in cot: d/dx c^k = -k c^(k-1) (1 + c^2)."""
    p = [0, 1]
    for _ in range(n):
        slope = [k * a for k, a in enumerate(p)][1:]
        p = [0] * (len(slope) + 2)
        for k, a in enumerate(slope):
            p[k] -= a
            p[k + 2] -= a
    return p


def _power(x: Any, n: int) -> Any:
    """x ** n for n >= 1, by squaring."""
    half = _power(x, n // 2) if n > 1 else None
    if half is None:
        return x
    return half * half if n % 2 == 0 else half * half * x


def _order(value: Any) -> int:
    n = integer(value)
    if not 0 <= n <= _MOST:
        raise ValueError(f"expected a derivative from 0 to {_MOST}")
    return n


def _expression(x: Expr, n: int) -> Expr:
    wide = te.cast(x, F64)
    angle = te.cast(x * te.const(math.pi, x.dtype), F64)
    return te.cast(_polygamma(wide, n, angle, _Functions(lambda v: te.const(v, F64), te.unary, te.select)), x.dtype)


def _array(x: Array, n: int) -> Array:
    functions = {"round": np.rint, "cos": np.cos, "sin": np.sin, "log": np.log, "abs": np.abs}
    result: Array = _polygamma(x.astype(np.float64), n, (x * x.dtype.type(math.pi)).astype(np.float64),
                               _Functions(np.float64, lambda name, v: functions[name](v), np.where))  # fmt: skip
    return result.astype(x.dtype)


define_unary("polygamma", "f", _expression, _array, "derivative n + 1 of log(abs(gamma(x))); n = 0: digamma",
             params={"n": Param("which derivative of digamma", _order, 0)})  # fmt: skip
add_alias("polygamma", "digamma")
