"""Query rows of attention's register tiles and of its blocks, by what a head then costs in cycles.

The last tile of a block overlaps the one before it, the last block of a head the one before: rows that are computed
twice are the price of one size of tile. Under a causal mask smaller blocks compute fewer scores that do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from nnvm.schedules.cpu.contraction_tile import most_rows, step_cycles

__all__ = ["RowBlocks", "choose_blocks", "row_blocks"]

#: Cycles of a step of a tile beside its multiply-adds, and of the first tile of a block, for which keys or values come
#: from the second cache.
STEP, FIRST = 0.5, 1.0
#: Cycles of the softmax for a vector of scores.
SOFTMAX = 10.0
#: Rows from which on it matters little how many are left over.
MANY = 1024


@dataclass(frozen=True)
class RowBlocks:
    """Rows of a register tile, and of a block: whole tiles of it."""

    tile: int
    block: int


@lru_cache(maxsize=256)
def choose_blocks(rows: int, keys: int, most: int, lanes: int, registers: int, causal: bool) -> RowBlocks:
    """The best for `rows` rows of `keys` keys each, with at most `most` rows in a block where a tile has no more."""
    rows = max(1, min(rows, MANY))
    options = []
    for tile in range(1, min(rows, most_rows(2, registers)) + 1):
        for tiles in range(1, max(1, min(most, rows) // tile) + 1):
            blocks = RowBlocks(tile, tiles * tile)
            options.append((_cycles(blocks, rows, keys, lanes, causal), -blocks.block, tile, blocks))
    return min(options, key=lambda o: o[:3])[3]


def row_blocks(rows: int, blocks: RowBlocks) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each block."""
    for start in range(0, rows, blocks.block):
        first = max(0, min(start, rows - blocks.tile))
        yield first, min(blocks.block, rows - first)


def _cycles(blocks: RowBlocks, rows: int, keys: int, lanes: int, causal: bool) -> float:
    """Of both products and the softmax, for each of a head's columns; its head size is taken for 64."""
    step, width, total = step_cycles(blocks.tile, 2) + STEP, 2 * lanes, 0.0
    for first, count in row_blocks(rows, blocks):
        here = min(keys, first + count) if causal else keys
        steps = -(-here // width) * width + here  # of the two products, by vectors of a panel
        total += steps / width * (-(-count // blocks.tile) * step + FIRST)
        total += count * -(-here // lanes) * SOFTMAX / 64
    return total
