"""Elementwise ops of two or three inputs, which broadcast as in numpy: one line each.

Inputs have one dtype. Half types are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dtype import BOOL, U8, DType
from nnvm.graph.op import register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, read_broadcast
from nnvm.ops.shape_rules import broadcast_shapes, check_kind, same_dtype
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]
Body = Callable[[Expr, Expr], Expr]


def _define(
    name: str, kinds: str, body: Body, reference: Callable[[Any, Any], Any], doc: str, result: DType | None = None,
    aliases: Sequence[str] = (),
) -> None:  # fmt: skip
    """Registers a binary op; arguments as for the unary ones."""

    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        same_dtype(*inputs)
        check_kind(inputs[0], kinds, "inputs")
        shape = broadcast_shapes(inputs[0].shape, inputs[1].shape)
        return (TensorType(shape, result or inputs[0].dtype, inputs[0].device, _layout(inputs, shape)),)

    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        a, b = inputs
        shape, to, at = outputs[0].shape, outputs[0].dtype, a.dtype.compute

        def element(*i: Expr) -> Expr:
            x = te.cast(read_broadcast(a, i, shape), at)
            y = x if a is b else te.cast(read_broadcast(b, i, shape), at)
            return te.cast(body(x, y), to)

        return [over(shape, name, element)]

    register(
        name, inputs=["lhs", "rhs"], doc=doc, aliases=aliases, infer_type=infer_type, pattern=OpPattern.BROADCAST,
        compute=compute, reference=lambda attrs, a, b: (reference(a, b),),
        inplace=((0, 0), (1, 0)) if result is None else (),
    )  # fmt: skip


def _layout(inputs: Types, shape: tuple[Any, ...]) -> str | None:
    """The layout of an input that has the output's shape."""
    return next((t.layout for t in inputs if t.layout and t.shape == shape), None)


def _op(name: str) -> Body:
    return lambda a, b: te.binary(name, a, b)


def _bool_or(name: str, on_bool: str) -> Body:
    """The operator `name`, on bools the operator `on_bool`."""
    return lambda a, b: te.binary(on_bool if a.dtype.is_bool else name, a, b)


def _compare(name: str) -> Body:
    def body(a: Expr, b: Expr) -> Expr:
        return te.binary(name, te.cast(a, U8), te.cast(b, U8)) if a.dtype.is_bool else te.binary(name, a, b)

    return body


def _logical(name: str) -> Body:
    return lambda a, b: te.binary(name, te.cast(a, BOOL), te.cast(b, BOOL))


def _power(a: Expr, b: Expr) -> Expr:
    """Integers raised to negative powers give 0, except 1 and -1, as in PyTorch."""
    if not a.dtype.is_int or not a.dtype.is_signed:
        return te.binary("pow", a, b)
    one, zero = te.const(1, a.dtype), te.const(0, a.dtype)
    odd = te.binary("ne", b & one, zero)
    unit = te.select(a.equal(one), one, te.select(a.equal(-1), te.select(odd, te.const(-1, a.dtype), one), zero))
    return te.select(b < zero, unit, te.binary("pow", a, te.maximum(b, zero)))


def _power_array(a: Array, b: Array) -> Any:
    if a.dtype.kind != "i":
        return np.power(a, b)
    unit = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0))
    return np.where(b < 0, unit, np.power(a, np.maximum(b, 0))).astype(a.dtype)


def _floor_divide_array(a: Array, b: Array) -> Any:
    """PyTorch's: from the remainder, so that the quotient of 1.0 and 0.1 is 9."""
    if a.dtype.kind != "f":
        return _checked(np.floor_divide)(a, b)
    mod = np.fmod(a, b)
    quotient = (a - mod) / b
    quotient = np.where((mod != 0) & ((b < 0) != (mod < 0)), quotient - 1, quotient)
    floored = np.floor(quotient)
    floored = np.where(quotient - floored > 0.5, floored + 1, floored)
    floored = np.where(quotient == 0, np.copysign(a.dtype.type(0), a / b), floored)
    return np.where(b == 0, a / b, floored)


