"""Which register tile, blocks and parts of the reduction a contraction is computed in.

A register tile is the one of the least cycles (`contraction_tile`). A block of rows is as large as the second cache
allows, so that all of the column tiles find its part of `x` there; where the part of `w` that a column tile needs is
too large for the caches, the reduction is cut in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nnvm.dim import Dim, estimate, numel
from nnvm.schedules.cpu.contraction_match import Contraction
from nnvm.schedules.cpu.contraction_tile import Blocks, RegisterTile, tile_rows
from nnvm.target import Target
from nnvm.te.tensor import IterVar

__all__ = ["CHUNK_TILES", "PARALLEL_ITERATIONS", "Choice"]

#: Blocks there should be still when images of a batch share one.
PARALLEL_BLOCKS = 8
#: Iterations that a parallel loop should have, so that threads share them evenly.
PARALLEL_ITERATIONS = 32
#: Steps along the rows, and multiply-adds, that are worth a block of their own for threads to share.
SHARED_STEPS, SHARED_WORK = 8, 1 << 18
#: Rows of a block that are few: each block reads all of `w`.
FEW_ROWS = 48
#: Rows of which a tile needs more vectors than a packed weight has side by side.
VERY_FEW_ROWS = 3
#: Rows that there may be, and the size of an axis, where only the call knows it and none is likely.
MANY_ROWS, UNKNOWN_SIZE = 1 << 24, 64
#: Steps of a part of the reduction: enough to hide that the sums are loaded and stored.
PART_STEPS = 256
#: Steps that may be summed up one after the other; longer sums are cut, as their rounding errors would grow.
EXACT_STEPS = 384
#: Cycles of a step that `step_cycles` leaves out, for matrices: a few rows left over cost less than smaller tiles.
MATRIX_STEP = 0.5
#: Cost of a byte from memory, as a number of bytes from the third cache.
FAR = 1.5
#: Blocks of packed rows that there are at least.
PACKED_BLOCKS = 4
#: Column tiles that share a prologue or a block of partial sums.
CHUNK_TILES = 4


@dataclass(frozen=True, eq=False)
class Choice:
    """What the sizes of a contraction are chosen by.

    Attributes:
        tensor_axis: axes of the output's stage -> axes of the output.
        role: of the same axes of the stage, as `Contraction.role` has it.
        lanes: elements of a vector.
        prologue, packed: whether something is computed for a block of rows first, whether the kernel packs its columns.
        cut: whether the reduction may be cut into parts.
    """

    c: Contraction
    target: Target
    tensor_axis: Mapping[IterVar, IterVar]
    role: Mapping[IterVar, str]
    lanes: int
    prologue: bool
    packed: bool
    cut: bool

    def axes(self, role: str) -> list[IterVar]:
        return [a for a, r in self.role.items() if r == role]

    def long_rows(self) -> list[IterVar]:
        """The row axes that are loops."""
        return [a for a in self.axes("row") if a.extent != 1]

    # -- the register tile --------------------------------------------------------------------------------------------

    def row_axis(self) -> IterVar | None:
        """The row axis that tiles are made of: the innermost that is long enough, or else the longest."""
        rows = self.long_rows()
        for a in reversed(rows):
            if not isinstance(a.extent, int) or a.extent >= 4:
                return a
        return max(rows, key=lambda a: int(a.extent) if isinstance(a.extent, int) else 0, default=None)

    def tile(self, vector: IterVar) -> RegisterTile:
        """The register tile of the least cycles for all rows and columns."""
        c, registers = self.c, self.target.vector_registers
        own = self.tensor_axis[vector].var
        block = min((b for b in (c.w.block(own), c.x.block(own)) if b is not None), default=self.lanes)
        row, extra = self.row_axis(), None
        if isinstance(vector.extent, int) and vector.extent <= self.lanes:  # blocked layouts: take several blocks
            extra = next((a for a in reversed(self.axes("column")) if a is not vector and a.extent != 1), None)
        extent = 1 if row is None else self._likely_rows(row)
        count: Dim = vector.extent // self.lanes if extra is None else extra.extent
        most = 6 if not isinstance(count, int) else min(6, max(1, count))
        options: list[tuple[float, int, int]] = []
        alone = extra is None and len(self.long_rows()) == 1
        overhead = MATRIX_STEP if alone else 0.0
        for vectors in range(1, most + 1):
            if extra is None and vectors > 1 and not self._fits(vectors * self.lanes, block, extent, vector.extent):
                continue
            rows, cycles = tile_rows(extent, vectors, registers, overhead)
            if isinstance(count, int):
                left = count % vectors
                rest = tile_rows(extent, left, registers, overhead)[1] if left else 0.0
                options.append(((count // vectors * cycles + rest) / max(count, 1), vectors, rows))
            else:
                options.append((cycles / vectors, vectors, rows))
        _, vectors, rows = min(options)
        inside, outside = (vectors, 1) if extra is None else (1, vectors)
        return RegisterTile(row, extra, rows, inside, outside)

    def _fits(self, width: int, block: int, rows: int, columns: Dim) -> bool:
        """Whether a tile of `width` columns straddles no block: it is a part of one, or several whole ones where there
        are so few rows that otherwise a sum would wait for itself."""
        if width <= block:
            return block % width == 0
        return rows <= VERY_FEW_ROWS and width % block == 0 and isinstance(columns, int) and columns % width == 0

    def _likely_rows(self, row: IterVar) -> int:
        """How far the axis of row tiles runs; where only the call knows it, as far as is likely. Few rows of a single
        axis are not counted on: tiles for them read `w` too often for many."""
        if isinstance(row.extent, int):
            return row.extent
        likely = estimate(row.extent, MANY_ROWS)
        return likely if likely >= FEW_ROWS or len(self.long_rows()) > 1 else MANY_ROWS

    # -- blocks for the caches ----------------------------------------------------------------------------------------

    def blocks(self, tile: RegisterTile) -> Blocks:
        """Blocks of rows whose part of `x` stays in the second cache, parts of the reduction whose part of `w` stays
        in the first."""
        reduced = [a.extent for a in self.c.master.reduce_axes]
        steps = numel(tuple(reduced))
        per_row = self._row_bytes()
        images, count = self._images(tile, per_row)
        one, known = self._step_rows(tile), isinstance(count, int)
        rows = count if isinstance(count, int) else MANY_ROWS
        if per_row * rows <= self.target.l2_bytes * 8 // 10 or (known and self._rather_whole(tile, rows, per_row)):
            fit = rows
        else:
            fit = max(1, self.target.l2_bytes * 6 // 10 // max(1, per_row))
        if self.prologue and known:
            fit = min(fit, self._shared(tile, rows, max(1, one)))
        blocked = fit < rows
        part = self._part(tile, reduced, self.packed and fit * 4 < rows) if self.cut else None
        if part is not None and self._can_cut(tile):
            # Blocks of rows read (or pack) all of `w` once each, which is hidden behind the sums of enough rows.
            few = fit * 4 < rows if self.packed else fit < FEW_ROWS
            long = not self.prologue and blocked and few
            if long:
                assert isinstance(steps, int)
                fit = max(1, self.target.l2_bytes // 2 * steps // max(1, per_row * PART_STEPS))
            if min(fit, rows) >= 4 * tile.rows or (isinstance(steps, int) and steps > EXACT_STEPS):
                return Blocks(self._even(fit, rows, one), part, long, images)
        return Blocks(self._even(fit, rows, one), None, False, images)

    def _shared(self, tile: RegisterTile, rows: int, one: int) -> int:
        """Rows of a block, of `rows` in steps of `one`, where there are few images and columns for threads to share: a
        block's prologue belongs to one thread; in the first cache it is nearer, too. The windows of blocks overlap, and
        each block reads all of `w`: they are not too small, nor is that too large."""
        others = [a for a in self.axes("row") if a is not tile.row][:-1]
        around = numel(tuple(a.extent for a in (*others, *self.axes("batch"), *self.axes("free"))))
        columns, w = numel(tuple(a.extent for a in self.axes("column"))), numel(self.c.w.tensor.shape)
        steps = numel(tuple(a.extent for a in self.c.master.reduce_axes))
        if not all(isinstance(n, int) for n in (around, columns, w, steps)):
            return rows
        assert isinstance(around, int) and isinstance(columns, int) and isinstance(w, int) and isinstance(steps, int)
        if w * self.c.w.tensor.dtype.bytes > self.target.l2_bytes // 2:
            return rows
        tiles = columns // (tile.vectors * self.lanes)
        there = max(1, around * (tiles // CHUNK_TILES if tiles >= 2 * CHUNK_TILES else 1))
        whole = -(-rows // one)
        count = min(PARALLEL_ITERATIONS // there, whole // SHARED_STEPS, rows * columns * steps // SHARED_WORK)
        return -(-whole // max(1, count)) * one

    def _images(self, tile: RegisterTile, per_row: int) -> tuple[int | None, Dim]:
        """How many steps of the row axis outside of the last two (images of a batch) a block has, and its rows before
        they are cut. Each block reads all of `w`, which comes from memory: images that are small share it."""
        rows = self.axes("row")
        others = [a for a in rows if a is not tile.row]
        whole = numel(tuple(a.extent for a in rows))
        if len(others) < 2 or tile.row is None:
            return None, whole
        batch, inside = others[-2].extent, numel((others[-1].extent, tile.row.extent))
        if not isinstance(batch, int):
            return None, whole
        columns, w = numel(tuple(a.extent for a in self.axes("column"))), numel(self.c.w.tensor.shape)
        if not (isinstance(inside, int) and isinstance(columns, int) and isinstance(w, int)):
            return None, inside
        if w * self.c.w.tensor.dtype.bytes <= self.target.l2_bytes // 2 or self.axes("batch"):
            return None, inside
        chunks = columns // (tile.vectors * self.lanes * (CHUNK_TILES if self.prologue else 1))
        images = 1
        for n in range(2, batch + 1):
            if batch % n or chunks * batch // n < PARALLEL_BLOCKS:
                continue
            if per_row * inside * n <= self.target.l2_bytes * 6 // 10 or self._rather_whole(tile, inside * n, per_row):
                images = n
        return (images, inside * images) if images > 1 else (None, inside)

    def packed_blocks(self, tile: RegisterTile) -> Blocks:
        """Blocks of packed rows, which half of the second cache holds; several, so that threads share them."""
        (k,) = self.c.master.reduce_axes
        assert tile.row is not None and isinstance(tile.row.extent, int) and isinstance(k.extent, int)
        tiles = -(-tile.row.extent // tile.rows)
        fit = self.target.l2_bytes // (2 * self.c.x.tensor.dtype.bytes * k.extent * tile.rows)
        count = max(-(-tiles // max(1, fit)), min(PACKED_BLOCKS, tiles * tile.rows // FEW_ROWS))
        part = self._part(tile, [k.extent], False) if self.cut and self._can_cut(tile) else None
        return Blocks(-(-tiles // count) if count > 1 else None, part, False)

    def _rather_whole(self, tile: RegisterTile, rows: int, per_row: int) -> bool:
        """Whether reading `x` from beyond the second cache for each column tile is less than reading a large `w`,
        which comes from memory, once more for each further block of rows."""
        columns, weight = numel(tuple(a.extent for a in self.axes("column"))), numel(self.c.w.tensor.shape)
        if not isinstance(columns, int) or not isinstance(weight, int):
            return False
        blocks = -(-per_row * rows // (self.target.l2_bytes * 6 // 10))
        again = (blocks - 1) * weight * self.c.w.tensor.dtype.bytes
        return per_row * rows * (columns // (tile.vectors * self.lanes)) <= again * FAR

    def _even(self, fit: int, rows: int, one: int) -> int | None:
        """Steps of the blocked axis, of `one` row each, in blocks of about equal size with at most `fit` rows."""
        if fit >= rows:
            return None
        count = -(-rows // one)
        return -(-count // -(-count // max(1, fit // one)))

    def _row_bytes(self) -> int:
        """Bytes of `x` per row, counting what rows share once; an estimate where sizes are not known."""
        x = self.c.x.tensor
        many = numel(tuple(a.extent for a in (*self.axes("row"), *self.axes("batch"))))
        return estimate(numel(x.shape) * x.dtype.bytes // (many if many != 0 else 1), UNKNOWN_SIZE)

    def _step_rows(self, tile: RegisterTile) -> int:
        """Rows in one step of the axis that is cut into blocks: of a tile, or (an estimate of) all rows of the tiles'
        axis."""
        if len(self.long_rows()) < 2 or tile.row is None:
            return tile.rows
        return estimate(tile.row.extent, UNKNOWN_SIZE)

    def _part(self, tile: RegisterTile, reduced: list[Dim], always: bool) -> int | None:
        """Steps of the first reduce loop in one part; None: the part of `w` for a column tile is small enough.

        A single stream of `w` is prefetched well from the second cache; several (blocked layouts) are not."""
        steps = numel(tuple(reduced))
        panel = tile.vectors * self.lanes * self.c.w.tensor.dtype.bytes
        room = self.target.l1_bytes * 3 // 4 if tile.outside > 1 else self.target.l2_bytes // 4
        first = reduced[0]
        if not isinstance(steps, int) or not isinstance(first, int):
            return None
        if steps * panel <= room and steps <= EXACT_STEPS and not always:
            return None
        inner = steps // first
        most = min(PART_STEPS, room // panel) if tile.outside > 1 else PART_STEPS
        part = -(-first // -(-first // max(1, most // inner)))
        return None if part * inner >= steps or part * inner > 2 * PART_STEPS else part

    def _can_cut(self, tile: RegisterTile) -> bool:
        """Partial sums need the tile's axes to be axes of the master itself."""
        return all(
            a is None or self.c.master_axis(self.tensor_axis[a]) is not None for a in (tile.row, tile.extra)
        ) and (tile.row is not None)
