"""Writes arithmetic on float32 or float64 values of some lane count, with the numbers of that format at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign

from nnvm.dtype import F32, F64, U32, U64, DType
from nnvm.te.expr import Binary, Bitcast, Cast, Const, Expr, Fma, Select, Unary, VectorReduce

__all__ = ["FORMATS", "Format", "Vector", "rounded"]


@dataclass(frozen=True)
class Format:
    """What is to be known of a floating-point type.

    Attributes:
        word: the unsigned integer of the same width.
        mantissa: stored bits of the significand.
        bias: exponent bias.
        magic: 1.5 * 2**mantissa. Adding it to a number below 2**(mantissa - 2) rounds that to an integer, which then
            stands in the low bits of the sum; a left shift by `mantissa` leaves nothing of the magic number itself.
        least: the smallest normal number.
    """

    word: DType
    mantissa: int
    bias: int
    magic: float
    least: float


FORMATS = {
    F32: Format(U32, 23, 127, 1.5 * 2.0**23, 2.0**-126),
    F64: Format(U64, 52, 1023, 1.5 * 2.0**52, 2.0**-1022),
}


class Vector:
    """Expressions of one float type and lane count.

    Constants are rounded to the type. Without an FMA instruction `fma` is a product and a sum, and functions choose
    constants with which the products that must be exact are exact. Equal constants are one object.
    """

    def __init__(self, dtype: DType, lanes: int, fma: bool) -> None:
        self.dtype = dtype
        self.lanes = lanes
        self.has_fma = fma
        self.format = FORMATS[dtype]
        self._numbers: dict[tuple[float, float], Expr] = {}
        self._integers: dict[int, Expr] = {}

    def as_type(self, dtype: DType) -> Vector:
        return Vector(dtype, self.lanes, self.has_fma)

    def number(self, value: float) -> Expr:
        key = (value, copysign(1.0, value))  # -0.0 is not 0.0
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = Const(rounded(value, self.dtype), self.dtype, self.lanes)
        return found

    def integer(self, value: int) -> Expr:
        found = self._integers.get(value)
        if found is None:
            word = self.format.word
            found = self._integers[value] = Const(value & ((1 << word.bits) - 1), word, self.lanes)
        return found

    def _operand(self, x: Expr | float, like: DType) -> Expr:
        if isinstance(x, Expr):
            return x
        return self.number(x) if like == self.dtype else self.integer(int(x))

    def binary(self, op: str, a: Expr | float, b: Expr | float) -> Expr:
        like = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else self.dtype
        return Binary(op, self._operand(a, like), self._operand(b, like))

    def add(self, a: Expr | float, b: Expr | float) -> Expr:
        return self.binary("add", a, b)

    def sub(self, a: Expr | float, b: Expr | float) -> Expr:
        return self.binary("sub", a, b)

    def mul(self, a: Expr | float, b: Expr | float) -> Expr:
        return self.binary("mul", a, b)

    def div(self, a: Expr | float, b: Expr | float) -> Expr:
        return self.binary("div", a, b)

    def fma(self, a: Expr | float, b: Expr | float, c: Expr | float) -> Expr:
        """`a * b + c`"""
        x, y, z = (self._operand(v, self.dtype) for v in (a, b, c))
        return Fma(x, y, z) if self.has_fma else Binary("add", Binary("mul", x, y), z)

    def clamp(self, x: Expr, low: float, high: float) -> Expr:
        """`x` between two bounds; NaN stays NaN."""
        return self.binary("min", self.binary("max", x, low), high)

    def unary(self, op: str, x: Expr) -> Expr:
        return Unary(op, x)

    def abs(self, x: Expr) -> Expr:
        return Unary("abs", x)

    def neg(self, x: Expr) -> Expr:
        return Unary("neg", x)

    def copysign(self, x: Expr | float, sign: Expr) -> Expr:
        return self.binary("copysign", x, sign)

    def compare(self, op: str, a: Expr, b: Expr | float) -> Expr:
        return self.binary(op, a, b)

    def select(self, cond: Expr, a: Expr | float, b: Expr | float) -> Expr:
        return Select(cond, self._operand(a, self.dtype), self._operand(b, self.dtype))

    def bits(self, x: Expr) -> Expr:
        return Bitcast(x, self.format.word)

    def from_bits(self, x: Expr) -> Expr:
        return Bitcast(x, self.dtype)

    def shift_left(self, x: Expr, count: int) -> Expr:
        return self.binary("shl", x, count)

    def shift_right(self, x: Expr, count: int) -> Expr:
        """Of the unsigned word: zeros come in."""
        return self.binary("shr", x, count)

    def cast(self, x: Expr, dtype: DType) -> Expr:
        return Cast(x, dtype)

    def any(self, cond: Expr) -> Expr:
        """One bool: whether the condition holds in any lane."""
        return cond if self.lanes == 1 else VectorReduce("any", cond)

    def polynomial(self, x: Expr, coefficients: Sequence[float], start: Expr | None = None) -> Expr:
        """`c[0] + c[1] * x + c[2] * x**2 + ...` by Horner's rule; `start` takes the place of the last coefficient."""
        *rest, last = coefficients
        out: Expr | float = last if start is None else start
        for c in reversed(rest):
            out = self.fma(out, x, c)
        return out if isinstance(out, Expr) else self.number(out)


def rounded(value: float, dtype: DType) -> float:
    """The nearest number of the type, as a Python float."""
    return float(dtype.numpy.type(value))
