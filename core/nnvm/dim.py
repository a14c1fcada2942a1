"""Dimensions: an ``int``, or a ``SymDim``, an integer expression over named sizes known only at the call.

A SymDim is kept in one canonical form, a sum of products of atoms with integer coefficients, so that equal
expressions are equal objects: ``(s + 1) * 2 == 2 * s + 2``. An atom is a name or a floor division, remainder,
maximum or minimum of two expressions. Arithmetic that comes out constant gives an ``int`` again.
Nested divisions by constants are one: ``((s - 1) // 2) // 2 == (s + 3) // 4 - 1``.
Names stand for sizes and are taken to be at least 0; ``floordiv`` and ``mod`` are Python's. While a graph is compiled,
`known_ranges` says between which values its sizes lie.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Union, cast

__all__ = ["Dim", "Shape", "SymDim", "as_dim", "as_partial_shape", "as_shape", "ceildiv", "dim_abs", "dim_max",
           "dim_min", "estimate", "evaluate", "is_static", "known_ranges", "likely_sizes", "numel", "range_of_size",
           "ranges_key", "row_major", "substitute", "symbol", "symbols"]  # fmt: skip

Dim = Union[int, "SymDim"]
Shape = tuple[Dim, ...]
Atom = tuple[object, ...]  # ("sym", name) | (op, Dim, Dim) with op in floordiv, mod, max, min
Term = tuple[Atom, ...]  # product of atoms, sorted; () is the constant term


class SymDim:
    """An immutable integer expression; build with `symbol` and Python's operators."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Term, int]) -> None:
        self.terms: tuple[tuple[Term, int], ...] = tuple(sorted(terms.items(), key=_term_order))
        self._hash = hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymDim) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        out = dict(self.terms)
        for term, coef in _terms(other):
            out[term] = out.get(term, 0) + coef
        return _make(out)

    def __mul__(self, other: Dim) -> Dim:
        out: dict[Term, int] = {}
        for ta, ca in self.terms:
            for tb, cb in _terms(other):
                term = tuple(sorted(ta + tb, key=repr))
                out[term] = out.get(term, 0) + ca * cb
        return _make(out)

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return _divide(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return _divide(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return _remainder(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return _remainder(other, self)

    def __repr__(self) -> str:
        return " + ".join(_show_term(t, c) for t, c in self.terms).replace("+ -", "- ")


def symbol(name: str) -> SymDim:
    """The size called `name`."""
    return SymDim({(("sym", name),): 1})


def as_dim(value: object) -> Dim:
    """A size that a user gives: TypeError where it is no integer and no SymDim, ValueError where it is negative."""
    if isinstance(value, SymDim):
        return value
    try:
        size = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        named = f"; a size with a name is nnvm.dim.symbol({value!r})" if isinstance(value, str) else ""
        raise TypeError(f"a size is an integer, got {value!r}{named}") from None
    if size < 0:
        raise ValueError(f"a size is at least 0, got {size}")
    return size


def as_shape(value: object, of: str) -> Shape:
    """A shape that a user gives, checked by `as_dim`; `of`: what it is the shape of, for the message."""
    shape = as_partial_shape(value, of)
    if None in shape:
        raise TypeError(f"{of}: the shape {shape} is not known as a whole")
    return cast("Shape", shape)


def as_partial_shape(value: object, of: str) -> tuple[Dim | None, ...]:
    """`as_shape` of a shape in which None is a size that is not known."""
    if not isinstance(value, Iterable) or isinstance(value, (str, Mapping)):
        raise TypeError(f"{of}: a shape is a tuple of sizes, got {value!r}")
    sizes = tuple(value)
    try:
        return tuple(None if d is None else as_dim(d) for d in sizes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{of}: the shape {sizes}: {error}") from None


_KNOWN: ContextVar[Mapping[str, tuple[int, int | None]] | None] = ContextVar("_KNOWN", default=None)


@contextmanager
def known_ranges(ranges: Iterable[tuple[str, int, int | None]]) -> Iterator[None]:
    """Inside the with block the named sizes lie between (least, greatest), both included; None: there is no greatest.

    What is proved with the help of them holds for these values only, so whoever runs the code must have checked them.
    """
    token = _KNOWN.set({name: (max(0, low), high) for name, low, high in ranges})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def range_of_size(name: str) -> tuple[int, int | None]:
    """(least, greatest) value of the named size, as `known_ranges` has it; else (0, None)."""
    return (_KNOWN.get() or {}).get(name, (0, None))


def ranges_key() -> tuple[tuple[str, tuple[int, int | None]], ...]:
    """All that `known_ranges` says, as a key: what was proved under one holds under an equal one."""
    return tuple((_KNOWN.get() or {}).items())


_LIKELY: ContextVar[Mapping[str, int] | None] = ContextVar("_LIKELY", default=None)


@contextmanager
def likely_sizes(sizes: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Inside the with block the named sizes probably have these values: those of a first call. Choices that are right
    for all values, and good for some, go by them (`estimate`)."""
    token = _LIKELY.set({name: max(1, size) for name, size in sizes})
    try:
        yield
    finally:
        _LIKELY.reset(token)


def estimate(d: Dim, otherwise: int) -> int:
    """A likely value of `d`; sizes of which `likely_sizes` says nothing count as `otherwise`, as does a `d` that
    divides by 0 then."""
    if isinstance(d, int):
        return d
    likely = _LIKELY.get() or {}
    try:
        return evaluate(d, {name: likely.get(name, otherwise) for name in symbols(d)})
    except ZeroDivisionError:
        return otherwise


def is_static(shape: tuple[Dim, ...]) -> bool:
    return all(isinstance(d, int) for d in shape)


def numel(shape: tuple[Dim, ...]) -> Dim:
    """Number of elements: the product of the dimensions, 1 for a scalar."""
    return math.prod(shape, start=1)  # type: ignore[arg-type]


def row_major(shape: Shape) -> Shape:
    """Strides of a contiguous tensor, in elements."""
    strides: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))


def ceildiv(a: Dim, b: Dim) -> Dim:
    return (a + (b - 1)) // b if isinstance(b, int) and b > 0 else -(-a // b)


def dim_max(a: Dim, b: Dim) -> Dim:
    return _fold("max", a, b, max)


def dim_min(a: Dim, b: Dim) -> Dim:
    return _fold("min", a, b, min)


def dim_abs(d: Dim) -> Dim:
    """The absolute value. Sums of sizes have it in their signs."""
    if isinstance(d, int):
        return abs(d)
    signs = {coef > 0 for term, coef in d.terms}
    of_sizes = all(atom[0] == "sym" for term, _ in d.terms for atom in term)
    if of_sizes and len(signs) == 1:
        return d if True in signs else -d
    return dim_max(d, -d)


def symbols(d: Dim) -> set[str]:
    """Names of the sizes an expression depends on."""
    if isinstance(d, int):
        return set()
    return {n for term, _ in d.terms for atom in term for n in _atom_symbols(atom)}


def substitute(d: Dim, env: Mapping[str, Dim]) -> Dim:
    """`d` with the named sizes in `env` replaced; names that are missing stay."""
    if isinstance(d, int):
        return d
    total: Dim = 0
    for term, coef in d.terms:
        product: Dim = coef
        for atom in term:
            product = product * _substitute_atom(atom, env)
        total = total + product
    return total


def evaluate(d: Dim, env: Mapping[str, int]) -> int:
    """Value of `d`; KeyError names a size that `env` lacks."""
    value = substitute(d, env)
    if not isinstance(value, int):
        raise KeyError(f"size {sorted(symbols(value))[0]} of {d} has no value")
    return value


@lru_cache(maxsize=1 << 15)
def _shown(term: Term) -> str:
    return repr(term)


def _term_order(item: tuple[Term, int]) -> str:
    return _shown(item[0])


def _terms(d: Dim) -> tuple[tuple[Term, int], ...]:
    return (((), d),) if isinstance(d, int) else d.terms


def _make(terms: dict[Term, int]) -> Dim:
    kept = {t: c for t, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return SymDim(kept)


def _atom(op: str, a: Dim, b: Dim) -> SymDim:
    return SymDim({((op, a, b),): 1})


def _divide(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1  # sizes that divide are taken to be positive
    exact: dict[Term, int] = {}
    rest: dict[Term, int] = {}
    for term, coef in _terms(a):
        if (quotient := _divide_term(term, coef, b)) is not None:
            exact[quotient[0]] = exact.get(quotient[0], 0) + quotient[1]
        else:
            rest[term] = coef
    if not isinstance(b, int) or b < 1:
        left = _make(rest)
        return _make(exact) if left == 0 else _make(exact) + _atom("floordiv", left, b)
    whole, const = divmod(rest.pop((), 0), b)
    left, divided = _make(rest), _make(exact) + whole
    if isinstance(left, int):  # no terms are left
        return divided
    if (inner := _as_division(left)) is not None:  # (x // d + const) // b
        return divided + _divide(inner[0] + const * inner[1], inner[1] * b)
    return divided + _atom("floordiv", left + const, b)


def _as_division(d: SymDim) -> tuple[Dim, int] | None:
    """(x, b) where `d` is x // b with a positive constant b."""
    term, coef = d.terms[0]
    if len(d.terms) != 1 or coef != 1 or len(term) != 1 or term[0][0] != "floordiv":
        return None
    x, b = cast(Dim, term[0][1]), cast(Dim, term[0][2])
    return (x, b) if isinstance(b, int) and b > 0 else None


def _divide_term(term: Term, coef: int, b: Dim) -> tuple[Term, int] | None:
    """The exact quotient of one product by `b`, when `b` is a constant or itself a single product."""
    divisor = _terms(b)
    if len(divisor) != 1 or coef % divisor[0][1]:
        return None
    left = list(term)
    for atom in divisor[0][0]:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left), coef // divisor[0][1]


def _remainder(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    rest = _make({t: c for t, c in _terms(a) if _divide_term(t, c, b) is None})
    if isinstance(rest, int) and isinstance(b, int):
        return rest % b
    return _atom("mod", rest, b)


def _fold(op: str, a: Dim, b: Dim, fn: Callable[[int, int], int]) -> Dim:
    difference = a - b
    if isinstance(difference, int):
        return (a if difference >= 0 else b) if op == "max" else (b if difference >= 0 else a)
    return _atom(op, *sorted((a, b), key=repr))


def _atom_symbols(atom: Atom) -> set[str]:
    if atom[0] == "sym":
        return {cast(str, atom[1])}
    return symbols(cast(Dim, atom[1])) | symbols(cast(Dim, atom[2]))


def _substitute_atom(atom: Atom, env: Mapping[str, Dim]) -> Dim:
    if atom[0] == "sym":
        return env.get(cast(str, atom[1]), SymDim({(atom,): 1}))
    a, b = substitute(cast(Dim, atom[1]), env), substitute(cast(Dim, atom[2]), env)
    op = {"floordiv": _divide, "mod": _remainder, "max": dim_max, "min": dim_min}[cast(str, atom[0])]
    return op(a, b)


def _show_term(term: Term, coef: int) -> str:
    if not term:
        return str(coef)
    names = [str(a[1]) if a[0] == "sym" else f"{a[0]}({a[1]}, {a[2]})" for a in term]
    return "*".join(names if coef == 1 else [str(coef), *names])
