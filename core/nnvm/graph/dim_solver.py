"""Equations between dimensions, solved as they come: unification over `nnvm.dim`.

An *unknown* is a size that inference has still to find, a symbol called ``?0``, ``?1``, ...; a *named size* is the
user's. Either becomes what it is found equal to: an unknown before a named size, the younger before the older.

>>> solver = DimSolver()
>>> m = solver.unknown()
>>> solver.equate(m * 4, 24), solver.resolve(m)
(True, 6)

An equation that does not determine a size yet (``?0 * ?1 = 24``, a rounded division) stays open and is tried again.
The method is Robinson's unification (1965) with linear arithmetic in the place of term constructors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from nnvm.dim import Dim, SymDim, Term, substitute, symbol, symbols

__all__ = ["Contradiction", "DimSolver", "has_unknown", "is_unknown_name"]

_MARK = "?"


class Contradiction(ValueError):
    """Two dimensions that cannot be equal."""

    def __init__(self, a: Dim, b: Dim) -> None:
        super().__init__(f"{a} is not {b}")
        self.pair = (a, b)


def is_unknown_name(name: str) -> bool:
    return name.startswith(_MARK)


def has_unknown(d: Dim) -> bool:
    """Whether a dimension depends on a size that inference has still to find."""
    return not isinstance(d, int) and any(map(is_unknown_name, symbols(d)))


class DimSolver:
    """What is known of the sizes so far.

    Attributes:
        version: grows with everything that is learnt.
    """

    def __init__(self) -> None:
        self.version = 0
        self._count = 0
        self._value: dict[str, Dim] = {}
        self._reason: dict[str, object] = {}
        self._open: list[tuple[Dim, Dim, object]] = []

    def unknown(self) -> SymDim:
        """A new unknown."""
        self._count += 1
        return symbol(f"{_MARK}{self._count - 1}")

    def resolve(self, d: Dim) -> Dim:
        """`d` by what is known now."""
        if isinstance(d, int):
            return d
        bound = [n for n in symbols(d) if n in self._value]
        if not bound:
            return d
        for name in bound:
            self._value[name] = self.resolve(self._value[name])
        return substitute(d, {n: self._value[n] for n in bound})

    def reasons(self, d: Dim) -> list[object]:
        """Who determined the sizes that `d` depends on, as given to `equate`."""
        if isinstance(d, int):
            return []
        found: list[object] = []
        for name in symbols(d):
            if name in self._value:
                found += [self._reason[name], *self.reasons(self._value[name])]
        return found

    def bindings(self) -> dict[str, Dim]:
        """The named sizes that were found equal to something, with what."""
        return {n: self.resolve(v) for n, v in self._value.items() if not is_unknown_name(n)}

    def equate(self, a: Dim, b: Dim, reason: object = None) -> bool:
        """Makes `a` and `b` equal; gives whether anything was learnt. Contradiction where they cannot be."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return False
        for unknown, value in ((a, b), (b, a)):
            if (name := _alone(unknown)) is not None and isinstance(value, int) and value >= 0:
                self._bind(name, value, reason)
                return True
        difference = a - b
        if isinstance(difference, int):
            raise Contradiction(a, b)
        solved = _solve(difference)
        if solved is _IMPOSSIBLE:
            raise Contradiction(a, b)
        if solved is None:
            equation = (a, b, reason)
            if all(equation[:2] != known[:2] for known in self._open):
                self._open.append(equation)
            return False
        name, value, exact = solved
        if isinstance(value, int) and value < 0:
            raise Contradiction(a, b)
        self._bind(name, value, reason)
        if not exact:
            self._open.append((a, b, reason))
        return True

    def _bind(self, name: str, value: Dim, reason: object) -> None:
        self._value[name], self._reason[name] = value, reason
        self.version += 1

    def settle(self) -> None:
        """Tries the open equations again, by what was learnt since."""
        pending, self._open = self._open, []
        for a, b, reason in pending:
            self.equate(a, b, reason)

    def open_equations(self) -> list[tuple[Dim, Dim]]:
        """What has to hold and neither determines a size nor is known to hold."""
        pairs = ((self.resolve(a), self.resolve(b)) for a, b, _ in self._open)
        return [(a, b) for a, b in pairs if a != b]


def _alone(d: Dim) -> str | None:
    """The name of an unknown that is all of `d`."""
    if isinstance(d, int) or len(d.terms) != 1:
        return None
    ((term, coef),) = d.terms
    alone = coef == 1 and len(term) == 1 and term[0][0] == "sym"
    return name if alone and is_unknown_name(name := str(term[0][1])) else None


_Solved = tuple[str, Dim, bool]
_IMPOSSIBLE: _Solved = ("", 0, False)


def _solve(zero: SymDim) -> _Solved | None:
    """A size that `zero` = 0 determines, its value, and whether this is all that the equation says.

    `_IMPOSSIBLE` where no sizes fulfil it, None where it determines none.
    """
    terms = _reduced(zero)
    if terms is None:
        return _IMPOSSIBLE
    counts = Counter(n for term, _ in terms for n in _names(term))
    for name in sorted(counts, key=_preference):
        if counts[name] != 1 or (not is_unknown_name(name) and any(map(is_unknown_name, counts))):
            continue
        term, coef = next((t, c) for t, c in terms if name in _names(t))
        atom = ("sym", name)
        if atom not in term:
            continue  # inside a division or a maximum
        left = list(term)
        left.remove(atom)
        factor = SymDim({tuple(left): coef}) if left else coef
        rest = _sum((t, -c) for t, c in terms if t != term)
        if isinstance(factor, int):
            if isinstance(rest, int):
                return (name, rest // factor, True) if rest % factor == 0 else _IMPOSSIBLE
            if abs(factor) == 1:
                return name, rest * factor, True
        if is_unknown_name(name) and not has_unknown(factor) and not has_unknown(rest):
            return name, rest // factor, False
    return None


def _reduced(zero: SymDim) -> list[tuple[Term, int]] | None:
    """The terms without factors that all of them have (sizes that multiply are taken to be positive).

    None where divisibility forbids a solution: 2 * n = 5.
    """
    terms: list[tuple[Term, int]] = list(zero.terms)
    common = Counter(terms[0][0])
    for term, _ in terms[1:]:
        common &= Counter(term)
    if common:
        terms = [(tuple((Counter(t) - common).elements()), c) for t, c in terms]
    divisor = math.gcd(*(c for t, c in terms if t)) or 1
    if any(c % divisor for t, c in terms if not t):
        return None
    return [(t, c // divisor) for t, c in terms]


def _sum(terms: Iterable[tuple[Term, int]]) -> Dim:
    total: Dim = 0
    for term, coef in terms:
        total = total + (SymDim({term: coef}) if term else coef)
    return total


def _names(term: Term) -> list[str]:
    """Names in one product, each as often as it stands there."""
    return [n for atom in term for n in symbols(SymDim({(atom,): 1}))]


def _preference(name: str) -> tuple[bool, int, str]:
    """Unknowns first, the younger before the older; then names from the end of the alphabet."""
    if is_unknown_name(name):
        return False, -int(name[len(_MARK) :]), ""
    return True, 0, "".join(chr(0x10FFFF - ord(c)) for c in name)
