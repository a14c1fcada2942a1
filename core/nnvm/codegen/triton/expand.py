"""What Triton has no operator for, in terms of what it has.

Triton divides integers as C does, and shifts by the width or more as the hardware likes.
"""

from __future__ import annotations

from collections.abc import Callable

from nnvm.dtype import DType
from nnvm.te.expr import INDEX, Binary, Cast, Check, Const, Expr, Select, Unary, Var, const, is_size
from nnvm.tir.stmt import For, Let, PrimFunc, Stmt
from nnvm.tir.visitor import StmtMutator, reduced, reductions, stmts

__all__ = ["expand", "positions"]


def expand(func: PrimFunc) -> PrimFunc:
    """`func` in operators that Triton has."""
    body = _Expand(positions(func.body)).stmt(func.body)
    return PrimFunc(func.name, func.params, func.outputs, func.symbols, body, func.attrs)


def positions(body: Stmt) -> set[Var]:
    """Variables that count something, and so are never negative: of loops, and of lets of index arithmetic."""
    found: set[Var] = set()
    for s in stmts(body):
        if isinstance(s, For):
            found.add(s.var)
        found.update(a.var for e in reductions(s) for a in reduced(e))
        if isinstance(s, Let) and s.var.dtype == INDEX and nonnegative(s.value, found):
            found.add(s.var)
    return found


def nonnegative(e: Expr, known: set[Var]) -> bool:
    """Whether index arithmetic is plainly never below 0."""
    if isinstance(e, Const):
        return bool(e.value >= 0)
    if isinstance(e, Var):
        return e in known or is_size(e)
    if not isinstance(e, Binary) or e.dtype != INDEX:
        return False
    a, b = nonnegative(e.a, known), nonnegative(e.b, known)
    return (a or b) if e.op == "max" else e.op in ("add", "mul", "floordiv", "floormod", "min") and a and b


class _Expand(StmtMutator):
    def __init__(self, known: set[Var]) -> None:
        super().__init__()
        self._known = known

    def visit_unary(self, e: Unary) -> Expr:
        if e.op != "sigmoid":
            return self.generic(e)
        t = e.dtype.compute
        x, one = _wide(self.expr(e.a), t), const(1.0, t)
        out = Binary("div", one, Binary("add", one, Unary("exp", Unary("neg", x))))
        return out if t == e.dtype else Cast(out, e.dtype)

    def visit_binary(self, e: Binary) -> Expr:
        a, b, t = self.expr(e.a), self.expr(e.b), e.a.dtype.compute
        if t.is_float:
            rule = _FLOAT.get(e.op)
            if rule is None:
                return self.generic(e)
            out = rule(_wide(a, t), _wide(b, t), t)
            return out if t == e.dtype else Cast(out, e.dtype)
        if e.op in ("floordiv", "floormod", "truncdiv", "truncmod") and not self._counts(e):
            return _divided(e.op, a, b)
        if e.op in ("shl", "shr"):
            return _shifted(e.op, a, b)
        return _power(a, b) if e.op == "pow" else self.generic(e)

    def _counts(self, e: Binary) -> bool:
        """Whether neither operand of an index division is ever negative; a variable to divide by is never 0."""
        return nonnegative(e.a, self._known) and nonnegative(e.b, self._known) and isinstance(e.b, (Const, Var))


def _wide(x: Expr, t: DType) -> Expr:
    return x if x.dtype == t else Cast(x, t)


def _divided(op: str, a: Expr, b: Expr) -> Expr:
    """Integer division, rounded down or towards zero, or its remainder: by 0 it fails the kernel, by -1 it wraps."""
    t = a.dtype
    zero, one = const(0, t), const(1, t)
    if not (isinstance(b, Const) and b.value):
        b = Check(b, Binary("ne", b, zero), "ZeroDivisionError")
    quotient, rest = _truncated(a, b) if t.is_signed else _plain(a, Select(Binary("eq", b, zero), one, b))
    if op in ("truncdiv", "truncmod") or not t.is_signed:
        return quotient if op.endswith("div") else rest
    wrong = Binary("and", Binary("ne", rest, zero), Binary("xor", Binary("lt", rest, zero), Binary("lt", b, zero)))
    if op == "floormod":
        return Select(wrong, Binary("add", rest, b), rest)
    return Binary("sub", quotient, Cast(wrong, t))


