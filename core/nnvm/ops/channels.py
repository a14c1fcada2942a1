"""Coordinates that may be split into blocks: bodies read tensors of any layout with plain axes where blocks agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nnvm import te
from nnvm.graph.layout import Layout
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__ = ["Coordinate", "coordinates", "read_at"]


@dataclass(frozen=True)
class Coordinate:
    """A position along one axis: `outer * block + inner` with 0 <= inner < block."""

    outer: Expr
    inner: Expr
    block: int = 1

    @staticmethod
    def of(e: Expr) -> Coordinate:
        return Coordinate(e, te.const(0), 1)

    @property
    def linear(self) -> Expr:
        return self.outer * self.block + self.inner

    def in_blocks(self, block: int) -> Coordinate:
        """The same position in other blocks; without arithmetic where the blocks agree."""
        if block == self.block:
            return self
        if block == 1:
            return Coordinate.of(self.linear)
        if block % self.block == 0:
            ratio = block // self.block
            return Coordinate(self.outer // ratio, (self.outer % ratio) * self.block + self.inner, block)
        if self.block % block == 0:
            ratio = self.block // block
            return Coordinate(self.outer * ratio + self.inner // block, self.inner % block, block)
        return Coordinate(self.linear // block, self.linear % block, block)


def coordinates(layout: Layout, indices: tuple[Expr, ...]) -> dict[str, Coordinate]:
    """The coordinate along each plain axis of the element at `indices` of a tensor of this layout."""
    out: dict[str, Coordinate] = {}
    for name in layout.names:
        inner = layout.inner(name)
        outer = indices[layout.outer(name)]
        out[name] = Coordinate(outer, te.const(0) if inner is None else indices[inner], layout.block(name))
    return out


def read_at(t: Tensor, layout: Layout, at: Mapping[str, Coordinate]) -> Expr:
    """The element of `t`, which has this layout, at a coordinate of each plain axis."""
    split = {name: c.in_blocks(layout.block(name)) for name, c in at.items()}
    return t[tuple(split[a.name].outer if a.block is None else split[a.name].inner for a in layout.axes)]
