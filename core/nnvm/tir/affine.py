"""Index arithmetic in canonical form, and what can be proved about it.

An `Affine` is `const + sum(coefficient * atom)`. Coefficients are dimensions (int or SymDim); an atom is a loop
variable, an operation on two Affines that is not linear (``floordiv floormod min max mul``), or any other expression
(an index read from memory). Equal indices are equal objects, so `(i_o * 8 + i_i) - i_o * 8` *is* `i_i`.

`Space` knows the range of each loop variable. It simplifies divisions by it and proves inequalities by elimination:
each atom is replaced by its least (or greatest) value, innermost loop first, until only sizes are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, cast

from nnvm.dim import Dim, dim_max, dim_min, symbol
from nnvm.te.expr import INDEX, Binary, Cast, Const, Expr, Var, binary, dim_expr

from .dim_proofs import constant_upper, dim_nonnegative

__all__ = ["Affine", "Atom", "Interval", "Space", "affine", "atom_affine"]

if TYPE_CHECKING:
    from typing import TypeAlias

Operation: TypeAlias = "tuple[str, Affine, Affine]"
Atom: TypeAlias = "Expr | Operation"  # a Var, another expression, or an operation
Interval: TypeAlias = "tuple[Affine, Affine]"  # both ends included


class Affine:
    """Immutable; build with `affine`, `atom_affine`, Python's + - * and `Space`."""

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, const: Dim, terms: dict[Atom, Dim]) -> None:
        self.const, self.terms = const, terms
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.const, frozenset(self.terms.items())))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Affine) and self.const == other.const and self.terms == other.terms)

    def __add__(self, other: Affine | Dim) -> Affine:
        if not isinstance(other, Affine):
            return self if other == 0 else Affine(self.const + other, self.terms)
        if not other.terms:
            return self + other.const
        if not self.terms:
            return other + self.const
        terms = dict(self.terms)
        for atom, coef in other.terms.items():
            total = terms.get(atom, 0) + coef
            if total == 0:
                del terms[atom]
            else:
                terms[atom] = total
        return Affine(self.const + other.const, terms)

    def __sub__(self, other: Affine | Dim) -> Affine:
        return self + other * -1

    def __mul__(self, factor: Dim) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return _ZERO
        return Affine(self.const * factor, {a: c * factor for a, c in self.terms.items()})

    @property
    def dim(self) -> Dim | None:
        """The value as a dimension; None where it depends on a loop variable."""
        return None if self.terms else self.const

    @property
    def int(self) -> int | None:
        """The value where it is a constant."""
        return self.const if not self.terms and isinstance(self.const, int) else None

    def atoms(self) -> Iterable[Atom]:
        """Every atom, also those inside operations."""
        for atom in self.terms:
            yield atom
            if isinstance(atom, tuple):
                yield from atom[1].atoms()
                yield from atom[2].atoms()

    def __repr__(self) -> str:
        parts = [f"{_show(a)}" if c == 1 else f"{_show(a)}*{c}" for a, c in self.terms.items()]
        return " + ".join([*parts, str(self.const)] if self.const != 0 or not parts else parts)


_ZERO = Affine(0, {})


def _show(atom: Atom) -> str:
    if isinstance(atom, tuple):
        return f"{atom[0]}({atom[1]}, {atom[2]})"
    return atom.name if isinstance(atom, Var) else f"<{type(atom).__name__}>"


def affine(d: Affine | Dim) -> Affine:
    """A dimension as an Affine."""
    return d if isinstance(d, Affine) else Affine(d, {})


def atom_affine(atom: Atom) -> Affine:
    """An atom as an Affine."""
    return Affine(0, {atom: 1})


