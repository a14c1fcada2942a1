"""Row programs with the vector along the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nnvm.dim import numel
from nnvm.dtype import DType
from nnvm.schedules.access import At, Held, Index, all_affines, parts
from nnvm.schedules.axes import Axis, collapse
from nnvm.schedules.cpu.accumulate import Accumulator, allocate_all
from nnvm.schedules.cpu.injective import hoisted, stores
from nnvm.schedules.cpu.loops import Step, loop, parallel_loops, vector_lanes, vector_loops
from nnvm.schedules.emit import Emitter, Lanes, expense
from nnvm.schedules.row_program import Pass, RowProgram
from nnvm.target import Target
from nnvm.te.expr import INDEX, Expr, Var
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, Let, Stmt, seq

__all__ = ["along", "dtypes_of", "hold", "order_row"]

#: Elements that one set of accumulators sums up before it is added to the total: partial sums keep float sums as
#: accurate as pairwise ones.
CHUNK = 4096


def along(
    program: RowProgram, space: Space, target: Target, parallel: bool = True, limit: Affine | None = None
) -> Stmt:
    """One row after the other; `parallel` where no loop is around. Of the row's last axis elements from `limit` on
    need not be visited."""
    cost = sum(expense(*p.roots) for p in program.passes)
    work = program.kept_numel * program.row_numel * max(cost // 4, 1) if parallel else 0
    kept, env, kind = parallel_loops(program.kept, work, space)
    memo: dict[int, Expr] = {}
    passes = [p.rewrite(space, env, memo) for p in program.passes] if env else program.passes
    results = [w.rewrite(space, env, memo) for w in program.results] if env else program.results

    def run(number: int, values: Mapping[Tensor, Var]) -> Stmt:
        if number == len(passes):
            final = [w.rewrite(space, {}, hold([w.value], values)) for w in results]
            return stores(final, {}, space, None, None)
        p = passes[number]
        held = p.rewrite(space, {}, hold(p.roots, values))
        return _Along(held, program.row, space, target, limit).write(lambda new: run(number + 1, {**values, **new}))

    body = run(0, {})
    for source in reversed(program.buffers):
        body = Allocate(source.buffer, body)
    for i, axis in reversed(list(enumerate(kept))):
        body = loop(axis, body, kind if i == 0 else "serial")
    return body


def hold(roots: list[Expr], values: Mapping[Tensor, Var]) -> dict[int, Expr]:
    """For `rewrite`: what stands for each `Held` node now that the reductions have values."""
    memo: dict[int, Expr] = {}
    for e in parts(*roots):
        if isinstance(e, Held) and e.tensor in values:
            var = values[e.tensor]
            memo[id(e)] = Index(atom_affine(var)) if e.dtype == INDEX else var
    return memo


def order_row(p: Pass, row: list[Axis]) -> list[Axis]:
    """Row axes by the strides of the first access that depends on them, widest first."""
    addresses = [w.address for w in p.writes] + [e.address for e in parts(*p.roots) if isinstance(e, At)]
    for address in addresses:
        strides = [address.terms.get(a.var, 0) for a in row]
        if all(isinstance(s, int) for s in strides) and any(s != 0 for s in strides):
            order = sorted(range(len(row)), key=lambda i: -abs(strides[i]))  # type: ignore[arg-type]
            return [row[i] for i in order]
    return row


def dtypes_of(p: Pass) -> list[DType]:
    """Types of what a pass reads, reduces and writes."""
    found = [w.target.buffer.dtype for w in p.writes]
    found += [r.source.dtype for r in p.reductions]
    found += [e.dtype for e in parts(*p.roots) if isinstance(e, At)]
    return found


class _Along:
    """One pass over one row."""

    def __init__(self, p: Pass, row: list[Axis], space: Space, target: Target, limit: Affine | None = None) -> None:
        self.space, self.limit = space, limit
        row = order_row(p, row)
        loops, env = collapse(row, [*all_affines(p.roots), *(w.address for w in p.writes)], space)
        if not loops:
            loops = [Axis(Var("r"), 1)]
        p = p.rewrite(space, env, {})
        self.outer, self.inner = loops[:-1], loops[-1]
        memo, self.lets = hoisted(p.roots, self.inner.var)
        self.p = p.rewrite(space, {}, memo) if memo else p
        self.lanes = Lanes.of(vector_lanes(target, dtypes_of(p)))
        self._totals: dict[Accumulator, Accumulator] = {}
        self.unroll = self._unroll(expense(*p.roots))
        self.accumulators = [Accumulator(r, self.unroll, self.lanes.count, f"acc{i}_{r.op}")
                             for i, r in enumerate(p.reductions)]  # fmt: skip

    def _unroll(self, cost: int) -> int:
        most = 4 if cost <= 8 else 2 if cost <= 30 else 1
        extent = self.inner.extent
        while most > 1 and isinstance(extent, int) and extent < most * self.lanes.count:
            most //= 2
        return most

    def write(self, then: Callable[[dict[Tensor, Var]], Stmt]) -> Stmt:
        """The pass, then what `then` makes of its results."""
        total = numel(tuple(a.extent for a in (*self.outer, self.inner)))
        sums = [a for a in self.accumulators if a.is_float_sum]
        chunked = bool(sums) and not (isinstance(total, int) and total <= CHUNK)
        body = self._chunked(sums) if chunked else self._nest(self.outer, self._inner(self.inner, affine(0)))
        results = {a.tensor: Var(f"r_{a.name}", a.result.buffer.dtype) for a in self.accumulators}
        last = then(results)
        totals = {a: self._total(a) for a in sums} if chunked else {}
        for a in reversed(self.accumulators):
            last = a.finish(last, results[a.tensor], totals.get(a))
        starts = [a.start() for a in (*self.accumulators, *totals.values())]
        out = allocate_all(self.accumulators, seq([*starts, body, last]))
        return allocate_all(list(totals.values()), out)

    def _total(self, a: Accumulator) -> Accumulator:
        found = self._totals.get(a)
        if found is None:
            found = self._totals[a] = a.like(1, f"{a.name}_total", exact=True)
        return found

    def _inner(self, axis: Axis, start: Affine) -> Stmt:
        """The vector loop over `axis`, elements from `start` on."""

        def body(step: Step) -> Stmt:
            env = {self.inner.var: step.position + start}
            memo: dict[int, Expr] = {}
            emitter = Emitter(self.lanes, step.mask)
            at = self.p.rewrite(self.space, env, memo)
            emitter.share(at.roots)
            where = step.slot * self.lanes.count + atom_affine(self.lanes.lane)
            out = [a.update(where, emitter, r.source, r.index) for a, r in zip(self.accumulators, at.reductions)]
            return emitter.bind(seq([*out, stores(at.writes, {}, self.space, self.lanes, step.mask, emitter)]))

        limit = None if self.limit is None else self.limit - start
        out = vector_loops(axis, self.lanes, self.unroll, self.space, body, limit=limit)
        for var, value in reversed(self.lets):
            out = Let(var, value, out)
        return out

    def _nest(self, axes: list[Axis], body: Stmt) -> Stmt:
        for axis in reversed(axes):
            body = loop(axis, body)
        return body

    def _chunked(self, sums: list[Accumulator]) -> Stmt:
        """The loops with the accumulators of float sums flushed into totals every CHUNK elements or less; what they
        hold at the end is not."""

        def flushed(body: Stmt) -> Stmt:
            return seq([body, *(seq([self._total(a).take(a), a.start()]) for a in sums)])

        extent = self.inner.extent
        if not isinstance(extent, int) or extent > CHUNK:
            c = Axis(Var(f"{self.inner.var.name}_c"), extent // CHUNK).bind(self.space)
            rest = Axis(Var(self.inner.var.name), extent % CHUNK)
            out: list[Stmt] = []
            if c.extent != 0:
                first = atom_affine(c.var) * CHUNK if c.extent != 1 else affine(0)
                out.append(loop(c, flushed(self._inner(Axis(Var(self.inner.var.name), CHUNK), first))))
            if rest.extent != 0:
                tail = self._inner(rest, affine(c.extent * CHUNK))
                out.append(flushed(tail) if self.outer else tail)
            return self._nest(self.outer, seq(out))
        depth, count = len(self.outer), extent
        while depth > 0 and isinstance(e := self.outer[depth - 1].extent, int) and count * e <= CHUNK:
            depth, count = depth - 1, count * e
        return self._nest(
            self.outer[:depth], flushed(self._nest(self.outer[depth:], self._inner(self.inner, affine(0))))
        )
