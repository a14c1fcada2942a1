"""The state of one stage's loop nest while it is written: which loops are open, what its axes are equal to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nnvm.te.expr import Var
from nnvm.te.schedule import Fuse, Split, Stage
from nnvm.te.tensor import IterVar
from nnvm.tir.affine import Affine, Interval, Space, affine

__all__ = ["Nest"]


@dataclass(eq=False)
class Nest:
    """A stage with some of its loops open.

    Attributes:
        base: first element of the region that is computed, per tensor axis.
        extents: how far each axis runs here (a peeled last block is shorter than the others).
        values: the axes that are determined by the open loops (tensor axes count from `base`).
        guards: pairs (value, bound): the body runs only where value < bound.
        settled: splits whose inner extent is exact here, so that no guard is needed.
        shifts: where in its block the part starts that the inner loop of a split runs over.
        lanes: reduce loops with accumulators of their own, and how many.
        by_loops: accumulators are told apart by the loop variables, so that blocks must not be cut.
        fused: how far the outer and the inner axis of a fusion run, as far as the fused loop is concerned.
    """

    stage: Stage
    space: Space
    base: tuple[Affine, ...]
    extents: dict[IterVar, Affine]
    values: dict[IterVar, Affine] = field(default_factory=dict)
    guards: tuple[tuple[Affine, Affine], ...] = ()
    settled: frozenset[Split] = frozenset()
    shifts: dict[Split, Affine] = field(default_factory=dict)
    lanes: dict[IterVar, int] = field(default_factory=dict)
    by_loops: bool = False
    fused: dict[Fuse, tuple[Affine, Affine]] = field(default_factory=dict)

    @staticmethod
    def start(stage: Stage, space: Space, base: Sequence[Affine], extents: Sequence[Affine]) -> Nest:
        """No loop open; the tensor axes run over `extents` from `base` on, reduce axes over all of theirs."""
        nest = Nest(stage, space, tuple(base), {})
        for axis, extent in zip(stage.axes, extents):
            nest.set_extent(axis, extent)
        for axis in stage.reduce_axes:
            nest.set_extent(axis, affine(axis.extent))
        return nest

    def copy(self) -> Nest:
        return replace(
            self,
            extents=dict(self.extents),
            values=dict(self.values),
            shifts=dict(self.shifts),
            lanes=dict(self.lanes),
            fused=dict(self.fused),
        )

    def set_extent(self, axis: IterVar, extent: Affine) -> None:
        """Set how far an axis runs, and with it the axes made from it."""
        self.extents[axis] = extent
        for relation in self.stage.relations:
            if isinstance(relation, Split) and relation.parent is axis:
                self.settled -= {relation}
                short = extent.int is not None and extent.int < relation.factor
                self.set_extent(relation.inner, extent if short else affine(relation.factor))
                self.set_extent(relation.outer, self.space.ceildiv(extent, relation.factor))
            elif isinstance(relation, Fuse) and (relation.outer is axis or relation.inner is axis):
                self._fuse(relation)

    def _fuse(self, fuse: Fuse) -> None:
        """Set how far a fused loop runs: over constants or sizes, even where its parts come to run less far."""
        outer, inner = self.extents.get(fuse.outer), self.extents.get(fuse.inner)
        if outer is None or inner is None or fuse.fused in self.values:
            return
        if fuse in self.fused and (outer.int is None or inner.int is None):
            return
        outer, inner = (affine(self.space.upper(x) or 0) if x.terms else x for x in (outer, inner))
        self.fused[fuse] = outer, inner
        self.set_extent(fuse.fused, self.space.multiply(outer, inner))

    def set_inner(self, split: Split, extent: Affine) -> None:
        """The inner loop of `split` runs exactly `extent` times here."""
        self.settled |= {split}
        self.set_extent(split.inner, extent)

    def bind(self, axis: IterVar, value: Affine) -> list[IterVar]:
        """Set the value of an axis; gives it and all axes whose values follow from it."""
        self.values[axis] = value
        known = [axis]
        for x in known:
            for relation in self.stage.relations:
                if isinstance(relation, Split) and x in (relation.outer, relation.inner):
                    if self._join(relation):
                        known.append(relation.parent)
                elif isinstance(relation, Fuse) and relation.fused is x:
                    outer, inner = self.fused[relation]
                    self.values[relation.outer] = self.space.floordiv(self.values[x], inner)
                    self.values[relation.inner] = self.space.floormod(self.values[x], inner)
                    for part, extent in ((relation.outer, outer), (relation.inner, inner)):
                        if extent != self.extents[part]:  # narrowed since, or a bound of what is not a size
                            self.guard(self.values[part], self.extents[part])
                        known.append(part)
        return known

    def _join(self, split: Split) -> bool:
        """Set the parent of `split` where both its parts are known now."""
        outer, inner = self.values.get(split.outer), self.values.get(split.inner)
        if outer is None or inner is None or split.parent in self.values:
            return False
        value = self.values[split.parent] = outer * split.factor + inner + self.shifts.get(split, 0)
        if split not in self.settled:
            self.guard(value, self.extents[split.parent])
        return True

    def guard(self, value: Affine, bound: Affine) -> None:
        """Run the body only where value < bound."""
        if (value, bound) not in self.guards and not self.space.nonnegative(bound - value - 1):
            self.guards += ((value, bound),)

    def open_splits(self, known: Sequence[IterVar]) -> list[Split]:
        """The splits whose outer axes are among `known` and whose inner ones are not yet determined, outermost first:
        settling one changes the extent of those inside it."""
        return [
            r
            for r in self.stage.relations
            if isinstance(r, Split) and r.outer in known and r not in self.settled and r.inner not in self.values
        ]

    def settle_all(self, kind: str) -> None:
        """Let the splits of all axes of a kind be as they are: neither peeled nor guarded."""
        self.settled |= {r for r in self.stage.relations if isinstance(r, Split) and r.parent.kind == kind}

    def leaves_of(self, axis: IterVar) -> set[IterVar]:
        """The loops that an axis was made into."""
        found = {axis}
        for relation in self.stage.relations:
            if isinstance(relation, Split) and relation.parent in found:
                found |= {relation.outer, relation.inner}
            elif isinstance(relation, Fuse) and (relation.outer in found or relation.inner in found):
                found.add(relation.fused)
        return found & set(self.stage.leaf_axes)

    def environment(self) -> dict[Var, Affine]:
        """The value of each axis variable of the body that is known."""
        env = {a.var: self.values[a] + b for a, b in zip(self.stage.axes, self.base) if a in self.values}
        env.update({a.var: self.values[a] for a in self.stage.reduce_axes if a in self.values})
        return env

    def element(self) -> list[Affine]:
        """The indices of the element that the innermost loop is at."""
        return [self.values[a] + b for a, b in zip(self.stage.axes, self.base)]

    def interval(self, axis: IterVar) -> Interval:
        """Range of an axis of the body over the loops that are not open."""
        low, high = self._interval(axis)
        if axis in self.stage.axes:
            base = self.base[self.stage.axes.index(axis)]
            return low + base, high + base
        return low, high

    def _interval(self, axis: IterVar) -> Interval:
        value = self.values.get(axis)
        if value is not None:
            return value, value
        for relation in self.stage.relations:
            if isinstance(relation, Split) and relation.parent is axis:
                outer, inner = self._interval(relation.outer), self._interval(relation.inner)
                shift = self.shifts.get(relation, 0)
                low = outer[0] * relation.factor + inner[0] + shift
                high = outer[1] * relation.factor + inner[1] + shift
                exact = relation in self.settled
                return low, high if exact else self.space.minimum(high, self.extents[axis] - 1)
        return affine(0), self.extents[axis] - 1
