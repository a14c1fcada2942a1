"""The sums of a contraction: where they are kept, and the loops around the multiply-adds.

    in registers:                            in parts (sums in scratch memory):
      acc[R rows][V vectors] = 0               for the parts of the reduction:
      for the reduce axes:                       for the row tiles (and columns):
        acc[r][v] += x[r, k] * w[k, v]             for the steps of the part:
      output tile = epilogue(acc)                    sums[r][v] += x[r, k] * w[k, v]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from nnvm.schedules.cpu.contraction_match import Contraction
from nnvm.schedules.cpu.contraction_tile import RegisterTile
from nnvm.target import Target
from nnvm.te.schedule import Schedule, Stage
from nnvm.te.tensor import IterVar

__all__ = ["Sums"]


@dataclass(frozen=True, eq=False)
class Sums:
    """The stages that sum and store.

    Attributes:
        st: stage of the final output.
        m: stage of the master, which sums.
        tensor_axis: axes of `st` -> axes of the output.
        lanes: elements of a vector.
    """

    c: Contraction
    schedule: Schedule
    st: Stage
    m: Stage
    tensor_axis: Mapping[IterVar, IterVar]
    lanes: int
    target: Target

    def in_registers(self, around: IterVar | None, tile: RegisterTile) -> None:
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
        self.attach_outputs(around, True)

    def _longest_first(self, spatial: list[IterVar], tile: RegisterTile) -> list[IterVar]:
        """The axes of a tile, its rows outside of its vectors where there are more rows: a step then keeps the vectors
        and one row's element in registers, where the other way round it would keep an element of each row."""
        position = None if tile.row is None else self.c.master_axis(self.tensor_axis[tile.row])
        if position is None:
            return spatial
        row = self.m.axes[position]
        others = [a for a in spatial if a is not row]
        return [row, *others] if tile.rows >= tile.vectors else [*others, row]

    def in_parts(self, at: IterVar | None, tile: RegisterTile, part: int) -> None:
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
        self.attach_outputs(at, False)

    def _master_axis(self, axis: IterVar) -> IterVar:
        position = self.c.master_axis(self.tensor_axis[axis])
        assert position is not None
        return self.m.axes[position]

    def attach_outputs(self, around: IterVar | None, written: bool) -> None:
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
        """The reduce loops, the innermost one written out as far as the instruction cache likes; another one where rows
        read the same in its steps."""
        m, last = self.m, loops[-1]
        most = max(1, self.target.unrolled_work // (tile.rows * tile.vectors))
        if isinstance(last.extent, int) and last.extent <= 8:
            most = last.extent
        if self._in_common(last, most, tile):
            apart = [a for a in loops[:-1] if isinstance(a.extent, int) and 1 < a.extent <= 8]
            apart = [a for a in apart if not self._in_common(a, 8, tile)]
            if apart:
                m.unroll(apart[-1])
            return [*(a for a in loops if a not in apart[-1:]), *apart[-1:]]
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

    def _in_common(self, k: IterVar, steps: int, tile: RegisterTile) -> bool:
        """Whether in so many steps along `k`, written out, a row of a tile reads of `x` what another has read: windows
        of pixels side by side overlap. It would be kept for the later row, for which registers may not be left:
        sums would go to memory and back instead."""
        left = self.target.vector_registers - tile.vectors * (tile.rows + 1)
        if tile.row is None or tile.rows - 1 <= left:
            return False
        across, along = self.c.x.step(self.tensor_axis[tile.row].var), self.c.x.step(k.var)
        if not isinstance(across, int) or not isinstance(along, int) or across == 0 or along == 0:
            return False
        shared = math.gcd(across, along)
        return abs(along) // shared < tile.rows and abs(across) // shared < steps
