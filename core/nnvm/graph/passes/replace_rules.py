"""The table of ReplaceOp: patterns of ops and what replaces them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any as AnyValue

import numpy as np

from nnvm.dtype import BF16, f32_to_bf16
from nnvm.graph.node import Node, NodeEntry, apply, constant
from nnvm.graph.rewrite import Any, Either, Op, Pattern, Scalar, scalar_value
from nnvm.graph.types import TensorType

__all__ = ["RULES", "Rule", "op", "scalar"]

Found = Mapping[str, NodeEntry]


@dataclass(frozen=True)
class Rule:
    """`pattern` becomes what `build` gives for the values its names stand for; None: it does not apply after all.

    Attributes:
        exact: equal bit for bit, or the same formula; others need ``fast_math``.
    """

    name: str
    pattern: Pattern
    build: Callable[[Found, Node], NodeEntry | None]
    exact: bool = True


def op(name: str, *inputs: NodeEntry, **attrs: AnyValue) -> NodeEntry:
    return apply(name, inputs, attrs)[0]


def scalar(value: float, like: NodeEntry) -> NodeEntry:
    dtype = like.type.dtype
    array = f32_to_bf16(np.asarray(value, np.float32)) if dtype == BF16 else np.asarray(value, dtype.numpy)
    return constant(array, TensorType((), dtype, like.type.device))


x, y = Any("x"), Any("y")


def _given(name: str) -> Callable[[Found, Node], NodeEntry]:
    return lambda found, root: found[name]


def _unary(name: str, **attrs: AnyValue) -> Callable[[Found, Node], NodeEntry]:
    return lambda found, root: op(name, found["x"], **attrs)


def _is_number(value: float) -> Callable[[Found, Node], NodeEntry | None]:
    """x, where the scalar is exactly that number (1 and -0.0 included)."""

    def build(found: Found, root: Node) -> NodeEntry | None:
        c = scalar_value(found["c"])
        same = c is not None and c == value and math.copysign(1, c) == math.copysign(1, value)
        return found["x"] if same else None

    return build


def _add_zero(found: Found, root: Node) -> NodeEntry | None:
    """x + 0 for integers, x + -0.0 for floats: 0.0 would make 0.0 of -0.0."""
    c = scalar_value(found["c"])
    if c != 0 or (found["x"].type.dtype.is_float and math.copysign(1, c) > 0):
        return None
    return found["x"]


def _power(found: Found, root: Node) -> NodeEntry | None:
    base, exponent = found["x"], scalar_value(found["c"])
    if not base.type.dtype.is_float:
        return None
    return base if exponent == 1 else op("multiply", base, base) if exponent == 2 else None


def _divide_by_power_of_two(found: Found, root: Node) -> NodeEntry | None:
    c = scalar_value(found["c"])
    if c is None or c == 0 or not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5 or found["x"].type.dtype.is_half:
        return None
    bits = found["x"].type.dtype.bits
    if not 2.0 ** (-126 if bits == 32 else -1022) <= abs(1 / c) <= 2.0 ** (127 if bits == 32 else 1023):
        return None
    return op("multiply", found["x"], scalar(1 / c, found["x"]))


def _divide_by_constant(found: Found, root: Node) -> NodeEntry | None:
    c = scalar_value(found["c"])
    return None if not c else op("multiply", found["x"], scalar(1 / c, found["x"]))


_CONST = Scalar("c")
ALGEBRA = [
    Rule("x * 1", Op("multiply", x, _CONST), _is_number(1)),
    Rule("x / 1", Op("divide", x, _CONST), _is_number(1)),
    Rule("x - 0", Op("subtract", x, _CONST), _is_number(0.0)),
    Rule("x + 0", Op("add", x, _CONST), _add_zero),
    Rule("-(-x)", Op("negative", Op("negative", x)), _given("x")),
    Rule("relu(relu(x))", Op("relu", Op("relu", x, name="r")), _given("r")),
    Rule("abs(abs(x))", Op("abs", Op("abs", x, name="r")), _given("r")),
    Rule("not not x", Op("logical_not", Op("logical_not", Op("logical_not", x, name="r"))), _given("r")),
    Rule("power", Op("power", x, _CONST), _power),
    Rule("x / 2**k", Op("divide", x, _CONST), _divide_by_power_of_two),
    Rule("1 / sqrt(x)", Op("reciprocal", Op("sqrt", x)), _unary("rsqrt")),
    Rule("1 / sqrt(x) by division", Op("divide", Scalar("c", 1.0, 0.0), Op("sqrt", x)), _unary("rsqrt")),
    Rule("where(c, x, x)", Op("where", y, x, x), lambda found, root: found["x"]),
    Rule("x / c", Op("divide", x, _CONST), _divide_by_constant, exact=False),
]  # fmt: skip


def _square(e: Pattern) -> Pattern:
    return Either(Op("square", e), Op("multiply", e, e), Op("power", e, Scalar(value=2.0, rtol=0)))


_HALF_X = Either(Op("multiply", x, Scalar(value=0.5, rtol=0)), Op("divide", x, Scalar(value=2.0, rtol=0)))
_ERF = Op("erf", Either(Op("multiply", x, Scalar(value=math.sqrt(0.5))), Op("divide", x, Scalar(value=math.sqrt(2)))))
_CUBE = Either(Op("multiply", _square(x), x), Op("power", x, Scalar(value=3.0, rtol=0)))
_TANH = Op("tanh", Either(
    Op("multiply", Op("add", x, Op("multiply", _CUBE, Scalar(value=0.044715))), Scalar(value=math.sqrt(2 / math.pi))),
    Op("multiply", Op("multiply", x, Scalar(value=math.sqrt(2 / math.pi))),
       Op("add", Op("multiply", _square(x), Scalar(value=0.044715)), Scalar(value=1.0, rtol=0))),
))  # fmt: skip


def _gelu(inner: Pattern) -> Pattern:
    """0.5 * x * (1 + inner), however it is bracketed."""
    one_more = Op("add", inner, Scalar(value=1.0, rtol=0))
    half = Scalar(value=0.5, rtol=0)
    return Either(Op("multiply", _HALF_X, one_more), Op("multiply", Op("multiply", x, one_more), half),
                  Op("multiply", x, Op("multiply", one_more, half)))  # fmt: skip


_RELU6 = Op("clip", Op("add", x, Scalar(value=3.0, rtol=0)), where=lambda a: (a["a_min"], a["a_max"]) == (0, 6))
ACTIVATIONS = [
    Rule("gelu", _gelu(_ERF), _unary("gelu")),
    Rule("gelu of tanh", _gelu(_TANH), _unary("gelu", approximate="tanh")),
    Rule("silu", Op("multiply", x, Op("sigmoid", x)), _unary("silu")),
    Rule("mish", Op("multiply", x, Op("tanh", Op("softplus", x, where=lambda a: a["beta"] == 1))), _unary("mish")),
    Rule("hardswish", Op("divide", Op("multiply", x, _RELU6), Scalar(value=6.0, rtol=0)), _unary("hardswish")),
    Rule("sigmoid", Op("reciprocal", Op("add", Op("exp", Op("negative", x)), Scalar(value=1.0, rtol=0))),
         _unary("sigmoid")),
]  # fmt: skip


def _keeps(attrs: Mapping[str, AnyValue]) -> bool:
    return bool(attrs["keepdims"]) and attrs["axis"] is not None


def _axes(e: NodeEntry) -> tuple[int, ...]:
    """Reduced axes of a reduction, sorted and from the front."""
    axes, rank = e.node.attrs["axis"], e.node.inputs[0].type.rank
    return tuple(sorted(a % rank for a in (axes if isinstance(axes, tuple) else (axes,))))


_EXPS = Op("exp", Op("subtract", x, Op("max", x, name="max", where=_keeps)), name="exps")


def _softmax(found: Found, root: Node) -> NodeEntry | None:
    axes = _axes(found["max"])
    if len(axes) != 1 or axes != _axes(found["sum"]):
        return None
    return op("softmax", found["x"], axis=axes[0])


_CENTERED = Op("subtract", x, Op("mean", x, name="mean", where=_keeps), name="centered")
_VARIANCE = Either(
    Op("mean", _square(_CENTERED), name="variance", where=_keeps),
    Op("variance", x, name="variance", where=lambda a: _keeps(a) and a["correction"] == 0),
)  # fmt: skip
_SPREAD = Op("add", _VARIANCE, Scalar("eps"))
_MEAN_SQUARE = Op("add", Op("mean", _square(x), name="mean", where=_keeps), Scalar("eps"))


def _scaled_by(what: Pattern, spread: Pattern) -> Pattern:
    """what / sqrt(spread), in each way it is written."""
    return Either(Op("multiply", what, Op("rsqrt", spread)), Op("divide", what, Op("sqrt", spread)))


def _trailing(e: NodeEntry) -> int | None:
    """First of the reduced axes, where they are the last ones."""
    axes, rank = _axes(e), e.node.inputs[0].type.rank
    return axes[0] if axes == tuple(range(axes[0], rank)) else None


def _norm(name: str, *reductions: str) -> Callable[[Found, Node], NodeEntry | None]:
    def build(found: Found, root: Node) -> NodeEntry | None:
        firsts = {_trailing(found[r]) for r in reductions}
        eps, first = scalar_value(found["eps"]), next(iter(firsts))
        if len(firsts) != 1 or first is None or eps is None or not found["x"].type.dtype.is_float:
            return None
        return op(name, found["x"], axis=first, eps=eps)

    return build


def _affine(position: int) -> Callable[[Found, Node], NodeEntry | None]:
    """The scale (1) or shift (2) after a norm as its input, where it has the shape of the normalised axes."""

    def build(found: Found, root: Node) -> NodeEntry | None:
        norm, weight = found["norm"].node, found["y"]
        if len(norm.inputs) != position or len(norm.op.inputs) <= position or weight.node.is_constant:
            return None
        axis = norm.attrs["axis"] % norm.inputs[0].type.rank
        if weight.type.shape != norm.inputs[0].type.shape[axis:] or weight.type.dtype != norm.inputs[0].type.dtype:
            return None
        return apply(norm.op, [*norm.inputs, weight], norm.attrs)[0]

    return build


_NORM = Either(Op("layer_norm|rms_norm", Any(), name="norm"), Op("layer_norm", Any(), Any(), name="norm"))
NORMS = [
    Rule("softmax", Op("divide", _EXPS, Op("sum", Any("exps"), name="sum", where=_keeps)), _softmax),
    Rule("layer_norm", _scaled_by(_CENTERED, _SPREAD), _norm("layer_norm", "mean", "variance")),
    Rule("rms_norm", _scaled_by(x, _MEAN_SQUARE), _norm("rms_norm", "mean")),
    Rule("scale of a norm", Op("multiply", Op("layer_norm|rms_norm", Any("in"), name="norm"), y), _affine(1)),
    Rule("shift of a norm", Op("add", Op("layer_norm", Any("in"), Any("gamma"), name="norm"), y), _affine(2)),
]  # fmt: skip

RULES: list[Rule] = [*ALGEBRA, *ACTIVATIONS, *NORMS]
