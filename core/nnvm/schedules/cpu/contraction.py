"""Matrix products, convolutions and their kin: one schedule for every sum of products.

The master stage sums a product of two reads. Seen from the elements of the output, an axis is a *row* if only the
first operand depends on it, a *column* if only the second does, *batch* if both do; the operands change places where
that makes the output's contiguous axis a column that is contiguous in memory (a packed weight, the pixels of a plain
image). That axis is the vector axis.

    parallel for the blocks of (batch, outer rows, block of rows, chunk of columns):
      prologue of the block (padding) -> scratch
      for the column tiles, the rows and the row tiles in the block:
        acc[R rows][V vectors] = 0, in registers
        for the reduce axes: acc[r][v] += broadcast(x[r, k]) * w[k, v]
        output tile = epilogue(acc)

R and V come from a model of one step of the innermost loop (`_tile`). Where no axis of the output is contiguous in an
operand but the reduce axis is in both (a weight as PyTorch stores it), the reduce axis is the vector axis and the
accumulators are summed over their lanes at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.dim import Dim, numel
from nnvm.schedules.cpu.kernel import Strides, row_major
from nnvm.target import Target
from nnvm.te.expr import Binary, Cast, Expr, Reduce, Var
from nnvm.te.schedule import Schedule, Stage
from nnvm.te.tensor import IterVar, Read, Tensor, reads, topological
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.lower import lower
from nnvm.tir.lower_body import inline_reads
from nnvm.tir.stmt import PrimFunc

__all__ = ["Contraction", "contraction", "match"]

#: Iterations that a parallel loop should have, so that threads share them evenly.
PARALLEL_ITERATIONS = 32
#: Multiply-adds below which one thread does it all.
PARALLEL_WORK = 1 << 16
#: Multiply-adds that are written out in the innermost loop.
UNROLLED_WORK = 128


@dataclass(frozen=True, eq=False)
class Operand:
    """One factor of the product: what it reads, and at which address, in elements, for an element of the output."""

    tensor: Tensor
    address: Affine

    def step(self, var: Var) -> Dim | None:
        """Elements between neighbours along an axis; 0: it does not depend on it; None: not a constant."""
        direct = self.address.terms.get(var, 0)
        inside = any(a is var for atom in self.address.terms if atom is not var for a in _inside(atom))
        return None if inside else direct

    def depends(self, var: Var) -> bool:
        return self.step(var) != 0

    def block(self, var: Var) -> int | None:
        """Neighbours along an axis that lie side by side: the block of a packed axis; None where they do not."""
        if self.step(var) == 1:
            return 1 << 62
        for atom, coef in self.address.terms.items():
            if isinstance(atom, tuple) and atom[0] == "floormod" and coef == 1 and atom[1] == atom_affine(var):
                return atom[2].int
        return None


def _inside(atom: object) -> list[object]:
    if not isinstance(atom, tuple):
        return [atom]
    return [*atom[1].atoms(), *atom[2].atoms()]


@dataclass(frozen=True, eq=False)
class Contraction:
    """A group whose only reduction is a sum of products.

    Attributes:
        master: the tensor that sums.
        final: the output that everything leads to.
        outputs: all outputs, `final` included.
        x, w: the operands; `w` is the one that is contiguous along the vector axis, where there is one.
        vector: the vector axis of `final`, or None: then the last reduce axis is contiguous in both.
    """

    master: Tensor
    final: Tensor
    outputs: tuple[Tensor, ...]
    x: Operand
    w: Operand
    vector: IterVar | None


def contraction(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """The kernel of a group whose only reduction is a sum of products; None where it is something else."""
    found = match(inputs, outputs, strides)
    if found is None:
        return None
    return lower(_Plan(found, target).schedule, [*inputs, *outputs], name, strides)


# -- what it is ----------------------------------------------------------------------------------------------------


def match(inputs: Sequence[Tensor], outputs: Sequence[Tensor], strides: Strides) -> Contraction | None:
    """The contraction that a group is, if it is one that this schedule knows."""
    order = topological(outputs)
    masters = [t for t in order if isinstance(t.body, Reduce)]
    if len(masters) != 1 or not outputs:
        return None
    master, final = masters[0], order[-1]
    body = master.body
    assert isinstance(body, Reduce)
    factors = _factors(body)
    if body.op != "sum" or factors is None or not body.axes or final not in outputs:
        return None
    after = [t for t in order if master in topological([t])]
    if any(t not in topological([final]) for t in outputs):
        return None
    at = _element(master, final, after)
    if at is None:
        return None
    operands = [_operand(r, master, at, strides) for r in factors]
    return _roles(master, final, tuple(outputs), operands, strides)


def _factors(body: Reduce) -> tuple[Read, Read] | None:
    """The two reads that are multiplied, conversions aside."""
    product = body.source
    if not isinstance(product, Binary) or product.op != "mul" or not product.dtype.is_float:
        return None
    a, b = product.a, product.b
    while isinstance(a, Cast):
        a = a.a
    while isinstance(b, Cast):
        b = b.a
    return (a, b) if isinstance(a, Read) and isinstance(b, Read) else None


def _element(master: Tensor, final: Tensor, after: Sequence[Tensor]) -> list[Affine] | None:
    """The element of the master that an element of `final` is made from; None where it is not a single one."""
    space = Space()
    env = {a.var: atom_affine(a.var) for a in final.axes}
    for a in final.axes:
        space.bind(a.var, affine(0), affine(a.extent) - 1)
    if final is master:
        return list(env.values())
    between = {t: (tuple(a.var for a in t.axes), t.body) for t in after if t not in (master, final)}
    bodies: dict[Tensor, tuple[tuple[Var, ...], Expr]] = {}
    for t in topological([final]):
        if t in between:
            variables, element = between[t]
            assert element is not None
            bodies[t] = (variables, inline_reads(element, bodies))
    assert final.body is not None
    found = {
        tuple(space.from_expr(i, env, lambda e: e) for i in r.indices)
        for r in reads(inline_reads(final.body, bodies))
        if r.tensor is master
    }
    return list(found.pop()) if len(found) == 1 else None


def _operand(read: Read, master: Tensor, at: Sequence[Affine], strides: Strides) -> Operand:
    """Where a factor lies, in terms of the output's axes and the reduce axes."""
    space = Space()
    env = {a.var: value for a, value in zip(master.axes, at)}
    for a in master.reduce_axes:
        space.bind(a.var, affine(0), affine(a.extent) - 1)
        env[a.var] = atom_affine(a.var)
    total = affine(0)
    for i, stride in zip(read.indices, strides.get(read.tensor) or row_major(read.tensor.shape)):
        total = total + space.from_expr(i, env, lambda e: e) * stride
    return Operand(read.tensor, total)


