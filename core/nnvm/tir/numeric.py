"""The operators of the Tensor IR on numpy values: what each means, to the bit where that is possible.

A scalar integer is a Python int, a scalar bool a Python bool; everything else is a numpy value of the dtype's numpy
type, except that the half types are held as float32 (whoever computes with them rounds). Transcendental functions of
float32 are computed in float64 and rounded, so a code generator may differ by its documented error (2 ulp).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nnvm.dtype import BF16, DType, bf16_to_f32, f32_to_bf16
from nnvm.kernel_error import KernelError

__all__ = ["DIVISIONS", "KernelError", "apply_binary", "apply_unary", "bitcast", "cast", "constant",
           "fused_multiply_add", "reduce_lanes", "wrap"]  # fmt: skip

#: Fail on integers where the divisor is 0.
DIVISIONS = ("floordiv", "floormod", "truncdiv", "truncmod")

Value = Any  # int | bool | np.generic | np.ndarray


def value_type(t: DType) -> np.dtype[Any]:
    """The numpy type that values of type `t` are held in."""
    return np.dtype(np.float32) if t.is_half else t.numpy


def wrap(x: Value, t: DType) -> Value:
    """An integer brought into the range of `t`; arrays have wrapped already."""
    if isinstance(x, np.ndarray):
        return x.astype(t.numpy, copy=False)
    x = int(x) & ((1 << t.bits) - 1)
    return x - (1 << t.bits) if t.is_signed and x >> (t.bits - 1) else x


def constant(value: int | float | bool, t: DType, lanes: int = 1) -> Value:
    out = cast(np.float64(value), None, t) if t.is_half else value if not t.is_float else value_type(t).type(value)
    return out if lanes == 1 else np.full(lanes, out, value_type(t))


# --- unary


def _elementwise(fn: Callable[[float], float]) -> Callable[[Value], Value]:
    vector = np.frompyfunc(fn, 1, 1)
    return lambda x: np.asarray(vector(x), np.float64)[()]


def _sigmoid(x: Value) -> Value:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))[()]


def _lgamma(x: float) -> float:
    if math.isnan(x):
        return x
    return math.inf if math.isinf(x) or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


#: Functions on float64 (float32 operands are widened first).
_FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sigmoid": _sigmoid, "erf": _elementwise(math.erf), "erfc": _elementwise(math.erfc),
    "lgamma": _elementwise(_lgamma), "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
#: Exact, or rounded once, in the type itself.
_EXACT: dict[str, Callable[[Value], Value]] = {
    "neg": operator.neg, "abs": abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "round": np.rint, "inverse": lambda x: x.dtype.type(1) / x,
}  # fmt: skip


def apply_unary(op: str, a: Value, t: DType) -> Value:
    """`op` of MATH or LOGICAL on a value of type `t`."""
    if op == "not":
        if t.is_bool:
            return np.logical_not(a) if isinstance(a, np.ndarray) else not a
        return wrap(~a, t)
    if op in ("isnan", "isinf"):
        found = (np.isnan if op == "isnan" else np.isinf)(a) if t.is_float else np.zeros(np.shape(a), bool)
        return found if np.ndim(found) else bool(found)
    if op in _EXACT:
        if t.is_float:
            return _EXACT[op](a)
        return a if op in ("floor", "ceil", "trunc", "round") else wrap(_EXACT[op](a), t)
    if not t.is_float:
        raise TypeError(f"{op} of {t}: cast to a float first")
    return np.asarray(_FUNCTIONS[op](np.float64(a)), value_type(t))[()]


# --- binary


def _shift_left(a: Value, b: Value, t: DType) -> Value:
    ok = (b >= 0) & (b < t.bits)
    if isinstance(ok, np.ndarray):
        return np.where(ok, np.left_shift(a, np.where(ok, b, 0).astype(t.numpy)), t.numpy.type(0))
    return wrap(a << b, t) if ok else 0


def _shift_right(a: Value, b: Value, t: DType) -> Value:
    most = t.bits - 1  # shifting a negative number that far leaves -1, a positive one 0
    ok = (b >= 0) & (b < t.bits)
    if isinstance(ok, np.ndarray):
        shifted = np.right_shift(a, np.where(ok, b, most).astype(t.numpy))
        return shifted if t.is_signed else np.where(ok, shifted, t.numpy.type(0))
    return a >> (b if ok else most) if ok or t.is_signed else 0


def _truncdiv(a: Value, b: Value) -> Value:
    quotient, rest = a // b, a % b
    return quotient + ((rest != 0) & ((a < 0) != (b < 0)))


def _int_pow(a: Value, b: Value, t: DType) -> Value:
    """A negative power of anything but 1 and -1 is 0, as in eager."""

    def one(x: int, y: int) -> int:
        if y < 0:
            return 1 if x == 1 else (1 if y % 2 == 0 else -1) if x == -1 else 0
        return int(wrap(pow(x, y, 1 << t.bits), t))

    if not isinstance(a, np.ndarray):
        return one(int(a), int(b))
    return np.array([one(int(x), int(y)) for x, y in zip(a, b)], t.numpy)


_INT: dict[str, Callable[[Value, Value], Value]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "floordiv": operator.floordiv, "floormod": operator.mod, "truncdiv": _truncdiv,
    "truncmod": lambda a, b: a - _truncdiv(a, b) * b,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def _float_floordiv(a: Value, b: Value) -> Value:
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    quotient = np.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + 1, whole)
    zero = np.copysign(np.zeros_like(quotient), a / b)
    return np.where(b == 0, a / b, np.where(quotient != 0, whole, zero))


def _float_floormod(a: Value, b: Value) -> Value:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


_FLOAT: dict[str, Callable[[Value, Value], Value]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": _float_floordiv, "floormod": _float_floormod, "truncdiv": lambda a, b: np.trunc(a / b),
    "truncmod": np.fmod, "min": np.minimum, "max": np.maximum, "fmin": np.fmin, "fmax": np.fmax,
    "copysign": np.copysign, "nextafter": np.nextafter,
}  # fmt: skip
_FLOAT_FUNCTIONS: dict[str, Callable[[Value, Value], Value]] = {
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot,
}  # fmt: skip


def apply_binary(op: str, a: Value, b: Value, t: DType, active: Value = True) -> Value:
    """`op` on two values of type `t`. Integer division by 0 in a lane that is `active` raises KernelError."""
    if op in _COMPARE:
        out = _COMPARE[op](a, b)
        return out if np.ndim(out) else bool(out)
    if t.is_float:
        if op in _FLOAT_FUNCTIONS:
            return np.asarray(_FLOAT_FUNCTIONS[op](np.float64(a), np.float64(b)), value_type(t))[()]
        return np.asarray(_FLOAT[op](a, b), value_type(t))[()]
    if op in DIVISIONS:
        if np.any((b == 0) & active):
            raise KernelError("ZeroDivisionError")
        if isinstance(b, np.ndarray):
            b = np.where(b == 0, b.dtype.type(1), b)
        elif b == 0:
            b = 1  # not active: any value will do
    if op in ("min", "max", "fmin", "fmax"):
        less = a < b if op.endswith("min") else a > b
        return np.where(less, a, b) if isinstance(less, np.ndarray) else a if less else b
    if op == "shl":
        return _shift_left(a, b, t)
    if op == "shr":
        return _shift_right(a, b, t)
    if op == "pow":
        return _int_pow(a, b, t)
    if t.is_bool:
        out = _INT[op](a, b)
        return out.astype(bool) if isinstance(out, np.ndarray) else bool(out)
    return wrap(_INT[op](a, b), t)


def _round_to_odd(s: Value, error: Value) -> Value:
    """`s + error`, of which `s` is the nearest float64, rounded to whichever neighbour has an odd last bit.

    Rounding that to a narrower type gives the sum rounded once (Boldo and Melquiond, 2008).
    """
    s, error = np.asarray(s, np.float64), np.asarray(error, np.float64)
    even = (s.view(np.int64) & 1) == 0
    moved = np.nextafter(s, np.where(error > 0, np.inf, -np.inf))
    return np.where(even & (error != 0) & np.isfinite(error), moved, s)


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """Product and its error (Dekker); exact unless it over- or underflows."""

    def halves(x: Value) -> tuple[Value, Value]:
        high = x * 134217729.0
        high = high - (high - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = halves(a), halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def fused_multiply_add(a: Value, b: Value, c: Value, t: DType) -> Value:
    """`a * b + c` rounded once (float64: unless the product's error underflows)."""
    if not t.is_float:
        return wrap(a * b + c, t)
    x, y, z = np.float64(a), np.float64(b), np.float64(c)
    if t.bits <= 32:
        s, error = _two_sum(x * y, z)
        return np.asarray(_round_to_odd(s, error), np.float32)[()]
    p, e = _two_product(x, y)
    s, f = _two_sum(p, z)
    rest, error = _two_sum(f, e)
    exact = s + _round_to_odd(rest, error)
    return np.where(np.isfinite(exact), exact, x * y + z)[()]


# --- conversions


def cast(x: Value, source: DType | None, t: DType) -> Value:
    """`x` of type `source` as type `t`; see `nnvm.te.expr.Cast`."""
    if source == t and not t.is_half:
        return x
    if t.is_bool:
        out = x != 0
        return out if np.ndim(out) else bool(out)
    if t.is_half:
        single = np.asarray(x).astype(np.float32)
        if t == BF16:
            return bf16_to_f32(f32_to_bf16(single))[()]
        return single.astype(np.float16).astype(np.float32)[()]
    if t.is_float:
        return np.asarray(x).astype(t.numpy)[()]
    out = np.asarray(x)
    if source is not None and source.is_float:
        out = out.astype(t.numpy if t.bits >= 32 else np.int64)
    return wrap(out if out.ndim else out.item(), t)


def bitcast(x: Value, source: DType, t: DType) -> Value:
    """The bits of `x` read as another type of the same width."""
    narrow = to_memory(x, source)
    return from_memory(np.ascontiguousarray(narrow).reshape(np.shape(narrow)).view(t.numpy)[()], t)


def to_memory(x: Value, t: DType) -> Value:
    """`x` as it is stored: the half types are rounded here."""
    if t == BF16:
        return f32_to_bf16(np.asarray(x, np.float32))
    return np.asarray(x, t.numpy)


def from_memory(x: Value, t: DType) -> Value:
    """What a load gives."""
    if t == BF16:
        return bf16_to_f32(x)[()]
    if t.is_half:
        return np.float32(x)
    return x if np.ndim(x) or t.is_float else x.item()


def reduce_lanes(op: str, a: Value, t: DType) -> Value:
    """All lanes of `a` combined: `sum prod max min any all`."""
    if op in ("any", "all"):
        return bool(np.any(a) if op == "any" else np.all(a))
    ufunc: np.ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    if t.is_bool:
        return bool(ufunc.reduce(a))
    out = ufunc.reduce(a, dtype=value_type(t)) if op in ("sum", "prod") else ufunc.reduce(a)
    return out if t.is_float else int(out)
