"""Elementwise ops of one input: one line each. Half types are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dtype import BOOL, DType
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over
from nnvm.ops.params import choice, element_type, number, optional, scalar
from nnvm.ops.shape_rules import check_kind
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__ = ["define_unary"]

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def define_unary(
    name: str, kinds: str, body: Callable[..., Expr], reference: Callable[..., Any], doc: str,
    result: DType | None = None, params: Mapping[str, Param] | None = None,
) -> None:  # fmt: skip
    """Registers a unary op.

    `kinds` are the DType kinds it takes; `body(x, **params)` gets an element in its compute type;
    `reference(array, **params)` gets float32 in place of half types; `result` is the dtype where it is not the input's.
    """

    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        check_kind(inputs[0], kinds)
        return (inputs[0] if result is None else inputs[0].with_dtype(result),)

    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        to, given = outputs[0].dtype, own(attrs)
        return [over(x.shape, name, lambda *i: te.cast(body(te.cast(x[i], x.dtype.compute), **given), to))]

    def own(attrs: Attrs) -> dict[str, Any]:
        return {k: attrs[k] for k in params or {}}

    register(
        name, inputs=["data"], params=params, doc=doc, infer_type=infer_type, pattern=OpPattern.ELEMWISE,
        compute=compute, reference=lambda attrs, x: (reference(x, **own(attrs)),),
        inplace=((0, 0),) if result is None else (),
    )  # fmt: skip


def _by_element(fn: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of the math module over arrays."""
    over_array = np.vectorize(fn, otypes=[np.float64])
    return lambda x: np.asarray(over_array(x), x.dtype)


def _lgamma(x: float) -> float:
    return math.inf if math.isinf(x) or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


_erf, _erfc = _by_element(math.erf), _by_element(math.erfc)


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _clip(x: Expr, a_min: float | None, a_max: float | None) -> Expr:
    if not x.dtype.is_float:
        a_min, a_max = _whole_bounds(a_min, a_max, x.dtype.numpy)
    if a_min is not None:
        x = te.maximum(x, te.const(a_min, x.dtype))
    return x if a_max is None else te.minimum(x, te.const(a_max, x.dtype))


def _clip_array(x: Array, a_min: float | None, a_max: float | None) -> Array:
    if x.dtype.kind in "iu":
        a_min, a_max = _whole_bounds(a_min, a_max, x.dtype)
    if a_min is not None:
        x = np.maximum(x, np.asarray(a_min).astype(x.dtype))
    return x if a_max is None else np.minimum(x, np.asarray(a_max).astype(x.dtype))


