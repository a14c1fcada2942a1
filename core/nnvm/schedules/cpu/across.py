"""Row programs with the vector across rows: along a kept axis, every lane on a row of its own."""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.dim import Dim, ceildiv, estimate, numel
from nnvm.schedules.access import At, Held, Source, all_affines, parts
from nnvm.schedules.axes import Axis, Write, collapse
from nnvm.schedules.cpu.accumulate import Accumulator, allocate_all
from nnvm.schedules.cpu.along import dtypes_of, order_row
from nnvm.schedules.cpu.injective import stores
from nnvm.schedules.cpu.loops import loop, parallel_loops, vector_lanes
from nnvm.schedules.cpu.window import Bounds, Piece, clip, pieces
from nnvm.schedules.emit import Emitter, Lanes, dim_value, expense, lane_mask
from nnvm.schedules.row_program import Pass, RowProgram
from nnvm.target import Target
from nnvm.te.expr import INDEX, Buffer, Const, Expr, Var, binary
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, For, If, Stmt, seq

__all__ = ["across"]

#: Rows that one accumulator sums up before it is added to a subtotal, and subtotals that are added up before they go
#: to the total, which is exact (`Accumulator`). Half as many rows where they may be few: errors of few chunks add up.
CHUNK, SUBTOTALS = 32, 16
#: Rows up to which there is one chunk, and from which chunks are whole.
ONE_CHUNK, WHOLE_CHUNKS = 16, 64
#: Extent of an axis that only the call knows, where none is likely, and neighbours in a tile along it.
UNKNOWN_EXTENT, UNKNOWN_TILE = 64, 8
#: Row loops up to this many iterations are written out.
UNROLL_ROWS = 8


def across(program: RowProgram, vector: Axis, space: Space, target: Target) -> Stmt:
    """Blocks of neighbouring rows together; windows over padded data in an interior and its borders."""
    return seq([_piece(p, space, target) for p in pieces(program, vector, space)])


