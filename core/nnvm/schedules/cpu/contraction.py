"""Matrix products, convolutions and their kin: one schedule for every sum of products.

Seen from the elements of the output, an axis is a *row* if only the operand `x` depends on it, a *column* if only `w`
does, *batch* if both do. `w` is the operand that is contiguous along the output's contiguous axis (a packed weight, the
pixels of a plain image): the vector axis.

    parallel for the blocks of (batch, outer rows, block of rows, chunk of columns):
      prologue of the block (padding) -> scratch
      for the column tiles, the rows and the row tiles in the block:
        acc[R rows][V vectors] = 0, in registers
        for the reduce axes: acc[r][v] += broadcast(x[r, k]) * w[k, v]
        output tile = epilogue(acc)

R and V come from a model of one step of the innermost loop (`_tile`). Where the part of `w` that a column tile needs is
too large for the caches, the reduction is cut (`Blocks`): each part of it runs over all rows of the block, the
sums being kept in scratch memory in between. Large weights are fetched ahead (`contraction_prefetch`). Where no axis of
the output is contiguous in an operand but the last reduce axis is in both (a weight as PyTorch stores it), that is the
vector axis, and the accumulators are summed over their lanes at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim, estimate, numel
from nnvm.schedules.cpu.contraction_match import Contraction, match
from nnvm.schedules.cpu.contraction_pack import PAGE, far_rows, pack_axis, pack_columns, pack_rows
from nnvm.schedules.cpu.contraction_prefetch import FETCHED, Panel, prefetch_panels
from nnvm.schedules.cpu.contraction_tile import Blocks, RegisterTile, tile_rows
from nnvm.schedules.cpu.merge_axes import merge_rows
from nnvm.schedules.kernel import Strides
from nnvm.target import Target
from nnvm.te.expr import Cast, Expr
from nnvm.te.schedule import Schedule, ScheduleError, Stage
from nnvm.te.tensor import IterVar, Read, Tensor, topological
from nnvm.tir.lower import lower
from nnvm.tir.stmt import PrimFunc

__all__ = ["contraction", "match"]

#: Iterations that a parallel loop should have, so that threads share them evenly.
PARALLEL_ITERATIONS = 32
#: Blocks there should be still when images of a batch share one.
PARALLEL_BLOCKS = 8
#: Multiply-adds below which one thread does it all.
PARALLEL_WORK = 1 << 16
#: Rows of a block that are few: each block reads all of `w`.
FEW_ROWS = 48
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


def contraction(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """The kernel of a group whose only reduction is a sum of products; None where it is something else."""
    found = match(inputs, outputs, strides)
    if found is None:
        return None
    while found.vector is not None and (merged := merge_rows(found, inputs, outputs, strides)) is not None:
        if (again := match(*merged)) is None:
            break
        found, (inputs, outputs, strides) = again, merged
    for cut in (True, False):
        try:
            plan = _Plan(found, target, strides, cut)
            func = lower(plan.schedule, [*inputs, *outputs], name, strides)
            return plan.with_hints(func, inputs)
        except ScheduleError:
            # Blocks of sizes known at the call only cannot always be peeled, least of all where the reduction is cut.
            continue
    return None  # the row schedules take any reduction


class _Plan:
    """The schedule of one contraction."""

    def __init__(self, c: Contraction, target: Target, strides: Strides, cut: bool = True) -> None:
        """`cut`: whether the reduction may be cut into parts."""
        self.c, self.target, self.strides, self.cut = c, target, strides, cut
        self.schedule = s = Schedule(c.outputs)
        self.lanes = target.lanes(max(c.master.dtype.bits, 32))
        self.st = s[c.final]
        self.m = s[s.cache_write(c.master, "local") if c.master in c.outputs else c.master]
        self.st = s[c.final]
        self.prologue: list[Stage] = []
        #: Set where columns are vectors: the register tile, full ones in a block, steps of the first reduce axis in a
        #: part of the reduction.
        self.tile: RegisterTile | None = None
        self.tiles: int | None = None
        self.steps: int | None = None
        self.packed: Stage | None = None
        self.packed_rows: Stage | None = None
        self.far_columns = False
        self._place_elementwise()
        self._pack(strides)
        c = self.c
        #: The stage's own axes by the axes of the tensor, which the analysis speaks of.
        own = dict(zip(c.final.axes, self.st.axes))
        self.role = {own[a]: c.role(a) for a in c.final.axes}
        self.tensor_axis = {own[a]: a for a in c.final.axes}
        if c.vector is None:
            self._by_lanes()
        else:
            self._by_columns(own[c.vector])

    def _place_elementwise(self) -> None:
        """Inline what is elementwise, except outputs and what is worth keeping before the master (padding)."""
        before = set(topological([self.c.master]))
        for stage in list(self.schedule.stages):
            t = stage.tensor
            if t in self.c.outputs or stage.is_reduction:
                continue
            if t in before and not isinstance(_bare(stage.body), Read):
                self.prologue.append(stage)
            else:
                stage.inline()

    def _pack(self, strides: Strides) -> None:
        """Have the kernel pack its columns where they are not side by side and many rows use them."""
        axis = pack_axis(self.c, strides)
        if axis is not None and self.c.w.tensor not in {p.tensor for p in self.prologue}:
            block = self.lanes * 2
            step = self.c.w.step(self.c.master.reduce_axes[-1].var)
            self.far_columns = isinstance(step, int) and step * self.c.w.tensor.dtype.bytes >= PAGE
            self.c, self.packed = pack_columns(self.c, self.schedule, self.m, axis, block, strides)

    def _pack_rows(self, tile: RegisterTile) -> None:
        """Have the kernel pack its rows too where the steps of the reduction are far apart."""
        if self.packed is None or tile.row is None or self.prologue:
            return
        row = self.tensor_axis[tile.row]
        if far_rows(self.c, row, self.target):
            self.c, self.packed_rows = pack_rows(self.c, self.schedule, self.m, row, tile.rows, self.strides)

    def _packed_together(self, tile: RegisterTile, vector: IterVar, blocks: Blocks) -> int:
        """Column tiles that are packed at a time: several where each row of `w` is on a page of its own, of which one
        tile would read a cache line."""
        (k, *more), columns = self.c.master.reduce_axes, vector.extent
        if not self.far_columns or blocks.across or more or tile.extra is not None or not isinstance(k.extent, int):
            return 1
        width = tile.inside * self.lanes
        if not isinstance(columns, int) or columns < 2 * CHUNK_TILES * width or columns % width:
            return 1
        most = min(CHUNK_TILES, self.target.l2_bytes // (2 * k.extent * width * self.c.w.tensor.dtype.bytes))
        return max((n for n in range(1, most + 1) if columns // width % n == 0), default=1)

    def _axes(self, role: str) -> list[IterVar]:
        return [a for a, r in self.role.items() if r == role]

    # -- columns as vectors -------------------------------------------------------------------------------------------

    def _by_columns(self, vector: IterVar) -> None:
        st, lanes = self.st, self.lanes
        tile = self._tile(vector)
        self._pack_rows(tile)
        blocks = self._blocks(tile, vector) if self.packed_rows is None else self._packed_blocks(tile)
        self.tile, self.steps = tile, blocks.part
        count = 1 if tile.row is None else tile.row.extent
        if isinstance(count, int):
            self.tiles = count // tile.rows if blocks.rows is None else blocks.rows
        vo, vi = st.split(vector, tile.inside * lanes)
        vv, vl = st.split(vi, lanes)
        inner, written = [vo], [vv, vl]
        if tile.extra is not None:
            extra_o, extra_i = st.split(tile.extra, tile.outside)
            inner, written = [extra_o, vo], [extra_i, *written]
        columns = [a for a in self._axes("column") if a not in (vector, tile.extra)]
        others = [a for a in self._axes("row") if a is not tile.row]
        mid = [a for a in others[-1:] if a.extent != 1]
        outer = [a for a in (*self._axes("batch"), *self._axes("free"), *others) if a not in (vector, *mid)]
        rows = []
        if blocks.images is not None:
            images_o, images_i = st.split(outer.pop(), blocks.images)
            outer, mid = [*outer, images_o], [images_i, *mid]
        if tile.row is not None:
            row_o, row_i = st.split(tile.row, tile.rows)
            rows, written = [row_o], [row_i, *written]
        if blocks.rows is not None:
            blocked = mid or rows
            block, blocked[0] = st.split(blocked[0], blocks.rows)
            outer.append(block)
            if blocked is rows and not isinstance(count, int) and blocks.rows > PARALLEL_ITERATIONS:
                # Threads share strips, of which there may be none: there are no more tiles in a block than fit.
                rows = [*st.split(rows[0], -(-blocks.rows // PARALLEL_ITERATIONS))]
        if (self.prologue or blocks.across) and isinstance(inner[0].extent, int) and inner[0].extent >= 2 * CHUNK_TILES:
            wide = self.prologue or inner[0].extent >= CHUNK_TILES * PARALLEL_ITERATIONS
            first, inner[0] = st.split(inner[0], CHUNK_TILES if wide else CHUNK_TILES // 2)
            outer += [*columns, first]
            columns = []
        tiles = [*columns, *inner]
        pack_at = tiles[-1]
        if (together := self._packed_together(tile, vector, blocks)) > 1:
            pack_at, inner[0] = st.split(inner[0], together)
            tiles = [*columns, pack_at, *inner]
        # A chunk of columns is finished row by row: it is written where pages and cache lines lie side by side.
        by_rows = blocks.across and tile.extra is None
        st.reorder(*outer, *([*mid, *rows, *tiles] if by_rows else [*tiles, *mid, *rows]), *written)
        for a in written:
            st.vectorize(a) if a is vl else st.unroll(a)
        before = self.prologue or self.packed_rows
        shared = outer if before or blocks.across else [*outer, *tiles[: tiles.index(pack_at) + 1]]
        shared = shared if before or blocks.part or self.packed else [*shared, *mid, *rows[:1]]
        around = self._parallel(outer if before else [], shared)
        self._attach_prologue(around)
        self._attach_rows(around)
        if self.packed is not None:
            at = pack_at if pack_at in st.leaf_axes and not blocks.across else around
            self._attach(self.packed, at, together > 1)
        if blocks.part is None:
            self._in_registers(self._before(written[0]), tile)
        else:
            at = around if blocks.across else tiles[-1]
            self._in_parts(at if at in st.leaf_axes else around, tile, blocks.part)

    def with_hints(self, func: PrimFunc, inputs: Sequence[Tensor]) -> PrimFunc:
        """`func`, which fetches ahead what it reads of a weight that hardly is in the second cache any more."""
        panel = self._panel(func, inputs)
        return func if panel is None else prefetch_panels(func, panel)

    def _panel(self, func: PrimFunc, inputs: Sequence[Tensor]) -> Panel | None:
        """What register tiles read of `w` in a part of the reduction; None: it is small, or not in panels."""
        w, tile = self.c.w.tensor, self.tile
        if tile is None or self.packed is not None or w not in inputs:
            return None
        size, whole = numel(w.shape), numel(tuple(a.extent for a in self.c.master.reduce_axes))
        near = min(FETCHED, self.target.l2_bytes)
        if not isinstance(whole, int) or (isinstance(size, int) and size * w.dtype.bytes < near):
            return None
        buffer, width = func.params[list(inputs).index(w)], tile.inside * self.lanes
        steps = whole
        if self.steps is not None:
            first = self.c.master.reduce_axes[0].extent
            assert isinstance(first, int)
            steps = whole // first * self.steps
        if tile.extra is None and len(self.c.master.reduce_axes) == 1:
            return Panel(buffer, steps, width, self.tiles)
        in_panels = w.shape[-1] == width and numel(w.shape[1:]) == whole * width
        return Panel(buffer, steps, width, self.tiles, tile.outside) if in_panels else None

    def _before(self, axis: IterVar) -> IterVar | None:
        position = self.st.leaf_axes.index(axis)
        return self.st.leaf_axes[position - 1] if position else None

    def _row_axis(self) -> IterVar | None:
        """The row axis that tiles are made of: the innermost that is long enough, or else the longest."""
        rows = [a for a in self._axes("row") if a.extent != 1]
        for a in reversed(rows):
            if not isinstance(a.extent, int) or a.extent >= 4:
                return a
        return max(rows, key=lambda a: int(a.extent) if isinstance(a.extent, int) else 0, default=None)

    def _tile(self, vector: IterVar) -> RegisterTile:
        """The register tile of the least cycles for all rows and columns."""
        c, registers = self.c, self.target.vector_registers
        own = self.tensor_axis[vector].var
        block = min((b for b in (c.w.block(own), c.x.block(own)) if b is not None), default=self.lanes)
        row, extra = self._row_axis(), None
        if isinstance(vector.extent, int) and vector.extent <= self.lanes:  # blocked layouts: take several blocks
            extra = next((a for a in reversed(self._axes("column")) if a is not vector and a.extent != 1), None)
        extent = 1 if row is None else self._likely_rows(row)
        count: Dim = vector.extent // self.lanes if extra is None else extra.extent
        most = 6 if not isinstance(count, int) else min(6, max(1, count))
        options: list[tuple[float, int, int]] = []
        alone = extra is None and len([a for a in self._axes("row") if a.extent != 1]) == 1
        overhead = MATRIX_STEP if alone else 0.0
        for vectors in range(1, most + 1):
            if extra is None and (vectors * self.lanes > block or block % (vectors * self.lanes)) and vectors > 1:
                continue  # a tile must not straddle blocks
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

    def _likely_rows(self, row: IterVar) -> int:
        """How far the axis of row tiles runs; where only the call knows it, as far as is likely. Few rows of a single
        axis are not counted on: tiles for them read `w` too often for many."""
        if isinstance(row.extent, int):
            return row.extent
        likely = estimate(row.extent, MANY_ROWS)
        return likely if likely >= FEW_ROWS or len([a for a in self._axes("row") if a.extent != 1]) > 1 else MANY_ROWS

    # -- blocks for the caches ----------------------------------------------------------------------------------------

    def _blocks(self, tile: RegisterTile, vector: IterVar) -> Blocks:
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
        blocked = fit < rows
        part = self._part(tile, reduced, self.packed is not None and fit * 4 < rows) if self.cut else None
        if part is not None and self._can_cut(tile):
            # Blocks of rows would read (or pack) all of `w` once each.
            few = fit * 4 < rows if self.packed is not None else fit < FEW_ROWS or self._is_large_matrix(tile)
            long = not self.prologue and blocked and few
            if long:
                assert isinstance(steps, int)
                fit = max(1, self.target.l2_bytes // 2 * steps // max(1, per_row * PART_STEPS))
            if min(fit, rows) >= 4 * tile.rows or (isinstance(steps, int) and steps > EXACT_STEPS):
                return Blocks(self._even(fit, rows, one), part, long, images)
        return Blocks(self._even(fit, rows, one), None, False, images)

    def _images(self, tile: RegisterTile, per_row: int) -> tuple[int | None, Dim]:
        """How many steps of the row axis outside of the last two (images of a batch) a block has, and its rows before
        they are cut. Each block reads all of `w`, which comes from memory: images that are small share it."""
        rows = self._axes("row")
        others = [a for a in rows if a is not tile.row]
        whole = numel(tuple(a.extent for a in rows))
        if len(others) < 2 or tile.row is None:
            return None, whole
        batch, inside = others[-2].extent, numel((others[-1].extent, tile.row.extent))
        if not isinstance(batch, int):
            return None, whole
        columns, w = numel(tuple(a.extent for a in self._axes("column"))), numel(self.c.w.tensor.shape)
        if not (isinstance(inside, int) and isinstance(columns, int) and isinstance(w, int)):
            return None, inside
        if w * self.c.w.tensor.dtype.bytes <= self.target.l2_bytes // 2 or self._axes("batch"):
            return None, inside
        chunks = columns // (tile.vectors * self.lanes * (CHUNK_TILES if self.prologue else 1))
        images = 1
        for n in range(2, batch + 1):
            if batch % n or chunks * batch // n < PARALLEL_BLOCKS:
                continue
            if per_row * inside * n <= self.target.l2_bytes * 6 // 10 or self._rather_whole(tile, inside * n, per_row):
                images = n
        return (images, inside * images) if images > 1 else (None, inside)

    def _packed_blocks(self, tile: RegisterTile) -> Blocks:
        """Blocks of packed rows, which half of the second cache holds; several, so that threads share them."""
        (k,) = self.c.master.reduce_axes
        assert tile.row is not None and isinstance(tile.row.extent, int) and isinstance(k.extent, int)
        tiles = -(-tile.row.extent // tile.rows)
        fit = self.target.l2_bytes // (2 * self.c.x.tensor.dtype.bytes * k.extent * tile.rows)
        count = max(-(-tiles // max(1, fit)), min(PACKED_BLOCKS, tiles * tile.rows // FEW_ROWS))
        part = self._part(tile, [k.extent], False) if self.cut and self._can_cut(tile) else None
        return Blocks(-(-tiles // count) if count > 1 else None, part, False)

    def _is_large_matrix(self, tile: RegisterTile) -> bool:
        """Is `w` in panels of a tile's width, and too large for the second cache?"""
        size = numel(self.c.w.tensor.shape) * self.c.w.tensor.dtype.bytes
        return tile.extra is None and (not isinstance(size, int) or size > self.target.l2_bytes)

    def _rather_whole(self, tile: RegisterTile, rows: int, per_row: int) -> bool:
        """Whether reading `x` from beyond the second cache for each column tile is less than reading a large `w`,
        which comes from memory, once more for each further block of rows."""
        columns, weight = numel(tuple(a.extent for a in self._axes("column"))), numel(self.c.w.tensor.shape)
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
        many = numel(tuple(a.extent for a in (*self._axes("row"), *self._axes("batch"))))
        return estimate(numel(x.shape) * x.dtype.bytes // (many if many != 0 else 1), UNKNOWN_SIZE)

    def _step_rows(self, tile: RegisterTile) -> int:
        """Rows in one step of the axis that is cut into blocks: of a tile, or (an estimate of) all rows of the tiles'
        axis."""
        if len([a for a in self._axes("row") if a.extent != 1]) < 2 or tile.row is None:
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

    # -- threads and prologue -----------------------------------------------------------------------------------------

    def _parallel(self, needed: list[IterVar], candidates: list[IterVar]) -> IterVar | None:
        """Share out the outermost loops: all of `needed`, and of `candidates` until there are enough iterations.

        Gives the parallel loop, or the last of `needed` where it is not worth it."""
        st = self.st
        work = numel((*(a.extent for a in st.axes), *(a.extent for a in self.m.reduce_axes)))
        if isinstance(work, int) and work < PARALLEL_WORK:
            return needed[-1] if needed else None
        take = list(needed)
        for a in candidates:
            # Sizes of which nothing is known may be 1. Fewer loops that are fused are fewer divisions by sizes.
            if estimate(numel(tuple(x.extent for x in take)), 1) >= PARALLEL_ITERATIONS:
                break
            if a not in take:
                take.append(a)
        if not take:
            return None
        loops = st.leaf_axes[: 1 + max(st.leaf_axes.index(a) for a in take)]
        fused = st.fuse(*loops) if len(loops) > 1 else loops[0]
        st.parallel(fused)
        return fused

    def _attach_prologue(self, at: IterVar | None) -> None:
        for stage in self.prologue:
            self._attach(stage, at)

    def _attach_rows(self, at: IterVar | None) -> None:
        """The packed rows of a block, read in order: a step of the reduction after the other."""
        if (stage := self.packed_rows) is None:
            return
        if at is not None:
            stage.compute_at(self.st, at)
        *outer, block, k, lane = stage.axes
        stage.reorder(*outer, k, block, lane)
        stage.vectorize(lane)

    def _attach(self, stage: Stage, at: IterVar | None, steps_first: bool = False) -> None:
        """`steps_first`: of a packed operand, a step of the reduction after the other, for all blocks of it."""
        if at is not None:
            stage.compute_at(self.st, at)
        outer, inner = stage.split(stage.axes[-1], self.lanes)
        if steps_first:
            *lead, block, k, _ = stage.axes
            stage.reorder(*lead, k, block, outer, inner)
        stage.vectorize(inner)

    # -- the accumulators ---------------------------------------------------------------------------------------------

    def _in_registers(self, around: IterVar | None, tile: RegisterTile) -> None:
        """The whole reduction of a tile at once; the epilogue reads the registers."""
        m = self.m
        if around is not None:
            m.compute_at(self.st, around)
        m.set_scope("local")
        _, ml = m.split(m.axes[self.c.master_vector()], self.lanes)
        spatial = self._longest_first([a for a in m.leaf_axes if a.kind == "spatial" and a is not ml], tile)
        m.reorder(*self._unroll_reduction(list(m.reduce_axes), tile), *spatial, ml)
        for a in spatial:
            m.unroll(a)
        m.vectorize(ml)
        self._attach_outputs(around, True)

    def _longest_first(self, spatial: list[IterVar], tile: RegisterTile) -> list[IterVar]:
        """The axes of a tile, its rows outside of its vectors where there are more rows: a step then keeps the vectors
        and one row's element in registers, where the other way round it would keep an element of each row."""
        position = None if tile.row is None else self.c.master_axis(self.tensor_axis[tile.row])
        if position is None:
            return spatial
        row = self.m.axes[position]
        others = [a for a in spatial if a is not row]
        return [row, *others] if tile.rows >= tile.vectors else [*others, row]

    def _in_parts(self, at: IterVar | None, tile: RegisterTile, part: int) -> None:
        """The reduction in parts, each over all rows (and columns) inside the loop `at`; sums in scratch memory."""
        m, c = self.m, self.c
        if at is not None:
            m.compute_at(self.st, at)
        m.set_scope("scratch")
        mo, mi = m.split(m.axes[c.master_vector()], tile.inside * self.lanes)
        mv, ml = m.split(mi, self.lanes)
        written = [mv]
        if tile.extra is not None:
            eo, ei = m.split(self._master_axis(tile.extra), tile.outside)
            written = [ei, *written]
        assert tile.row is not None
        ro, ri = m.split(self._master_axis(tile.row), tile.rows)
        written = [ri, *written]
        first, inside = m.split(m.reduce_axes[0], part)
        serial = [a for a in m.leaf_axes if a.kind == "spatial" and a not in (*written, ml, ro)]
        columns = [a for a in serial if a is mo or (tile.extra is not None and a is eo)]
        serial = [*columns, *(a for a in serial if a not in columns)]
        reduced = self._unroll_reduction([inside, *m.reduce_axes[1:]], tile)
        m.reorder(first, *serial, ro, *reduced, *written, ml)
        for a in written:
            m.unroll(a)
        m.vectorize(ml)
        self._attach_outputs(at, False)

    def _master_axis(self, axis: IterVar) -> IterVar:
        position = self.c.master_axis(self.tensor_axis[axis])
        assert position is not None
        return self.m.axes[position]

    def _attach_outputs(self, around: IterVar | None, written: bool) -> None:
        """The outputs on the way to the final one are stored tile by tile too."""
        for t in self.c.outputs:
            if t is self.c.final:
                continue
            stage = self.schedule[t]
            if around is not None:
                stage.compute_at(self.st, around)
            lane: IterVar | None = None
            if self.c.vector is not None:
                _, lane = stage.split(stage.axes[-1], self.lanes)
                stage.vectorize(lane)
            for a in stage.leaf_axes:
                if written and a is not lane and around is not None:
                    stage.unroll(a)

    def _unroll_reduction(self, loops: list[IterVar], tile: RegisterTile) -> list[IterVar]:
        """The reduce loops, the innermost one written out as far as the instruction cache likes."""
        m, last = self.m, loops[-1]
        most = max(1, self.target.unrolled_work // (tile.rows * tile.vectors))
        if isinstance(last.extent, int) and last.extent <= 8:
            most = last.extent
        if isinstance(last.extent, int) and last.extent <= most:
            m.unroll(last)
            return loops
        factor = most
        if isinstance(last.extent, int):
            factor = max((f for f in range(1, most + 1) if last.extent % f == 0), default=1)
            factor = factor if factor * 2 > most else most
        if factor == 1:
            return loops
        outer, inner = m.split(last, factor)
        m.unroll(inner)
        return [*loops[:-1], outer, inner]

    # -- the reduce axis as vectors -----------------------------------------------------------------------------------

    def _by_lanes(self) -> None:
        st, m, few = self.st, self.m, self.target.vector_registers <= 16
        rows = [a for a in self._axes("row") if a.extent != 1]
        columns = [a for a in self._axes("column") if a.extent != 1]
        written: list[IterVar] = []
        outer = [a for a in st.axes if a not in (*rows[-1:], *columns[-1:])]
        count = 1
        for axes, size in ((columns, 4 if few else 6), (rows, 3 if few else 4)):
            if axes:
                extent = axes[-1].extent
                size = min(size, extent) if isinstance(extent, int) else size
                over, inside = st.split(axes[-1], size)
                outer, written, count = [*outer, over], [inside, *written], count * size
        st.reorder(*outer, *written)
        for a in written:
            st.unroll(a)
        self._attach_prologue(self._parallel(outer if self.prologue else [], outer))
        around = self._before(written[0]) if written else (st.leaf_axes[-1] if st.leaf_axes else None)
        if around is not None:
            m.compute_at(st, around)
        m.set_scope("local")
        ko, ki = m.split(m.reduce_axes[-1], self.lanes * max(1, 8 // count))
        ku, kv = m.split(ki, self.lanes)
        m.reorder(*m.reduce_axes[:-1], ko, ku, *m.axes, kv)
        for a in (ku, *m.axes):
            m.unroll(a)
        m.vectorize(kv)
        self._attach_outputs(around, True)


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e