def _whole_bounds(a_min: float | None, a_max: float | None, dtype: Any) -> tuple[int | None, int | None]:
    """The integers of a numpy dtype that lie within bounds, which may be fractions or beyond the type."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def whole(bound: float, rounded: Callable[[float], int]) -> int:
        return low if bound <= low else high if bound >= high else rounded(bound)

    return (None if a_min is None else whole(a_min, math.ceil)), (None if a_max is None else whole(a_max, math.floor))


def _sign(x: Expr) -> Expr:
    one, zero = te.const(1, x.dtype), te.const(0, x.dtype)
    if not x.dtype.is_signed:
        return te.select(te.binary("ne", x, zero), one, zero)
    return te.select(x > zero, one, te.select(x < zero, te.const(-1, x.dtype), zero))


def _gelu(x: Expr, approximate: str) -> Expr:
    if approximate == "none":
        return x * 0.5 * (te.unary("erf", x * math.sqrt(0.5)) + 1.0)
    inner = (x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)
    return x * 0.5 * (te.unary("tanh", inner) + 1.0)


def _gelu_array(x: Array, approximate: str) -> Any:
    if approximate == "none":
        return x * 0.5 * (_erf(x * x.dtype.type(math.sqrt(0.5))) + 1)
    return x * 0.5 * (np.tanh((x * x * x * 0.044715 + x) * x.dtype.type(math.sqrt(2 / math.pi))) + 1)


def _elu(x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    inner = x if input_scale == 1 else x * input_scale
    low = te.unary("expm1", inner) * (alpha * scale)
    return te.select(x <= te.const(0, x.dtype), low, x if scale == 1 else x * scale)


def _softplus(x: Expr, beta: float, threshold: float) -> Expr:
    scaled = x if beta == 1 else x * beta
    soft = te.unary("log1p", te.unary("exp", scaled))
    return te.select(scaled > te.const(threshold, x.dtype), x, soft if beta == 1 else soft / beta)


def _softplus_array(x: Array, beta: float, threshold: float) -> Any:
    return np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta)


def _hardsigmoid(x: Expr) -> Expr:
    """A division of a vector takes 16 cycles; a sixth of 6 is 1, rounded too."""
    return _clip(x + 3.0, 0, 6) * (1 / 6)


def _log_sigmoid(x: Expr) -> Expr:
    low = te.minimum(x, te.const(0, x.dtype))
    return low - te.unary("log1p", te.unary("exp", te.unary("neg", te.unary("abs", x))))


def _unary(op: str) -> Callable[[Expr], Expr]:
    return lambda x: te.unary(op, x)


def _float_only(op: str) -> Callable[[Expr], Expr]:
    """A function that leaves integers alone (floor and its like)."""
    return lambda x: te.unary(op, x) if x.dtype.is_float else x


def _if_float(fn: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """A predicate on floats that is false for everything else."""
    return lambda x: fn(x) if x.dtype.is_float else te.const(False, BOOL)


def _rounding(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: fn(x) if x.dtype.kind == "f" else x


def _is_finite(x: Expr) -> Expr:
    return ~(te.unary("isnan", x) | te.unary("isinf", x)) if x.dtype.is_float else te.const(True, BOOL)


def _is_zero(x: Expr) -> Expr:
    return ~x if x.dtype.is_bool else te.binary("eq", x, te.const(0, x.dtype))


# Functions of a float: name, te function (None: the unary operator of that name), numpy function, doc.
_FLOAT: list[tuple[str, Callable[[Expr], Expr] | None, Callable[[Any], Any], str]] = [
    ("exp", None, np.exp, "e ** x"),
    ("exp2", None, np.exp2, "2 ** x"),
    ("expm1", None, np.expm1, "e ** x - 1, exact near 0"),
    ("log", None, np.log, "natural logarithm"),
    ("log2", None, np.log2, "logarithm of base 2"),
    ("log10", None, np.log10, "logarithm of base 10"),
    ("log1p", None, np.log1p, "log(1 + x), exact near 0"),
    ("sqrt", None, np.sqrt, "square root"),
    ("rsqrt", None, lambda x: 1 / np.sqrt(x), "1 / sqrt(x)"),
    ("reciprocal", lambda x: te.const(1, x.dtype) / x, np.reciprocal, "1 / x"),
    ("sin", None, np.sin, "sine"),
    ("cos", None, np.cos, "cosine"),
    ("tan", None, np.tan, "tangent"),
    ("asin", None, np.arcsin, "inverse sine"),
    ("acos", None, np.arccos, "inverse cosine"),
    ("atan", None, np.arctan, "inverse tangent"),
    ("sinh", None, np.sinh, "hyperbolic sine"),
    ("cosh", None, np.cosh, "hyperbolic cosine"),
    ("tanh", None, np.tanh, "hyperbolic tangent"),
    ("asinh", None, np.arcsinh, "inverse hyperbolic sine"),
    ("acosh", None, np.arccosh, "inverse hyperbolic cosine"),
    ("atanh", None, np.arctanh, "inverse hyperbolic tangent"),
    ("erf", None, _erf, "error function"),
    ("erfc", None, _erfc, "1 - erf(x), exact for large x"),
    ("lgamma", None, _by_element(_lgamma), "log(abs(gamma(x)))"),
    ("sigmoid", None, _sigmoid, "1 / (1 + exp(-x))"),
    ("silu", lambda x: x / (te.unary("exp", -x) + 1.0), lambda x: x / (1 + np.exp(-x)), "x * sigmoid(x)"),
    ("mish", lambda x: x * te.unary("tanh", te.unary("log1p", te.unary("exp", x))),
     lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))), "x * tanh(log(1 + exp(x)))"),
    ("log_sigmoid", _log_sigmoid, lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), "log(sigmoid(x))"),
    ("hardsigmoid", _hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6, "clip(x + 3, 0, 6) / 6"),
    ("hardswish", lambda x: x * _hardsigmoid(x), lambda x: x * (np.clip(x + 3, 0, 6) / 6),
     "x * clip(x + 3, 0, 6) / 6"),
]  # fmt: skip

# Other functions: name, kinds taken, result dtype (None: the input's), te function, numpy function, doc.
_GENERAL: list[tuple[str, str, DType | None, Callable[[Expr], Expr], Callable[[Any], Any], str]] = [
    ("negative", "fiu", None, _unary("neg"), np.negative, "-x; integers wrap"),
    ("abs", "fiu", None, lambda x: te.unary("abs", x) if x.dtype.is_signed else x, np.abs, "absolute value"),
    ("sign", "fiub", None, lambda x: x if x.dtype.is_bool else _sign(x), lambda x: _sign_array(x),
     "-1, 0 or 1; 0 for NaN"),
    ("square", "fiu", None, lambda x: x * x, np.square, "x * x"),
    ("relu", "fiu", None, lambda x: te.maximum(x, te.const(0, x.dtype)), lambda x: np.maximum(x, 0).astype(x.dtype),
     "max(x, 0); NaN stays"),
    ("floor", "fiu", None, _float_only("floor"), _rounding(np.floor), "greatest integer at most x"),
    ("ceil", "fiu", None, _float_only("ceil"), _rounding(np.ceil), "least integer at least x"),
    ("trunc", "fiu", None, _float_only("trunc"), _rounding(np.trunc), "x without its fraction"),
    ("round", "fiu", None, _float_only("round"), _rounding(np.round), "nearest integer, half to even"),
    ("isnan", "fiub", BOOL, _if_float(_unary("isnan")), np.isnan, "is it NaN"),
    ("isinf", "fiub", BOOL, _if_float(_unary("isinf")), np.isinf, "is it infinite"),
    ("isfinite", "fiub", BOOL, _is_finite, np.isfinite, "is it neither NaN nor infinite"),
    ("signbit", "fiub", BOOL, lambda x: _sign_bit(x), np.signbit, "is the sign bit set (of -0.0 too)"),
    ("logical_not", "fiub", BOOL, _is_zero, np.logical_not, "x == 0"),
    ("bitwise_not", "iub", None, _unary("not"), np.invert, "all bits flipped; of a bool its opposite"),
    ("identity", "fiub", None, lambda x: x, lambda x: x, "a copy"),
]  # fmt: skip


def _sign_array(x: Array) -> Any:
    return x if x.dtype.kind == "b" else np.nan_to_num(np.sign(x), nan=0).astype(x.dtype)


def _sign_bit(x: Expr) -> Expr:
    if not x.dtype.is_signed:
        return te.const(False, BOOL)
    if x.dtype.is_float:
        x = te.Bitcast(x, _INT_OF_WIDTH[x.dtype.bits])
    return x < te.const(0, x.dtype)


_INT_OF_WIDTH = {32: DType("int32", "i", 32), 64: DType("int64", "i", 64)}

for _name, _body, _numpy, _doc in _FLOAT:
    define_unary(_name, "f", _body or _unary(_name), _numpy, _doc)
for _name, _kinds, _result, _body, _numpy, _doc in _GENERAL:
    define_unary(_name, _kinds, _body, _numpy, _doc, _result)

define_unary("clip", "fiu", _clip, _clip_array, "x kept within bounds; NaN stays",
        params={"a_min": Param("lower bound; None: none", optional(scalar), None),
                "a_max": Param("upper bound, which wins; None: none", optional(scalar), None)})  # fmt: skip
define_unary("gelu", "f", _gelu, _gelu_array, "x times the normal distribution function of x",
        params={"approximate": Param("none (by erf) or tanh", choice("none", "tanh"), "none")})  # fmt: skip
define_unary("elu", "f", _elu,
        lambda x, alpha, scale, input_scale: np.where(x <= 0, np.expm1(x * input_scale) * (alpha * scale), x * scale),
        "scale * x, below 0 scale * alpha * (exp(input_scale * x) - 1): elu, selu, celu",
        params={"alpha": Param("limit below 0", number, 1.0), "scale": Param("factor of all", number, 1.0),
                "input_scale": Param("factor in the exponent", number, 1.0)})  # fmt: skip
define_unary("leaky_relu", "f", lambda x, alpha: te.select(x > te.const(0, x.dtype), x, x * alpha),
        lambda x, alpha: np.where(x > 0, x, x * alpha), "x, below 0 alpha * x",
        params={"alpha": Param("slope below 0", number, 0.01)})  # fmt: skip
define_unary("softplus", "f", _softplus, _softplus_array, "log(1 + exp(beta * x)) / beta, x above the threshold",
        params={"beta": Param("sharpness", number, 1.0),
                "threshold": Param("beta * x from which x is the answer", number, 20.0)})  # fmt: skip


def _cast_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    return [over(x.shape, "cast", lambda *i: te.cast(x[i], attrs["dtype"]))]


register(
    "cast", inputs=["data"], params={"dtype": Param("the new element type", element_type)},
    doc="Conversion as eager PyTorch does it: floats to integers truncate, integers wrap, to bool is != 0.",
    infer_type=lambda attrs, inputs: (inputs[0].with_dtype(attrs["dtype"]),), pattern=OpPattern.ELEMWISE,
    compute=_cast_compute, inplace=((0, 0),),
    reference=lambda attrs, x: (x != 0 if attrs["dtype"].is_bool else x,),
)  # fmt: skip


def _share(value: Any) -> float:
    if not 0 <= number(value) <= 1:
        raise ValueError("expected a share from 0 to 1")
    return number(value)


register(
    "dropout", inputs=["data"], params={"rate": Param("share set to 0 in training", _share, 0.5)},
    doc="The identity: at inference nothing is dropped.", infer_type=lambda attrs, inputs: inputs,
    pattern=OpPattern.ELEMWISE, reference=lambda attrs, x: (x,), inplace=((0, 0),),
    compute=lambda attrs, inputs, outputs: [over(inputs[0].shape, "dropout", lambda *i: inputs[0][i])],
    simplify_inference=lambda node: node.inputs[0],
)  # fmt: skip
