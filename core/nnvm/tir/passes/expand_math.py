"""Elementary functions become arithmetic, of which LLVM makes vector code where a call would go lane by lane.

    y[i] = exp(x[i])    ->    y[i] = (p * 2**n1) * 2**n2, p a polynomial in x[i] - n * ln2

Sums of 1 and exp, tanh or erf (`PLUS_ONE`) are expanded as one. Requires nothing; may run before or after
`vectorize`. Provides: of the functions listed in `FUNCTIONS` and `PAIRS` no scalar or vector of these types is left,
except as the rare branch for huge arguments of sin, cos and tan. Half types are computed in float32. The others stay as
they are and code generation calls the math library for them.

Every expansion is within 2 units in the last place of the exact value over the whole range, denormals included, and has
the special values of C's functions. (1 + erf is within 2**-22 where it is above 1, 2**-23 below.) They use no operation
but + - * /, fma, sqrt, floor, min, max, copysign, select, comparisons, conversions and integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, inf

from nnvm.dtype import F32, F64, DType
from nnvm.te.expr import Binary, Broadcast, Cast, Const, Expr, Unary
from nnvm.tir.passes.math.error_function import erf, erf_plus_one
from nnvm.tir.passes.math.exponential import exp, exp2, exp_plus_one, expm1, sigmoid, tanh, tanh_plus_one
from nnvm.tir.passes.math.inverse_trigonometric import acos, asin, atan
from nnvm.tir.passes.math.logarithm import log, log1p, log2, log10
from nnvm.tir.passes.math.trigonometric import cos, sin
from nnvm.tir.passes.math.vector import Vector, rounded
from nnvm.tir.passes.math.wide import acosh, asinh, atanh, cosh, erfc, pow, sinh, tan
from nnvm.tir.stmt import PrimFunc
from nnvm.tir.visitor import StmtMutator

__all__ = ["FUNCTIONS", "PAIRS", "expand_expr", "expand_math"]


def _rsqrt(v: Vector, x: Expr) -> Expr:
    return v.div(1.0, v.unary("sqrt", x))


FUNCTIONS: dict[DType, dict[str, Callable[[Vector, Expr], Expr]]] = {
    F64: {"exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": log2, "log10": log10, "log1p": log1p,
          "sin": sin, "cos": cos, "tanh": tanh, "sigmoid": sigmoid, "rsqrt": _rsqrt},
}  # fmt: skip
FUNCTIONS[F32] = {
    **FUNCTIONS[F64], "erf": erf, "erfc": erfc, "sinh": sinh, "cosh": cosh, "asinh": asinh, "acosh": acosh,
    "atanh": atanh, "tan": tan, "asin": asin, "acos": acos, "atan": atan,
}  # fmt: skip
#: Functions of two operands.
PAIRS: dict[DType, dict[str, Callable[[Vector, Expr, Expr], Expr]]] = {F32: {"pow": pow}, F64: {}}
#: One plus a function, of which silu and gelu are made: shorter and more accurate than the sum of the two.
PLUS_ONE: dict[DType, dict[str, Callable[[Vector, Expr], Expr]]] = {
    F64: {"exp": exp_plus_one, "tanh": tanh_plus_one},
    F32: {"exp": exp_plus_one, "tanh": tanh_plus_one, "erf": erf_plus_one},
}


def expand_math(func: PrimFunc, fma: bool = True) -> PrimFunc:
    """`func` with its elementary functions expanded; the same object where it has none.

    Args:
        fma: whether the target has a fused multiply-add (`Target.has_fma`); without it none is written.
    """
    body = _Expand(fma).stmt(func.body)
    if body is func.body:
        return func
    return PrimFunc(func.name, func.params, func.outputs, func.symbols, body, func.attrs)


def expand_expr(e: Expr, fma: bool = True) -> Expr:
    """`expand_math` of a single expression."""
    return _Expand(fma).expr(e)


class _Expand(StmtMutator):
    def __init__(self, fma: bool) -> None:
        super().__init__()
        self._fma = fma
        self._vectors: dict[tuple[DType, int], Vector] = {}

    def _vector(self, t: DType, lanes: int) -> Vector:
        found = self._vectors.get((t, lanes))
        if found is None:
            found = self._vectors[t, lanes] = Vector(t, lanes, self._fma)
        return found

    def visit_unary(self, e: Unary) -> Expr:
        t = e.dtype.compute
        function = FUNCTIONS.get(t, {}).get(e.op)
        if function is None:
            return self.generic(e)
        return self._expanded(e, t, lambda v, x: function(v, x))

    def visit_binary(self, e: Binary) -> Expr:
        t = e.dtype.compute
        function = PAIRS.get(t, {}).get(e.op)
        if e.op == "pow" and t.is_float:
            simple = self._simple_power(e)
            if simple is not None:
                return simple
        if e.op == "add" and (sum_ := self._plus_one(e)) is not None:
            return sum_
        if e.op == "div" and (quotient := self._by_constant(e)) is not None:
            return quotient
        if function is None:
            return self.generic(e)
        a, b = self.expr(e.a), self.expr(e.b)
        out = function(self._vector(t, e.lanes), _widened(a, t), _widened(b, t))
        return out if t == e.dtype else Cast(out, e.dtype)

    def _expanded(self, e: Unary, t: DType, function: Callable[[Vector, Expr], Expr]) -> Expr:
        out = function(self._vector(t, e.lanes), _widened(self.expr(e.a), t))
        return out if t == e.dtype else Cast(out, e.dtype)

    def _plus_one(self, e: Binary) -> Expr | None:
        """`1 + f(x)` as one function; of exp(-x) the sign goes into the constants."""
        f = e.a if _number(e.b) == 1.0 else e.b if _number(e.a) == 1.0 else None
        function = PLUS_ONE.get(e.dtype, {}).get(f.op) if isinstance(f, Unary) else None
        if function is None:
            return None
        assert isinstance(f, Unary)
        v = self._vector(e.dtype, e.lanes)
        if f.op == "exp" and isinstance(f.a, Unary) and f.a.op == "neg":
            return exp_plus_one(v, self.expr(f.a.a), -1.0)
        return function(v, self.expr(f.a))

    def _by_constant(self, e: Binary) -> Expr | None:
        """A quotient with a constant divisor."""
        t, divisor = e.dtype.compute, _number(e.b)
        if divisor is None or not self._fma or t != F32 or not _has_plain_inverse(divisor):
            return None
        out = _quotient(self._vector(t, e.lanes), _widened(self.expr(e.a), t), divisor)
        return out if t == e.dtype else Cast(out, e.dtype)

    def _simple_power(self, e: Binary) -> Expr | None:
        """Powers that a few operations give: x**2, x**3, 1/x, sqrt(x)."""
        power = _number(e.b)
        if power is None or power not in _POWERS:
            return None
        t = e.dtype.compute
        out = _POWERS[power](self._vector(t, e.lanes), _widened(self.expr(e.a), t))
        return out if t == e.dtype else Cast(out, e.dtype)


def _number(e: Expr) -> float | None:
    """The constant that an expression is in all its lanes."""
    e = e.a if isinstance(e, Broadcast) else e
    return float(e.value) if isinstance(e, Const) else None


def _widened(x: Expr, t: DType) -> Expr:
    return x if x.dtype == t else Cast(x, t)


def _has_plain_inverse(divisor: float) -> bool:
    """May a float32 quotient be made with the inverse of `divisor`? For powers of 2 LLVM makes a product anyway."""
    if not 2.0**-100 < divisor < 2.0**100 or rounded(divisor, F32) != divisor:
        return False
    significand, _ = frexp(divisor)
    return significand != 0.5 and significand * 2**24 != 2**24 - 1


def _quotient(v: Vector, x: Expr, divisor: float) -> Expr:
    """`x / divisor`, correctly rounded, in the time of three products: Markstein, Computation of elementary functions
    on the IBM RISC System/6000 processor (1990), theorem 4. Below 2**-100 the last bit may be another one."""
    inverse = v.number(1.0 / divisor)
    first = v.mul(x, inverse)
    rest = v.fma(first, divisor, Unary("neg", x))
    out = v.fma(Unary("neg", rest), inverse, first)
    return v.select(v.compare("eq", out, out), out, first)  # infinite ones leave no rest


def _square_root(v: Vector, x: Expr) -> Expr:
    """C's pow(x, 0.5): inf at -inf, and 0 at -0."""
    return v.select(v.compare("eq", x, -inf), inf, v.add(v.unary("sqrt", x), 0.0))


_POWERS: dict[float, Callable[[Vector, Expr], Expr]] = {
    1.0: lambda v, x: x,
    2.0: lambda v, x: v.mul(x, x),
    3.0: lambda v, x: v.mul(v.mul(x, x), x),
    -1.0: lambda v, x: v.div(1.0, x),
    0.5: _square_root,
}
