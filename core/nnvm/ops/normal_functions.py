"""Functions around the error function: its inverse, its scaled complement, the normal distribution's. In float64."""

from __future__ import annotations

import math
from typing import Any

from nnvm.ops.elemwise import define_unary
from nnvm.ops.wide_functions import Functions, in_float64

__all__: list[str] = []

#: From here on the asymptotic series of erfcx has all digits with so many terms.
_LARGE, _TERMS = 12.0, 10


def _erfcx(x: Any, f: Functions) -> Any:
    """exp(x^2) erfc(x); its asymptotic series (Abramowitz and Stegun, 7.1.23) where the factors leave the range."""
    one = f.number(1.0)
    large = x > f.number(_LARGE)
    inside, outside = f.select(large, f.number(0.0), x), f.select(large, x, f.number(_LARGE))
    half = f.number(0.5) / (outside * outside)
    series = one
    for k in range(_TERMS, 0, -1):
        series = one - f.number(2.0 * k - 1) * half * series
    far = series / (outside * f.number(math.sqrt(math.pi)))
    return f.select(large, far, f.unary("exp", inside * inside) * f.unary("erfc", inside))


def _log_ndtr(x: Any, f: Functions) -> Any:
    """log of the normal distribution function."""
    scaled = x * f.number(math.sqrt(0.5))
    low = x < f.number(-1.0)
    tail = f.select(low, -scaled, f.number(1.0))
    below = f.unary("log", _erfcx(tail, f) * f.number(0.5)) - tail * tail
    above = f.unary("log1p", f.unary("erfc", f.select(low, f.number(0.0), scaled)) * f.number(-0.5))
    return f.select(low, below, above)


def _ndtri(p: Any, f: Functions) -> Any:
    """Where the normal distribution function is p: a rational guess (Abramowitz and Stegun, 26.2.23), made exact by
    Halley's method on the lower half."""
    zero, half, one = f.number(0.0), f.number(0.5), f.number(1.0)
    upper = p > half
    q = f.select(upper, one - p, p)
    inside = f.select(q > zero, q, half)
    t = f.unary("sqrt", f.number(-2.0) * f.unary("log", inside))
    top = f.number(2.515517) + t * (f.number(0.802853) + t * f.number(0.010328))
    bottom = one + t * (f.number(1.432788) + t * (f.number(0.189269) + t * f.number(0.001308)))
    x = top / bottom - t
    for _ in range(3):
        below = f.unary("erfc", x * f.number(-math.sqrt(0.5))) * half
        u = (below - inside) * f.number(math.sqrt(2 * math.pi)) * f.unary("exp", x * x * half)
        x = x - u / (one + x * u * half)
    x = f.select(q < zero, f.number(math.nan), f.select(q > zero, x, f.number(-math.inf)))
    x = f.select(upper, -x, x)
    return f.select(f.unary("isnan", p), p, x)


def _erfinv(y: Any, f: Functions) -> Any:
    """The inverse of erf: Winitzki's guess (2008), made exact by Halley's method on the complement."""
    zero, one, half = f.number(0.0), f.number(1.0), f.number(0.5)
    size = f.unary("abs", y)
    valid = size < one
    inside = f.select(valid, size, half)
    rest = one - inside
    log = f.unary("log", rest * (one + inside))
    a = f.number(2 / (math.pi * 0.147)) + log * half
    x = f.unary("sqrt", f.unary("sqrt", a * a - log / f.number(0.147)) - a)
    for _ in range(3):
        # of small arguments erf has the digits, of others erfc
        error = f.select(inside < half, f.unary("erf", x) - inside, rest - f.unary("erfc", x))
        u = error * f.number(math.sqrt(math.pi) / 2) * f.unary("exp", x * x)
        x = x - u / (one + x * u)
    beyond = f.select(size > one, f.number(math.nan), f.number(math.inf))
    x = f.select(valid, x, beyond)
    x = f.select(y < zero, -x, x)
    return f.select(size > zero, x, y)


define_unary("erfcx", "f", *in_float64(_erfcx), "exp(x * x) * erfc(x)")
define_unary("log_ndtr", "f", *in_float64(_log_ndtr), "log of the normal distribution function")
define_unary("ndtri", "f", *in_float64(_ndtri), "inverse of the normal distribution function")
define_unary("erfinv", "f", *in_float64(_erfinv), "inverse of erf")
