"""Bessel functions of order 0 and 1. Computed in float64.

Each is a Chebyshev series on a bounded interval and one in 1 / x beyond it (forms as in Abramowitz and Stegun, 9.4 and
9.8). The series are interpolated when first wanted, from integrals that the trapezoidal rule gives to the last digit
(NIST DLMF 10.9, 10.32): their integrands are periodic, or die away doubly exponentially.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nnvm.ops.elemwise import define_unary
from nnvm.ops.wide_functions import Functions, in_float64

__all__: list[str] = []

#: Terms of a series: the truncated ones are below the rounding of float64.
_TERMS = 34
#: Terms of a power series of an argument of at most 1, divided by the squares of factorials.
_POWERS = 16


def _series(value: Callable[[Any], Any]) -> tuple[float, ...]:
    """Chebyshev coefficients of a function on [-1, 1] that takes one float.

    By cosines of whole multiples of an angle: numpy's interpolation has polynomials by their recurrence, which near the
    ends of the interval loses digits with the square of the degree."""
    count = _TERMS + 1
    odd = 2 * np.arange(count) + 1
    values = np.array([value(float(t)) for t in _cosines(odd, count)])
    coefficients = [2 / count * math.fsum(values * _cosines(k * odd, count)) for k in range(count)]
    return coefficients[0] / 2, *coefficients[1:]


def _cosines(of: Any, count: int) -> Any:
    """cos(of pi / (2 count)) of whole numbers, from angles of at most pi / 4: multiples of a rounded pi drift."""
    of = np.asarray(of) % (4 * count)
    of = np.minimum(of, 4 * count - of)
    sign, of = np.where(of > count, -1.0, 1.0), np.minimum(of, 2 * count - of)
    angle = math.pi / (2 * count)
    return sign * np.where(2 * of > count, np.sin((count - of) * angle), np.cos(of * angle))


def _sum(coefficients: tuple[float, ...], t: Any, f: Functions) -> Any:
    """The series at t, by Clenshaw's recurrence."""
    twice = t + t
    b0, b1 = f.number(0.0), f.number(0.0)
    for c in reversed(coefficients[1:]):
        b0, b1 = twice * b0 - b1 + f.number(c), b0
    return t * b0 - b1 + f.number(coefficients[0])


# integrals


def _periodic(integrand: Callable[[Any], Any], points: int = 3000) -> float:
    """The mean of an even function of period 2 pi."""
    return math.fsum(integrand((np.arange(points) + 0.5) * (math.pi / points))) / points


def _modified(order: int, x: float) -> float:
    """I(x) / (x^order e^x), of positive terms."""
    return _periodic(lambda t: np.exp(-2 * x * np.sin(t / 2) ** 2) * np.sin(t) ** (2 * order))


def _second_modified(order: int, x: float) -> float:
    """K(x) e^x."""
    t = np.arange(0, 12, 1 / 512)
    values = np.exp(-2 * x * np.sinh(t / 2) ** 2) * np.cosh(order * t)
    return math.fsum([*values, -values[0] / 2]) / 512


def _hankel(order: int, x: float) -> complex:
    """H(x) = J(x) + i Y(x) without its factor sqrt(2 / (pi x)) e^(i (x - (order + 1/2) pi / 2))."""
    v = np.arange(0, 7, 1 / 2048)
    values = np.exp(-v * v) * v ** (2 * order) * (1 + 0.5j * v * v / x) ** (order - 0.5)
    total = (values.sum() - values[0] / 2) * 2 / 2048
    return complex(total / (math.sqrt(math.pi) / 2**order))


def _phase(order: int) -> float:
    return (order + 0.5) * math.pi / 2


def _bessel(order: int, x: float) -> float:
    """J(x) / x^order."""
    return _periodic(lambda t: np.cos(x * np.cos(t)) * np.sin(t) ** (2 * order))


def _second(order: int, x: float) -> float:
    scale = math.sqrt(2 / (math.pi * x))
    return scale * (_hankel(order, x) * complex(math.cos(x - _phase(order)), math.sin(x - _phase(order)))).imag


# modified functions: up to 8 a series in x, beyond it one in 1 / x


