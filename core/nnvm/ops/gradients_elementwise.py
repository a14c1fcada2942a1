"""Gradients of elementwise ops, of one input and of two or three that broadcast. Ties and edges as PyTorch has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nnvm.ops.gradient_terms import Call, Value, gradient_of, unbroadcast, zero_gradient

__all__: list[str] = []

_LN2, _LN10 = math.log(2), math.log(10)

#: Gradient of the input from (gradient of the output g, input x, output y).
_UNARY: dict[str, Callable[[Value, Value, Value], Value]] = {
    "negative": lambda g, x, y: -g,
    "abs": lambda g, x, y: g * x.op("sign"),
    "exp": lambda g, x, y: g * y,
    "exp2": lambda g, x, y: g * y * _LN2,
    "expm1": lambda g, x, y: g * (y + 1),
    "log": lambda g, x, y: g / x,
    "log2": lambda g, x, y: g / (x * _LN2),
    "log10": lambda g, x, y: g / (x * _LN10),
    "log1p": lambda g, x, y: g / (x + 1),
    "sqrt": lambda g, x, y: g / (y * 2),
    "rsqrt": lambda g, x, y: g * (y * y * y) * -0.5,
    "reciprocal": lambda g, x, y: -g * (y * y),
    "square": lambda g, x, y: g * (x * 2),
    "sin": lambda g, x, y: g * x.op("cos"),
    "cos": lambda g, x, y: -g * x.op("sin"),
    "tan": lambda g, x, y: g * (y * y + 1),
    "asin": lambda g, x, y: g * (1 - x * x).op("rsqrt"),
    "acos": lambda g, x, y: -g * (1 - x * x).op("rsqrt"),
    "atan": lambda g, x, y: g / (x * x + 1),
    "sinh": lambda g, x, y: g * x.op("cosh"),
    "cosh": lambda g, x, y: g * x.op("sinh"),
    "tanh": lambda g, x, y: g * (1 - y * y),
    "asinh": lambda g, x, y: g * (x * x + 1).op("rsqrt"),
    "acosh": lambda g, x, y: g * (x * x - 1).op("rsqrt"),
    "atanh": lambda g, x, y: g / (1 - x * x),
    "erf": lambda g, x, y: g * (-(x * x)).op("exp") * (2 / math.sqrt(math.pi)),
    "erfc": lambda g, x, y: g * (-(x * x)).op("exp") * (-2 / math.sqrt(math.pi)),
    "sigmoid": lambda g, x, y: g * (1 - y) * y,
    "relu": lambda g, x, y: g.unless(y.op("less_equal", 0)),
    "silu": lambda g, x, y: g * _silu_slope(x),
    "mish": lambda g, x, y: g * _mish_slope(x),
    "log_sigmoid": lambda g, x, y: g * (-x).op("sigmoid"),
    "hardsigmoid": lambda g, x, y: (g * (1 / 6)).where(_between(x, -3, 3)),
    "hardswish": lambda g, x, y: g.where(x.op("greater_equal", 3), (g * (x / 3 + 0.5)).where(_between(x, -3, 3))),
    "lgamma": lambda g, x, y: g * x.op("polygamma", n=0),
    "identity": lambda g, x, y: g,
    "dropout": lambda g, x, y: g,
    "cast": lambda g, x, y: g.cast(x.dtype),
}


def _between(x: Value, low: float, high: float) -> Value:
    return x.op("greater", low).op("logical_and", x.op("less", high))


def _silu_slope(x: Value) -> Value:
    s = x.op("sigmoid")
    return s * (x * (1 - s) + 1)


def _mish_slope(x: Value) -> Value:
    t = x.op("softplus").op("tanh")
    return t + x * x.op("sigmoid") * (1 - t * t)


def _attach_unary(name: str, slope: Callable[[Value, Value, Value], Value]) -> None:
    gradient_of(name)(lambda call, g: slope(g, call.inputs[0], call.out))


for _name, _slope in _UNARY.items():
    _attach_unary(_name, _slope)
zero_gradient("floor", "ceil", "trunc", "round", "sign", "floor_divide", "trunc_divide")


@gradient_of("polygamma")
def _polygamma(call: Call, g: Value) -> Value:
    return g * call.inputs[0].op("polygamma", n=call.attrs["n"] + 1)


@gradient_of("clip")
def _clip(call: Call, g: Value) -> Value:
    (x,), low, high = call.inputs, call.attrs["a_min"], call.attrs["a_max"]
    if low is not None:
        g = g.where(x.op("greater_equal", low))
    return g if high is None else g.where(x.op("less_equal", high))


@gradient_of("gelu")
def _gelu(call: Call, g: Value) -> Value:
    (x,) = call.inputs
    if call.attrs["approximate"] == "none":
        density = (x * x * -0.5).op("exp") * (1 / math.sqrt(2 * math.pi))
        return g * (((x * math.sqrt(0.5)).op("erf") + 1) * 0.5 + x * density)
    root = math.sqrt(2 / math.pi)
    t = ((x * x * x * 0.044715 + x) * root).op("tanh")
    inner = (x * x * (3 * 0.044715) + 1) * root
    return g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * inner)


@gradient_of("elu")
def _elu(call: Call, g: Value) -> Value:
    (x,), a = call.inputs, call.attrs
    low: Value = (x * a["input_scale"]).op("exp") * (a["alpha"] * a["scale"] * a["input_scale"])
    return (g * low).where(x.op("less_equal", 0), g * a["scale"])


@gradient_of("leaky_relu")
def _leaky_relu(call: Call, g: Value) -> Value:
    return g.where(call.inputs[0].op("greater", 0), g * call.attrs["alpha"])


@gradient_of("softplus")
def _softplus(call: Call, g: Value) -> Value:
    scaled = call.inputs[0] * call.attrs["beta"]
    return g.where(scaled.op("greater", call.attrs["threshold"]), g * scaled.op("sigmoid"))


# Two inputs


def _power(g: Value, a: Value, b: Value, y: Value) -> tuple[Value, Value]:
    by_base = (g * (b * a.op("power", b - 1))).unless(b.op("equal", 0))
    flat = a.op("equal", 0).op("logical_and", b.op("greater_equal", 0))
    return by_base, (g * (y * a.op("log"))).unless(flat)


def _extreme(loses: str) -> Callable[[Value, Value, Value, Value], tuple[Value, Value]]:
    """Of maximum and minimum: all to the winner, half to each of two equals."""

    def rule(g: Value, a: Value, b: Value, y: Value) -> tuple[Value, Value]:
        shared = (g * 0.5).where(a.op("equal", b), g)
        return shared.unless(a.op(loses, b)), shared.unless(b.op(loses, a))

    return rule


def _number_extreme(wins: str) -> Callable[[Value, Value, Value, Value], tuple[Value, Value]]:
    """Of fmax and fmin: all to the first of two equals, and to a number beside NaN."""

    def rule(g: Value, a: Value, b: Value, y: Value) -> tuple[Value, Value]:
        first = a.op(wins, b).op("logical_or", b.op("isnan"))
        return g.where(first), g.unless(first)

    return rule


def _atan2(g: Value, a: Value, b: Value, y: Value) -> tuple[Value, Value]:
    size = a * a + b * b
    scaled = (g / size).unless(size.op("equal", 0))
    return scaled * b, -(scaled * a)


def _copysign(g: Value, a: Value, b: Value, y: Value) -> tuple[Value, None]:
    return (g * (y / a)).unless(a.op("equal", 0)), None


def _prelu(g: Value, a: Value, b: Value, y: Value) -> tuple[Value, Value]:
    above = a.op("greater", 0)
    return g.where(above, g * b), (g * a).unless(above)


#: Gradients of both inputs, in the output's shape, from (g, a, b, y).
_BINARY: dict[str, Callable[[Value, Value, Value, Value], Sequence[Value | None]]] = {
    "add": lambda g, a, b, y: (g, g),
    "subtract": lambda g, a, b, y: (g, -g),
    "multiply": lambda g, a, b, y: (g * b, g * a),
    "divide": lambda g, a, b, y: (g / b, -g * (y / b)),
    "power": _power,
    "maximum": _extreme("less"),
    "minimum": _extreme("greater"),
    "fmax": _number_extreme("greater_equal"),
    "fmin": _number_extreme("less_equal"),
    "remainder": lambda g, a, b, y: (g, -g * a.op("floor_divide", b)),
    "fmod": lambda g, a, b, y: (g, -g * a.op("trunc_divide", b)),
    "atan2": _atan2,
    "hypot": lambda g, a, b, y: (g * (a / y), g * (b / y)),
    "copysign": _copysign,
    "prelu": _prelu,
}


def _attach_binary(name: str, slopes: Callable[[Value, Value, Value, Value], Sequence[Value | None]]) -> None:
    def rule(call: Call, g: Value) -> list[Value | None]:
        a, b = call.inputs
        return [None if v is None else unbroadcast(v, x) for v, x in zip(slopes(g, a, b, call.out), (a, b))]

    gradient_of(name)(rule)


for _name, _slopes in _BINARY.items():
    _attach_binary(_name, _slopes)


@gradient_of("where")
def _where(call: Call, g: Value) -> list[Any]:
    condition, x, y = call.inputs
    return [None, unbroadcast(g.where(condition), x), unbroadcast(g.unless(condition), y)]
