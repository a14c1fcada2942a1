"""Schedules to loop nests.

Steps, in order:
1. inlined tensors are substituted into the bodies that read them;
2. each root stage is written as a loop nest, outermost loop first (`Lowering._body`). At each loop:
   - a split that does not divide is *peeled*: the full blocks get a loop of their own, in which the inner extent is
     a constant, and the last block is written once more with the extent that is left. Where the block is computed
     from a fused loop the two copies stand in an `If`. Inner loops that stay serial just run to `min(...)` instead,
     and what can be neither is guarded;
   - stages attached to the loop are written before its body, over the region that the body reads (`Regions`);
   - reductions get accumulators from the first reduce loop on (`lower_reduce`);
3. vectorized loops become vector operations (`passes.vectorize`), and local buffers are checked to be registers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from nnvm.dim import Dim, symbols
from nnvm.te.expr import Buffer, Const, Expr, Load, Select, Var, binary
from nnvm.te.schedule import Schedule, ScheduleError, Split, Stage
from nnvm.te.tensor import IterVar, Tensor, topological
from nnvm.tir.affine import Affine, Atom, Interval, Space, affine, atom_affine
from nnvm.tir.lower_body import BodyBuilder, Place, inline_reads
from nnvm.tir.lower_reduce import Reduction, neutral
from nnvm.tir.nest import Nest
from nnvm.tir.passes.vectorize import vectorize
from nnvm.tir.regions import Regions
from nnvm.tir.stmt import Allocate, For, If, PrimFunc, Stmt, Store, seq
from nnvm.tir.visitor import free_vars, post_order, stmts

__all__ = ["lower"]

Continue = Callable[[Nest], Stmt]
#: Steps below which there is a block for each number of them.
FEW = 6


def lower(
    schedule: Schedule, args: Sequence[Tensor], name: str, strides: Mapping[Tensor, tuple[Dim, ...]] | None = None
) -> PrimFunc:
    """The kernel that computes the schedule's outputs.

    Args:
        args: input tensors, then all outputs, in the order of the call.
        name: a C identifier.
        strides: of arguments that are not contiguous, in elements.

    Raises:
        ScheduleError: the schedule cannot be carried out, or `args` lacks a tensor.
    """
    return Lowering(schedule, args, strides or {}).run(name)


class Lowering:
    def __init__(self, schedule: Schedule, args: Sequence[Tensor], strides: Mapping[Tensor, tuple[Dim, ...]]) -> None:
        self.schedule = schedule
        self.args = tuple(args)
        self.space = Space()
        self.builder = BodyBuilder(self.space)
        self.bodies = _inline(schedule)
        computed = [t for t in args if t in schedule]
        _check_args(schedule, self.args)
        self.regions = Regions(self.space, self.bodies, computed)
        self.vector_vars: set[Atom] = set()
        self.unrolled_vars: set[Atom] = set()
        self._names: dict[str, int] = {}
        self.params = tuple(self.buffer(t.name, t.shape, t, "global", strides.get(t)) for t in args)
        for t, b in zip(args, self.params):
            self.builder.places[t] = Place(b, (affine(0),) * len(t.shape))
        self.outputs = frozenset(computed)
        self._attached: dict[tuple[Stage, IterVar], list[Stage]] = {}
        self._partners: dict[tuple[Stage, IterVar], list[Stage]] = {}
        for stage in self.bodies:
            if stage.attach is not None:
                self._attached.setdefault(stage.attach, []).append(stage)
            if stage.partner is not None:
                self._partners.setdefault(stage.partner, []).append(stage)

    def run(self, name: str) -> PrimFunc:
        at_root = [s for s in self.bodies if s.attach is None and s.partner is None]
        for stage in self.bodies:
            if stage.attach is None and stage.tensor not in self.outputs:
                t = stage.tensor
                self._place_whole(stage, self.buffer(t.name, t.shape, t, stage.scope or "scratch"))
        made: list[tuple[list[Buffer], Stmt]] = []
        for stage in at_root:
            own = [self.builder.places[s.tensor].buffer for s in self._with_partners(stage)]
            nest = Nest.start(stage, self.space, [affine(0)] * len(stage.axes), [affine(a.extent) for a in stage.axes])
            made.append(([b for b in own if b.scope != "global"], self._body(nest, tuple(stage.leaf_axes), 0)))
        body = vectorize(_allocate(made))
        _check_local(body)
        names = self._symbols(body)
        outputs = sum(t in self.outputs for t in self.args)
        return PrimFunc(name, self.params, outputs, names, body)

    # -- loops ------------------------------------------------------------------------------------------------------

    def _body(self, nest: Nest, leaves: tuple[IterVar, ...], k: int) -> Stmt:
        """The loops `leaves[k:]` and what is inside them."""
        stage = nest.stage
        if stage.is_reduction and (k == len(leaves) or leaves[k].kind == "reduce"):
            return Reduction(self, nest, leaves[k:]).write()
        if k == len(leaves):
            return self._store(nest)
        return self.loop(nest, leaves[k], lambda n: self.inside(n, leaves[k], lambda m: self._body(m, leaves, k + 1)))

    def loop(self, nest: Nest, axis: IterVar, then: Continue) -> Stmt:
        """The loop over one axis; the last block of a split that does not divide is peeled off."""
        extent = nest.extents[axis]
        if extent.int == 1 and axis not in nest.lanes:
            nest = nest.copy()
            return self._settle(nest, nest.bind(axis, affine(0)), then)
        splits = nest.open_splits([axis])
        kind = nest.stage.kinds.get(axis, "serial")
        if not splits or kind != "serial" or not self._must_peel(nest, splits[0]):
            return self._for(nest, axis, extent, kind, then)
        split = splits[0]
        whole = nest.extents[split.parent]
        full = self.space.floordiv(whole, affine(split.factor))
        rest = self.space.floormod(whole, affine(split.factor))
        parts: list[Stmt] = []
        if full.int != 0:
            main = nest.copy()
            main.set_inner(split, affine(split.factor))
            main.extents[axis] = full
            parts.append(self.loop(main, axis, then) if full.int == 1 else self._for(main, axis, full, kind, then))
        if rest.int != 0:
            tail = nest.copy()
            parts.append(self._last_block(tail, split, tail.bind(axis, full), then))
        return seq(parts)

    def _last_block(self, nest: Nest, split: Split, known: list[IterVar], then: Continue) -> Stmt:
        """The block that is not full. Where only the call knows its size, and it is written out, it is cut into
        blocks of a half, a quarter, ... of the full one, each behind a condition, and one of less than `FEW`; what is
        less than a vector is masked."""
        rest = left = self.space.floormod(nest.extents[split.parent], affine(split.factor))
        sizes, few, unit = self._block_sizes(nest, split, rest)
        done = affine(0)
        parts: list[Stmt] = []

        def part(size: int, orelse: Stmt | None = None) -> Stmt:
            block = nest.copy()
            block.shifts[split] = done
            block.set_inner(split, affine(size))
            return If(self.builder.less(affine(size - 1), left), self._settle(block, known, then), orelse)

        for size in sizes:
            parts.append(part(size))
            done, left = rest - self.space.floormod(rest, affine(size)), self.space.floormod(rest, affine(size))
        last: Stmt | None = None
        for size in few:
            last = part(size, last)
        if last is not None:
            parts.append(last)
        if unit > 1 or not (sizes or few):
            nest.shifts[split] = done
            nest.set_inner(split, left)
            last = self._settle(nest, known, then)
            parts.append(last if left.int is not None else If(self.builder.less(affine(0), left), last))
        return seq(parts)

    def _block_sizes(self, nest: Nest, split: Split, rest: Affine) -> tuple[list[int], range, int]:
        """The constant sizes that an unknown rest is cut into, those of which one is for what is left then, and the
        lanes of the vectors in it."""
        kinds = nest.stage.kinds
        inner = nest.leaves_of(split.inner)
        vectors = [a.extent for a in inner if kinds.get(a) == "vectorized"]
        unit = vectors[0] if vectors and isinstance(vectors[0], int) else 1
        whole = (
            rest.int is not None or split.parent.kind == "reduce" or all(kinds.get(a) == "vectorized" for a in inner)
        )
        if whole or nest.by_loops or any(a in nest.values for a in inner):  # an open loop runs over all of the block
            return [], range(0), unit
        sizes: list[int] = []
        size = unit if unit > 1 else FEW
        while size < split.factor:
            sizes.insert(0, size)
            size *= 2
        return sizes, range(1, min(FEW, split.factor)) if unit == 1 else range(0), unit

    def _for(self, nest: Nest, axis: IterVar, extent: Affine, kind: str, then: Continue) -> Stmt:
        nest = nest.copy()
        var = Var(self.unique(axis.name))
        value = atom_affine(var)
        if kind == "vectorized" and axis in nest.lanes and extent.int != nest.lanes[axis]:
            self.space.bind(var, affine(0), affine(nest.lanes[axis] - 1))
            nest.guard(value, extent)  # the accumulators keep all their lanes
            extent = affine(nest.lanes[axis])
        if kind in ("unrolled", "vectorized") and extent.int is None:
            bound = self.space.upper(extent)
            if not isinstance(bound, int):
                raise ScheduleError(
                    f"{nest.stage.tensor.name}: {axis} is {kind} but its extent {extent} is not constant"
                )
            if kind == "unrolled" and axis.kind == "reduce" and axis not in nest.lanes:
                kind = "serial"
            elif bound == 1:
                nest.guard(affine(0), extent)
                return self._settle(nest, nest.bind(axis, affine(0)), then)
            else:
                self.space.bind(var, affine(0), affine(bound - 1))
                nest.guard(value, extent)
                extent = affine(bound)
        self.space.bind(var, affine(0), extent - 1)
        if kind == "vectorized":
            self.vector_vars.add(var)
        elif kind == "unrolled":
            self.unrolled_vars.add(var)
        body = self._settle(nest, nest.bind(axis, value), then)
        self.space.restore(var, None)
        return For(var, self.space.expr(extent), body, kind)

    def _settle(self, nest: Nest, known: list[IterVar], then: Continue) -> Stmt:
        """Go on with `then`, the inner extents of all splits whose outer axis is in `known` made exact."""
        for split in nest.open_splits(known):
            nest.guard(nest.values[split.outer], nest.extents[split.outer])  # bound before the extent was narrowed?
            if not self._set_inner(nest, split):
                return self._branch(nest, split, known, then)
        return then(nest)

    def _set_inner(self, nest: Nest, split: Split) -> bool:
        """Make the inner extent exact if the loop bounds say which it is; False: it takes several cases."""
        whole, outer = nest.extents[split.parent], nest.values[split.outer]
        rest = self.space.floormod(whole, affine(split.factor))
        full = self.space.floordiv(whole, affine(split.factor))
        if rest.int == 0 or self.space.nonnegative(full - outer - 1):
            nest.set_inner(split, affine(split.factor))
        elif any(a in self.vector_vars for a in outer.atoms()):
            pass  # differs between lanes: the body is guarded instead
        elif not self._must_peel(nest, split):
            left = whole - outer * split.factor
            nest.set_inner(split, self.space.minimum(affine(split.factor), left))
        elif rest.int is not None and self.space.nonnegative(outer - full):
            nest.set_inner(split, rest)
        else:
            return False
        return True

    def _branch(self, nest: Nest, split: Split, known: list[IterVar], then: Continue) -> Stmt:
        """The two cases of a block: full, or the last one."""
        whole, outer = nest.extents[split.parent], nest.values[split.outer]
        full = self.space.floordiv(whole, affine(split.factor))
        if self.space.nonnegative(outer - full):
            return self._last_block(nest.copy(), split, known, then)
        atom = next(iter(outer.terms)) if len(outer.terms) == 1 and outer == _only(outer) else None
        main, last = nest.copy(), nest.copy()
        main.set_inner(split, affine(split.factor))
        then_main = self._assuming(atom, affine(0), full - 1, lambda: self._settle(main, known, then))
        if not any(a in self.unrolled_vars for a in outer.atoms()):
            last.values[split.outer] = full
        then_last = self._assuming(atom, full, full, lambda: self._last_block(last, split, known, then))
        return If(self.builder.less(outer, full), then_main, then_last)

    def _assuming(self, atom: Atom | None, low: Affine, high: Affine, then: Callable[[], Stmt]) -> Stmt:
        if atom is None:
            return then()
        before = self.space.bind(atom, low, high)
        out = then()
        self.space.restore(atom, before)
        return out

    def _must_peel(self, nest: Nest, split: Split) -> bool:
        """Does anything need the inner extent to be a constant?"""
        stage = nest.stage
        whole = nest.extents[split.parent]
        if whole.int is not None and whole.int % split.factor == 0:
            return False
        inner = nest.leaves_of(split.inner)
        if any(stage.kinds.get(a) in ("vectorized", "unrolled") for a in inner):
            return True
        innermost = max(stage.leaf_axes.index(a) for a in inner)
        return any(
            parent is stage and child.scope == "local" and stage.leaf_axes.index(axis) < innermost
            for child in self.bodies
            if child.attach is not None
            for parent, axis in [child.attach]
        )

    # -- stages -----------------------------------------------------------------------------------------------------

    def inside(self, nest: Nest, axis: IterVar, then: Continue) -> Stmt:
        """The body of an open loop: attached stages, `then`, and the stages that share the loop."""
        stage = nest.stage
        children = self._attached.get((stage, axis), [])
        partners = [self._open_partner(nest, p, axis) for p in self._partners.get((stage, axis), [])]
        conds: tuple[Expr | None, ...] = ()
        if children:  # they run only where the body does
            conds = self.guards(nest)
            nest = nest.copy()
            nest.guards = ()
        before = dict(self.regions.open)
        for n in (nest, *partners):
            self.regions.open[n.stage] = n
        known: dict[Stage, list[Interval]] = {}
        for child in reversed(children):
            self.regions.required(child, known)
        made = [self._attach(child, known[child]) for child in children]
        made.append(([], then(nest)))
        for n in partners:
            made.append(([], self._body(n, tuple(n.stage.leaf_axes), stage.leaf_axes.index(axis) + 1)))
        self.regions.open = before
        for child in children:
            if child.tensor not in self.outputs:
                del self.builder.places[child.tensor]
        out = _allocate(made)
        for cond in conds:
            out = out if cond is None else If(cond, out)
        return out

    def _attach(self, stage: Stage, region: list[Interval]) -> tuple[list[Buffer], Stmt]:
        """One attached stage over its region: the buffers it is kept in, and its loops."""
        t = stage.tensor
        base = [low for low, _ in region]
        extents = [self.space.maximum(high - low + 1, affine(0)) for low, high in region]
        bounds = [self.space.upper(e) for e in extents]
        single = [affine(1) if b == 1 else e for b, e in zip(bounds, extents)]
        nest = Nest.start(stage, self.space, base, single)
        for e, s in zip(extents, single):
            if e != s:
                nest.guard(affine(0), e)
        own: list[Buffer] = []
        if t not in self.outputs:
            shape = tuple(n if b is None else b for b, n in zip(bounds, t.shape))
            scope = stage.scope or ("local" if all(b == 1 for b in shape) else "scratch")
            if scope == "local" and not all(isinstance(b, int) for b in shape):
                raise ScheduleError(f"{t.name} is local, but its region has the extents {extents}, not constants")
            own.append(self.buffer(t.name, shape, t, scope))
            self.builder.places[t] = Place(own[0], tuple(None if b == 1 else low for b, low in zip(bounds, base)))
        return own, self._body(nest, tuple(stage.leaf_axes), 0)

    def _open_partner(self, nest: Nest, stage: Stage, axis: IterVar) -> Nest:
        """The nest of a stage that shares the loops of `nest` down to `axis`."""
        other = nest.stage
        depth = other.leaf_axes.index(axis) + 1
        shared = list(zip(other.leaf_axes[:depth], stage.leaf_axes[:depth]))
        if len(shared) != depth or any(a.extent != b.extent or b.kind != "spatial" for a, b in shared):
            raise ScheduleError(
                f"{stage.tensor.name} cannot share the loops {other.leaf_axes[:depth]} of {other.tensor.name}:"
                f" its own begin with {stage.leaf_axes[:depth]}"
            )
        # The outer loops may run over a region only: of the other stage's axes, and so of these.
        extents = [nest.extents[a] for a in other.axes]
        own = Nest.start(stage, self.space, nest.base, extents)
        for relation, theirs in zip(stage.relations, other.relations):  # the blocks are those of the other stage
            if isinstance(relation, Split) and isinstance(theirs, Split) and theirs in nest.settled:
                own.shifts[relation] = nest.shifts.get(theirs, affine(0))
                own.set_inner(relation, nest.extents[theirs.inner])
        for theirs_leaf, mine in shared:
            for split in own.open_splits(own.bind(mine, nest.values[theirs_leaf])):
                if not self._set_inner(own, split):
                    left = own.extents[split.parent] - own.values[split.outer] * split.factor
                    own.set_inner(split, self.space.minimum(affine(split.factor), left))
        return own

    def _store(self, nest: Nest) -> Stmt:
        """The body of an elementwise stage."""
        value = self.builder.build(self.bodies[nest.stage], nest.environment())
        return self.store_element(nest, value)

    def store_element(self, nest: Nest, value: Expr) -> Stmt:
        """Store the element that the loops are at, behind the guards of its nest."""
        place = self.builder.places[nest.stage.tensor]
        scalar, vector = self.guards(nest)
        if vector is not None and place.buffer.scope == "local":
            value, vector = Select(vector, value, neutral("sum", value.dtype)), None
        store: Stmt = Store(place.buffer, self.builder.index(nest.stage.tensor, nest.element()), value)
        for cond in (vector, scalar):
            store = store if cond is None else If(cond, store)
        return store

    def guards(self, nest: Nest) -> tuple[Expr | None, Expr | None]:
        """The conditions under which the body runs: those the same for all lanes, and those of single lanes."""
        both: list[Expr | None] = [None, None]
        for value, bound in nest.guards:
            cond = self.builder.less(value, bound)
            if isinstance(cond, Const) and cond.value:
                continue
            lane = any(a in self.vector_vars for x in (value, bound) for a in x.atoms())
            known = both[lane]
            both[lane] = cond if known is None else binary("and", known, cond)
        return both[0], both[1]

    # -- names and buffers ------------------------------------------------------------------------------------------

    def buffer(
        self, name: str, shape: Sequence[Dim], like: Tensor, scope: str, strides: tuple[Dim, ...] | None = None
    ) -> Buffer:
        """A new buffer for (part of) `like`."""
        return Buffer(self.unique(name), tuple(shape), like.dtype, strides, scope)

    def _place_whole(self, stage: Stage, buffer: Buffer) -> None:
        self.builder.places[stage.tensor] = Place(buffer, (affine(0),) * len(stage.axes))

    def _with_partners(self, stage: Stage) -> list[Stage]:
        found = [stage]
        for s in found:
            found += [p for (other, _), partners in self._partners.items() if other is s for p in partners]
        return found

    def unique(self, name: str) -> str:
        name = re.sub(r"\W", "_", name)
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        if count == 0:
            return name
        return self.unique(f"{name}_{count}")

    def _symbols(self, body: Stmt) -> tuple[str, ...]:
        """Sizes that the kernel takes: those of its arguments' shapes first, in order."""
        found: dict[str, None] = {}
        for b in self.params:
            for d in (*b.shape, *(b.strides or ())):
                found.update(dict.fromkeys(sorted(symbols(d))))
        found.update(dict.fromkeys(v.name for v in free_vars(body)))
        return tuple(found)