@cache
def _modified_series(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # (1 + x)^order so that the series is of one size from end to end, and its rounding with it
    near = _series(lambda t: _modified(order, 4 * (t + 1)) * (4 * t + 5) ** order)
    return near, _series(lambda t: _modified(order, 16 / (t + 1)) * (16 / (t + 1)) ** (order + 0.5))


def _scaled_first(order: int, x: Any, f: Functions) -> Any:
    """I(x) / e^|x|."""
    near, far = _modified_series(order)
    size = f.unary("abs", x)
    large = size > f.number(8.0)
    inside, outside = f.select(large, f.number(8.0), size), f.select(large, size, f.number(8.0))
    below = _sum(near, inside * f.number(0.25) - f.number(1.0), f)
    below = below if order == 0 else below * (inside / (inside + f.number(1.0)))
    above = _sum(far, f.number(16.0) / outside - f.number(1.0), f) / f.unary("sqrt", outside)
    value = f.select(large, above, below)
    value = value if order == 0 else f.select(x < f.number(0.0), -value, value)
    return f.select(f.unary("isnan", x), x, value)


def _first(order: int, x: Any, f: Functions) -> Any:
    return f.unary("exp", f.unary("abs", x)) * _scaled_first(order, x, f)


@cache
def _second_modified_series(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    def near(t: float) -> float:
        """K0 + log(x / 2) I0, or x (K1 - log(x / 2) I1), by their power series in x^2 / 4 (DLMF 10.31)."""
        q, harmonic = (t + 1) / 2, np.cumsum([0.0, *(1 / k for k in range(1, _POWERS + 1))])
        k = range(_POWERS)
        if order == 0:
            return math.fsum(q**n / math.factorial(n) ** 2 * (harmonic[n] - np.euler_gamma) for n in k)
        doubled = [harmonic[n] + harmonic[n + 1] - 2 * np.euler_gamma for n in k]
        terms = [q ** (n + 1) / (math.factorial(n) * math.factorial(n + 1)) * doubled[n] for n in k]
        return math.fsum([1.0, *(-v for v in terms)])

    return _series(near), _series(lambda t: _second_modified(order, 4 / (t + 1)) * math.sqrt(4 / (t + 1)))


def _scaled_second(order: int, x: Any, f: Functions) -> Any:
    """K(x) e^x; infinite at 0, NaN below."""
    near, far = _second_modified_series(order)
    two = f.number(2.0)
    large = x > two
    inside, outside = f.select(large, two, x), f.select(large, x, two)
    singular = f.unary("log", inside / two) * _first(order, inside, f)
    regular = _sum(near, inside * inside * f.number(0.5) - f.number(1.0), f)
    below = regular - singular if order == 0 else singular + regular / inside
    above = _sum(far, f.number(4.0) / outside - f.number(1.0), f) / f.unary("sqrt", outside)
    value = f.select(large, above, below * f.unary("exp", inside))
    value = f.select(x > f.number(0.0), value, f.select(x < f.number(0.0), f.number(math.nan), f.number(math.inf)))
    return f.select(f.unary("isnan", x), x, value)


# oscillating functions: up to 8 a series in x^2, beyond it amplitudes of cosine and sine in 1 / x


@cache
def _oscillating_series(order: int) -> tuple[tuple[float, ...], ...]:
    def near(t: float) -> float:
        x = math.sqrt(32 * (t + 1))
        return _bessel(order, x)

    def near_second(t: float) -> float:
        x = math.sqrt(32 * (t + 1))
        singular = 2 / math.pi * math.log(x) * _bessel(order, x) * x**order
        return _second(order, x) - singular if order == 0 else (_second(1, x) - singular + 2 / (math.pi * x)) / x

    def far(part: str) -> tuple[float, ...]:
        return _series(lambda t: getattr(_hankel(order, 8 / math.sqrt((t + 1) / 2)), part))

    def far_odd(t: float) -> float:
        x = 8 / math.sqrt((t + 1) / 2)
        return _hankel(order, x).imag * x

    return _series(near), _series(near_second), far("real"), _series(far_odd)


def _waves(order: int, x: Any, f: Functions) -> tuple[Any, Any]:
    """J and Y where x > 8."""
    _, _, even, odd = _oscillating_series(order)
    inverse = f.number(8.0) / x
    t = inverse * inverse * f.number(2.0) - f.number(1.0)
    p, q = _sum(even, t, f), _sum(odd, t, f) / x
    angle = x - f.number(_phase(order))
    cos, sin = f.unary("cos", angle), f.unary("sin", angle)
    scale = f.unary("sqrt", f.number(2 / math.pi) / x)
    return scale * (p * cos - q * sin), scale * (p * sin + q * cos)


def _j(order: int, x: Any, f: Functions) -> Any:
    eight = f.number(8.0)
    size = f.unary("abs", x)
    large = size > eight
    inside, outside = f.select(large, eight, size), f.select(large, size, eight)
    near = _sum(_oscillating_series(order)[0], inside * inside / f.number(32.0) - f.number(1.0), f)
    value = f.select(large, _waves(order, outside, f)[0], near if order == 0 else near * inside)
    value = value if order == 0 else f.select(x < f.number(0.0), -value, value)
    return f.select(f.unary("isnan", x), x, value)


def _y(order: int, x: Any, f: Functions) -> Any:
    """Minus infinity at 0, NaN below."""
    eight, zero = f.number(8.0), f.number(0.0)
    large = x > eight
    inside, outside = f.select(large, eight, x), f.select(large, x, eight)
    near = _sum(_oscillating_series(order)[1], inside * inside / f.number(32.0) - f.number(1.0), f)
    singular = f.number(2 / math.pi) * f.unary("log", inside) * _j(order, inside, f)
    if order == 1:
        near, singular = near * inside, singular - f.number(2 / math.pi) / inside
    value = f.select(large, _waves(order, outside, f)[1], near + singular)
    value = f.select(x > zero, value, f.select(x < zero, f.number(math.nan), f.number(-math.inf)))
    return f.select(f.unary("isnan", x), x, value)


def _spherical_j0(x: Any, f: Functions) -> Any:
    """sin(x) / x."""
    square = x * x
    series = f.number(1.0)
    for k in (12, 10, 8, 6, 4, 2):
        series = f.number(1.0) - square / f.number(float(k * (k + 1))) * series
    small = f.unary("abs", x) < f.number(0.5)
    value = f.select(small, series, f.unary("sin", x) / f.select(small, f.number(1.0), x))
    return f.select(f.unary("isinf", x), f.number(0.0), value)


_FUNCTIONS: dict[str, tuple[Callable[[Any, Functions], Any], str]] = {
    "i0": (lambda x, f: _first(0, x, f), "modified Bessel function of the first kind, order 0"),
    "i0e": (lambda x, f: _scaled_first(0, x, f), "i0(x) / e^|x|"),
    "i1": (lambda x, f: _first(1, x, f), "modified Bessel function of the first kind, order 1"),
    "i1e": (lambda x, f: _scaled_first(1, x, f), "i1(x) / e^|x|"),
    "k0": (lambda x, f: _scaled_second(0, x, f) * f.unary("exp", -x),
           "modified Bessel function of the second kind, order 0"),
    "k0e": (lambda x, f: _scaled_second(0, x, f), "k0(x) e^x"),
    "k1": (lambda x, f: _scaled_second(1, x, f) * f.unary("exp", -x),
           "modified Bessel function of the second kind, order 1"),
    "k1e": (lambda x, f: _scaled_second(1, x, f), "k1(x) e^x"),
    "bessel_j0": (lambda x, f: _j(0, x, f), "Bessel function of the first kind, order 0"),
    "bessel_j1": (lambda x, f: _j(1, x, f), "Bessel function of the first kind, order 1"),
    "bessel_y0": (lambda x, f: _y(0, x, f), "Bessel function of the second kind, order 0"),
    "bessel_y1": (lambda x, f: _y(1, x, f), "Bessel function of the second kind, order 1"),
    "spherical_bessel_j0": (_spherical_j0, "sin(x) / x"),
}  # fmt: skip

for _name, (_function, _doc) in _FUNCTIONS.items():
    define_unary(_name, "f", *in_float64(_function), _doc)
