"""Elementwise operators. The output's dtype is torch's word on promotion."""

from __future__ import annotations

import math
from typing import Any

from nnvm.dtype import DType
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import TABLE, Context, Operand, Scalar, Unsupported, Value, converts, holds, overload
from nnvm_torch.tensors import constant_tensor

__all__: list[str] = []

_UNARY_FLOAT = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "lgamma",
    "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_UNARY_SAME = ("abs", "ceil", "floor", "neg", "trunc", "bitwise_not", "relu", "square")
_RENAMED = {"neg": "negative"}


def _unary(name: str) -> Any:
    def convert(c: Context, x: NodeEntry) -> Value:
        return c.op(name, c.cast(x, c.dtype))

    return convert


for _n in (*_UNARY_FLOAT, *_UNARY_SAME):
    converts(f"{_n}.default")(_unary(_RENAMED.get(_n, _n)))
converts("special_expit.default")(_unary("sigmoid"))
converts("digamma.default")(_unary("polygamma"))
for _n in ("silu", "hardswish", "hardsigmoid", "mish"):
    converts(f"{_n}.default")(_unary(_n))


@converts("sign.default", "sgn.default")
def _sign(c: Context, x: NodeEntry) -> Value:
    return c.op("sign", x)


@converts("isnan.default")
def _isnan(c: Context, x: NodeEntry) -> Value:
    return c.op("isnan", x)


@converts("isinf.default")
def _isinf(c: Context, x: NodeEntry) -> Value:
    return c.op("isinf", x)


@converts("isfinite.default")
def _isfinite(c: Context, x: NodeEntry) -> Value:
    return c.op("isfinite", x)


@converts("logical_not.default")
def _logical_not(c: Context, x: NodeEntry) -> Value:
    return c.op("logical_not", x)


@converts("signbit.default")
def _signbit(c: Context, x: NodeEntry) -> Value:
    return c.op("signbit", x)


@converts("round.default")
def _round(c: Context, x: NodeEntry) -> Value:
    return c.op("round", x)


@converts("round.decimals")
def _round_decimals(c: Context, x: NodeEntry, *, decimals: int = 0) -> Value:
    if decimals == 0 or not x.type.dtype.is_float:
        return c.op("round", x)
    wide = c.compute(x)
    scale = c.const(float(10 ** abs(decimals)), wide.type.dtype)
    there, back = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    return c.cast(c.op(back, c.op("round", c.op(there, wide, scale)), scale), x.type.dtype)


@converts("angle.default")
def _angle(c: Context, x: NodeEntry) -> Value:
    x = c.cast(x, c.dtype)
    zero = c.const(0, c.dtype)
    angle = c.op("where", c.op("less", x, zero), c.const(math.pi, c.dtype), zero)
    return c.op("where", c.op("isnan", x), x, angle)


# arithmetic


def _unrounded(c: Context, y: Operand) -> DType:
    """The type in which eager multiplies and divides by `y`: of a half type float32 where it is one number, which eager
    does not round first. Other operators, and a number on the left, round it."""
    return c.dtype.compute if not isinstance(y, NodeEntry) or y.type.rank == 0 else c.dtype


def _arith(name: str, rounds: bool = True) -> Any:
    def convert(c: Context, x: Operand, y: Operand) -> Value:
        t = c.dtype if rounds else _unrounded(c, y)
        left = c.cast(c.value(x, c.dtype), t)
        return c.cast(c.op(name, left, c.value(y, t)), c.dtype)

    return convert


def _register_binary(name: str, *targets: str, rounds: bool = True) -> None:
    converts(*targets)(_arith(name, rounds))