def _only(a: Affine) -> Affine:
    return atom_affine(next(iter(a.terms)))


def _inline(schedule: Schedule) -> dict[Stage, Expr]:
    """The body of each stage that is not inlined, those that are substituted."""
    inlined: dict[Tensor, tuple[tuple[Var, ...], Expr]] = {}
    bodies: dict[Stage, Expr] = {}
    for stage in schedule.stages:
        body = inline_reads(stage.body, inlined) if inlined else stage.body
        if stage.inlined:
            if stage.tensor in schedule.outputs:
                raise ScheduleError(f"{stage.tensor.name} is an output and cannot be inlined")
            inlined[stage.tensor] = (tuple(a.var for a in stage.axes), body)
        else:
            bodies[stage] = body
    return bodies


def _check_args(schedule: Schedule, args: tuple[Tensor, ...]) -> None:
    needed = [t for t in topological(schedule.outputs) if t.is_placeholder]
    missing = [t.name for t in (*needed, *schedule.outputs) if t not in args]
    if missing:
        raise ScheduleError(f"the arguments lack {', '.join(missing)}")
    if len(set(args)) != len(args):
        raise ScheduleError("an argument is given twice")
    computed = [t in schedule for t in args]
    if computed != sorted(computed):
        raise ScheduleError("inputs come before outputs in the arguments")


def _allocate(made: Sequence[tuple[list[Buffer], Stmt]]) -> Stmt:
    """The statements in order, each buffer allocated from the one that fills it to the end."""
    body: list[Stmt] = []
    for buffers, stmt in reversed(made):
        body.insert(0, stmt)
        for b in buffers:
            body = [Allocate(b, seq(body))]
    return seq(body)


def _check_local(body: Stmt) -> None:
    """Local buffers live in registers: their indices have to be constants once unrolled loops are written out."""

    def check(buffer: Buffer, indices: tuple[Expr, ...], fixed: set[Var]) -> None:
        if buffer.scope != "local":
            return
        for i in indices:
            if loose := [v.name for v in free_vars(i) if v not in fixed]:
                raise ScheduleError(f"{buffer.name} is local but indexed by the loop variable {loose[0]}: unroll it")

    fixed: set[Var] = set()
    for s in stmts(body):
        if isinstance(s, For) and s.kind == "unrolled":
            fixed.add(s.var)
        elif isinstance(s, Store):
            check(s.buffer, s.indices, fixed)
    for x in post_order(body):
        if isinstance(x, Load):
            check(x.buffer, x.indices, fixed)
