"""Register tiles and blocks of a contraction: their sizes, and what a step of a tile costs."""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.dim import Dim
from nnvm.te.tensor import IterVar

__all__ = ["Blocks", "RegisterTile", "most_rows", "step_cycles", "tile_rows"]


def step_cycles(rows: int, vectors: int) -> float:
    """Cycles of one step of the reduce loop: two multiply-adds and two loads a cycle, four cycles until the same
    accumulator can be added to again."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0)


def most_rows(vectors: int, registers: int) -> int:
    """Rows of a register tile at most: beside the sums, a step of `w` and an element of `x` are in registers."""
    return max(1, (registers - vectors - 1) // vectors)


def tile_rows(extent: Dim, vectors: int, registers: int, overhead: float = 0.0) -> tuple[int, float]:
    """Rows of a register tile, and the cycles per row that all the row tiles take on average; `overhead` is added to
    each step of each."""
    most = most_rows(vectors, registers)
    if not isinstance(extent, int):
        return most, step_cycles(most, vectors) / most
    if extent == 0:
        return 1, 0.0
    options = []
    for rows in range(1, min(most, extent) + 1):
        rest = extent % rows
        cycles = extent // rows * (step_cycles(rows, vectors) + overhead)
        cycles += step_cycles(rest, vectors) + overhead if rest else 0.0
        options.append((cycles / extent, -(-extent // rows), rest > 0, -rows))  # even tiles share a panel evenly
    cycles, _, _, negated = min(options)
    return -negated, cycles


@dataclass(frozen=True)
class RegisterTile:
    """A register tile: `rows` of `row` by `inside` vectors of the vector axis by `outside` steps of `extra`."""

    row: IterVar | None
    extra: IterVar | None
    rows: int
    inside: int
    outside: int

    @property
    def vectors(self) -> int:
        return self.inside * self.outside


@dataclass(frozen=True)
class Blocks:
    """What is worked on at a time.

    Attributes:
        rows: steps of the blocked row axis; None: all.
        images: steps of the row axis outside of the last two that are in a block with all of these; None: one.
        part: steps of the first reduce loop in one part of the reduction; None: it is not cut.
        across: each part of the reduction runs over a chunk of columns (the rows of `x` are too long for the second
            cache), not over one column tile.
    """

    rows: int | None
    part: int | None
    across: bool
    images: int | None = None