_register_binary("multiply", "mul.Tensor", "mul.Scalar", rounds=False)
_register_binary("divide", "div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar", rounds=False)
_register_binary("maximum", "maximum.default")
_register_binary("minimum", "minimum.default")
_register_binary("fmax", "fmax.default")
_register_binary("fmin", "fmin.default")
_register_binary("atan2", "atan2.default")
_register_binary("hypot", "hypot.default")
_register_binary("copysign", "copysign.Tensor", "copysign.Scalar")
_register_binary("remainder", "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
_register_binary("fmod", "fmod.Tensor", "fmod.Scalar")
_register_binary("floor_divide", "floor_divide.default", "floor_divide.Scalar", rounds=False)
for _n in ("and", "or", "xor"):
    _register_binary(f"bitwise_{_n}", f"bitwise_{_n}.Tensor", f"bitwise_{_n}.Scalar", f"bitwise_{_n}.Scalar_Tensor",
                     f"__{_n}__.Tensor", f"__{_n}__.Scalar")  # fmt: skip
for _n, _s in (("left_shift", "__lshift__"), ("right_shift", "__rshift__")):
    _register_binary(_n, f"bitwise_{_n}.Tensor", f"bitwise_{_n}.Tensor_Scalar", f"bitwise_{_n}.Scalar_Tensor",
                     f"{_s}.Tensor", f"{_s}.Scalar")  # fmt: skip


def _scaled(c: Context, name: str, x: Operand, y: Operand, alpha: Scalar) -> NodeEntry:
    """x ± alpha * y. Unlike other operators eager rounds scalars to the half type first, and the result once."""
    t = c.dtype
    if alpha == 1:
        return c.op(name, c.value(x, t), c.value(y, t))
    right = c.op("multiply", c.compute(c.value(y, t)), c.compute(c.value(alpha, t)))
    return c.cast(c.op(name, c.compute(c.value(x, t)), right), t)


@converts("add.Tensor", "add.Scalar")
def _add(c: Context, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _scaled(c, "add", x, y, alpha)


@converts("sub.Tensor", "sub.Scalar")
def _sub(c: Context, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _scaled(c, "subtract", x, y, alpha)


@converts("rsub.Tensor", "rsub.Scalar")
def _rsub(c: Context, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _scaled(c, "subtract", y, x, alpha)


@converts("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(c: Context, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Value:
    name = {None: "divide", "trunc": "trunc_divide", "floor": "floor_divide"}[rounding_mode]
    return _arith(name, rounds=False)(c, x, y)  # type: ignore[no-any-return]


@converts("addcmul.default")
def _addcmul(c: Context, x: NodeEntry, a: NodeEntry, b: NodeEntry, *, value: Scalar = 1) -> Value:
    t = c.dtype.compute
    left = c.cast(a, t) if value == 1 else c.op("multiply", c.value(value, t), c.cast(a, t))
    return c.cast(c.op("add", c.cast(x, t), c.op("multiply", left, c.cast(b, t))), c.dtype)


@converts("addcdiv.default")
def _addcdiv(c: Context, x: NodeEntry, a: NodeEntry, b: NodeEntry, *, value: Scalar = 1) -> Value:
    if not c.dtype.is_float:
        raise Unsupported("addcdiv of integers")
    t = c.dtype.compute
    top = c.cast(a, t) if value == 1 else c.op("multiply", c.value(value, t), c.cast(a, t))
    return c.cast(c.op("add", c.cast(x, t), c.op("divide", top, c.cast(b, t))), c.dtype)


@converts("pow.Tensor_Tensor", "pow.Scalar")
def _pow(c: Context, x: Operand, y: Operand) -> Value:
    return c.op("power", c.value(x, c.dtype), c.value(y, c.dtype))


@converts("pow.Tensor_Scalar")
def _pow_scalar(c: Context, x: NodeEntry, exponent: Scalar) -> Value:
    x = c.cast(x, c.dtype)
    if exponent == 1:
        return x
    if exponent == 2 and not c.dtype.is_bool:
        return c.op("square", x)
    if exponent == 3 and not c.dtype.is_bool:
        wide = c.compute(x)
        return c.cast(c.op("multiply", c.op("square", wide), wide), c.dtype)
    if c.dtype.is_float and exponent in (0.5, -0.5, -1):
        return c.op({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[float(exponent)], x)  # type: ignore[arg-type]
    return _pow(c, x, exponent)


# comparison, logic, choice


def _compare(name: str) -> Any:
    def convert(c: Context, x: Operand, y: Operand) -> Value:
        t = c.result_type(c.args[0], c.args[1])
        return c.op(name, c.value(x, t), c.value(y, t))

    return convert


for _n, _s in (("equal", "eq"), ("not_equal", "ne"), ("less", "lt"), ("less_equal", "le"), ("greater", "gt"),
               ("greater_equal", "ge")):  # fmt: skip
    converts(f"{_s}.Tensor", f"{_s}.Scalar")(_compare(_n))


def _logical(name: str) -> Any:
    def convert(c: Context, x: Operand, y: Operand) -> Value:
        t = c.result_type(c.args[0], c.args[1])  # a number among tensors may become 0 in their type
        return c.op(name, c.truth(c.value(x, t)), c.truth(c.value(y, t)))

    return convert


for _n in ("logical_and", "logical_or", "logical_xor"):
    converts(f"{_n}.default")(_logical(_n))


@converts("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(c: Context, condition: NodeEntry, x: Operand, y: Operand) -> Value:
    chosen = c.op("where", c.truth(condition), c.value(x, c.dtype), c.value(y, c.dtype))
    return c.broadcast(chosen, c.shape)


@converts("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(c: Context, x: NodeEntry, mask: NodeEntry, value: Operand) -> Value:
    if isinstance(value, NodeEntry) and _may_overflow(value, c.dtype):
        raise Unsupported(f"a tensor of {value.type.dtype} whose number may not fit into {c.dtype}")
    return c.op("where", c.truth(mask), c.stored(value, c.dtype), c.cast(x, c.dtype))


def _may_overflow(value: NodeEntry, dtype: DType) -> bool:
    """Might the only number of a tensor be one that ATen does not take for a tensor of `dtype`?"""
    given = value.type.dtype
    if value.node.is_constant:
        return not holds(dtype, constant_tensor(value.node.attrs["value"], value.type).item())
    if given == dtype or given.is_bool or dtype.is_bool:
        return False
    return given.is_float or given.bits > dtype.bits if dtype.is_int else given.bits > dtype.bits


def _bounded(c: Context, x: NodeEntry, low: Operand | None, high: Operand | None) -> NodeEntry:
    x = c.cast(x, c.dtype)
    if low is not None:
        x = c.op("maximum", x, c.stored(low, c.dtype))
    return x if high is None else c.op("minimum", x, c.stored(high, c.dtype))


@converts("clamp.default")
def _clamp(c: Context, x: NodeEntry, min: Scalar | None = None, max: Scalar | None = None) -> Value:
    plain = all(v is None or (isinstance(v, (int, float)) and v == v) for v in (min, max))
    if c.dtype.is_float and plain:
        _ = [c.stored(v, c.dtype) for v in (min, max) if v is not None]  # one that it does not hold is an error
        return c.op("clip", c.cast(x, c.dtype), a_min=min, a_max=max)
    return _bounded(c, x, min, max)


@converts("hardtanh.default")
def _hardtanh(c: Context, x: NodeEntry, min_val: Scalar = -1, max_val: Scalar = 1) -> Value:
    return _clamp(c, x, min_val, max_val)


@converts("clamp.Tensor")
def _clamp_tensor(c: Context, x: NodeEntry, min: NodeEntry | None = None, max: NodeEntry | None = None) -> Value:
    return c.broadcast(_bounded(c, x, min, max), c.shape)


@converts("clamp_min.default", "clamp_min.Tensor")
def _clamp_min(c: Context, x: NodeEntry, low: Operand) -> Value:
    return c.broadcast(_bounded(c, x, low, None), c.shape)


@converts("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(c: Context, x: NodeEntry, high: Operand) -> Value:
    return c.broadcast(_bounded(c, x, None, high), c.shape)


# casts and copies


@converts("_to_copy.default")
def _to_copy(c: Context, x: NodeEntry | Scalar, **_: Any) -> Value:
    return c.value(x, c.dtype)  # torch.vmap converts numbers too


@converts("prims.convert_element_type.default")
def _convert_element_type(c: Context, x: NodeEntry | Scalar, dtype: Any) -> Value:
    return c.value(x, c.dtype)


@converts("clone.default", "lift_fresh_copy.default", "lift_fresh.default", "alias.default", "detach.default",
          "positive.default", "contiguous.default", "_lazy_clone.default", "prims.clone.default",
          "prims.view_of.default", "real.default", "_conj.default", "_conj_physical.default", "resolve_conj.default",
          "resolve_neg.default", "prims.device_put.default")  # fmt: skip
def _same(c: Context, x: NodeEntry, *_: Any, **__: Any) -> Value:
    return x


@converts("copy.default")
def _copy(c: Context, x: NodeEntry, source: Operand, non_blocking: bool = False) -> Value:
    return c.broadcast(c.value(source, c.dtype), c.shape)


# The prims that decompositions leave behind.
_PRIMS = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "eq": "equal", "ne": "not_equal",
          "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "maximum": "maximum",
          "minimum": "minimum", "pow": "power", "atan2": "atan2", "fmod": "fmod", "hypot": "hypot"}  # fmt: skip
for _s, _n in _PRIMS.items():
    converts(f"prims.{_s}.default")(_compare(_n) if _s in ("eq", "ne", "lt", "le", "gt", "ge") else _arith(_n))
for _n in (*_UNARY_FLOAT, "abs", "ceil", "floor", "neg", "trunc", "round", "sign", "isfinite"):
    _target = overload(f"prims.{_n}.default")
    if _target is not None and _target not in TABLE:
        converts(f"prims.{_n}.default")(_unary(_RENAMED.get(_n, _n)))


@converts("prims.where.default")
def _prims_where(c: Context, condition: NodeEntry, x: NodeEntry, y: NodeEntry) -> Value:
    return c.op("where", c.truth(condition), x, y)


@converts("prims.fma.default")
def _fma(c: Context, x: Operand, y: Operand, z: Operand) -> Value:
    """x * y + z, which Dynamo makes of addcmul_ and its like."""
    t = c.dtype.compute
    product = c.op("multiply", c.value(x, t), c.value(y, t))
    return c.cast(c.op("add", product, c.value(z, t)), c.dtype)
