"""Floor division and remainder of linear forms: what splits off exactly, what is decided, what recombines."""

from __future__ import annotations

from math import gcd

from nnvm.te.expr import Binary, Const, Expr
from nnvm.tir.forms import factors_of
from nnvm.tir.linear import Linear
from nnvm.tir.ranges import Ranges

__all__ = ["Division"]


class Division(Ranges):
    """Quotients and remainders, given the ranges of the variables."""

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
        if isinstance(atom, Binary) and atom.op == "floormod":
            inner = self._form(atom.b)
            if inner.is_const() and inner.const > 0 and inner.const % c == 0:  # (x % 12) % 4 is x % 4
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


def _without_factors(atom: Expr, divisor: Expr) -> tuple[Expr, ...] | None:
    """The factors of `atom` less those of `divisor`, None where it lacks one."""
    left = list(factors_of(atom))
    for f in factors_of(divisor):
        if not any(f is x for x in left):
            return None
        left.remove(f)
    return tuple(left)


def _common_factors(rest: Linear, c: int) -> list[int]:
    """Divisors g of `c`, 1 < g < c, that split off some terms of `rest`; largest first."""
    return sorted({g for k in rest.terms.values() if 1 < (g := gcd(k, c)) < c}, reverse=True)
