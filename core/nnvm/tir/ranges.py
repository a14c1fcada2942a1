"""What is known about the values of index expressions: intervals, symbolic limits, facts; and what they decide.

An interval is found from those of the atoms. Where sizes are symbolic, a form is shown to be at least 0 by replacing
its atoms, innermost variables first, by symbolic limits that can only make it smaller, until its interval says so.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from nnvm.dim import range_of_size
from nnvm.te.expr import INDEX, Binary, Broadcast, Cast, Const, Expr, Ramp, Select, Unary, Var, is_size
from nnvm.tir.forms import Forms, factors_of
from nnvm.tir.linear import Linear
from nnvm.tir.visitor import children

__all__ = ["Bounds", "Ranges"]

Bounds = tuple["int | None", "int | None"]  # inclusive; None: not known
_UNKNOWN: Bounds = (None, None)
_DEPTH = 6  # symbolic limits replaced one after the other in one proof


class Ranges(Forms):
    """Decides comparisons of linear forms."""

    def __init__(self) -> None:
        super().__init__()
        self._ranges: dict[Var, Bounds] = {}
        self._limits: dict[Var, tuple[Linear | None, Linear | None]] = {}  # symbolic lower and upper limit
        self._rank: dict[Var, int] = {}  # order of binding: an inner variable's limit may name an outer one
        self._facts: list[Linear] = []  # each is known to be >= 0
        self._wild: dict[Expr, bool] = {}
        self._wild_vars: set[Var] = set()

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
            factors = factors_of(atom)
            lows = [self._bounds_of(f)[0] for f in factors]
            if all(low is not None and low >= 0 for low in lows):
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
            return found if found is not None else range_of_size(e.name) if is_size(e) else _UNKNOWN
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
                known = e in self._wild_vars
            elif isinstance(e, Cast):
                known = not (e.a.dtype.is_bool or (e.a.dtype.is_int and e.a.dtype.bits <= 32))
            elif isinstance(e, (Binary, Select, Unary)):
                known = any(self._is_wild(c) for c in children(e) if c.dtype == INDEX)
            else:
                known = not isinstance(e, (Ramp, Broadcast))
            self._wild[e] = known
        return known


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _greatest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _known(fn: Any, a: int | None, b: int | None) -> int | None:
    """`fn` of those that are known."""
    known = [v for v in (a, b) if v is not None]
    return fn(known) if known else None
