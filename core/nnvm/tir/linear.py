"""Linear forms over index expressions: a sum of integer coefficients times atoms, plus a constant.

An atom is a variable or any expression that is not itself linear. Atoms are compared by identity, so whoever needs
`a` to cancel against `a` must see to it that equal atoms are one object (`nnvm.tir.simplify.Analyzer` does).
"""

from __future__ import annotations

from collections.abc import Iterable

from nnvm.te.expr import INDEX, Binary, Const, Expr, Unary
from nnvm.tir.visitor import post_order

__all__ = ["Linear", "linear"]


class Linear:
    """`sum(coef * atom for atom, coef in terms.items()) + const`; immutable, no coefficient is 0."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: dict[Expr, int], const: int) -> None:
        self.terms = terms
        self.const = const

    @staticmethod
    def atom(e: Expr) -> Linear:
        return Linear({e: 1}, 0)

    @staticmethod
    def of(items: Iterable[tuple[Expr, int]], const: int = 0) -> Linear:
        terms: dict[Expr, int] = {}
        for atom, coef in items:
            terms[atom] = terms.get(atom, 0) + coef
        return Linear({a: c for a, c in terms.items() if c}, const)

    def add(self, other: Linear, scale: int = 1) -> Linear:
        """`self + scale * other`"""
        if not other.terms:
            return Linear(self.terms, self.const + scale * other.const)
        terms = dict(self.terms)
        for atom, coef in other.terms.items():
            total = terms.get(atom, 0) + scale * coef
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Linear(terms, self.const + scale * other.const)

    def scaled(self, k: int) -> Linear:
        return Linear({a: c * k for a, c in self.terms.items()} if k else {}, self.const * k)

    def without(self, atom: Expr) -> Linear:
        return Linear({a: c for a, c in self.terms.items() if a is not atom}, self.const)

    def is_const(self) -> bool:
        return not self.terms

    def sole_atom(self) -> Expr | None:
        """The atom, where this is exactly one atom."""
        if self.const == 0 and len(self.terms) == 1:
            atom, coef = next(iter(self.terms.items()))
            return atom if coef == 1 else None
        return None


def linear(expr: Expr) -> tuple[dict[Expr, int], int]:
    """Coefficients and constant of an index expression: `expr == sum(coef * atom) + const`.

    Only sums, differences, negations and products with constants are taken apart; `Analyzer.linear` knows more.
    """
    done: dict[Expr, Linear] = {}
    for e in post_order(expr):
        form: Linear | None = None
        if e.dtype == INDEX and e.lanes == 1:
            if isinstance(e, Const):
                form = Linear({}, int(e.value))
            elif isinstance(e, Unary) and e.op == "neg":
                form = done[e.a].scaled(-1)
            elif isinstance(e, Binary) and e.op in ("add", "sub"):
                form = done[e.a].add(done[e.b], 1 if e.op == "add" else -1)
            elif isinstance(e, Binary) and e.op == "mul":
                a, b = done[e.a], done[e.b]
                form = a.scaled(b.const) if b.is_const() else b.scaled(a.const) if a.is_const() else None
        done[e] = form or Linear.atom(e)
    return done[expr].terms, done[expr].const
