"""Accumulators of reductions: vectors in registers, started, updated in a loop, and combined at the end."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dtype import I64
from nnvm.schedules.access import At, Source
from nnvm.schedules.emit import Emitter, broadcast
from nnvm.schedules.row_program import LARGEST, Reduction
from nnvm.te.expr import INDEX, Binary, Buffer, Const, Expr, Load, Ramp, Select, Shuffle, Unary, Var, VectorReduce
from nnvm.te.tensor import children
from nnvm.tir.affine import Affine
from nnvm.tir.lower_reduce import combine, neutral
from nnvm.tir.stmt import Allocate, Let, Stmt, Store, seq

__all__ = ["Accumulator", "allocate_all"]


class Accumulator:
    """`slots` vectors of `lanes` partial results of one reduction, in a local buffer.

    argmax and argmin keep the value and the index of each lane. A lane that has seen nothing holds the least value
    and index 0, which is also the answer where every element is the least value.

    `exact`, for the totals of float sums: a second vector collects what each addition to a total rounds away (Knuth's
    TwoSum), so that the error does not grow with how many partial sums there are.
    """

    def __init__(self, reduction: Reduction, slots: int, lanes: int, name: str, exact: bool = False) -> None:
        self.reduction = reduction
        self.op, self.dtype = reduction.op, reduction.source.dtype
        self.tensor, self.slots, self.lanes, self.name = reduction.tensor, slots, lanes, name
        self.values = Buffer(name, (slots * lanes,), self.dtype, None, "local")
        self.indices = Buffer(f"{name}_at", (slots * lanes,), I64, None, "local") if self.is_arg else None
        self.lost = Buffer(f"{name}_lost", (slots * lanes,), self.dtype, None, "local") if exact else None

    @property
    def is_arg(self) -> bool:
        return self.op in ("argmax", "argmin")

    @property
    def is_float_sum(self) -> bool:
        return self.op == "sum" and self.dtype.is_float

    @property
    def result(self) -> Source:
        """Where each lane's result is when the loop is done."""
        return Source(self.values if self.indices is None else self.indices, (1,))

    def allocate(self, body: Stmt) -> Stmt:
        for buffer in (self.values, self.indices, self.lost):
            body = body if buffer is None else Allocate(buffer, body)
        return body

    @property
    def _neutral(self) -> Expr:
        """What every lane starts from."""
        return broadcast(neutral("max" if self.op == LARGEST else self.op, self.dtype), self.lanes)

    def _ramp(self, slot: int) -> Expr:
        return Ramp(Const(slot * self.lanes, INDEX), 1, self.lanes)

    def load(self, slot: int) -> Expr:
        value = Load(self.values, (self._ramp(slot),))
        if self.lost is None:
            return value
        lost = Load(self.lost, (self._ramp(slot),))
        known = Unary("not", Unary("isnan", lost))  # it is NaN once the total is infinite
        return Select(known, _pair(self.op, value, lost), value)

    def like(self, slots: int, name: str, exact: bool = False) -> Accumulator:
        """Accumulators for the same reduction."""
        return Accumulator(self.reduction, slots, self.lanes, name, exact)

    def take(self, other: Accumulator) -> Stmt:
        """Adds the partial results of `other`, slot by slot or all to the only one."""
        if self.slots == other.slots:
            items = [other.load(s) for s in range(other.slots)]
        else:
            items = [_tree(self.op, [other.load(s) for s in range(other.slots)])]
        return seq([self._add(s, e) for s, e in enumerate(items)])

    def _add(self, slot: int, value: Expr) -> Stmt:
        where = (self._ramp(slot),)
        old = Load(self.values, where)
        total = _pair(self.op, old, value)
        if self.lost is None:
            return Store(self.values, where, total)
        taken = Binary("sub", total, old)
        rounded = Binary("add", Binary("sub", old, Binary("sub", total, taken)), Binary("sub", value, taken))
        # what is lost first: it is computed from the old total
        lost = Store(self.lost, where, Binary("add", Load(self.lost, where), rounded))
        return seq([lost, Store(self.values, where, total)])

    def start(self) -> Stmt:
        """Sets every lane to the neutral value."""
        out: list[Stmt] = []
        for slot in range(self.slots):
            out.append(Store(self.values, (self._ramp(slot),), self._neutral))
            if self.indices is not None:
                out.append(Store(self.indices, (self._ramp(slot),), broadcast(Const(0, I64), self.lanes)))
            if self.lost is not None:
                out.append(Store(self.lost, (self._ramp(slot),), broadcast(Const(0.0, self.dtype), self.lanes)))
        return seq(out)

    def update(self, at: Affine, emitter: Emitter, source: Expr, index: Expr | None) -> Stmt:
        """Takes in one vector; `at` is the first lane's place in the accumulators (with the lane in it)."""
        where = (emitter.index(at),)
        value = emitter.vector(source)
        if self.indices is not None:
            assert index is not None
            return self._update_arg(where, value, emitter.vector(index), emitter.mask)
        if emitter.mask is not None:
            value = Select(emitter.mask, value, self._neutral)
        old = Load(self.values, where)
        return Store(self.values, where, _larger(old, value) if self.op == LARGEST else combine(self.op, old, value))

    def _update_arg(self, where: tuple[Expr, ...], value: Expr, index: Expr, mask: Expr | None) -> Stmt:
        assert self.indices is not None
        best = Load(self.values, where)
        better = _better(self.op, best, value)
        if self.dtype.is_float and _depends_on_data(self.reduction.index):  # what came first need not have the least
            both = Binary("and", Unary("isnan", value), Unary("isnan", best))
            lower = Binary("lt", index, Load(self.indices, where))
            better = Binary("or", better, Binary("and", both, lower))
        if mask is not None:
            better = Binary("and", better, mask)
        # the indices first: the condition is computed from the values, which the second store changes
        taken = Select(better, index, Load(self.indices, where))
        return seq([Store(self.indices, where, taken), Store(self.values, where, Select(better, value, best))])

    def finish(self, then: Stmt, result: Var, total: Accumulator | None = None) -> Stmt:
        """`then` with `result` bound to all lanes of all slots combined, and those of `total`."""
        if self.indices is not None:
            return self._finish_arg(then, result)
        both = _tree(self.op, [self.load(s) for s in range(self.slots)])
        if self.op == LARGEST:
            return _let_largest(result, both, then)
        if total is not None:
            both = _pair(self.op, both, _tree(self.op, [total.load(s) for s in range(total.slots)]))
        return Let(result, VectorReduce(self.op, both) if self.lanes > 1 else both, then)

    def _finish_arg(self, then: Stmt, result: Var) -> Stmt:
        """The best of all slots, then of all lanes; the least index where several are equal."""
        assert self.indices is not None
        items: list[tuple[Expr, Expr]] = []
        for s in range(self.slots):
            items.append((self.load(s), Load(self.indices, (self._ramp(s),))))
        while len(items) > 1:
            pairs = [_first_best(self.op, a, b) for a, b in zip(items[::2], items[1::2])]
            items = pairs + items[2 * len(pairs) :]
        values, indices = items[0]
        best = Var(f"{self.name}_best", self.dtype)
        everywhere = broadcast(best, self.lanes)
        found: Expr = Binary("eq", values, everywhere)
        if self.dtype.is_float:
            found = Binary("or", found, Binary("and", Unary("isnan", values), Unary("isnan", everywhere)))
        never = broadcast(Const(I64.max, I64), self.lanes)
        index: Expr = VectorReduce("min", Select(found, indices, never)) if self.lanes > 1 else indices
        top = VectorReduce("max" if self.op == "argmax" else "min", values) if self.lanes > 1 else values
        return Let(best, top, Let(result, index, then))