class Space:
    """The loop variables in sight, each with the range it runs over, in the order in which the loops are entered."""

    def __init__(self) -> None:
        self._ranges: dict[Atom, Interval] = {}
        self._exprs: dict[Affine, Expr] = {}

    def bind(self, atom: Atom, low: Affine, high: Affine) -> Interval | None:
        """From now on `low <= atom <= high`; gives the range known before, to be put back with `restore`."""
        before = self._ranges.get(atom)
        self._ranges[atom] = (low, high)
        return before

    def restore(self, atom: Atom, before: Interval | None) -> None:
        if before is None:
            del self._ranges[atom]
        else:
            self._ranges[atom] = before

    # -- building ---------------------------------------------------------------------------------------------------

    def floordiv(self, a: Affine, b: Affine) -> Affine:
        return self._divide(a, b)[0]

    def floormod(self, a: Affine, b: Affine) -> Affine:
        return self._divide(a, b)[1]

    def ceildiv(self, a: Affine, b: Dim) -> Affine:
        return self.floordiv(a * -1, affine(b)) * -1

    def minimum(self, a: Affine, b: Affine) -> Affine:
        if self.nonnegative(b - a):
            return a
        return b if self.nonnegative(a - b) else _operation("min", a, b, min)

    def maximum(self, a: Affine, b: Affine) -> Affine:
        if self.nonnegative(a - b):
            return a
        return b if self.nonnegative(b - a) else _operation("max", a, b, max)

    def multiply(self, a: Affine, b: Affine) -> Affine:
        if (d := b.dim) is not None:
            return a * d
        if (d := a.dim) is not None:
            return b * d
        return atom_affine(("mul", a, b))

    def _divide(self, a: Affine, b: Affine) -> tuple[Affine, Affine]:
        """Quotient and remainder, the parts that divide exactly taken out."""
        d = b.dim
        if d is None or d == 0:
            return _operation("floordiv", a, b, None), _operation("floormod", a, b, None)
        if d == 1:
            return a, _ZERO
        exact, rest = _ZERO, _ZERO
        for atom, coef in a.terms.items():
            if (coef % d) == 0:
                exact += Affine(0, {atom: coef // d})
            else:
                rest += Affine(0, {atom: coef})
        if isinstance(a.const, int) and isinstance(d, int):
            exact, rest = exact + a.const // d, rest + a.const % d
        elif a.const != 0:
            exact, rest = (exact + a.const // d, rest) if (a.const % d) == 0 else (exact, rest + a.const)
        if not rest.terms:
            return exact + rest.const // d, affine(rest.const % d)
        if self.nonnegative(rest) and self.nonnegative(affine(d - 1) - rest):
            return exact, rest
        if isinstance(d, int) and (reduced := self._common_factor(rest, d)) is not None:
            factor, outer, inner = reduced
            quotient, remainder = self._divide(outer, affine(d // factor))
            return exact + quotient, remainder * factor + inner
        return (
            exact + _operation("floordiv", rest, b, None),
            _operation("floormod", rest, b, None),
        )

    def _common_factor(self, a: Affine, d: int) -> tuple[int, Affine, Affine] | None:
        """`a` as `factor * outer + inner` with 0 <= inner < factor and a factor that divides `d`, if there is one.

        Then a // d = outer // (d / factor): blocks of 8 lie evenly in blocks of 16.
        """
        candidates = {math.gcd(c, d) for c in a.terms.values() if isinstance(c, int)} - {1}
        for factor in sorted(candidates, reverse=True):
            outer, inner = _ZERO, _ZERO
            for atom, coef in a.terms.items():
                if (coef % factor) == 0:
                    outer += Affine(0, {atom: coef // factor})
                else:
                    inner += Affine(0, {atom: coef})
            if isinstance(a.const, int):
                outer, inner = outer + a.const // factor, inner + a.const % factor
            else:
                inner += a.const
            if outer.terms and self.nonnegative(inner) and self.nonnegative(affine(factor - 1) - inner):
                return factor, outer, inner
        return None

    def from_expr(self, e: Expr, env: Mapping[Var, Affine], leaf: Callable[[Expr], Expr]) -> Affine:
        """An index expression; `env` gives its variables (others are sizes), `leaf` rewrites what is not arithmetic."""
        if isinstance(e, Const):
            return Affine(int(e.value), {})
        if isinstance(e, Var):
            found = env.get(e)
            return found if found is not None else Affine(symbol(e.name), {})
        if isinstance(e, Cast) and e.a.dtype.is_int and e.dtype == INDEX and e.a.dtype == INDEX:
            return self.from_expr(e.a, env, leaf)
        if isinstance(e, Binary) and e.dtype == INDEX and e.op in _INDEX_OPS:
            a, b = self.from_expr(e.a, env, leaf), self.from_expr(e.b, env, leaf)
            if e.op == "add":
                return a + b
            if e.op == "sub":
                return a - b
            return cast(Affine, getattr(self, _INDEX_OPS[e.op])(a, b))
        return atom_affine(leaf(e))

    def expr(self, a: Affine) -> Expr:
        """As index arithmetic; equal Affines give one object."""
        found = self._exprs.get(a)
        if found is None:
            total: Expr | None = None
            for atom, coef in a.terms.items():
                term = binary("mul", self._atom_expr(atom), self._dim_expr(coef))
                total = term if total is None else binary("add", total, term)
            const = self._dim_expr(a.const)
            found = const if total is None else binary("add", total, const)
            self._exprs[a] = found
        return found

    def _atom_expr(self, atom: Atom) -> Expr:
        if not isinstance(atom, tuple):
            return atom
        return binary(atom[0], self.expr(atom[1]), self.expr(atom[2]))

    def _dim_expr(self, d: Dim) -> Expr:
        if isinstance(d, int):
            return Const(d, INDEX)
        key = Affine(d, {})
        found = self._exprs.get(key)
        if found is None:
            found = self._exprs[key] = dim_expr(d)
        return found

    # -- bounds -----------------------------------------------------------------------------------------------------

    def relax(self, a: Affine, env: Mapping[Atom, Interval]) -> Interval | None:
        """Least and greatest value of `a` while the atoms of `env` run over their intervals; None: not known."""
        low, high = affine(a.const), affine(a.const)
        for atom, coef in a.terms.items():
            bounds = env.get(atom) or self._relax_atom(atom, env)
            if bounds is None:
                return None
            if bounds[0] is bounds[1]:
                low, high = low + bounds[0] * coef, high + bounds[0] * coef
            elif dim_nonnegative(coef):
                low, high = low + bounds[0] * coef, high + bounds[1] * coef
            elif dim_nonnegative(-coef):
                low, high = low + bounds[1] * coef, high + bounds[0] * coef
            else:
                return None
        return low, (low if low == high else high)

    def _relax_atom(self, atom: Atom, env: Mapping[Atom, Interval]) -> Interval | None:
        if isinstance(atom, Var):
            point = atom_affine(atom)
            return point, point
        if not isinstance(atom, tuple):
            return None
        op, a, b = atom
        x, y = self.relax(a, env), self.relax(b, env)
        if x is None or y is None:
            return None
        if op in ("min", "max"):
            pick = self.minimum if op == "min" else self.maximum
            return pick(x[0], y[0]), pick(x[1], y[1])
        if y[0] != y[1]:
            return None
        if op == "mul":
            return self._relax_product(x, y[0])
        if y[0].int is None or y[0].int <= 0:
            return None
        first, last = self.floordiv(x[0], y[0]), self.floordiv(x[1], y[0])
        if op == "floordiv":
            return first, last
        if first == last:
            start = self.floormod(x[0], y[0])
            return start, start + (x[1] - x[0])
        return _ZERO, y[0] - 1

    def _relax_product(self, x: Interval, y: Affine) -> Interval | None:
        if not self.nonnegative(y):
            return None
        return self.multiply(x[0], y), self.multiply(x[1], y)

    def upper(self, a: Affine) -> Dim | None:
        """A size that `a` never exceeds, free of loop variables; a constant where there is one."""
        bound = _eliminate(self, a, 1)
        if bound is None or isinstance(bound, int):
            return bound
        constant = constant_upper(bound)
        return bound if constant is None else constant

    def lower(self, a: Affine) -> Dim | None:
        return _eliminate(self, a, -1)

    def nonnegative(self, a: Affine) -> bool:
        """Is `a >= 0` certain? False also means: not known."""
        return _prove(self, a, 24)

    def range_of(self, atom: Atom) -> Interval | None:
        return self._ranges.get(atom)


_INDEX_OPS = {"add": "", "sub": "", "mul": "multiply", "floordiv": "floordiv", "floormod": "floormod",
              "min": "minimum", "max": "maximum"}  # fmt: skip


def _operation(op: str, a: Affine, b: Affine, fold: Callable[[int, int], int] | None) -> Affine:
    if fold is not None and a.int is not None and b.int is not None:
        return affine(fold(a.int, b.int))
    if not a.terms and not b.terms:
        if op in ("min", "max"):
            return affine((dim_min if op == "min" else dim_max)(a.const, b.const))
        if b.const != 0:
            return affine(a.const // b.const if op == "floordiv" else a.const % b.const)
    return atom_affine((op, a, b))


def _replacements(space: Space, atom: Atom, coef: Dim, positive: bool) -> tuple[list[Affine], bool]:
    """Terms that are at most `coef * atom`, and whether all of them are needed (or any one will do)."""
    known = space.range_of(atom)
    if known is not None:
        return [(known[0] if positive else known[1]) * coef], False
    if not isinstance(atom, tuple):
        return [], False
    op, a, b = atom
    if op in ("min", "max"):
        return [a * coef, b * coef], (op == "min") == positive
    d = b.int
    if d is None or d <= 0:
        return [], False
    if op == "floormod":
        options = [affine(0) if positive else affine(coef * (d - 1))]
        if not positive and space.nonnegative(a):
            options.append(a * coef)
        return options, False
    if op != "floordiv":
        return [], False
    options = []
    if (coef % d) == 0:
        options.append(((a - (d - 1)) if positive else a) * (coef // d))
    bound = _eliminate(space, a, -1 if positive else 1)
    if bound is not None:
        options.append(affine((bound // d) * coef))
    return options, False


def _innermost(space: Space, a: Affine) -> Atom:
    """The atom to eliminate next: operations first, then the variable of the innermost loop."""
    for atom in a.terms:
        if isinstance(atom, tuple) and space.range_of(atom) is None:
            return atom
    order = space._ranges
    found = [atom for atom in a.terms if atom in order]
    if len(found) <= 1:
        return found[0] if found else next(iter(a.terms))
    positions = {atom: i for i, atom in enumerate(order)}
    return max(found, key=positions.__getitem__)


def _prove(space: Space, a: Affine, fuel: int) -> bool:
    if not a.terms:
        return dim_nonnegative(a.const)
    if fuel == 0:
        return False
    atom = _innermost(space, a)
    coef = a.terms[atom]
    positive = dim_nonnegative(coef)
    if not positive and not dim_nonnegative(-coef):
        return False
    options, every = _replacements(space, atom, coef, positive)
    rest = Affine(a.const, {x: c for x, c in a.terms.items() if x is not atom and x != atom})
    results = (_prove(space, rest + o, fuel - 1) for o in options)
    return bool(options) and (all(results) if every else any(results))


def _eliminate(space: Space, a: Affine, sign: int) -> Dim | None:
    """The greatest (`sign` 1) or least (-1) value as a size; None where an atom has no bound."""
    for _ in range(64):
        if not a.terms:
            return a.const
        atom = _innermost(space, a)
        coef = a.terms[atom]
        grows = dim_nonnegative(coef)
        if not grows and not dim_nonnegative(-coef):
            return None
        options, every = _replacements(space, atom, coef * -sign, not grows if sign > 0 else grows)
        if not options:
            return None
        rest = Affine(a.const, {x: c for x, c in a.terms.items() if x != atom})
        bounds = [_eliminate(space, rest + o * -sign, sign) for o in options]
        known = [b for b in bounds if b is not None]
        if every:
            return reduce(dim_max if sign > 0 else dim_min, known) if len(known) == len(bounds) else None
        return _tightest(known, sign) if known else None
    return None


def _tightest(bounds: list[Dim], sign: int) -> Dim:
    """The least of several upper bounds (the greatest of lower ones); a constant, if any, serves an allocation best."""
    constants = [b for b in bounds if isinstance(b, int)]
    if constants:
        return min(constants) if sign > 0 else max(constants)
    return reduce(dim_min if sign > 0 else dim_max, bounds)