def _checked(fn: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
    def reference(a: Array, b: Array) -> Any:
        if a.dtype.kind != "f" and np.any(np.equal(b, 0)) and np.broadcast(a, b).size:
            raise ZeroDivisionError("ZeroDivisionError")
        return fn(a, b)

    return reference


def _trunc_divide_array(a: Array, b: Array) -> Any:
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    # numpy rounds down: correct by one where the signs differ and something remains
    floor = np.floor_divide(a, b)
    return (floor + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _shift(name: str, fn: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Any]:
    def reference(a: Array, b: Array) -> Any:
        bits = a.dtype.itemsize * 8
        outside = (b < 0) | (b >= bits)
        shifted = fn(a, np.where(outside, 0, b).astype(a.dtype))
        beyond = np.where(a < 0, -1, 0).astype(a.dtype) if name == "shr" else np.zeros((), a.dtype)
        return np.where(outside, beyond, shifted).astype(a.dtype)

    return reference


def _bool_array(fn: Callable[[Any, Any], Any], on_bool: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Any]:
    return lambda a, b: on_bool(a, b) if a.dtype.kind == "b" else fn(a, b)


def _names(*bases: str, prefixes: Sequence[str] = ("elemwise_", "broadcast_")) -> list[str]:
    """NNVM's names of an op."""
    return [p + b for b in bases for p in prefixes]


_BROADCAST = ("broadcast_",)

# name, kinds taken, te function, numpy function, doc, NNVM's names
_ARITHMETIC: list[tuple[str, str, Body, Callable[[Any, Any], Any], str, list[str]]] = [
    ("add", "fiub", _bool_or("add", "or"), np.add, "a + b; of bools a | b", _names("add")),
    ("subtract", "fiu", _op("sub"), np.subtract, "a - b", _names("sub")),
    ("multiply", "fiub", _bool_or("mul", "and"), np.multiply, "a * b; of bools a & b", _names("mul")),
    ("divide", "f", _op("div"), np.divide, "a / b, true division", _names("div")),
    ("floor_divide", "fiu", _op("floordiv"), _floor_divide_array, "a // b, rounded down", []),
    ("remainder", "fiu", _op("floormod"), _checked(np.remainder), "a % b with the sign of b", _names("mod")),
    ("trunc_divide", "fiu", _op("truncdiv"), _checked(_trunc_divide_array), "a / b rounded towards 0", []),
    ("fmod", "fiu", _op("truncmod"), _checked(np.fmod), "remainder with the sign of a", []),
    ("power", "fiu", _power, _power_array, "a ** b", _names("pow")),
    ("maximum", "fiub", _bool_or("max", "or"), np.maximum, "the greater; NaN where one is NaN",
     _names("max", prefixes=_BROADCAST)),
    ("minimum", "fiub", _bool_or("min", "and"), np.minimum, "the lesser; NaN where one is NaN",
     _names("min", prefixes=_BROADCAST)),
    ("fmax", "fiub", lambda a, b: _fminmax("max", a, b), np.fmax, "the greater; a number where one is NaN", []),
    ("fmin", "fiub", lambda a, b: _fminmax("min", a, b), np.fmin, "the lesser; a number where one is NaN", []),
    ("atan2", "f", _op("atan2"), np.arctan2, "angle of the point (b, a)", []),
    ("hypot", "f", _op("hypot"), np.hypot, "sqrt(a * a + b * b)", []),
    ("copysign", "f", _op("copysign"), np.copysign, "a with the sign of b", []),
    ("nextafter", "f", _op("nextafter"), np.nextafter, "the next number after a towards b", []),
    ("bitwise_and", "iub", _op("and"), np.bitwise_and, "a & b", []),
    ("bitwise_or", "iub", _op("or"), np.bitwise_or, "a | b", []),
    ("bitwise_xor", "iub", _op("xor"), np.bitwise_xor, "a ^ b", []),
    ("left_shift", "iu", _op("shl"), _shift("shl", np.left_shift), "a << b; 0 from the width on", []),
    ("right_shift", "iu", _op("shr"), _shift("shr", np.right_shift), "a >> b; 0 or -1 from the width on", []),
    ("prelu", "f", lambda a, b: te.select(a > te.const(0, a.dtype), a, a * b), lambda a, b: np.where(a > 0, a, a * b),
     "a, below 0 a * b", []),
]  # fmt: skip

_COMPARISONS: list[tuple[str, Body, Callable[[Any, Any], Any], str, list[str]]] = [
    ("equal", _compare("eq"), np.equal, "a == b", _names("equal", prefixes=_BROADCAST)),
    ("not_equal", _compare("ne"), np.not_equal, "a != b; true for NaN", _names("not_equal", prefixes=_BROADCAST)),
    ("less", _compare("lt"), np.less, "a < b", _names("less", prefixes=_BROADCAST)),
    ("less_equal", _compare("le"), np.less_equal, "a <= b", _names("less_equal", prefixes=_BROADCAST)),
    ("greater", _compare("gt"), np.greater, "a > b", _names("greater", prefixes=_BROADCAST)),
    ("greater_equal", _compare("ge"), np.greater_equal, "a >= b", _names("greater_equal", prefixes=_BROADCAST)),
    ("logical_and", _logical("and"), np.logical_and, "a != 0 and b != 0", []),
    ("logical_or", _logical("or"), np.logical_or, "a != 0 or b != 0", []),
    ("logical_xor", _logical("xor"), np.logical_xor, "exactly one of a and b is not 0", []),
]


def _fminmax(which: str, a: Expr, b: Expr) -> Expr:
    if a.dtype.is_bool:
        return te.binary("or" if which == "max" else "and", a, b)
    return te.binary(f"f{which}" if a.dtype.is_float else which, a, b)


for _name, _kinds, _body, _numpy, _doc, _aliases in _ARITHMETIC:
    _define(_name, _kinds, _body, _numpy, _doc, aliases=_aliases)
for _name, _body, _numpy, _doc, _aliases in _COMPARISONS:
    _define(_name, "fiub", _body, _numpy, _doc, result=BOOL, aliases=_aliases)


def _where_type(attrs: Attrs, inputs: Types) -> Types:
    cond, x, y = inputs
    check_kind(cond, "b", "the condition")
    same_dtype(x, y)
    return (TensorType(broadcast_shapes(*(t.shape for t in inputs)), x.dtype, x.device),)


def _where_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    shape = outputs[0].shape
    return [over(shape, "where", lambda *i: te.select(*(read_broadcast(t, i, shape) for t in inputs)))]


register(
    "where", inputs=["condition", "x", "y"], doc="x where the condition holds, else y; all three broadcast.",
    infer_type=_where_type, pattern=OpPattern.BROADCAST, compute=_where_compute,
    reference=lambda attrs, c, x, y: (np.where(c, x, y),), inplace=((1, 0), (2, 0)),
)  # fmt: skip
