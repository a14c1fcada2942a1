"""Reductions: where the accumulators are, what they start from, and how they are combined at the end.

At the first reduce loop of a stage, the spatial loops inside it are its *tile*. Where the tile is written out
(unrolled and vectorized loops) the accumulators are registers:

    acc[tile] = neutral
    for the reduce loops and the tile: acc[tile] = combine(acc[tile], source)
    out[tile] = acc[tile]

A vectorized reduce loop gives each accumulator as many lanes, and the unrolled reduce loops beside it as many
independent copies; they are combined pairwise at the end, and the lanes by one `VectorReduce`. A tile with serial
loops accumulates in the tensor's own memory, and each inner part of it that is written out in registers: a sum starts
from zero there and is added to the memory after, any other reduction goes on from what is there (a blocked K of a
matrix product).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from nnvm.dtype import I64, DType
from nnvm.te.expr import (
    INDEX,
    Binary,
    Buffer,
    Const,
    Expr,
    Load,
    Ramp,
    Reduce,
    Select,
    Unary,
    VectorReduce,
    binary,
    const,
    fma,
)
from nnvm.te.schedule import ScheduleError
from nnvm.te.tensor import IterVar
from nnvm.tir.nest import Nest
from nnvm.tir.stmt import Allocate, If, Stmt, Store, seq

if TYPE_CHECKING:
    from nnvm.tir.lower import Lowering

__all__ = ["Reduction", "combine", "neutral", "take"]

T = TypeVar("T")
Bottom = Callable[[Nest], Stmt]


def neutral(op: str, dtype: DType) -> Expr:
    """The value a reduction by `op` starts from."""
    start = {"sum": 0, "prod": 1, "any": False, "all": True}
    if op in start:
        return const(start[op], dtype)
    return const(dtype.min if op in ("max", "argmax") else dtype.max, dtype)


def combine(op: str, acc: Expr, value: Expr) -> Expr:
    """`acc` and `value` reduced by `op`; a sum of products is a fused multiply-add."""
    if op == "sum" and isinstance(value, Binary) and value.op == "mul" and value.dtype.is_float:
        return fma(value.a, value.b, acc)
    operator = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(op, op)
    return binary(operator, acc, value)


def take(op: str, acc: tuple[Expr, Expr], new: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """The (value, index) that argmax or argmin keeps: NaN before all numbers, then the first of equal values."""
    (a, i), (b, j) = acc, new
    better = binary("gt" if op == "argmax" else "lt", b, a)
    tie = b.equal(a)
    if a.dtype.is_float:
        a_nan, b_nan = Unary("isnan", a), Unary("isnan", b)
        better = binary("or", better, binary("and", b_nan, Unary("not", a_nan)))
        tie = binary("or", tie, binary("and", b_nan, a_nan))
    take = binary("or", better, binary("and", tie, binary("lt", j, i)))
    return Select(take, b, a), Select(take, j, i)


class Reduction:
    """Writes the loops of a reduction from its first reduce loop on. `resume`: its memory holds a partial result."""

    def __init__(self, lowering: Lowering, nest: Nest, leaves: tuple[IterVar, ...], resume: bool = False) -> None:
        body = lowering.bodies[nest.stage]
        assert isinstance(body, Reduce)
        self.lowering, self.leaves, self.resume = lowering, leaves, resume
        self.nest = nest.copy()
        self.body, self.stage = body, nest.stage
        self.place = lowering.builder.places[nest.stage.tensor]
        self.tile = tuple(a for a in leaves if a.kind == "spatial")
        self.lanes = self._lane_axes()
        self.acc: list[Buffer] = []

    def write(self) -> Stmt:
        single = self.body.index is None and not self.lanes
        if single and self.place.buffer.scope == "local":
            return seq([self._walk(self.tile, self._start_own), self._walk(self.leaves, self._update_own, inside=True)])
        if single and not self._in_registers(self.tile):
            return seq(
                [self._walk(self.tile, self._start_own), self._update_memory(self.nest, self.leaves, first=True)]
            )
        return self._accumulate()

    @property
    def _partial(self) -> bool:
        """Whether the sum of this part starts from zero and is added to what is in memory: the rounding errors of a
        long sum then grow with the length of a part, not of the whole."""
        return self.resume and self.body.op == "sum"

    # -- accumulators of their own ------------------------------------------------------------------------------------

    def _accumulate(self) -> Stmt:
        low = self.lowering
        axes = [a for a in (*self.tile, *self.lanes) if self.nest.extents[a].int != 1]
        self.dims = axes
        shape = [low.space.upper(self.nest.extents[a]) for a in axes] or [1]
        if any(n is None for n in shape):
            raise ScheduleError(f"{self.stage.tensor.name}: the loops {axes} inside its reduction have no bound")
        scope = "local" if self._in_registers(self.tile) else "scratch"
        types = [self.body.source.dtype] + ([I64] if self.body.index is not None else [])
        name = self.stage.tensor.name
        self.acc = [
            Buffer(
                low.unique(f"{name}_acc" if k == 0 else f"{name}_at"),
                tuple(n for n in shape if n is not None),
                t,
                None,
                scope,
            )
            for k, t in enumerate(types)
        ]
        self.nest.by_loops = True
        whole = self.nest.copy()
        whole.settle_all("reduce")  # all accumulators start, also those that a short last block leaves alone
        out = seq(
            [
                self._walk((*self.tile, *self.lanes), self._start, nest=whole),
                self._walk(self.leaves, self._update, inside=True),
                self._walk(self.tile, self._finish),
            ]
        )
        for buffer in reversed(self.acc):
            out = Allocate(buffer, out)
        return out

    def _index(self, nest: Nest) -> tuple[Expr, ...]:
        return tuple([self.lowering.space.expr(nest.values[a]) for a in self.dims]) or (Const(0, INDEX),)

    def _start(self, nest: Nest) -> Stmt:
        index = self._index(nest)
        start = neutral(self.body.op, self.acc[0].dtype)
        if self.resume and not self._partial:
            start = self._guarded(nest, self._own(nest), start)
        stores: list[Stmt] = [Store(self.acc[0], index, start)]
        if len(self.acc) > 1:
            stores.append(Store(self.acc[1], index, Const(I64.max, I64)))
        return seq(stores)

    def _update(self, nest: Nest) -> Stmt:
        index = self._index(nest)
        low = self.lowering
        source = low.builder.build(self.body.source, nest.environment())
        scalar, vector = low.guards(nest)
        if vector is not None:
            source = Select(vector, source, neutral(self.body.op, source.dtype))
        if self.body.index is None:
            new = combine(self.body.op, Load(self.acc[0], index), source)
            return _guard(scalar, Store(self.acc[0], index, new))
        position = low.builder.build(self.body.index, nest.environment())
        if vector is not None:
            position = Select(vector, position, Const(I64.max, I64))
        old = Load(self.acc[0], index), Load(self.acc[1], index)
        value, at = take(self.body.op, old, (source, position))
        # The index is decided by the old value: it is stored first.
        return _guard(scalar, seq([Store(self.acc[1], index, at), Store(self.acc[0], index, value)]))

    def _finish(self, nest: Nest) -> Stmt:
        fixed = {a: self.lowering.space.expr(nest.values[a]) for a in self.tile}
        results = [self._parts(buffer, fixed) for buffer in self.acc]
        if self.body.index is None:
            value = _pairwise(results[0], lambda a, b: binary(_OPERATOR.get(self.body.op, self.body.op), a, b))
            if value.lanes > 1:
                value = VectorReduce(self.body.op, value)
            if self._partial:
                value = self._guarded(nest, binary("add", self._own(nest), value), value)
        else:
            best, at = _pairwise(list(zip(results[0], results[1])), lambda a, b: take(self.body.op, a, b))
            value = at if best.lanes == 1 else _first_lane(self.body.op, best, at)
        return self.lowering.store_element(nest, value)

    def _parts(self, buffer: Buffer, fixed: dict[IterVar, Expr]) -> list[Expr]:
        """The accumulators of one element: one per step of the unrolled reduce loops, of as many lanes as they have."""
        choices: list[Sequence[Expr]] = []
        for axis, size in zip(self.dims, buffer.shape):
            if axis in fixed:
                choices.append([fixed[axis]])
            elif self.stage.kinds[axis] == "vectorized":
                choices.append([Ramp(Const(0, INDEX), 1, int(size))])  # type: ignore[arg-type]
            else:
                choices.append([Const(k, INDEX) for k in range(int(size))])  # type: ignore[arg-type]
        indices = itertools.product(*choices) if choices else [(Const(0, INDEX),)]
        return [Load(buffer, tuple(i)) for i in indices]

    # -- accumulating where the tensor is -----------------------------------------------------------------------------

    def _own(self, nest: Nest) -> Load:
        builder = self.lowering.builder
        return Load(self.place.buffer, builder.index(self.stage.tensor, nest.element()))

    def _start_own(self, nest: Nest) -> Stmt:
        value = neutral(self.body.op, self.body.source.dtype)
        if self.place.buffer.scope == "local":  # out of bounds elements of a register tile do no harm
            return Store(self.place.buffer, self.lowering.builder.index(self.stage.tensor, nest.element()), value)
        return self.lowering.store_element(nest, value)

    def _update_own(self, nest: Nest) -> Stmt:
        low = self.lowering
        source = low.builder.build(self.body.source, nest.environment())
        scalar, vector = low.guards(nest)
        index = low.builder.index(self.stage.tensor, nest.element())
        if vector is not None and self.place.buffer.scope == "local":
            source, vector = Select(vector, source, neutral(self.body.op, source.dtype)), None
        store = Store(self.place.buffer, index, combine(self.body.op, Load(self.place.buffer, index), source))
        return _guard(scalar, _guard(vector, store))

    def _update_memory(self, nest: Nest, leaves: tuple[IterVar, ...], first: bool = False) -> Stmt:
        if not leaves:
            return self._update_own(nest)
        axis, rest = leaves[0], leaves[1:]
        if not first and axis.kind == "reduce":
            inner = Reduction(self.lowering, nest, leaves, resume=True)
            if inner._in_registers(inner.tile):
                return inner.write()
        low = self.lowering
        return low.loop(nest, axis, lambda n: low.inside(n, axis, lambda m: self._update_memory(m, rest)))

    # -- loops --------------------------------------------------------------------------------------------------------

    def _walk(
        self, leaves: tuple[IterVar, ...], bottom: Bottom, inside: bool = False, nest: Nest | None = None
    ) -> Stmt:
        low = self.lowering

        def walk(nest: Nest, k: int) -> Stmt:
            if k == len(leaves):
                return bottom(nest)
            then: Bottom = lambda n: walk(n, k + 1)  # noqa: E731
            return low.loop(nest, leaves[k], (lambda n: low.inside(n, leaves[k], then)) if inside else then)

        return walk(nest or self.nest, 0)

    def _in_registers(self, tile: Sequence[IterVar]) -> bool:
        return all(self.stage.kinds.get(a) in ("unrolled", "vectorized") or self.nest.extents[a].int == 1 for a in tile)

    def _lane_axes(self) -> tuple[IterVar, ...]:
        """The reduce loops that get accumulators of their own; fixes their extents (tails are guarded)."""
        kinds = self.stage.kinds
        vectors = [a for a in self.leaves if a.kind == "reduce" and kinds.get(a) == "vectorized"]
        vectors = [a for a in vectors if self._full_extent(a) != 1]
        if not vectors:
            return ()
        if len(vectors) > 1 or any(kinds.get(a) == "vectorized" for a in self.tile):
            raise ScheduleError(f"{self.stage.tensor.name}: two loops of its reduction are vectorized")
        lanes = [a for a in self.leaves if a.kind == "reduce" and kinds.get(a) in ("unrolled", "vectorized")]
        for a in lanes:
            size = self._full_extent(a)
            if size is None:
                raise ScheduleError(f"{self.stage.tensor.name}: {a} is {kinds[a]} but its extent is not constant")
            if size > 1:
                self.nest.lanes[a] = size
        return tuple(self.nest.lanes)

    def _full_extent(self, axis: IterVar) -> int | None:
        """How far an axis runs, in a full block where it is part of one."""
        size = self.nest.extents[axis].int
        return axis.extent if size is None and isinstance(axis.extent, int) else size

    def _guarded(self, nest: Nest, value: Expr, otherwise: Expr) -> Expr:
        for cond in self.lowering.guards(nest):
            value = value if cond is None else Select(cond, value, otherwise)
        return value


_OPERATOR = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}


def _guard(cond: Expr | None, body: Stmt) -> Stmt:
    return body if cond is None else If(cond, body)


def _pairwise(items: list[T], fold: Callable[[T, T], T]) -> T:
    """All items folded as a balanced tree: the least error, the shortest chain."""
    while len(items) > 1:
        items = [fold(items[k], items[k + 1]) if k + 1 < len(items) else items[k] for k in range(0, len(items), 2)]
    return items[0]


def _first_lane(op: str, best: Expr, at: Expr) -> Expr:
    """The index of the best lane, the first of equal ones."""
    top = VectorReduce("max" if op == "argmax" else "min", best)
    hit = best.equal(top)
    if best.dtype.is_float:
        hit = binary("or", hit, Unary("isnan", best))
    return VectorReduce("min", Select(hit, at, Const(I64.max, I64, at.lanes)))
