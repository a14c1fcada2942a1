"""Gradients of special functions, and of running extremes and running log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Callable

from nnvm.ops.gradient_terms import Call, Value, gradient_of, zeros
from nnvm.ops.shape_rules import resolve_axis

__all__: list[str] = []


def _over(top: Value, x: Value, at_zero: float) -> Value:
    """top / x, with its limit at 0."""
    zero = x.op("equal", 0)
    one = zeros(x) + 1
    return (zeros(x) + at_zero).where(zero, top / one.where(zero, x))


#: Gradient of the input from (gradient of the output g, input x, output y). Abramowitz and Stegun, 9.1.28 and 9.6.28.
_UNARY: dict[str, Callable[[Value, Value, Value], Value]] = {
    "i0": lambda g, x, y: g * x.op("i1"),
    "i0e": lambda g, x, y: g * (x.op("i1e") - x.op("sign") * y),
    "i1": lambda g, x, y: g * (x.op("i0") - _over(y, x, 0.5)),
    "i1e": lambda g, x, y: g * (x.op("i0e") - x.op("sign") * y - _over(y, x, 0.5)),
    "k0": lambda g, x, y: -g * x.op("k1"),
    "k0e": lambda g, x, y: g * (y - x.op("k1e")),
    "k1": lambda g, x, y: -g * (x.op("k0") + y / x),
    "k1e": lambda g, x, y: g * (y - x.op("k0e") - y / x),
    "bessel_j0": lambda g, x, y: -g * x.op("bessel_j1"),
    "bessel_j1": lambda g, x, y: g * (x.op("bessel_j0") - _over(y, x, 0.5)),
    "bessel_y0": lambda g, x, y: -g * x.op("bessel_y1"),
    "bessel_y1": lambda g, x, y: g * (x.op("bessel_y0") - y / x),
    "spherical_bessel_j0": lambda g, x, y: g * _over(x.op("cos") - y, x, 0.0),
    "erfcx": lambda g, x, y: g * (x * y * 2 - 2 / math.sqrt(math.pi)),
    "log_ndtr": lambda g, x, y: g * (math.sqrt(2 / math.pi) / (x * -math.sqrt(0.5)).op("erfcx")),
    "ndtri": lambda g, x, y: g * (y * y * 0.5).op("exp") * math.sqrt(2 * math.pi),
    "erfinv": lambda g, x, y: g * (y * y).op("exp") * (math.sqrt(math.pi) / 2),
}

for _name, _rule in _UNARY.items():
    gradient_of(_name)(lambda call, g, rule=_rule: rule(g, call.inputs[0], call.out))  # type: ignore[misc]


@gradient_of("cummax", "cummin")
def _running_extreme(call: Call, g: Value) -> Value:
    """To the element that was the extreme."""
    (x,) = call.inputs
    return zeros(x).op("scatter", Value(call.node[1]), g, axis=call.attrs["axis"], reduce="add") if x.rank else g


@gradient_of("logcumsumexp")
def _logcumsumexp(call: Call, g: Value) -> Value:
    """exp(x) times the sum over later elements of g exp(-y): in logarithms, of positive and negative g apart."""
    (x,) = call.inputs
    if not x.rank:
        return g
    axis = resolve_axis(call.attrs["axis"], x.rank)

    def part(head: Value) -> Value:
        logs = (head.op("maximum", 0).op("log") - call.out).op("flip", axes=(axis,))
        return (logs.op("logcumsumexp", axis=axis).op("flip", axes=(axis,)) + x).op("exp")

    return part(g) - part(-g)
