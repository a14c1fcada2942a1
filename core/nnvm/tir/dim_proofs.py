"""What is certain of a size, whatever the named sizes are: is it at least 0, and which constant does it never exceed?

Sound and not complete: "not known" is an answer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from nnvm.dim import Dim, SymDim, range_of_size, ranges_key

__all__ = ["constant_upper", "dim_nonnegative"]


def dim_nonnegative(d: Dim, fuel: int = 8) -> bool:
    """Is `d >= 0` certain, sizes being at least 0 or in the ranges that are known of them?"""
    if isinstance(d, int):
        return d >= 0
    if all(c >= 0 for _, c in d.terms) and not any(a[0] in ("max", "min") for t, _ in d.terms for a in t):
        return all(_atom_nonnegative(a) for t, _ in d.terms for a in t)
    return fuel > 0 and _proved(d, fuel, ranges_key())


@lru_cache(maxsize=1 << 15)
def _proved(d: SymDim, fuel: int, ranges: object) -> bool:
    """`dim_nonnegative` by replacing operations; `ranges` is what is known of the sizes, and part of the key only.

    Nested remainders have two cases each, and every block of a loop nest asks the same: so a proof is made once.
    """
    # Remainders first: they are `a - a // b * b` exactly.
    for term, coef in sorted(d.terms, key=lambda t: len(t[0]) != 1 or t[0][0][0] != "mod"):
        if len(term) != 1 or term[0][0] == "sym":
            continue
        op, a, b = str(term[0][0]), cast(Dim, term[0][1]), cast(Dim, term[0][2])
        rest = d - SymDim({term: coef})
        options, every = _dim_replacements(op, a, b, coef)
        results = (dim_nonnegative(rest + o, fuel - 1) for o in options)
        return all(results) if every else any(results)
    return _nonnegative_in_range(d)


def _nonnegative_in_range(d: SymDim) -> bool:
    """Of a sum of products of plain sizes: is it at least 0 where each product is at its worst?"""
    least = 0
    for term, coef in d.terms:
        low, high = 1, 1
        for atom in term:
            if atom[0] != "sym":
                return False
            below, above = range_of_size(cast(str, atom[1]))
            if above is None and coef < 0:
                return False
            low, high = low * below, high * (above or 0)
        least += coef * (low if coef > 0 else high)
    return least >= 0


def _atom_nonnegative(atom: tuple[object, ...]) -> bool:
    if atom[0] == "sym":
        return True
    if atom[0] not in ("floordiv", "mod") or not dim_nonnegative(cast(Dim, atom[2])):
        return False
    return atom[0] == "mod" or dim_nonnegative(cast(Dim, atom[1]))


def _dim_replacements(op: str, a: Dim, b: Dim, coef: int) -> tuple[list[Dim], bool]:
    """Dimensions that are at most `coef * op(a, b)`, and whether all are needed."""
    if op in ("min", "max"):
        return [a * coef, b * coef], (op == "min") == (coef > 0)
    if not dim_nonnegative(b):
        return [], False
    if op == "mod":
        options: list[Dim] = [(a - (a // b) * b) * coef] if isinstance((a // b), SymDim) else []
        options.append(0 if coef > 0 else (b - 1) * coef)
        return options, False
    if not isinstance(b, int):
        return ([0] if coef > 0 and dim_nonnegative(a) else []), False
    options = []
    if coef % b == 0:
        options.append(((a - (b - 1)) if coef > 0 else a) * (coef // b))
    if dim_nonnegative(a):
        options.append(0 if coef > 0 else a * coef)
    return options, False


def constant_upper(d: Dim) -> int | None:
    """A constant that a size never exceeds: remainders and minima have one."""
    if isinstance(d, int):
        return d
    total = 0
    for term, coef in d.terms:
        if not term:
            total += coef
            continue
        bound = (0 if all(_atom_nonnegative(a) for a in term) else None) if coef < 0 else None
        if len(term) == 1 and bound is None:
            bound = _atom_upper(term[0]) if coef > 0 else _atom_lower(term[0])
        if bound is None:
            return None
        total += coef * bound
    return total


def _atom_lower(atom: tuple[object, ...]) -> int | None:
    if atom[0] != "floordiv" or not isinstance(atom[2], int) or atom[2] < 0:
        return None
    negated = constant_upper(-cast(Dim, atom[1]))
    return None if negated is None else -negated // atom[2]


def _atom_upper(atom: tuple[object, ...]) -> int | None:
    if atom[0] == "mod":
        return max(atom[2] - 1, 0) if isinstance(atom[2], int) else None
    if atom[0] not in ("min", "max"):
        return None
    bounds = [constant_upper(cast(Dim, x)) for x in atom[1:]]
    known = [b for b in bounds if b is not None]
    if atom[0] == "min":
        return min(known, default=None)
    return max(known) if len(known) == 2 else None