def _truncated(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Quotient and remainder of signed numbers; the least one has no quotient by -1."""
    zero, one, minus = (const(n, a.dtype) for n in (0, 1, -1))
    is_minus = Binary("eq", b, minus)
    divisor = Select(Binary("or", is_minus, Binary("eq", b, zero)), one, b)
    quotient, rest = _plain(a, divisor)
    return Select(is_minus, Binary("sub", zero, a), quotient), Select(is_minus, zero, rest)


def _plain(a: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    quotient = Binary("truncdiv", a, divisor)
    return quotient, Binary("sub", a, Binary("mul", quotient, divisor))


def _shifted(op: str, a: Expr, b: Expr) -> Expr:
    t = a.dtype
    if isinstance(b, Const) and 0 <= b.value < t.bits:
        return Binary(op, a, b)
    last = const(t.bits - 1, t)
    inside = Binary("and", Binary("ge", b, const(0, t)), Binary("le", b, last))
    shifted = Binary(op, a, Select(inside, b, last if op == "shr" else const(0, t)))
    return shifted if op == "shr" and t.is_signed else Select(inside, shifted, const(0, t))


def _power(a: Expr, b: Expr) -> Expr:
    """Square and multiply, one bit of the exponent at a time; a negative exponent gives 1 / a**-b, truncated."""
    t = a.dtype
    one, zero = const(1, t), const(0, t)
    out, power = one, a
    for bit in range(t.bits - t.is_signed):
        taken = Binary("ne", Binary("and", Binary("shr", b, const(bit, t)), one), zero)
        out = Select(taken, Binary("mul", out, power), out)
        power = Binary("mul", power, power)
    if not t.is_signed:
        return out
    odd = Binary("ne", Binary("and", b, one), zero)
    sign = Select(odd, const(-1, t), one)
    inverse = Select(Binary("eq", a, one), one, Select(Binary("eq", a, const(-1, t)), sign, zero))
    # `a` is in the condition so that it is read once, ahead of the many branches that need it
    negative = Binary("and", Binary("lt", b, zero), Binary("eq", a, a))
    return Select(negative, inverse, out)


# -- floats


def _floor_parts(x: Expr, y: Expr, t: DType) -> tuple[Expr, Expr]:
    """C's remainder, and whether it has the other sign than the divisor."""
    rest, zero = Binary("truncmod", x, y), const(0.0, t)
    signs = Binary("xor", Binary("lt", y, zero), Binary("lt", rest, zero))
    return rest, Binary("and", Binary("ne", rest, zero), signs)


def _floormod(x: Expr, y: Expr, t: DType) -> Expr:
    """at::native::remainder."""
    rest, wrong = _floor_parts(x, y, t)
    return Select(wrong, Binary("add", rest, y), rest)


def _floordiv(x: Expr, y: Expr, t: DType) -> Expr:
    """c10::div_floor_floating."""
    rest, wrong = _floor_parts(x, y, t)
    zero, one = const(0.0, t), const(1.0, t)
    quotient: Expr = Binary("div", Binary("sub", x, rest), y)
    quotient = Select(wrong, Binary("sub", quotient, one), quotient)
    floor = Unary("floor", quotient)
    nearest = Select(Binary("gt", Binary("sub", quotient, floor), const(0.5, t)), Binary("add", floor, one), floor)
    plain = Binary("div", x, y)
    out = Select(Binary("ne", quotient, zero), nearest, Binary("copysign", zero, plain))
    return Select(Binary("eq", y, zero), plain, out)


_FLOAT: dict[str, Callable[[Expr, Expr, DType], Expr]] = {
    "floordiv": _floordiv, "floormod": _floormod, "truncdiv": lambda x, y, t: Unary("trunc", Binary("div", x, y)),
}  # fmt: skip