def _first_best(op: str, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """Lane by lane the better of two (value, index), the one of the lower index where they are equal."""
    tie: Expr = Binary("eq", a[0], b[0])
    if a[0].dtype.is_float:
        tie = Binary("or", tie, Binary("and", Unary("isnan", a[0]), Unary("isnan", b[0])))
    take = Binary("or", _better(op, a[0], b[0]), Binary("and", tie, Binary("lt", b[1], a[1])))
    return Select(take, b[0], a[0]), Select(take, b[1], a[1])


def _depends_on_data(index: Expr | None) -> bool:
    return index is not None and (isinstance(index, At) or any(map(_depends_on_data, children(index))))


def _better(op: str, best: Expr, new: Expr) -> Expr:
    """Is `new` to be taken in place of `best`, which came before it?"""
    better = Binary("gt" if op == "argmax" else "lt", new, best)
    if not new.dtype.is_float:
        return better
    nan = Binary("and", Unary("isnan", new), Unary("not", Unary("isnan", best)))
    return Binary("or", better, nan)


def _larger(number: Expr, value: Expr) -> Expr:
    """The larger one, `number` where `value` is NaN: what x86's maxps is."""
    return Select(Binary("gt", value, number), value, number)


def _let_largest(result: Var, numbers: Expr, then: Stmt) -> Stmt:
    """`then` with `result` bound to the largest lane of `numbers`."""
    lets: list[tuple[Var, Expr]] = []
    while numbers.lanes > 2 and numbers.lanes % 2 == 0:
        whole = Var(f"{result.name}_{numbers.lanes}", numbers.dtype, numbers.lanes)
        lets.append((whole, numbers))
        half = numbers.lanes // 2
        low, high = (Shuffle(whole, whole, tuple(range(start, start + half))) for start in (0, half))
        numbers = _larger(low, high)
    out: Stmt = Let(result, VectorReduce("max", numbers) if numbers.lanes > 1 else numbers, then)
    for var, value in reversed(lets):
        out = Let(var, value, out)
    return out


def _pair(op: str, a: Expr, b: Expr) -> Expr:
    if op == LARGEST:
        return _larger(a, b)
    operator = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(op, op)
    return Binary(operator, a, b)


def _tree(op: str, items: list[Expr]) -> Expr:
    while len(items) > 1:
        pairs = [_pair(op, a, b) for a, b in zip(items[::2], items[1::2])]
        items = pairs + items[2 * len(pairs) :]
    return items[0]


def allocate_all(accumulators: Sequence[Accumulator], body: Stmt) -> Stmt:
    for a in accumulators:
        body = a.allocate(body)
    return body
