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
from math import gcd
from typing import Any
from typing import cast as as_type

from nnvm.dim import Dim, SymDim
from nnvm.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Broadcast,
    Cast,
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
    is_size,
)
from nnvm.tir.linear import Linear, linear
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Seq, Stmt, Store, seq
from nnvm.tir.visitor import StmtMutator, children, post_order, rebuild, substitute

__all__ = ["Analyzer", "Linear", "linear", "simplify", "simplify_stmt"]

Bounds = tuple["int | None", "int | None"]  # inclusive; None: not known
_UNKNOWN: Bounds = (None, None)
_DEPTH = 6  # symbolic limits replaced one after the other in one proof
_PRODUCT_TERMS = 16  # products of sums are multiplied out up to this many terms
_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


class Analyzer:
    """What is known about variables, and the simplifications that follow from it.

    Sizes (`nnvm.te.expr.size_var`) are at least 0. A division or remainder by a size takes it to be at least 1.
    """

    def __init__(self) -> None:
        self._ranges: dict[Var, Bounds] = {}
        self._limits: dict[Var, tuple[Linear | None, Linear | None]] = {}  # symbolic lower and upper limit
        self._rank: dict[Var, int] = {}  # order of binding: an inner variable's limit may name an outer one
        self._facts: list[Linear] = []  # each is known to be >= 0
        self._wild: dict[Expr, bool] = {}
        self._interned: dict[tuple[object, ...], Expr] = {}
        self._forms: dict[Expr, Linear] = {}  # of simplified scalar index expressions
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
            self._wild[var] = self._is_wild(value)
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
        return _truth(self.simplify(cond)) is True

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
            truth = _truth(new[0])
            if truth is not None:
                return new[1] if truth else new[2]
            if new[1] is new[2]:
                return new[1]
        if kind is Check and _truth(new[1]) is True:
            return new[0]
        if kind is Load and as_type(Load, e).mask is not None and _truth(new[-1]) is True:
            return Load(as_type(Load, e).buffer, new[:-1])
        out = e if same else rebuild(e, new)
        return self._intern(_key(out), out) if _is_index(out) or out.dtype.is_bool else out

    def _unary(self, e: Unary, a: Expr, whole: Expr | None) -> Expr:
        if e.op == "neg" and _is_index(a):
            return self._emit(self._form(a).scaled(-1))
        if e.op == "not" and a.dtype.is_bool:
            if (truth := _truth(a)) is not None:
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
            left, right = _truth(a), _truth(b)
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
        return self._intern(_key(out), out)

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
        return self._intern(_key(folded), folded)

    # --- arithmetic on forms

    def _form(self, e: Expr) -> Linear:
        """The form of an expression that `simplify` gave."""
        form = self._forms.get(e)
        if form is None:
            form = Linear({}, int(e.value)) if isinstance(e, Const) else Linear.atom(e)
            self._forms[e] = form
        return form

    def _emit(self, form: Linear) -> Expr:
        """The expression of a form: positive terms first; one object for equal forms."""
        atom = form.sole_atom()
        if atom is not None:
            return atom
        key = (Linear, frozenset(form.terms.items()), form.const)
        out = self._interned.get(key)
        if out is None:
            total: Expr | None = None
            for term, coef in sorted(form.terms.items(), key=_negative):
                size = abs(coef) if total is not None else coef
                product = term if size == 1 else self._raw("mul", term, self._const(size))
                total = product if total is None else self._raw("add" if coef > 0 else "sub", total, product)
            if total is None:
                out = self._const(form.const)
            else:
                out = total if form.const == 0 else self._raw("add", total, self._const(form.const))
            self._interned[key] = out
            self._forms[out] = form
        return out

    def _raw(self, op: str, a: Expr, b: Expr) -> Expr:
        key = (Binary, op, a, b)
        out = self._interned.get(key)
        return out if out is not None else self._interned.setdefault(key, Binary(op, a, b))

    def _const(self, value: int) -> Expr:
        key = (Const, INDEX, 1, int, value)
        out = self._interned.get(key)
        return out if out is not None else self._interned.setdefault(key, const(value))

    def _intern(self, key: tuple[object, ...], e: Expr) -> Expr:
        return self._interned.setdefault(key, e)

    def _atom(self, op: str, x: Linear, y: Linear) -> Linear:
        return Linear.atom(self._raw(op, self._emit(x), self._emit(y)))

    def _product(self, x: Linear, y: Linear) -> Linear:
        if y.is_const():
            return x.scaled(y.const)
        if x.is_const():
            return y.scaled(x.const)
        if len(x.terms) * len(y.terms) > _PRODUCT_TERMS:
            return self._atom("mul", x, y)
        out = x.scaled(y.const).add(y.scaled(x.const), 1).add(Linear({}, -x.const * y.const))
        return out.add(Linear.of((self._factor_product(a, b), p * q) for a, p in x.terms.items()
                                 for b, q in y.terms.items()))  # fmt: skip

    def _factor_product(self, a: Expr, b: Expr) -> Expr:
        """The product of two atoms, itself an atom: factors in one order whatever the order they came in."""
        factors = sorted((*_factors(a), *_factors(b)), key=self._factor_order)
        out = factors[0]
        for f in factors[1:]:
            out = self._raw("mul", out, f)
        return out

    def _factor_order(self, e: Expr) -> tuple[int, str, int]:
        size = isinstance(e, Var) and is_size(e)
        return (not size, e.name if isinstance(e, Var) else "", id(e) if not size else 0)

    def _recombine(self, form: Linear) -> Linear:
        """`c*k*(x//c) + k*(x%c)` is `k*x`."""
        for atom, k in form.terms.items():
            if not (isinstance(atom, Binary) and atom.op == "floormod"):
                continue
            x, c = self._form(atom.a), self._form(atom.b)
            if not c.is_const() and c.sole_atom() is None:
                continue
            quotient = self._product(self._floordiv(x, c), c).scaled(k)
            if quotient.terms and all(form.terms.get(a) == m for a, m in quotient.terms.items()):
                return self._recombine(form.without(atom).add(quotient, -1).add(x, k))
        return form

    def _floordiv(self, x: Linear, y: Linear) -> Linear:
        if not y.is_const():
            return self._floordiv_symbolic(x, y)
        c = y.const
        if x.is_const() and c != 0:
            return Linear({}, x.const // c)
        if c <= 0:
            return self._atom("floordiv", x, y)
        if c == 1:
            return x
        whole = {a: k // c for a, k in x.terms.items() if k % c == 0}
        rest = Linear({a: k for a, k in x.terms.items() if k % c}, x.const % c)
        return Linear(whole, x.const // c).add(self._divide_rest(rest, c))

    def _divide_rest(self, rest: Linear, c: int) -> Linear:
        """`rest // c` where no coefficient is a multiple of `c` and 0 <= rest.const < c."""
        low, high = self._bounds(rest)
        if low is not None and high is not None and low // c == high // c:
            return Linear({}, low // c)
        for g in _common_factors(rest, c):  # (g*q + small) // c with 0 <= small < g, g | c  is  q // (c/g)
            small = Linear({a: k for a, k in rest.terms.items() if k % g}, rest.const % g)
            if self._within(small, g):
                big = Linear({a: k // g for a, k in rest.terms.items() if k % g == 0}, rest.const // g)
                return self._floordiv(big, Linear({}, c // g))
        atom = rest.sole_atom()
        if isinstance(atom, Binary) and isinstance(atom.b, Const) and int(atom.b.value) > 0:
            d, inner = int(atom.b.value), self._form(atom.a)
            if atom.op == "floordiv":
                return self._floordiv(inner, Linear({}, d * c))
            if atom.op == "floormod" and d % c == 0:
                return self._floormod(self._floordiv(inner, Linear({}, c)), Linear({}, d // c))
        return self._atom("floordiv", rest, Linear({}, c))

    def _floordiv_symbolic(self, x: Linear, y: Linear) -> Linear:
        whole, rest = self._split_multiple(x, y)
        if rest.is_const() and rest.const == 0:
            return whole
        if self._nonnegative(rest) and self._nonnegative(y.add(rest, -1).add(Linear({}, -1))):
            return whole
        return whole.add(self._atom("floordiv", rest, y))

    def _floormod(self, x: Linear, y: Linear) -> Linear:
        if not y.is_const():
            _, rest = self._split_multiple(x, y)
            if rest.is_const() and rest.const == 0:
                return rest
            if self._nonnegative(rest) and self._nonnegative(y.add(rest, -1).add(Linear({}, -1))):
                return rest
            return self._atom("floormod", rest, y)
        c = y.const
        if x.is_const() and c != 0:
            return Linear({}, x.const % c)
        if c <= 0:
            return self._atom("floormod", x, y)
        rest = Linear({a: k if abs(k) < c else k % c for a, k in x.terms.items() if k % c}, x.const % c)
        low, high = self._bounds(rest)
        if low is not None and high is not None and low // c == high // c:
            return rest.add(Linear({}, -(low // c) * c))
        for g in _common_factors(rest, c):
            small = Linear({a: k for a, k in rest.terms.items() if k % g}, rest.const % g)
            if self._within(small, g):
                big = Linear({a: k // g for a, k in rest.terms.items() if k % g == 0}, rest.const // g)
                return self._floormod(big, Linear({}, c // g)).scaled(g).add(small)
        atom = rest.sole_atom()
        if isinstance(atom, Binary) and atom.op == "floormod" and isinstance(atom.b, Const):
            if int(atom.b.value) > 0 and int(atom.b.value) % c == 0:
                return self._floormod(self._form(atom.a), y)
        return self._atom("floormod", rest, y)

    def _split_multiple(self, x: Linear, y: Linear) -> tuple[Linear, Linear]:
        """`x == whole * y + rest`, with the terms of `x` that are multiples of the size or product `y` in `whole`."""
        if len(y.terms) == 1 and y.const == 0:
            ((divisor, scale),) = y.terms.items()
            whole: list[tuple[Expr, int]] = []
            const_part, rest = 0, {}
            for atom, k in x.terms.items():
                left = _without_factors(atom, divisor) if k % scale == 0 else None
                if left is None:
                    rest[atom] = k
                elif not left:
                    const_part += k // scale
                else:
                    product = left[0]
                    for f in left[1:]:
                        product = self._factor_product(product, f)
                    whole.append((product, k // scale))
            return Linear.of(whole, const_part), Linear(rest, x.const)
        if y.terms and x.terms.keys() == y.terms.keys():
            first = next(iter(y.terms))
            k = x.terms[first] // y.terms[first]
            difference = x.add(y, -k)
            if difference.is_const():
                return Linear({}, k), difference
        return Linear({}, 0), x

    # --- deciding

    def _compare(self, op: str, x: Linear, y: Linear) -> bool | None:
        difference = y.add(x, -1)
        if any(self._is_wild(a) for a in difference.terms) or any(self._is_wild(a) for a in x.terms):
            return None
        if op in ("gt", "ge"):
            op, difference = ("lt" if op == "gt" else "le"), difference.scaled(-1)
        if op in ("lt", "le"):
            strict = Linear({}, -1)
            if self._nonnegative(difference.add(strict) if op == "lt" else difference):
                return True
            opposite = difference.scaled(-1)
            return False if self._nonnegative(opposite if op == "lt" else opposite.add(strict)) else None
        if difference.is_const():
            return (difference.const == 0) == (op == "eq")
        one = Linear({}, -1)
        if self._nonnegative(difference.add(one)) or self._nonnegative(difference.scaled(-1).add(one)):
            return op == "ne"
        if op in ("eq", "ne") and difference.const % gcd(*difference.terms.values()):
            return op == "ne"
        return None

    def _at_least_0(self, x: Linear) -> bool:
        return self._nonnegative(x)

    def _within(self, x: Linear, c: int) -> bool:
        low, high = self._bounds(x)
        if low is not None and high is not None:
            return low >= 0 and high < c
        return self._nonnegative(x) and self._nonnegative(Linear({}, c - 1).add(x, -1))

    def _nonnegative(self, x: Linear) -> bool:
        if self._nonnegative_by_limits(x, _DEPTH):
            return True
        return any(self._nonnegative_by_limits(x.add(f, -1), _DEPTH) for f in self._facts)

    def _nonnegative_by_limits(self, x: Linear, depth: int) -> bool:
        low = self._bounds(x)[0]
        if low is not None and low >= 0:
            return True
        if depth == 0 or not x.terms:
            return False
        for atom, k in x.terms.items():
            if isinstance(atom, Binary) and atom.op in ("min", "max"):
                options = (x.without(atom).add(self._form(o), k) for o in (atom.a, atom.b))
                decide = any if (atom.op == "max") == (k > 0) else all
                return decide(self._nonnegative_by_limits(o, depth - 1) for o in options)
        lower = self._lowered(x)
        return lower is not None and self._nonnegative_by_limits(lower, depth - 1)

    def _lowered(self, x: Linear) -> Linear | None:
        """A form that is nowhere greater, with one atom (the innermost possible) replaced by its symbolic limit."""
        best: tuple[int, Expr, Linear] | None = None
        for atom, k in x.terms.items():
            found = self._limit_of(atom, k)
            if found is not None and (best is None or found[0] > best[0]):
                best = (found[0], atom, found[1])
        return None if best is None else x.without(best[1]).add(best[2])

    def _limit_of(self, atom: Expr, k: int) -> tuple[int, Linear] | None:
        """(rank, form <= k * atom) or None."""
        if isinstance(atom, Var):
            limits = self._limits.get(atom)
            limit = None if limits is None else limits[0] if k > 0 else limits[1]
            return None if limit is None else (self._rank[atom], limit.scaled(k))
        if not isinstance(atom, Binary):
            return None
        if atom.op == "floordiv" and isinstance(atom.b, Const) and int(atom.b.value) > 0 and k % int(atom.b.value) == 0:
            c = int(atom.b.value)  # x - c + 1 <= c * (x // c) <= x
            return 1 << 30, self._form(atom.a).add(Linear({}, 1 - c if k > 0 else 0)).scaled(k // c)
        if atom.op == "floormod" and k < 0 and not isinstance(atom.b, Const):
            return 1 << 30, self._form(atom.b).add(Linear({}, -1)).scaled(k)
        if atom.op == "mul" and k < 0:
            factors = _factors(atom)
            if all((self._bounds_of(f)[0] or -1) >= 0 or self._bounds_of(f)[0] == 0 for f in factors):
                return self._product_limit(factors, k)
        return None

    def _product_limit(self, factors: tuple[Expr, ...], k: int) -> tuple[int, Linear] | None:
        for n, f in enumerate(factors):
            if isinstance(f, Var) and f in self._rank:
                high = self._ranges[f][1]
                limit = self._limits.get(f, (None, None))[1] or (Linear({}, high) if high is not None else None)
                if limit is not None:
                    out = limit.scaled(k)
                    for g in (*factors[:n], *factors[n + 1 :]):
                        out = self._product(out, self._form(g))
                    return self._rank[f], out
        return None

    def _bounds(self, x: Linear) -> Bounds:
        low: int | None = x.const
        high: int | None = x.const
        for atom, k in x.terms.items():
            a, b = self._bounds_of(atom)
            if k < 0:
                a, b = b, a
            low = None if low is None or a is None else low + k * a
            high = None if high is None or b is None else high + k * b
            if low is None and high is None:
                break
        return low, high

    def _bounds_of(self, e: Expr) -> Bounds:
        if isinstance(e, Var):
            found = self._ranges.get(e)
            return found if found is not None else (0, None) if is_size(e) else _UNKNOWN
        if isinstance(e, Binary):
            return self._bounds_of_binary(e)
        if isinstance(e, Cast) and (e.a.dtype.is_bool or (e.a.dtype.is_int and e.a.dtype.bits <= 32)):
            return int(e.a.dtype.min), int(e.a.dtype.max)
        if isinstance(e, Select):
            a, b = self._bounds(self._form(e.a)), self._bounds(self._form(e.b))
            return _least(a[0], b[0]), _greatest(a[1], b[1])
        return _UNKNOWN

    def _bounds_of_binary(self, e: Binary) -> Bounds:
        a, b = self._bounds(self._form(e.a)), self._bounds(self._form(e.b))
        if e.op == "floordiv":
            if b[0] is not None and b[0] == b[1] and b[0] > 0:
                return (None if a[0] is None else a[0] // b[0]), (None if a[1] is None else a[1] // b[0])
            return (0, a[1]) if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0 else _UNKNOWN
        if e.op == "floormod" and b[0] is not None and b[0] >= 0:
            high = None if b[1] is None else b[1] - 1
            positive = a[0] is not None and a[0] >= 0 and a[1] is not None
            return 0, (min(a[1], high) if high is not None else a[1]) if positive else high  # type: ignore[type-var]
        if e.op == "min":
            return (None if a[0] is None or b[0] is None else min(a[0], b[0])), _known(min, a[1], b[1])
        if e.op == "max":
            return _known(max, a[0], b[0]), (None if a[1] is None or b[1] is None else max(a[1], b[1]))
        if e.op == "mul":
            if a[0] is not None and b[0] is not None and a[1] is not None and b[1] is not None:
                corners = [p * q for p in a for q in b]  # type: ignore[operator]
                return min(corners), max(corners)
            return (a[0] * b[0], None) if (a[0] or 0) >= 0 <= (b[0] or 0) and None not in (a[0], b[0]) else _UNKNOWN  # type: ignore[operator]
        return _UNKNOWN

    def _is_wild(self, e: Expr) -> bool:
        """Whether the value comes from memory, so that arithmetic on it may wrap."""
        known = self._wild.get(e)
        if known is None:
            if isinstance(e, (Var, Const)):
                known = False
            elif isinstance(e, Cast):
                known = not (e.a.dtype.is_bool or (e.a.dtype.is_int and e.a.dtype.bits <= 32))
            elif isinstance(e, (Binary, Select, Unary)):
                known = any(self._is_wild(c) for c in children(e) if c.dtype == INDEX)
            else:
                known = not isinstance(e, (Ramp, Broadcast))
            self._wild[e] = known
        return known

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
        return self._intern(_key(out), out)


def simplify(e: Expr) -> Expr:
    """`e` simplified without knowing anything about its variables."""
    return Analyzer().simplify(e)


def simplify_stmt(s: Stmt, analyzer: Analyzer | None = None) -> Stmt:
    """`s` with every expression simplified under the loops and branches around it.

    Loops of one iteration, branches that are decided, masks and assertions that always hold, and lets of constants
    or variables disappear; a statement that does nothing becomes an empty Seq.
    """
    return _Simplify(analyzer or Analyzer()).stmt(s)


class _Simplify(StmtMutator):
    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._known = analyzer

    def expr(self, e: Expr) -> Expr:
        return self._known.simplify(e)

    def visit_for(self, s: For) -> Stmt:
        extent = self.expr(s.extent)
        high = self._known.bounds(extent)[1]
        if high is not None and high <= 0:
            return Seq(())
        if isinstance(extent, Const) and extent.value == 1:
            return self.stmt(substitute(s.body, {s.var: const(0)}))
        self._known.bind(s.var, extent)
        body = self.stmt(s.body)
        if _is_empty(body):
            return body
        return s if extent is s.extent and body is s.body else For(s.var, extent, body, s.kind)

    def visit_if(self, s: If) -> Stmt:
        cond = self.expr(s.cond)
        truth = _truth(cond)
        if truth is not None:
            return self.stmt(s.then) if truth else self.stmt(s.orelse) if s.orelse is not None else Seq(())
        with self._known.assume(cond):
            then = self.stmt(s.then)
        orelse = None
        if s.orelse is not None:
            with self._known.assume(self._known.simplify(Unary("not", cond))):
                orelse = self.stmt(s.orelse)
        if orelse is not None and _is_empty(orelse):
            orelse = None
        if _is_empty(then):
            return then if orelse is None else If(self.expr(Unary("not", cond)), orelse)
        same = cond is s.cond and then is s.then and orelse is s.orelse
        return s if same else If(cond, then, orelse)

    def visit_store(self, s: Store) -> Stmt:
        new = as_type(Store, self._store(s))
        truth = None if new.mask is None else _truth(new.mask)
        if truth is False:
            return Seq(())
        return Store(new.buffer, new.indices, new.value) if truth else new

    def visit_let(self, s: Let) -> Stmt:
        value = self.expr(s.value)
        if isinstance(value, (Const, Var)):
            return self.stmt(substitute(s.body, {s.var: value}))
        self._known.bind_value(s.var, value)
        body = self.stmt(s.body)
        if _is_empty(body):
            return body
        return s if value is s.value and body is s.body else Let(s.var, value, body)

    def visit_allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        return body if _is_empty(body) else s if body is s.body else Allocate(s.buffer, body)

    def visit_assert(self, s: Assert) -> Stmt:
        cond = self.expr(s.cond)
        if _truth(cond) is True:
            return Seq(())
        return s if cond is s.cond else Assert(cond, s.message)

    def visit_seq(self, s: Seq) -> Stmt:
        new = [self.stmt(x) for x in s.body]
        return s if all(a is b for a, b in zip(s.body, new)) else seq(new)


def _is_empty(s: Stmt) -> bool:
    return isinstance(s, Seq) and not s.body


def _is_index(e: Expr) -> bool:
    return e.dtype == INDEX and e.lanes == 1


def _as_expr(d: Dim | Expr) -> Expr:
    return dim_expr(d) if isinstance(d, (int, SymDim)) else d


def _truth(e: Expr) -> bool | None:
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


def _key(e: Expr) -> tuple[object, ...]:
    """Equal for equal expressions whose operands are interned."""
    parts: list[object] = [type(e)]
    for name in type(e).__dataclass_fields__:  # type: ignore[attr-defined]
        parts.append(getattr(e, name))
    if isinstance(e, Const):
        parts.append(type(e.value))
    return tuple(parts) if not isinstance(e, Binary) else (Binary, e.op, e.a, e.b)


def _factors(e: Expr) -> tuple[Expr, ...]:
    return (*_factors(e.a), *_factors(e.b)) if isinstance(e, Binary) and e.op == "mul" else (e,)


def _without_factors(atom: Expr, divisor: Expr) -> tuple[Expr, ...] | None:
    """The factors of `atom` less those of `divisor`, None where it lacks one."""
    left = list(_factors(atom))
    for f in _factors(divisor):
        if not any(f is x for x in left):
            return None
        left.remove(f)
    return tuple(left)


def _common_factors(rest: Linear, c: int) -> list[int]:
    """Divisors g of `c`, 1 < g < c, that split off some terms of `rest`; largest first."""
    return sorted({g for k in rest.terms.values() if 1 < (g := gcd(k, c)) < c}, reverse=True)


def _negative(item: tuple[Any, int]) -> bool:
    return item[1] < 0


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _greatest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _known(fn: Any, a: int | None, b: int | None) -> int | None:
    """`fn` of those that are known."""
    known = [v for v in (a, b) if v is not None]
    return fn(known) if known else None
