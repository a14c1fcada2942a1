"""Layouts: what the axes of a tensor mean and how some of them are split into blocks.

In ``NCHW8c`` the capital letters are the axes of the plain tensor, in the order in which they lie in memory; ``8c`` is
an axis of 8 positions inside one step of ``C``, which then counts blocks. A size that the block does not divide is
padded with zeros. An axis stands before its block and has at most one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nnvm.dim import Dim, Shape, ceildiv

__all__ = ["Axis", "Layout"]

_TOKEN = re.compile(r"([A-Z])|(\d+)([a-z])")


@dataclass(frozen=True)
class Axis:
    """One axis in memory: `name` is its capital letter; `block` is None for the outer one, else its fixed extent."""

    name: str
    block: int | None = None


@dataclass(frozen=True)
class Layout:
    """A parsed layout.

    Attributes:
        text: as written.
        axes: in the order of memory.

    >>> Layout.parse("NCHW8c").shape({"N": 1, "C": 20, "H": 7, "W": 7})
    (1, 3, 7, 7, 8)
    """

    text: str
    axes: tuple[Axis, ...]

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout of that name, the same object each time; ValueError says what is wrong with it."""
        return _parse(text)

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def names(self) -> str:
        """The capital letters in their order: the layout without its blocks."""
        return "".join(a.name for a in self.axes if a.block is None)

    @property
    def is_blocked(self) -> bool:
        return any(a.block is not None for a in self.axes)

    def block(self, name: str) -> int:
        """Extent of the block of an axis; 1 where it has none."""
        return next((a.block for a in self.axes if a.name == name and a.block is not None), 1)

    def outer(self, name: str) -> int:
        """Position in memory of the axis itself; ValueError where there is none."""
        return self._position(Axis(name))

    def inner(self, name: str) -> int | None:
        """Position in memory of its block; None where it has none."""
        return next((i for i, a in enumerate(self.axes) if a.name == name and a.block is not None), None)

    def _position(self, axis: Axis) -> int:
        if axis not in self.axes:
            raise ValueError(f"layout {self} has no axis {axis.name}")
        return self.axes.index(axis)

    def shape(self, sizes: Mapping[str, Dim]) -> Shape:
        """Extents in memory of a tensor whose plain axes have these sizes; blocks are rounded up."""
        return tuple(ceildiv(sizes[a.name], self.block(a.name)) if a.block is None else a.block for a in self.axes)

    def sizes(self, shape: Shape) -> dict[str, Dim]:
        """Sizes of the plain axes, zero padding included; ValueError where `shape` is none of this layout."""
        if len(shape) != self.rank or any(a.block not in (None, d) for a, d in zip(self.axes, shape)):
            raise ValueError(f"the shape [{', '.join(map(str, shape))}] is not of layout {self}")
        return {a.name: d * self.block(a.name) for a, d in zip(self.axes, shape) if a.block is None}

    def __str__(self) -> str:
        return self.text


@cache
def _parse(text: str) -> Layout:
    axes: list[Axis] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"layout {text!r}: {text[at:]!r} is neither a capital letter nor a block such as 8c")
        axis = Axis(token[1]) if token[1] else Axis(token[3].upper(), int(token[2]))
        if axis.block == 0:
            raise ValueError(f"layout {text!r}: the block {token[0]} is empty")
        same = [a for a in axes if a.name == axis.name and (a.block is None) == (axis.block is None)]
        if same or (axis.block is not None and Axis(axis.name) not in axes):
            raise ValueError(f"layout {text!r}: {'axis or block' if same else 'no axis before the block'} {token[0]}"
                             f"{' appears twice' if same else ''}")  # fmt: skip
        axes.append(axis)
        at = token.end()
    if not axes:
        raise ValueError("a layout needs at least one axis")
    return Layout(text, tuple(axes))
