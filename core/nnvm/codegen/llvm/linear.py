"""Index arithmetic as linear forms over emitted values: a constant plus integer multiples of i64 values.

Kept symbolic until an address is needed, so that constants end up in the address's displacement and every part is
computed in the scope it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.codegen.llvm.builder import Builder, Range

__all__ = ["Lin", "add", "bounds", "divide", "is_constant", "materialise", "pointer", "remainder", "scale",
           "split"]  # fmt: skip

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(slots=True)
class Lin:
    """`const + sum(coefficient * value)`; immutable by convention, zero coefficients never kept."""

    terms: dict[str, int]
    const: int = 0


def is_constant(a: Lin) -> bool:
    return not a.terms


def add(a: Lin, b: Lin, factor: int = 1) -> Lin:
    """a + factor * b."""
    if not b.terms:
        return Lin(a.terms, a.const + factor * b.const)
    terms = dict(a.terms)
    for value, coefficient in b.terms.items():
        total = terms.get(value, 0) + factor * coefficient
        if total:
            terms[value] = total
        else:
            terms.pop(value, None)
    return Lin(terms, a.const + factor * b.const)


def scale(a: Lin, factor: int) -> Lin:
    if factor == 1:
        return a
    if factor == 0:
        return Lin({})
    return Lin({v: c * factor for v, c in a.terms.items()}, a.const * factor)


def bounds(b: Builder, a: Lin) -> Range | None:
    """Least and greatest value, or None where an operand is arbitrary data (and the sum may wrap)."""
    low = high = a.const
    for value, coefficient in a.terms.items():
        known = b.ranges.get(value)
        if known is None:
            return None
        low += coefficient * known[coefficient < 0]
        high += coefficient * known[coefficient > 0]
    return (low, high) if low >= _LEAST and high <= _GREATEST else None


def materialise(b: Builder, a: Lin) -> str:
    """The i64 value of a form."""
    if not a.terms:
        return str(_wrap(a.const))
    total = ""
    for group in _by_depth(b, a):
        total = _sum(b, group, total)
    if a.const:
        total = b.pure(f"add i64 {total}, {_wrap(a.const)}", (total,), cheap=True)
    known = bounds(b, a)
    if known is not None:
        b.ranges.setdefault(total, known)
    return total


def pointer(b: Builder, base: str, a: Lin, size: int) -> str:
    """`base` plus `a` elements of `size` bytes: one step per scope, the constant last, as a displacement."""
    at = base
    if a.terms:
        key = (base, size, *a.terms.items())
        known = b.cse.get(key)
        if known is None:
            for group in _by_depth(b, a):
                offset = _sum(b, [(v, c * size) for v, c in group], "")
                at = b.pure(f"getelementptr i8, ptr {at}, i64 {offset}", (at, offset), cheap=True)
            b.remember_for(key, at)
        else:
            at = known
    if a.const:
        at = b.pure(f"getelementptr i8, ptr {at}, i64 {_wrap(a.const * size)}", (at,), cheap=True)
    return at


def _by_depth(b: Builder, a: Lin) -> list[list[tuple[str, int]]]:
    depth = b.depth
    if len(a.terms) == 1:
        return [list(a.terms.items())]
    groups: dict[int, list[tuple[str, int]]] = {}
    for value, coefficient in a.terms.items():
        groups.setdefault(depth.get(value, 0), []).append((value, coefficient))
    return [sorted(groups[d]) for d in sorted(groups)]


def _sum(b: Builder, group: list[tuple[str, int]], total: str) -> str:
    for value, coefficient in group:
        term = value
        if coefficient != 1:
            term = b.pure(f"mul i64 {value}, {_wrap(coefficient)}", (value,), cheap=True)
        total = b.pure(f"add i64 {total}, {term}", (total, term), cheap=True) if total else term
    return total


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def divide(b: Builder, a: Lin, divisor: int) -> Lin | None:
    """Floor division by a positive constant as a form; None where the form has arbitrary data in it."""
    known = bounds(b, a)
    if known is None:
        return None
    quotient, rest = split(a, divisor)
    if (low := bounds(b, rest)) is None:
        return None
    if low[0] // divisor == low[1] // divisor:
        return add(quotient, Lin({}, low[0] // divisor))
    value = materialise(b, rest)
    if low[0] >= 0:
        out = b.pure(f"udiv i64 {value}, {divisor}", (value,), cheap=True)
    elif divisor & (divisor - 1) == 0:
        out = b.pure(f"ashr i64 {value}, {divisor.bit_length() - 1}", (value,), cheap=True)
    else:
        out = _floor_divide(b, value, divisor)
    b.ranges.setdefault(out, (low[0] // divisor, low[1] // divisor))
    return add(quotient, Lin({out: 1}))


def remainder(b: Builder, a: Lin, divisor: int) -> Lin | None:
    """Floor remainder by a positive constant as a form; None where the form has arbitrary data in it."""
    if bounds(b, a) is None:
        return None
    _, rest = split(a, divisor)
    known = bounds(b, rest)
    if known is None:
        return None
    if known[0] // divisor == known[1] // divisor:
        return add(rest, Lin({}, -(known[0] // divisor) * divisor))
    quotient = divide(b, rest, divisor)
    assert quotient is not None
    if divisor & (divisor - 1) == 0:
        value = materialise(b, rest)
        out = b.pure(f"and i64 {value}, {divisor - 1}", (value,), cheap=True)
        b.ranges.setdefault(out, (0, divisor - 1))
        return Lin({out: 1})
    # x - x // d * d rather than a second division; its value is known to lie in 0 .. d - 1
    out = materialise(b, add(rest, scale(quotient, -divisor)))
    b.ranges[out] = (0, divisor - 1)
    return Lin({out: 1})


def split(a: Lin, divisor: int) -> tuple[Lin, Lin]:
    """The quotient of what divides exactly, and what is left."""
    exact = {v: c // divisor for v, c in a.terms.items() if c % divisor == 0}
    rest = {v: c for v, c in a.terms.items() if c % divisor}
    return Lin(exact, a.const // divisor), Lin(rest, a.const % divisor)


def _floor_divide(b: Builder, value: str, divisor: int) -> str:
    """Floor division of a possibly negative value: truncate, then step down where the remainder is negative."""
    quotient = b.pure(f"sdiv i64 {value}, {divisor}", (value,), cheap=True)
    back = b.pure(f"mul i64 {quotient}, {divisor}", (quotient,), cheap=True)
    above = b.pure(f"icmp sgt i64 {back}, {value}", (back, value), cheap=True)
    step = b.pure(f"sext i1 {above} to i64", (above,), cheap=True)
    return b.pure(f"add i64 {quotient}, {step}", (quotient, step), cheap=True)
