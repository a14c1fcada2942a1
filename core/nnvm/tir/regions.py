"""Which part of a tensor has to be computed where: the box around all reads inside the loops that are open."""

from __future__ import annotations

from collections.abc import Iterable

from nnvm.te.expr import Expr, Select
from nnvm.te.schedule import ScheduleError, Stage
from nnvm.te.tensor import Tensor, reads
from nnvm.tir.affine import Affine, Atom, Interval, Space, affine
from nnvm.tir.nest import Nest
from nnvm.tir.visitor import children

__all__ = ["Regions"]


class Regions:
    """Infers regions of attached stages.

    Attributes:
        bodies: the body of each stage, inlined tensors substituted.
        open: the stages whose loops are open, with their state.
        outputs: tensors that are stored whole; they may be read outside of the loop that computes them.
    """

    def __init__(self, space: Space, bodies: dict[Stage, Expr], outputs: Iterable[Tensor]) -> None:
        self.space, self.outputs = space, frozenset(outputs)
        self.open: dict[Stage, Nest] = {}
        self._reads: dict[Tensor, list[tuple[Stage, dict[tuple[Affine, ...], bool]]]] = {}
        self._bodies = bodies
        for stage, body in bodies.items():
            self._collect(stage, body)

    def _collect(self, stage: Stage, body: Expr) -> None:
        """Note the places at which `stage` reads each tensor, the axis variables being atoms, and whether it always
        does (a read in a branch of a Select may be out of bounds)."""
        env = {a.var: Affine(0, {a.var: 1}) for a in (*stage.axes, *stage.reduce_axes)}
        always = _unconditional(body)
        found: dict[Tensor, dict[tuple[Affine, ...], bool]] = {}
        for r in reads(body):
            at = tuple([self.space.from_expr(i, env, lambda x: x) for i in r.indices])
            places = found.setdefault(r.tensor, {})
            places[at] = places.get(at, False) or r in always
        for tensor, places in found.items():
            self._reads.setdefault(tensor, []).append((stage, places))

    def consumers(self, tensor: Tensor) -> list[Stage]:
        return [stage for stage, _ in self._reads.get(tensor, [])]

    def required(self, stage: Stage, known: dict[Stage, list[Interval]]) -> list[Interval]:
        """The region of `stage` that is read inside the open loops, per axis, within the tensor's bounds.

        `known` holds the regions found so far at this place, and is added to.
        """
        if stage in known:
            return known[stage]
        region: list[Interval] | None = None
        for consumer, places in self._reads.get(stage.tensor, []):
            domain = self._domain(consumer, known, stage)
            if domain is None:
                if stage.tensor in self.outputs:
                    continue
                at = stage.attach[0].tensor.name if stage.attach else "?"
                raise ScheduleError(
                    f"{stage.tensor.name} is computed inside a loop of {at}"
                    f" but read by {consumer.tensor.name} outside of it"
                )
            for place, always in places.items():
                box = [self._bounds(stage.tensor, d, i, domain, always) for d, i in enumerate(place)]
                region = box if region is None else [self._union(a, b) for a, b in zip(region, box)]
        if region is None:
            raise ScheduleError(f"{stage.tensor.name} is computed inside a loop, but nothing there reads it")
        known[stage] = region
        return region

    def _domain(
        self, consumer: Stage, known: dict[Stage, list[Interval]], producer: Stage
    ) -> dict[Atom, Interval] | None:
        """Range of each axis of a consumer over the loops that are not open; None: it stands elsewhere."""
        nest = self.open.get(consumer)
        if nest is not None:
            return {a.var: nest.interval(a) for a in (*consumer.axes, *consumer.reduce_axes)}
        reduced: dict[Atom, Interval] = {a.var: (affine(0), affine(a.extent) - 1) for a in consumer.reduce_axes}
        if consumer.attach is not None:
            parent, axis = consumer.attach
            if parent in self.open and axis in self.open[parent].values and consumer.attach != producer.attach:
                return None  # in a loop further out, before this one
            spatial = self.required(consumer, known)
        elif consumer.partner is not None and consumer.partner[0] in self.open:
            other = self.open[consumer.partner[0]]
            spatial = [other.interval(a) for a in other.stage.axes]
        else:
            return None
        reduced.update({a.var: i for a, i in zip(consumer.axes, spatial)})
        return reduced

    def _bounds(self, tensor: Tensor, d: int, index: Affine, domain: dict[Atom, Interval], always: bool) -> Interval:
        """Range of one index, cut to the tensor where it may be too large: behind a condition, or by estimate."""
        first, last = affine(0), affine(tensor.shape[d]) - 1
        found = self.space.relax(index, domain)
        if found is None:
            return first, last
        low, high = found
        if always and (low is high or not any(isinstance(a, tuple) for a in index.terms)):
            return found
        low = self.space.maximum(low, first)
        return low, self.space.minimum(high, last)

    def _union(self, a: Interval, b: Interval) -> Interval:
        return self.space.minimum(a[0], b[0]), self.space.maximum(a[1], b[1])


def _unconditional(body: Expr) -> set[Expr]:
    """The sub-expressions that are computed whichever branches the Selects take."""
    found: set[Expr] = set()
    stack = [body]
    while stack:
        e = stack.pop()
        if e not in found:
            found.add(e)
            stack.extend([e.cond] if isinstance(e, Select) else children(e))
    return found
