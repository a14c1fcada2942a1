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

R and V come from a model of one step of the innermost loop, as do the blocks (`contraction_blocks`). Where the part of
`w` that a column tile needs is too large for the caches, the reduction is cut: each part runs over all rows of the
block, the sums being kept in scratch memory in between (`contraction_sums`). Operands that do not lie side by side are
packed (`contraction_pack`), large weights are fetched ahead (`contraction_prefetch`). Where no axis of the output is
contiguous in an operand but the last reduce axis is in both (a weight as PyTorch stores it), that is the vector axis,
and the accumulators are summed over their lanes at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import estimate, numel
from nnvm.schedules.cpu.contraction_blocks import CHUNK_TILES, PARALLEL_ITERATIONS, Choice
from nnvm.schedules.cpu.contraction_match import Contraction, match
from nnvm.schedules.cpu.contraction_pack import PAGE, far_rows, pack_axis, pack_columns, pack_rows
from nnvm.schedules.cpu.contraction_prefetch import Panel, prefetch_panels
from nnvm.schedules.cpu.contraction_sums import Sums
from nnvm.schedules.cpu.contraction_tile import Blocks, RegisterTile
from nnvm.schedules.cpu.hints import FETCHED
from nnvm.schedules.cpu.merge_axes import merge_rows
from nnvm.schedules.kernel import Strides
from nnvm.target import Target
from nnvm.te.expr import Cast, Expr
from nnvm.te.schedule import Schedule, ScheduleError, Stage
from nnvm.te.tensor import IterVar, Read, Tensor, topological
from nnvm.tir.lower import lower
from nnvm.tir.stmt import PrimFunc

__all__ = ["contraction", "match"]

#: Multiply-adds below which one thread does it all.
PARALLEL_WORK = 1 << 16


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
        self.c, self.target, self.strides = c, target, strides
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
        # The analysis speaks of the axes of the tensor, loops are made of the stage's own.
        own = dict(zip(c.final.axes, self.st.axes))
        self.tensor_axis = {own[a]: a for a in c.final.axes}
        role = {own[a]: c.role(a) for a in c.final.axes}
        self.choice = Choice(c, target, self.tensor_axis, role, self.lanes, bool(self.prologue),
                             self.packed is not None, cut)  # fmt: skip
        self.sums = Sums(c, s, self.st, self.m, self.tensor_axis, self.lanes, target)
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
        axis = pack_axis(self.c, strides, self.lanes)
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

    # -- columns as vectors -------------------------------------------------------------------------------------------

    def _by_columns(self, vector: IterVar) -> None:
        st, lanes = self.st, self.lanes
        tile = self.choice.tile(vector)
        self._pack_rows(tile)
        blocks = self.choice.blocks(tile) if self.packed_rows is None else self.choice.packed_blocks(tile)
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
        columns = [a for a in self.choice.axes("column") if a not in (vector, tile.extra)]
        others = [a for a in self.choice.axes("row") if a is not tile.row]
        mid = [a for a in others[-1:] if a.extent != 1]
        outer = [a for a in (*self.choice.axes("batch"), *self.choice.axes("free"), *others) if a not in (vector, *mid)]
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
            self.sums.in_registers(self._before(written[0]), tile)
        else:
            at = around if blocks.across else tiles[-1]
            self.sums.in_parts(at if at in st.leaf_axes else around, tile, blocks.part)

    def with_hints(self, func: PrimFunc, inputs: Sequence[Tensor]) -> PrimFunc:
        """`func`, which fetches ahead what it reads of a weight that hardly is in the second cache any more."""
        panel = self._panel(func, inputs)
        return func if panel is None else prefetch_panels(func, panel)

    def _panel(self, func: PrimFunc, inputs: Sequence[Tensor]) -> Panel | None:
        """What register tiles read of `w` in a part of the reduction; None: it is small, or not in panels."""
        w, tile = self.c.w.tensor, self.tile
        if tile is None or self.packed is not None or w not in inputs:
            return None
        alone = self.tiles is not None and self.tiles <= 1 and len(self.choice.long_rows()) <= 1
        if alone and tile.rows == 1:
            return None  # it is as fast as memory
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
            block = w.shape[-1]
            panels = width // block if isinstance(block, int) and block < width else 1  # of very few rows
            return Panel(buffer, steps, width // panels, self.tiles, panels, alone)
        in_panels = w.shape[-1] == width and numel(w.shape[1:]) == whole * width
        return Panel(buffer, steps, width, self.tiles, tile.outside) if in_panels else None

    def _before(self, axis: IterVar) -> IterVar | None:
        position = self.st.leaf_axes.index(axis)
        return self.st.leaf_axes[position - 1] if position else None

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

    # -- the reduce axis as vectors -----------------------------------------------------------------------------------

    def _by_lanes(self) -> None:
        st, m, few = self.st, self.m, self.target.vector_registers <= 16
        rows = [a for a in self.choice.axes("row") if a.extent != 1]
        columns = [a for a in self.choice.axes("column") if a.extent != 1]
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
        self.sums.attach_outputs(around, True)


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e
