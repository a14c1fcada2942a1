"""Interned index expressions and their linear forms: within one `Forms`, equal expressions are one object."""

from __future__ import annotations

from typing import Any

from nnvm.te.expr import INDEX, Binary, Const, Expr, Var, const, is_size
from nnvm.tir.linear import Linear

__all__ = ["Forms", "expr_key", "factors_of"]

_PRODUCT_TERMS = 16  # products of sums are multiplied out up to this many terms


class Forms:
    """Goes from simplified index expressions to linear forms and back."""

    def __init__(self) -> None:
        self._interned: dict[tuple[object, ...], Expr] = {}
        self._forms: dict[Expr, Linear] = {}  # of simplified scalar index expressions

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
        factors = sorted((*factors_of(a), *factors_of(b)), key=self._factor_order)
        out = factors[0]
        for f in factors[1:]:
            out = self._raw("mul", out, f)
        return out

    def _factor_order(self, e: Expr) -> tuple[int, str, int]:
        size = isinstance(e, Var) and is_size(e)
        return (not size, e.name if isinstance(e, Var) else "", id(e) if not size else 0)


def expr_key(e: Expr) -> tuple[object, ...]:
    """Equal for equal expressions whose operands are interned."""
    parts: list[object] = [type(e)]
    for name in type(e).__dataclass_fields__:  # type: ignore[attr-defined]
        parts.append(getattr(e, name))
    if isinstance(e, Const):
        parts.append(type(e.value))
    return tuple(parts) if not isinstance(e, Binary) else (Binary, e.op, e.a, e.b)


def factors_of(e: Expr) -> tuple[Expr, ...]:
    return (*factors_of(e.a), *factors_of(e.b)) if isinstance(e, Binary) and e.op == "mul" else (e,)


def _negative(item: tuple[Any, int]) -> bool:
    return item[1] < 0