def _roles(
    master: Tensor, final: Tensor, outputs: tuple[Tensor, ...], operands: list[Operand], strides: Strides
) -> Contraction | None:
    """Which operand is which."""
    steps = strides.get(final) or row_major(final.shape)
    contiguous = [a for a, s in zip(final.axes, steps) if s == 1 and a.extent != 1]
    for axis in contiguous:
        for x, w in (operands, operands[::-1]):
            if w.block(axis.var) is not None and (not x.depends(axis.var) or x.block(axis.var) is not None):
                return Contraction(master, final, outputs, x, w, axis)
    k = master.reduce_axes[-1].var
    if all(o.step(k) == 1 for o in operands):
        return Contraction(master, final, outputs, operands[0], operands[1], None)
    return None


# -- how it is run -------------------------------------------------------------------------------------------------


def step_cycles(rows: int, vectors: int) -> float:
    """Cycles of one step of the reduce loop: two multiply-adds and two loads a cycle, four cycles until the same
    accumulator can be added to again."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0)


def tile_rows(extent: Dim, vectors: int, registers: int) -> tuple[int, float]:
    """Rows of a register tile, and the cycles per row that all the row tiles take on average."""
    most = max(1, (registers - vectors - 1) // vectors)
    if not isinstance(extent, int):
        return most, step_cycles(most, vectors) / most
    options = []
    for rows in range(1, min(most, extent) + 1):
        rest = extent % rows
        cycles = extent // rows * step_cycles(rows, vectors) + (step_cycles(rest, vectors) if rest else 0.0)
        options.append((cycles / extent, -rows))
    cycles, negated = min(options)
    return -negated, cycles


class _Plan:
    """The schedule of one contraction."""

    def __init__(self, c: Contraction, target: Target) -> None:
        self.c, self.target = c, target
        self.schedule = s = Schedule(c.outputs)
        self.lanes = target.lanes(max(c.master.dtype.bits, 32))
        self.master = s.cache_write(c.master, "local") if c.master in c.outputs else c.master
        self.st = s[c.final]
        self.prologue: list[Stage] = []
        self._place_elementwise()
        axes = self.st.axes
        self.role = {a: self._role(f) for a, f in zip(axes, c.final.axes)}
        self.vector = None if c.vector is None else axes[c.final.axes.index(c.vector)]
        if self.vector is None:
            self._by_lanes()
        else:
            self._by_columns()

    def _role(self, axis: IterVar) -> str:
        x, w = self.c.x.depends(axis.var), self.c.w.depends(axis.var)
        return "batch" if x and w else "row" if x else "column" if w else "free"

    def _place_elementwise(self) -> None:
        """Inline what is elementwise, except outputs and what is worth keeping before the master (padding)."""
        before = set(topological([self.c.master]))
        for stage in list(self.schedule.stages):
            t = stage.tensor
            if t in self.c.outputs or stage.is_reduction:
                continue
            if t in before and not isinstance(_bare(stage.body), Read):
                self.prologue.append(stage)
            elif t is not self.master:
                stage.inline()

    # -- columns as vectors -------------------------------------------------------------------------------------------

    def _by_columns(self) -> None:
        c, st, vector = self.c, self.st, self.vector
        assert vector is not None and c.vector is not None
        block = min(b for b in (c.w.block(c.vector.var), c.x.block(c.vector.var)) if b is not None)
        row = self._row_axis()
        extra = self._second_column(vector)
        rows, vectors = self._tile(row, vector, block, extra)
        inside = min(vectors, max(1, block // self.lanes))
        if isinstance(vector.extent, int):
            inside = min(inside, max(1, vector.extent // self.lanes))
        outside = vectors // inside if extra is not None else 1
        vo, vi = st.split(vector, inside * self.lanes)
        vv, vl = st.split(vi, self.lanes)
        tile = [vv, vl]
        columns = [a for a, r in self.role.items() if r == "column" and a not in (vector, extra)]
        columns_inner = [vo]
        if extra is not None:
            extra_o, extra_i = st.split(extra, outside)
            columns_inner, tile = [extra_o, vo], [extra_i, *tile]
        others = [a for a, r in self.role.items() if r == "row" and a is not row]
        row_o = None
        if row is not None:
            row_o, row_i = st.split(row, rows)
            tile = [row_i, *tile]
        self._order(columns, columns_inner, others, row_o, tile, rows)
        for a in tile:
            st.vectorize(a) if a is vl else st.unroll(a)
        self._schedule_master(tile[0], rows * vectors)

    def _row_axis(self) -> IterVar | None:
        """The row axis that tiles are made of: the innermost one that is longer than a tile needs, or the longest."""
        rows = [a for a, r in self.role.items() if r == "row" and a.extent != 1]
        if not rows:
            return None
        for a in reversed(rows):
            if not isinstance(a.extent, int) or a.extent >= 4:
                return a
        return max(rows, key=lambda a: a.extent if isinstance(a.extent, int) else 1 << 30)

    def _second_column(self, vector: IterVar) -> IterVar | None:
        """A column axis whose steps give a tile more vectors, where the vector axis is short (blocked layouts)."""
        columns = [a for a, r in self.role.items() if r in ("column",) and a is not vector and a.extent != 1]
        if not isinstance(vector.extent, int) or vector.extent > self.lanes:
            return None
        return columns[-1] if columns else None

    def _tile(self, row: IterVar | None, vector: IterVar, block: int, extra: IterVar | None) -> tuple[int, int]:
        """Rows and vectors of the register tile: the least cycles for all of the rows and columns."""
        extent: Dim = 1 if row is None else row.extent
        most = max(1, block // self.lanes)
        if isinstance(vector.extent, int):
            most = min(most, -(-vector.extent // self.lanes))
        if extra is not None and isinstance(extra.extent, int):
            most = extra.extent
        count: Dim = vector.extent // self.lanes if extra is None else extra.extent
        best: tuple[float, int, int] | None = None
        for vectors in range(1, min(most, 6) + 1):
            if extra is None and block < 1 << 62 and (block // self.lanes) % vectors:
                continue  # a tile must not straddle blocks
            rows, cycles = tile_rows(extent, vectors, self.target.vector_registers)
            if isinstance(count, int):
                count = max(count, 1)
                left = count % vectors
                rest = tile_rows(extent, left, self.target.vector_registers)[1] if left else 0.0
                cycles = (count // vectors * cycles + rest) / count
            else:
                cycles /= vectors
            if best is None or cycles < best[0] * 0.999:
                best = (cycles, rows, vectors)
        assert best is not None
        return best[1], best[2]

    def _order(
        self, columns: list[IterVar], inner: list[IterVar], others: list[IterVar], row_o: IterVar | None,
        tile: list[IterVar], rows: int,
    ) -> None:  # fmt: skip
        """Batch, outer rows, the block of rows, chunks of columns; then the tiles of the block."""
        st = self.st
        batch = [a for a, r in self.role.items() if r in ("batch", "free") and a is not self.vector]
        outer = [*batch, *others[:-1]]
        mid: list[IterVar] = []
        blocked = others[-1] if others else row_o
        if blocked is not None:
            chunk = self._rows_per_block(blocked, 1 if others else rows)
            blocks, within = (None, blocked) if chunk is None else st.split(blocked, chunk)
            outer += [] if blocks is None else [blocks]
            mid = [within] if others else []
            row_o = row_o if others else within
        if self.prologue and inner:
            chunk = self._columns_per_chunk(inner[0])
            first, second = ([], inner[0]) if chunk is None else _split(st, inner[0], chunk)
            outer, inner = [*outer, *columns, *first], [second, *inner[1:]]
        else:
            inner = [*columns, *inner]
        tiles = [*inner, *mid, *([row_o] if row_o is not None else [])]
        st.reorder(*outer, *tiles, *tile)
        at = self._parallel(outer, [] if self.prologue else tiles)
        self._attach_prologue(at)

    def _rows_per_block(self, axis: IterVar, unit: int) -> int | None:
        """Steps of a row axis whose part of the data stays in the second cache while all columns pass over it; None:
        all of them. One step is `unit` rows of the tile axis, or one of the axis outside of it with all of its rows."""
        x, extent = self.c.x.tensor, axis.extent
        batch = [a.extent for a, r in self.role.items() if r == "batch"]
        rows = [a.extent for a, r in self.role.items() if r == "row"]
        if not isinstance(extent, int):
            return max(1, 48 // unit)
        sizes = [numel(x.shape), numel(tuple(batch)), numel(tuple(rows[:-2] if len(rows) > 1 else ()))]
        if not all(isinstance(n, int) for n in sizes):
            return None
        size, batches, outside = (int(n) for n in sizes)  # type: ignore[arg-type]
        per_step = size * x.dtype.bytes // max(1, batches * outside * extent)
        fit = max(1, self.target.l2_bytes * 6 // 10 // max(1, per_step))
        return None if fit >= extent else -(-extent // -(-extent // fit))

    def _columns_per_chunk(self, axis: IterVar) -> int | None:
        """Column tiles that share one prologue: enough to make it cheap, few enough to leave work for threads."""
        return 4 if isinstance(axis.extent, int) and axis.extent >= 8 else None

    def _parallel(self, outer: list[IterVar], tiles: list[IterVar]) -> IterVar | None:
        """Share out the outermost loops; gives the innermost of the loops around the tiles."""
        st = self.st
        work = numel((*(a.extent for a in st.axes), *(a.extent for a in self.c.master.reduce_axes)))
        outer = [a for a in outer if a.extent != 1] or outer[-1:]
        if isinstance(work, int) and work < PARALLEL_WORK:
            return outer[-1] if outer else None
        take = list(outer) if self.prologue else []
        candidates = [*outer, *tiles]
        if not self.prologue:
            total: Dim = 1
            for a in candidates:
                if isinstance(total, int) and total >= PARALLEL_ITERATIONS:
                    break
                take.append(a)
                total = total * a.extent
        if not take:
            return None
        self._fuse_neighbours(take)
        return self.last

    def _fuse_neighbours(self, take: list[IterVar]) -> None:
        """One parallel loop out of the outermost ones (loops that run once stand in between)."""
        st = self.st
        position = max(st.leaf_axes.index(a) for a in take)
        loops = st.leaf_axes[: position + 1]
        fused = st.fuse(*loops) if len(loops) > 1 else loops[0]
        st.parallel(fused)
        self.last = fused

    def _attach_prologue(self, at: IterVar | None) -> None:
        for stage in self.prologue:
            if at is not None:
                stage.compute_at(self.st, at)
            last = stage.axes[-1]
            _, inner = stage.split(last, self.lanes)
            stage.vectorize(inner)

    # -- the accumulators ---------------------------------------------------------------------------------------------

    def _schedule_master(self, first: IterVar, work: int) -> None:
        """The register tile, attached inside the loops around it."""
        st, m = self.st, self.schedule[self.master]
        around = st.leaf_axes[st.leaf_axes.index(first) - 1] if st.leaf_axes.index(first) else None
        if m.tensor is st.tensor:
            raise ValueError("the master is its own output")
        if around is not None:
            m.compute_at(st, around)
        m.set_scope("local")
        spatial = list(m.axes)
        vector = self._master_vector()
        mv, ml = m.split(vector, self.lanes)
        spatial[spatial.index(vector) : spatial.index(vector) + 1] = [mv, ml]
        reduce_loops = self._unroll_reduction(m, work)
        m.reorder(*reduce_loops, *(a for a in spatial if a is not ml), ml)
        for a in spatial:
            m.vectorize(ml) if a is ml else m.unroll(a)
        self._attach_outputs(around)

    def _attach_outputs(self, around: IterVar | None) -> None:
        """The outputs on the way to the final one are stored tile by tile too."""
        for t in self.c.outputs:
            if t is self.c.final:
                continue
            stage = self.schedule[t]
            if around is not None:
                stage.compute_at(self.st, around)
            lane: IterVar | None = None
            if self.vector is not None:
                _, lane = stage.split(stage.axes[-1], self.lanes)
                stage.vectorize(lane)
            for a in stage.leaf_axes:
                if a is not lane and around is not None:
                    stage.unroll(a)

    def _master_vector(self) -> IterVar:
        """The master's axis along which `w` is contiguous."""
        m = self.schedule[self.master]
        at = self._own_operand(m)
        steps = [a for a in m.axes if at.step(a.var) == 1]
        return steps[-1] if steps else m.axes[-1]

    def _own_operand(self, m: Stage) -> Operand:
        assert isinstance(m.body, Reduce)
        factors = _factors(m.body)
        assert factors is not None
        read = next(r for r in factors if r.tensor is self.c.w.tensor)
        space, total = Space(), affine(0)
        env = {a.var: atom_affine(a.var) for a in (*m.axes, *m.reduce_axes)}
        for i, stride in zip(read.indices, row_major(read.tensor.shape)):
            total = total + space.from_expr(i, env, lambda e: e) * stride
        return Operand(read.tensor, total)

    def _unroll_reduction(self, m: Stage, work: int) -> list[IterVar]:
        """The reduce loops, the innermost one written out as far as the instruction cache likes."""
        loops = list(m.reduce_axes)
        last = loops[-1]
        most = max(1, UNROLLED_WORK // max(1, work))
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
        st = self.st
        rows = [a for a, r in self.role.items() if r == "row" and a.extent != 1]
        columns = [a for a, r in self.role.items() if r == "column" and a.extent != 1]
        registers = self.target.vector_registers
        many = 4 if registers <= 16 else 6
        tile: list[IterVar] = []
        outer = [a for a in st.axes if a not in (*rows[-1:], *columns[-1:])]
        count = 1
        for axis, size in ((columns[-1:], many), (rows[-1:], 3 if registers <= 16 else 4)):
            if axis:
                n = axis[0].extent
                size = min(size, n) if isinstance(n, int) else size
                o, i = st.split(axis[0], size)
                outer, tile, count = [*outer, o], [i, *tile], count * size
        if not tile:
            outer, tile = outer[:-1], outer[-1:]
        st.reorder(*outer, *tile)
        for a in tile:
            st.unroll(a)
        self._attach_prologue(self._parallel(outer, []))
        m = self.schedule[self.master]
        around = st.leaf_axes[st.leaf_axes.index(tile[0]) - 1] if st.leaf_axes.index(tile[0]) else None
        if around is not None:
            m.compute_at(st, around)
        m.set_scope("local")
        k = m.reduce_axes[-1]
        unroll = max(1, 8 // count)
        ko, ki = m.split(k, self.lanes * unroll)
        ku, kv = m.split(ki, self.lanes)
        m.reorder(*m.reduce_axes[:-1], ko, ku, *m.axes, kv)
        for a in (ku, *m.axes):
            m.unroll(a)
        m.vectorize(kv)
        self._attach_outputs(around)


def _split(stage: Stage, axis: IterVar, factor: int) -> tuple[list[IterVar], IterVar]:
    outer, inner = stage.split(axis, factor)
    return [outer], inner


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e
