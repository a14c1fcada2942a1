"""Row programs with the vector across rows: along a kept axis, every lane on a row of its own."""

from __future__ import annotations

from nnvm.dim import Dim, numel
from nnvm.schedules.cpu.access import At, Held, Source, all_affines, parts
from nnvm.schedules.cpu.accumulate import Accumulator, allocate_all
from nnvm.schedules.cpu.along import dtypes_of, order_row
from nnvm.schedules.cpu.emit import Emitter, Lanes, dim_value, lane_mask
from nnvm.schedules.cpu.injective import Write, stores
from nnvm.schedules.cpu.loops import Axis, collapse, expense, loop, parallel_loops, vector_lanes
from nnvm.schedules.cpu.row_program import Pass, RowProgram
from nnvm.target import Target
from nnvm.te.expr import INDEX, Buffer, Const, Expr, Var, binary
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, If, Stmt, seq

__all__ = ["across"]

#: Rows that one accumulator sums up before it is added to the total.
CHUNK = 64
#: Row loops up to this many iterations are written out.
UNROLL_ROWS = 9


def across(program: RowProgram, vector: Axis, space: Space, target: Target) -> Stmt:
    """Blocks of neighbouring rows together."""
    cost = sum(expense(*p.roots) for p in program.passes)
    work = program.kept_numel * program.row_numel * max(cost // 4, 1)
    outer, env, kind = parallel_loops([a for a in program.kept if a is not vector], work, space)
    if env:
        memo: dict[int, Expr] = {}
        program.passes = [p.rewrite(space, env, memo) for p in program.passes]
        program.results = [w.rewrite(space, env, memo) for w in program.results]
    lanes = Lanes.of(max(vector_lanes(target, dtypes_of(p)) for p in program.passes))  # type: ignore[arg-type]
    space.bind(lanes.lane, affine(0), affine(lanes.count - 1))
    held = sum(len(p.reductions) for p in program.passes)
    unroll = _unroll(vector.extent, lanes.count, 8 if cost <= 6 and held == 1 else 4 if cost <= 24 and held <= 2 else 2)
    flat = kind if outer else parallel_loops([vector], work, space)[2]
    body = _blocks(program, vector, lanes, unroll, space, "serial" if outer else flat)
    for i, axis in reversed(list(enumerate(outer))):
        body = loop(axis, body, kind if i == 0 else "serial")
    return body


def _unroll(extent: Dim, count: int, most: int) -> int:
    """Vectors side by side; the number that leaves the fewest vectors over."""
    if not isinstance(extent, int):
        return most
    vectors = max(extent // count, 1)
    choices = [u for u in range(1, most + 1) if u <= vectors]
    return max(choices, key=lambda u: (vectors // u * u * min(u, 4), u))


def _blocks(program: RowProgram, vector: Axis, lanes: Lanes, unroll: int, space: Space, kind: str) -> Stmt:
    """All blocks of the vector axis: of `unroll` vectors, then of one, then a masked one."""
    count, extent = lanes.count, vector.extent
    width = count * unroll
    out: list[Stmt] = []
    b = Axis(Var(f"{vector.var.name}_b"), extent // width).bind(space)
    if b.extent != 0:
        start = atom_affine(b.var) * width if b.extent != 1 else affine(0)
        out.append(loop(b, _Block(program, vector, lanes, unroll, space, start, None).write(), kind))
    done = extent // width * width
    rest = extent - done
    if isinstance(rest, int) and isinstance(done, int):
        if rest >= count:
            out.append(_Block(program, vector, lanes, rest // count, space, affine(done), None).write())
        if rest % count:
            mask = lane_mask(count, Const(rest % count, INDEX))
            start = affine(done + rest // count * count)
            out.append(_Block(program, vector, lanes, 1, space, start, mask).write())
        return seq(out)
    if unroll > 1:
        w = Axis(Var(f"{vector.var.name}_w"), rest // count).bind(space)
        start = affine(done) + atom_affine(w.var) * count
        out.append(loop(w, _Block(program, vector, lanes, 1, space, start, None).write()))
    whole = extent // count * count
    left = dim_value(extent - whole)
    tail = _Block(program, vector, lanes, 1, space, affine(whole), lane_mask(count, left)).write()
    out.append(If(binary("gt", left, 0), tail))
    return seq(out)


class _Block:
    """All passes for `slots` vectors of rows that begin at `start` of the vector axis."""

    def __init__(
        self, program: RowProgram, vector: Axis, lanes: Lanes, slots: int, space: Space, start: Affine,
        mask: Expr | None,
    ) -> None:  # fmt: skip
        self.program, self.lanes, self.slots, self.space, self.mask = program, lanes, slots, space, mask
        self.slot = Axis(Var("u"), slots).bind(space)
        #: number of the row within the block
        self.here = atom_affine(lanes.lane) + (atom_affine(self.slot.var) * lanes.count if slots > 1 else 0)
        self.env = {vector.var: start + self.here}
        width = slots * lanes.count
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
        forms = [*all_affines(p.roots), *(w.address for w in p.writes)]
        loops, env = collapse(order_row(p, self.program.row), forms, self.space)
        p = p.rewrite(self.space, env, {})
        starts = [a.start() for a in accumulators]
        total = numel(tuple(a.extent for a in loops))
        sums = [a for a in accumulators if a.is_float_sum]
        if isinstance(total, int) and total <= UNROLL_ROWS:
            return seq([*starts, _nested(loops, self._step(p, accumulators, {}), "unrolled")])
        if not sums or (isinstance(total, int) and total <= 2 * CHUNK):
            return seq([*starts, _nested(loops, self._step(p, accumulators, {}))])
        totals = {a: a.like(self.slots, f"{a.name}_total") for a in sums}
        body = self._chunked(loops, p, accumulators, totals)
        ends = [seq([a.start(), a.take(t)]) for a, t in totals.items()]
        return allocate_all(list(totals.values()), seq([*starts, *(t.start() for t in totals.values()), body, *ends]))

    def _step(self, p: Pass, accumulators: list[Accumulator], env: dict[Var, Affine]) -> Stmt:
        """One element of each row of the block."""
        p = p.rewrite(self.space, env, {}) if env else p
        emitter = Emitter(self.lanes, self.mask)
        updates = [a.update(self.here, emitter, r.source, r.index) for a, r in zip(accumulators, p.reductions)]
        return self._slots(seq([*updates, stores(p.writes, {}, self.space, self.lanes, self.mask, emitter)]))

    def _chunked(
        self, loops: list[Axis], p: Pass, accumulators: list[Accumulator], totals: dict[Accumulator, Accumulator]
    ) -> Stmt:
        """The row loops; float sums are added to their totals every CHUNK rows or less."""

        def flushed(body: Stmt) -> Stmt:
            return seq([*(a.start() for a in totals), body, *(t.take(a) for a, t in totals.items())])

        inner = loops[-1]
        if isinstance(inner.extent, int) and inner.extent <= CHUNK:
            depth, count = len(loops) - 1, inner.extent
            while depth > 0 and isinstance(e := loops[depth - 1].extent, int) and count * e <= CHUNK:
                depth, count = depth - 1, count * e
            return _nested(loops[:depth], flushed(_nested(loops[depth:], self._step(p, accumulators, {}))))
        out: list[Stmt] = []
        c, r = Axis(Var(f"{inner.var.name}_c"), inner.extent // CHUNK), Axis(Var(inner.var.name), CHUNK)
        rest = Axis(Var(inner.var.name), inner.extent % CHUNK)
        for a in (c, r, rest):
            a.bind(self.space)
        if c.extent != 0:
            at = atom_affine(r.var) + (atom_affine(c.var) * CHUNK if c.extent != 1 else 0)
            out.append(loop(c, flushed(loop(r, self._step(p, accumulators, {inner.var: at})))))
        if rest.extent != 0:
            at = (atom_affine(rest.var) if rest.extent != 1 else affine(0)) + inner.extent // CHUNK * CHUNK
            out.append(flushed(loop(rest, self._step(p, accumulators, {inner.var: at}))))
        return _nested(loops[:-1], seq(out))


def _nested(axes: list[Axis], body: Stmt, kind: str = "serial") -> Stmt:
    for axis in reversed(axes):
        body = loop(axis, body, kind)
    return body
