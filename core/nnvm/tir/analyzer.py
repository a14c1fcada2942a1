"""Integer simplification of index expressions, given the ranges of the variables.

    i*8 + j < 64, i in 0..7, j in 0..7      ->  true
    (i*12 + j*4 + k) // 4, k in 0..3         ->  i*3 + j
    (i*12 + j*4 + k) % 12, j*4 + k in 0..11  ->  j*4 + k
    f//n*n + f%n                            ->  f

An `Analyzer` brings scalar index arithmetic to linear forms (`nnvm.tir.linear`) whose atoms are interned, decides
comparisons by intervals and, for symbolic sizes, by replacing variables with their symbolic limits, innermost first.
Index arithmetic is taken not to overflow; values that come from memory may be anything, so nothing that could
overflow is concluded from them. Ramp and Broadcast indices are simplified through their scalar base.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast as as_type

from nnvm.dim import Dim, SymDim
from nnvm.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Broadcast,
    Check,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
    Unary,
    Var,
    binary,
    const,
    dim_expr,
)
from nnvm.tir.division import Division
from nnvm.tir.forms import expr_key
from nnvm.tir.linear import Linear
from nnvm.tir.ranges import Bounds
from nnvm.tir.visitor import children, post_order, rebuild

__all__ = ["Analyzer", "truth_of"]

_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


class Analyzer(Division):
    """What is known about variables, and the simplifications that follow from it.

    Sizes (`nnvm.te.expr.size_var`) are at least 0. A division or remainder by a size takes it to be at least 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memo: dict[Expr, Expr] = {}
        self._outer: list[dict[Expr, Expr]] = []  # memos outside the facts in force

    # --- what is known

    def bind(self, var: Var, extent: Dim | Expr, start: Dim | Expr = 0) -> None:
        """`var` runs over start .. start + extent - 1."""
        low = self.linear(_as_expr(start))
        high = low.add(self.linear(_as_expr(extent))).add(Linear({}, -1))
        bounds = (self._bounds(low)[0], self._bounds(high)[1])
        limits = (low if low.terms else None, high if high.terms else None)
        self._changed(var, self._ranges.get(var) != bounds or self._limits.get(var) != limits)
        self._ranges[var], self._limits[var] = bounds, limits
        self._rank[var] = len(self._rank)

    def bind_value(self, var: Var, value: Expr) -> None:
        """`var` is a let: it has the bounds of `value`."""
        if var.dtype == INDEX:
            value = self.simplify(value)
            self._changed(var, True)
            (self._wild_vars.add if self._is_wild(value) else self._wild_vars.discard)(var)
            self._ranges[var] = self.bounds(value)
            self._rank.setdefault(var, len(self._rank))

    def _changed(self, var: Var, differs: bool) -> None:
        """Forgets what was concluded about a variable whose range is now another."""
        if differs and any(var in memo for memo in (self._memo, *self._outer)):
            for memo in (self._memo, *self._outer):
                memo.clear()
            self._wild.clear()

    @contextmanager
    def assume(self, cond: Expr) -> Iterator[None]:
        """Within the `with`, `cond` (comparisons joined by `and`) is known to hold."""
        facts = [f for c in _conjuncts(self.simplify(cond)) if (f := self._fact(c)) is not None]
        if not facts:
            yield
            return
        self._outer.append(self._memo)
        self._memo = {}
        self._facts.extend(facts)
        try:
            yield
        finally:
            del self._facts[-len(facts) :]
            self._memo = self._outer.pop()

    def _fact(self, c: Expr) -> Linear | None:
        if not (isinstance(c, Binary) and c.op in ("lt", "le", "gt", "ge") and _is_index(c.a)):
            return None
        if self._is_wild(c.a) or self._is_wild(c.b):
            return None
        a, b = (c.a, c.b) if c.op in ("lt", "le") else (c.b, c.a)
        return self._form(b).add(self._form(a), -1).add(Linear({}, -1 if c.op in ("lt", "gt") else 0))

    # --- questions

    def simplify(self, e: Expr) -> Expr:
        """An equal expression, no larger as a rule; `e` itself where there is nothing to do."""
        memo = self._memo
        out = memo.get(e)
        if out is not None:
            return out
        for x in post_order(e):
            if x not in memo:
                y = memo[x] = self._visit(x, memo)
                memo.setdefault(y, y)
        return memo[e]

    def linear(self, e: Expr) -> Linear:
        """The linear form of a scalar index expression, after simplification."""
        return self._form(self.simplify(e))

    def bounds(self, e: Expr) -> Bounds:
        """Least and greatest value of a scalar index expression, None where that is not known."""
        return self._bounds(self.linear(e))

    def prove(self, cond: Expr) -> bool:
        """Whether a condition (in every lane) is known to hold; False says nothing."""
        return truth_of(self.simplify(cond)) is True

    # --- one node, operands already simplified

    def _visit(self, e: Expr, memo: dict[Expr, Expr]) -> Expr:
        kind = type(e)
        if kind is Var:
            return e
        if kind is Const:
            return self._intern((Const, e.dtype, e.lanes, type(as_type(Const, e).value), as_type(Const, e).value), e)
        old = children(e)
        new = tuple([memo[k] for k in old])
        same = all(a is b or _same_const(a, b) for a, b in zip(old, new))
        if kind is Binary:
            return self._binary(as_type(Binary, e), new[0], new[1], e if same else None)
        if kind is Unary:
            return self._unary(as_type(Unary, e), new[0], e if same else None)
        if kind is Select:
            truth = truth_of(new[0])
            if truth is not None:
                return new[1] if truth else new[2]
            if new[1] is new[2]:
                return new[1]
        if kind is Check and truth_of(new[1]) is True:
            return new[0]
        if kind is Load and as_type(Load, e).mask is not None and truth_of(new[-1]) is True:
            return Load(as_type(Load, e).buffer, new[:-1])
        out = e if same else rebuild(e, new)
        return self._intern(expr_key(out), out) if _is_index(out) or out.dtype.is_bool else out

    def _unary(self, e: Unary, a: Expr, whole: Expr | None) -> Expr:
        if e.op == "neg" and _is_index(a):
            return self._emit(self._form(a).scaled(-1))
        if e.op == "not" and a.dtype.is_bool:
            if (truth := truth_of(a)) is not None:
                return _bool(not truth, a.lanes)
            if isinstance(a, Binary) and a.op in _NEGATED and not a.a.dtype.is_float:
                return self._binary(Binary(_NEGATED[a.op], a.a, a.b), a.a, a.b, None)
        return self._intern((Unary, e.op, a), whole or Unary(e.op, a))

    def _binary(self, e: Binary, a: Expr, b: Expr, whole: Expr | None) -> Expr:
        op = e.op
        if a.dtype == INDEX:
            if a.lanes > 1:
                out = self._vector(op, a, b)
                if out is not None:
                    return out
            elif op in COMPARISONS:
                truth = self._compare(op, self._form(a), self._form(b))
                if truth is not None:
                    return _bool(truth, 1)
            else:
                if whole is not None:  # so that an expression that is canonical already stays the same object
                    self._interned.setdefault((Binary, op, a, b), whole)
                return self._scalar(op, a, b)
        elif a.dtype.is_bool and op in ("and", "or"):
            left, right = truth_of(a), truth_of(b)
            absorbing = op == "or"
            if left is absorbing or right is absorbing:
                return _bool(absorbing, a.lanes)
            if left is not None or a is b:
                return b
            if right is not None:
                return a
        if a.dtype.is_float:
            out = whole or Binary(op, a, b)
            return self._intern((Binary, op, a, b), out) if op in COMPARISONS else out
        out = whole or binary(op, a, b)
        return self._intern(expr_key(out), out)

    def _scalar(self, op: str, a: Expr, b: Expr) -> Expr:
        x, y = self._form(a), self._form(b)
        if op == "add":
            return self._emit(self._recombine(x.add(y)))
        if op == "sub":
            return self._emit(self._recombine(x.add(y, -1)))
        if op == "mul":
            return self._emit(self._recombine(self._product(x, y)))
        if not (self._is_wild(a) or self._is_wild(b)):
            if op in ("min", "max"):
                first = self._compare("le", x, y)
                second = first if first is not None else self._compare("ge", x, y)
                if second is not None:
                    a_is_less = first if first is not None else not second
                    return a if a_is_less == (op == "min") else b
            if op in ("truncdiv", "truncmod") and self._at_least_0(x) and self._at_least_0(y):
                op = "floor" + op[5:]
            if op == "floordiv":
                return self._emit(self._floordiv(x, y))
            if op == "floormod":
                return self._emit(self._floormod(x, y))
        folded = binary(op, a, b)
        return self._intern(expr_key(folded), folded)

    # --- vectors: base + stride * lane

    def _vector(self, op: str, a: Expr, b: Expr) -> Expr | None:
        x, y = _ramp(a), _ramp(b)
        if x is None or y is None:
            return None
        lanes = a.lanes
        if op in ("add", "sub"):
            stride = x[1] + y[1] if op == "add" else x[1] - y[1]
            return self._emit_ramp(self._scalar(op, x[0], y[0]), stride, lanes)
        if x[1] == 0 and y[1] == 0:
            return Broadcast(self._simplified(op, x[0], y[0]), lanes)
        if op in COMPARISONS:
            ends = [self._compare(op, self._form(x[0]).add(Linear({}, x[1] * n)),
                                  self._form(y[0]).add(Linear({}, y[1] * n))) for n in (0, lanes - 1)]  # fmt: skip
            monotone = op in ("lt", "le", "gt", "ge")
            return _bool(ends[0], lanes) if monotone and ends[0] is not None and ends[0] == ends[1] else None
        if y[1] != 0 or not isinstance(y[0], Const):
            return None
        c = int(y[0].value)
        if op == "mul":
            return self._emit_ramp(self._scalar("mul", x[0], y[0]), x[1] * c, lanes)
        if op in ("floordiv", "floormod") and c > 0 and not self._is_wild(x[0]):
            return self._divide_ramp(op, x[0], x[1], y[0], c, lanes)
        return None

    def _divide_ramp(self, op: str, base: Expr, stride: int, divisor: Expr, c: int, lanes: int) -> Expr | None:
        if stride % c == 0:
            return self._emit_ramp(self._scalar(op, base, divisor), stride // c if op == "floordiv" else 0, lanes)
        low, high = self._bounds(self._floormod(self._form(base), Linear({}, c)))
        if low is None or high is None:
            return None
        last = stride * (lanes - 1)
        if low + min(0, last) >= 0 and high + max(0, last) < c:
            return self._emit_ramp(self._scalar(op, base, divisor), 0 if op == "floordiv" else stride, lanes)
        return None

    def _simplified(self, op: str, a: Expr, b: Expr) -> Expr:
        return self._binary(Binary(op, a, b), a, b, None)

    def _emit_ramp(self, base: Expr, stride: int, lanes: int) -> Expr:
        out: Expr = Ramp(base, stride, lanes) if stride else Broadcast(base, lanes)
        return self._intern(expr_key(out), out)


def _is_index(e: Expr) -> bool:
    return e.dtype == INDEX and e.lanes == 1


def _as_expr(d: Dim | Expr) -> Expr:
    return dim_expr(d) if isinstance(d, (int, SymDim)) else d


def truth_of(e: Expr) -> bool | None:
    """The value of a bool that is the same constant in all lanes."""
    if isinstance(e, Broadcast):
        e = e.a
    return bool(e.value) if isinstance(e, Const) and e.dtype.is_bool else None


def _bool(value: bool, lanes: int) -> Expr:
    out = const(value, "bool")
    return out if lanes == 1 else Broadcast(out, lanes)


def _conjuncts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Binary) and e.op == "and":
        yield from _conjuncts(e.a)
        yield from _conjuncts(e.b)
    else:
        yield e


def _ramp(e: Expr) -> tuple[Expr, int] | None:
    """Base and stride of a vector of indices, where it has them."""
    if isinstance(e, Ramp):
        return e.base, e.stride
    return (e.a, 0) if isinstance(e, Broadcast) else None


def _same_const(a: Expr, b: Expr) -> bool:
    """Whether these are two objects for one constant, which is no change worth a new expression."""
    if not (type(a) is Const and type(b) is Const):
        return False
    return a.dtype is b.dtype and a.lanes == b.lanes and type(a.value) is type(b.value) and a.value == b.value
