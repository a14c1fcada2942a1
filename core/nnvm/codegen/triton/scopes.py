"""Names, conditions and places while the source of a kernel is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from nnvm.te.expr import Expr, Var

__all__ = ["Masks", "Scopes", "Tile", "Value", "is_number", "paren"]

#: Conditions around, outermost first, each with whether it holds.
Masks = tuple[tuple[Expr, bool], ...]


@dataclass(frozen=True)
class Value:
    """Text of an expression, and the places of the tile along which it varies."""

    text: str
    dims: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Tile:
    """Where tile variables lie: their places, and the size of the tile along each place."""

    places: Mapping[Var, int]
    sizes: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def shape(self, dims: frozenset[int]) -> list[int]:
        return [n if p in dims else 1 for p, n in enumerate(self.sizes)]

    def lane(self, place: int) -> str:
        """Positions along a place."""
        around = ["None"] * self.rank
        around[place] = ":"
        index = f"[{', '.join(around)}]" if self.rank > 1 else ""
        return f"tl.arange(0, {self.sizes[place]}){index}"


@dataclass(eq=False)
class Scopes:
    """What is known at a point of the source.

    Attributes:
        tile: where the tile variables lie just now.
        line: takes a line of source.
        names: of variables and local buffers.
        taken: names that are in use.
    """

    tile: Tile
    line: Callable[[str], None]
    names: dict[object, Value] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    _masks: Masks = ()
    _known: list[dict[tuple[object, ...], Value]] = field(default_factory=lambda: [{}])
    _alive: list[Expr] = field(default_factory=list)  # their ids are in keys

    def value(self, e: Expr) -> Value:
        """The value of an expression."""
        raise NotImplementedError

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names that are made inside are not known after it."""
        self._known.append({})
        yield
        self._known.pop()

    @contextmanager
    def under(self, masks: Masks) -> Iterator[None]:
        """Memory is read and written only where `masks` hold, whatever is around."""
        before, self._masks = self._masks, masks
        yield
        self._masks = before

    @contextmanager
    def where(self, cond: Expr, holds: bool = True) -> Iterator[None]:
        """Memory is read and written only where `cond` holds (or does not)."""
        with self.under((*self._masks, (cond, holds))):
            yield

    @contextmanager
    def placed(self, tile: Tile) -> Iterator[None]:
        before, self.tile = self.tile, tile
        yield
        self.tile = before

    def unique(self, name: str) -> str:
        n, out = 1, name
        while out in self.taken:
            out, n = f"{name}_{n}", n + 1
        self.taken.add(out)
        return out

    def named(self, value: Value, name: str) -> Value:
        """`value` assigned to a variable."""
        label, text = self.unique(name), value.text
        self.line(f"{label} = {text[1:-1] if text.startswith('(') and closes(text) else text}")
        return Value(label, value.dims)

    def once(self, value: Value, name: str) -> Value:
        """`named`, or the variable that has the same value already."""
        key = ("once", value.text)
        if (found := self._find(key)) is None:
            found = self._known[-1][key] = self.named(value, name)
        return found

    def mask(self) -> Value | None:
        """The conditions around, as one; None where there are none."""
        if not self._masks:
            return None
        key = ("mask", *_ids(self._masks), id(self.tile))
        if (found := self._find(key)) is not None:
            return found
        values = []
        for n, (cond, holds) in enumerate(self._masks):
            v = self._condition(cond, self._masks[:n])
            values.append(v if holds else Value(f"~{paren(v.text)}", v.dims))
        if len(values) == 1 and self._masks[0][1]:
            return values[0]
        text = " & ".join(paren(v.text) for v in values)
        made = self.named(Value(text, frozenset().union(*(v.dims for v in values))), "mask")
        self._known[-1][key] = made
        return made

    def _condition(self, cond: Expr, around: Masks) -> Value:
        """A condition inside others: what it reads is there only where these hold."""
        with self.under(around):
            return self.value(cond)

    def _find(self, key: tuple[object, ...]) -> Value | None:
        for known in reversed(self._known):
            if key in known:
                return known[key]
        return None

    def _known_under(self, e: Expr, masks: Masks) -> tuple[int, Value] | None:
        """The value of `e` if it is known where `masks` hold or in more lanes, and how many of the masks that took."""
        ids = _ids(masks)
        for n in range(len(ids) + 1):
            if (found := self._find((id(e), id(self.tile), ids[:n]))) is not None:
                return n, found
        return None

    def _learn(self, e: Expr, masks: Masks, value: Value) -> None:
        """From now on `value` is that of `e` where `masks` hold."""
        self._alive.append(e)
        self._known[-1][id(e), id(self.tile), _ids(masks)] = value


def _ids(masks: Masks) -> tuple[tuple[int, bool], ...]:
    return tuple((id(c), holds) for c, holds in masks)


def is_number(text: str) -> bool:
    """Is it a number of Python's rather than a value of Triton's?"""
    try:
        float(text.removeprefix('float("').removesuffix('")'))
    except ValueError:
        return False
    return True


def paren(text: str) -> str:
    """`text` as an operand of whatever follows."""
    return text if text.replace("_", "").isalnum() or (text.startswith("(") and closes(text)) else f"({text})"


def closes(text: str) -> bool:
    """Is the first parenthesis the one that the last closes?"""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return i == len(text) - 1
    return False