def _piece(piece: Piece, space: Space, target: Target) -> Stmt:
    program, vector = piece.program, piece.vector
    cost = sum(expense(*p.roots) for p in program.passes)
    work = program.kept_numel * program.row_numel * max(cost // 4, 1)
    lanes = Lanes.of(max(vector_lanes(target, dtypes_of(p)) for p in program.passes))
    space.bind(lanes.lane, affine(0), affine(lanes.count - 1))
    tile = _tile_axis(program, vector, lanes.count) if piece.interior else None
    kept = [a for a in program.kept if a is not vector and a is not tile]
    outer, env, kind = parallel_loops(kept, work, space)
    if env:
        memo: dict[int, Expr] = {}
        program.passes = [p.rewrite(space, env, memo) for p in program.passes]
        program.results = [w.rewrite(space, env, memo) for w in program.results]
    flat = kind if outer else parallel_loops([vector], work, space)[2]
    body = _Blocks(program, vector, lanes, space).write(
        tile, _most_slots(program, cost, target), "serial" if outer else flat
    )
    for i, axis in reversed(list(enumerate(outer))):
        body = loop(axis, body, kind if i == 0 else "serial")
    return body


def _most_slots(program: RowProgram, cost: int, target: Target) -> int:
    """Accumulators that fit in half of the registers (more for a single one, as nothing else is alive)."""
    held = sum(len(p.reductions) for p in program.passes)
    if held == 1 and cost <= 12:
        return target.vector_registers // 2
    return max(target.vector_registers // (4 * max(held, 1)), 1) if cost <= 24 else 2


def _tile_axis(program: RowProgram, vector: Axis, count: int) -> Axis | None:
    """In blocked layouts (a vector axis of one vector), the axis next to it: neighbours share what they load."""
    if not isinstance(vector.extent, int) or vector.extent > count or not program.results:
        return None
    address = program.results[0].address
    strides = {a: address.terms.get(a.var, 0) for a in program.kept if a is not vector}
    sized = {a: s for a, s in strides.items() if not isinstance(a.extent, int) or a.extent > 0}
    known = {a: s for a, s in sized.items() if isinstance(s, int) and s > 0}
    return min(known, key=lambda a: known[a], default=None)


def _tile_size(extent: Dim, most: int) -> int:
    """Neighbours in a tile, so that few tiles do little more than the extent."""
    if not isinstance(extent, int):
        extent, most = estimate(extent, UNKNOWN_EXTENT), min(most, UNKNOWN_TILE)
    return min(range(1, min(most, max(extent, 1)) + 1), key=lambda t: -(-extent // t) * (t + 2))


def _unroll(extent: Dim, count: int, most: int) -> int:
    """Vectors side by side; the number that leaves the fewest over."""
    if not isinstance(extent, int):
        return most
    vectors = max(extent // count, 1)
    choices = [u for u in range(1, most + 1) if u <= vectors]
    return max(choices, key=lambda u: (vectors // u * u * min(u, 4), u))


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The blocks of rows that a row program consists of."""

    program: RowProgram
    vector: Axis
    lanes: Lanes
    space: Space

    def write(self, tile: Axis | None, most: int, kind: str) -> Stmt:
        """All blocks: of `tile` and the vector axis where there is a tile, else of the vector axis alone."""
        count, extent = self.lanes.count, self.vector.extent
        if tile is not None:
            assert isinstance(extent, int)
            mask = lane_mask(count, Const(extent, INDEX)) if extent < count else None
            return self._tiled(tile, _tile_size(tile.extent, most), mask)
        unroll = _unroll(extent, count, most)
        width = count * unroll
        out: list[Stmt] = []
        b = Axis(Var(f"{self.vector.var.name}_b"), extent // width).bind(self.space)
        if b.extent != 0:
            start = atom_affine(b.var) * width if b.extent != 1 else affine(0)
            out.append(loop(b, self._block(start, unroll, None), kind))
        done = extent // width * width
        rest = extent - done
        whole = extent // count * count
        if isinstance(rest, int) and isinstance(done, int):
            if rest >= count:
                out.append(self._block(affine(done), rest // count, None))
            if rest % count:
                out.append(self._block(affine(whole), 1, lane_mask(count, Const(rest % count, INDEX))))
            return seq(out)
        if unroll > 1:
            w = Axis(Var(f"{self.vector.var.name}_w"), rest // count).bind(self.space)
            out.append(loop(w, self._block(affine(done) + atom_affine(w.var) * count, 1, None)))
        left = dim_value(extent - whole)
        out.append(If(binary("gt", left, 0), self._block(affine(whole), 1, lane_mask(count, left))))
        return seq(out)

    def _block(self, start: Affine, slots: int, mask: Expr | None) -> Stmt:
        """`slots` vectors of rows from `start` of the vector axis on."""
        slot = Axis(Var("u"), slots).bind(self.space)
        here = atom_affine(self.lanes.lane) + (atom_affine(slot.var) * self.lanes.count if slots > 1 else 0)
        return _Block(self.program, self.lanes, slot, self.space, {self.vector.var: start + here}, mask).write()

    def _tiled(self, tile: Axis, size: int, mask: Expr | None) -> Stmt:
        """One vector of rows for each of `size` neighbours along `tile`; the last tile overlaps the one before. Where
        only the call knows how many there are, and they are fewer, tiles of half the size, or one by one."""
        if isinstance(tile.extent, int):
            return self._overlapping(tile, size, mask)
        body = self._neighbours(tile, tile.extent, mask)
        for smaller in sorted({s for s in (size, size // 2) if s > 1}):
            enough = binary("ge", dim_value(tile.extent), smaller)
            body = If(enough, self._overlapping(tile, smaller, mask), body)
        return body

    def _overlapping(self, tile: Axis, size: int, mask: Expr | None) -> Stmt:
        """Tiles of `size` neighbours, of which there are at least as many."""
        b = Axis(Var(f"{tile.var.name}_b"), ceildiv(tile.extent, size)).bind(self.space)
        slot = Axis(Var("u"), size).bind(self.space)
        at = atom_affine(b.var) * size if b.extent != 1 else affine(0)
        at = self.space.minimum(at, affine(tile.extent - size)) + (atom_affine(slot.var) if size > 1 else 0)
        env = {self.vector.var: atom_affine(self.lanes.lane), tile.var: at}
        return loop(b, _Block(self.program, self.lanes, slot, self.space, env, mask).write())

    def _neighbours(self, tile: Axis, count: Dim, mask: Expr | None) -> Stmt:
        """`count` neighbours, one by one."""
        b, slot = Axis(Var(f"{tile.var.name}_b"), count).bind(self.space), Axis(Var("u"), 1).bind(self.space)
        env = {self.vector.var: atom_affine(self.lanes.lane), tile.var: atom_affine(b.var)}
        return loop(b, _Block(self.program, self.lanes, slot, self.space, env, mask).write())


class _Block:
    """All passes for `slot.extent` vectors of rows, at `env` of the kept axes."""

    def __init__(
        self, program: RowProgram, lanes: Lanes, slot: Axis, space: Space, env: dict[Var, Affine], mask: Expr | None
    ) -> None:
        assert isinstance(slot.extent, int)
        self.program, self.lanes, self.slots, self.space, self.mask = program, lanes, slot.extent, space, mask
        self.slot, self.env = slot, env
        #: number of the row within the block
        self.here = atom_affine(lanes.lane) + (atom_affine(slot.var) * lanes.count if self.slots > 1 else 0)
        width = self.slots * lanes.count
        self.buffers = {
            s: Source(Buffer(s.buffer.name, (program.row_numel * width,), s.buffer.dtype, None, "scratch"), s.strides)
            for s in program.buffers
        }
        self.width = width

    def write(self) -> Stmt:
        out: list[Stmt] = []
        values: dict[Tensor, Accumulator] = {}
        for p in self.program.passes:
            new = [Accumulator(r, self.slots, self.lanes.count, f"acc{len(values) + i}_{r.op}")
                   for i, r in enumerate(p.reductions)]  # fmt: skip
            out.append(self._pass(self._at(p, values), new))
            values.update((a.tensor, a) for a in new)
        if self.program.results:
            results = self._at(Pass([], self.program.results), values)
            out.append(self._slots(stores(results.writes, {}, self.space, self.lanes, self.mask)))
        body = allocate_all(list(values.values()), seq(out))
        for source in self.buffers.values():
            body = Allocate(source.buffer, body)
        return body

    def _at(self, p: Pass, values: dict[Tensor, Accumulator]) -> Pass:
        """`p` at the rows of the block: reductions read from their accumulators, row buffers one vector wide."""
        memo: dict[int, Expr] = {}
        for e in parts(*p.roots):
            if isinstance(e, Held):
                memo[id(e)] = At(values[e.tensor].result, self.here)
            elif isinstance(e, At) and e.source in self.buffers:
                memo[id(e)] = At(self.buffers[e.source], self._in_buffer(e.address))
        out = p.rewrite(self.space, self.env, memo)
        writes = [Write(self.buffers[w.target], self._in_buffer(w.address), w.value) if w.target in self.buffers else w
                  for w in out.writes]  # fmt: skip
        return Pass(out.reductions, writes)

    def _in_buffer(self, address: Affine) -> Affine:
        return address * self.width + self.here

    def _slots(self, body: Stmt) -> Stmt:
        return loop(self.slot, body, "unrolled")

    def _pass(self, p: Pass, accumulators: list[Accumulator]) -> Stmt:
        """One pass: accumulators started, the row loops, float sums of long rows in chunks."""
        starts = [a.start() for a in accumulators]
        row = order_row(p, self.program.row)
        p, bounds = clip(p, row, self.lanes.lane, self.space)
        if bounds:
            return seq([*starts, self._clipped(row, bounds, p, accumulators)])
        loops, env = collapse(row, [*all_affines(p.roots), *(w.address for w in p.writes)], self.space)
        p = p.rewrite(self.space, env, {})
        total = numel(tuple(a.extent for a in loops))
        sums = [a for a in accumulators if a.is_float_sum]
        if not sums or (isinstance(total, int) and total <= ONE_CHUNK):
            return seq([*starts, _rows(loops, self._step(p, accumulators, {}))])
        totals = {a: self._totals(a, total) for a in sums}
        body = self._chunked(loops, p, accumulators, totals)
        ends = [seq([a.start(), a.take(t[-1])]) for a, t in totals.items()]
        every = [t for ts in totals.values() for t in ts]
        return allocate_all(every, seq([*starts, *(t.start() for t in every), body, *ends]))

    def _totals(self, a: Accumulator, rows: Dim) -> list[Accumulator]:
        """What chunks of `a` are added to: subtotals, and where there may be many of them an exact total."""
        subtotal = a.like(self.slots, f"{a.name}_subtotal")
        few = isinstance(rows, int) and rows <= CHUNK * SUBTOTALS
        return [subtotal] if few else [subtotal, a.like(self.slots, f"{a.name}_total", exact=True)]

    def _clipped(self, row: list[Axis], bounds: dict[Var, Bounds], p: Pass, accumulators: list[Accumulator]) -> Stmt:
        """The row loops over the taps inside the data."""
        loops, env = [], {}
        for axis in row:
            bound = bounds.get(axis.var)
            new = Axis(Var(axis.var.name), axis.extent).bind(self.space)
            loops.append((new, None if bound is None else bound.high - bound.low))
            env[axis.var] = atom_affine(new.var) + (affine(0) if bound is None else bound.low)
        step = self._step(p, accumulators, env)
        emitter = Emitter()
        for new, count in reversed(loops):
            step = For(new.var, dim_value(new.extent) if count is None else emitter.index(count), step)
        return step

    def _step(self, p: Pass, accumulators: list[Accumulator], env: dict[Var, Affine]) -> Stmt:
        """One element of each row of the block."""
        p = p.rewrite(self.space, env, {}) if env else p
        emitter = Emitter(self.lanes, self.mask)
        emitter.share(p.roots)
        updates = [a.update(self.here, emitter, r.source, r.index) for a, r in zip(accumulators, p.reductions)]
        return self._slots(
            emitter.bind(seq([*updates, stores(p.writes, {}, self.space, self.lanes, self.mask, emitter)]))
        )

    def _chunked(
        self, loops: list[Axis], p: Pass, accumulators: list[Accumulator], totals: dict[Accumulator, list[Accumulator]]
    ) -> Stmt:
        """The row loops; float sums are added to their subtotals every CHUNK rows or less."""
        rows = numel(tuple(a.extent for a in loops))
        most = CHUNK if isinstance(rows, int) and rows >= WHOLE_CHUNKS else CHUNK // 2
        depth, count = len(loops) - 1, 1
        while depth > 0 and isinstance(e := loops[depth].extent, int) and count * e <= most:
            depth, count = depth - 1, count * e
        cut, inside, size = loops[depth], loops[depth + 1 :], most // count

        def flushed(body: Stmt) -> Stmt:
            return seq([*(a.start() for a in totals), body, *(t[0].take(a) for a, t in totals.items())])

        def chunk(axis: Axis, at: Affine) -> Stmt:
            step = self._step(p, accumulators, {cut.var: at + (atom_affine(axis.var) if axis.extent != 1 else 0)})
            return flushed(_nested([axis, *inside], step))

        out: list[Stmt] = []
        c, r = Axis(Var(f"{cut.var.name}_c"), cut.extent // size), Axis(Var(cut.var.name), size)
        rest = Axis(Var(cut.var.name), cut.extent % size)
        for a in (c, r, rest):
            a.bind(self.space)
        if c.extent != 0:
            body = chunk(r, atom_affine(c.var) * size if c.extent != 1 else affine(0))
            if not isinstance(c.extent, int) or c.extent > SUBTOTALS:
                last = binary("eq", binary("floormod", c.var, SUBTOTALS), SUBTOTALS - 1)
                body = seq([body, If(last, _flush_subtotals(totals))])
            out.append(loop(c, body))
        if rest.extent != 0:
            out.append(chunk(rest, affine(cut.extent // size * size)))
        return _nested(loops[:depth], seq([*out, _flush_subtotals(totals)]))


def _flush_subtotals(totals: dict[Accumulator, list[Accumulator]]) -> Stmt:
    """Subtotals to the exact totals, where there are any."""
    return seq([seq([t[1].take(t[0]), t[0].start()]) for t in totals.values() if len(t) > 1])


def _rows(axes: list[Axis], body: Stmt) -> Stmt:
    """Row loops, the inner ones written out where that is little code."""
    count: Dim = 1
    for axis in reversed(axes):
        count = count * axis.extent
        body = loop(axis, body, "unrolled" if isinstance(count, int) and count <= UNROLL_ROWS else "serial")
    return body


def _nested(axes: list[Axis], body: Stmt) -> Stmt:
    for axis in reversed(axes):
        body = loop(axis, body)
    return body
