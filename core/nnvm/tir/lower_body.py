"""Compute bodies to expressions of the Tensor IR: reads become loads, index arithmetic becomes canonical.

Equal sub-expressions become one object, so code generators compute them once. Conditions that the loop bounds
decide (padding in the interior of an image) are folded away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnvm.dtype import BOOL
from nnvm.te.expr import (
    BITWISE,
    COMPARISONS,
    INDEX,
    Binary,
    Buffer,
    Cast,
    Check,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    binary,
    check,
    select,
)
from nnvm.te.schedule import ScheduleError
from nnvm.te.tensor import Read, Tensor
from nnvm.tir.affine import Affine, Space
from nnvm.tir.visitor import children, post_order, rebuild

__all__ = ["BodyBuilder", "Place", "inline_reads"]

_ZERO = Const(0, INDEX)


@dataclass(frozen=True)
class Place:
    """Where a tensor is kept: its element at `indices` is `buffer[indices - offsets]`, the index of an axis of which
    only one element is kept (offset None) being 0."""

    buffer: Buffer
    offsets: tuple[Affine | None, ...]


class BodyBuilder:
    """Builds the expressions of one kernel. `places` says where each tensor is at the moment."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.places: dict[Tensor, Place] = {}
        self._unique: dict[tuple[object, ...], Expr] = {}
        self._pure: dict[Expr, bool] = {}

    def build(self, e: Expr, env: Mapping[Var, Affine]) -> Expr:
        """`e` with the axis variables of its tensor set as in `env`."""
        memo: dict[Expr, Expr] = {}
        self._mark_pure(e)
        return self._build(e, env, memo)

    def index(self, tensor: Tensor, indices: Sequence[Affine]) -> tuple[Expr, ...]:
        """The buffer indices of an element."""
        expr = self.space.expr
        offsets = self._place(tensor).offsets
        return tuple([_ZERO if o is None else expr(i - o) for i, o in zip(indices, offsets)])

    def load(self, tensor: Tensor, indices: Sequence[Affine]) -> Load:
        return self.load_buffer(self._place(tensor).buffer, self.index(tensor, indices))

    def _place(self, tensor: Tensor) -> Place:
        place = self.places.get(tensor)
        if place is None:
            raise ScheduleError(f"{tensor.name} is read outside of the loop that computes it")
        return place

    def load_buffer(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Load:
        return self._once(Load(buffer, indices), (Load, buffer, *indices))  # type: ignore[return-value]

    def less(self, a: Affine, b: Affine) -> Expr:
        """`a < b`, a constant where the loop bounds decide it."""
        return self._compare("lt", a, b)

    def _once(self, e: Expr, key: tuple[object, ...]) -> Expr:
        return self._unique.setdefault(key, e)

    def _mark_pure(self, e: Expr) -> None:
        """Find the sub-expressions that read no memory: only they are index arithmetic (data may overflow)."""
        pure = self._pure
        for x in post_order(e):
            if x not in pure:
                pure[x] = not isinstance(x, (Read, Load)) and all(pure[c] for c in children(x))

    def _build(self, e: Expr, env: Mapping[Var, Affine], memo: dict[Expr, Expr]) -> Expr:
        found = memo.get(e)
        if found is None:
            found = memo[e] = self._convert(e, env, memo)
        return found

    def _convert(self, e: Expr, env: Mapping[Var, Affine], memo: dict[Expr, Expr]) -> Expr:
        if isinstance(e, Read):
            return self.load(e.tensor, [self._affine(i, env, memo) for i in e.indices])
        if isinstance(e, Const):
            return self._once(e, (Const, e.dtype, repr(e.value)))
        if isinstance(e, Var) or (e.dtype == INDEX and isinstance(e, Binary) and self._pure[e]):
            return self.space.expr(self._affine(e, env, memo))
        if isinstance(e, Binary):
            if e.op in COMPARISONS and e.a.dtype == INDEX and self._pure[e]:
                return self._compare(e.op, self._affine(e.a, env, memo), self._affine(e.b, env, memo))
            a, b = self._build(e.a, env, memo), self._build(e.b, env, memo)
            new = Binary(e.op, a, b) if a.dtype.is_float and e.op not in BITWISE else binary(e.op, a, b)
            return self._once(new, (Binary, e.op, a, b))
        if isinstance(e, Select):
            cond = self._build(e.cond, env, memo)
            if isinstance(cond, Const):
                return self._build(e.a if cond.value else e.b, env, memo)
            a, b = self._build(e.a, env, memo), self._build(e.b, env, memo)
            return self._once(select(cond, a, b), (Select, cond, a, b))
        if isinstance(e, Check):
            return check(self._build(e.value, env, memo), self._build(e.cond, env, memo), e.message)
        new_children = [self._build(c, env, memo) for c in children(e)]
        detail = e.op if isinstance(e, Unary) else e.dtype
        return self._once(rebuild(e, new_children), (type(e), detail, *new_children))

    def _affine(self, e: Expr, env: Mapping[Var, Affine], memo: dict[Expr, Expr]) -> Affine:
        return self.space.from_expr(e, env, lambda x: self._build(x, env, memo))

    def _compare(self, op: str, a: Affine, b: Affine) -> Expr:
        space = self.space
        if op in ("gt", "ge"):
            return self._compare("lt" if op == "gt" else "le", b, a)
        difference = b - a if op == "le" else b - a - 1
        if op in ("lt", "le"):
            if space.nonnegative(difference):
                return Const(True, BOOL)
            if space.nonnegative(difference * -1 - 1):
                return Const(False, BOOL)
        elif a == b:
            return Const(op == "eq", BOOL)
        elif space.nonnegative(difference) or space.nonnegative(a - b - 1):
            return Const(op == "ne", BOOL)
        x, y = space.expr(a), space.expr(b)
        return self._once(binary(op, x, y), (Binary, op, x, y))


def inline_reads(body: Expr, bodies: Mapping[Tensor, tuple[tuple[Var, ...], Expr]]) -> Expr:
    """`body` with each read of a tensor in `bodies` (axis variables, element) replaced by that element."""
    memo: dict[Expr, Expr] = {}
    made: dict[tuple[object, ...], Expr] = {}

    def walk(e: Expr) -> Expr:
        found = memo.get(e)
        if found is not None:
            return found
        old = children(e)
        new = [walk(c) for c in old]
        if isinstance(e, Read) and e.tensor in bodies:
            key = (e.tensor, *[_key(i) for i in new])
            if key not in made:
                variables, element = bodies[e.tensor]
                made[key] = _substitute(element, dict(zip(variables, new)))
            out = made[key]
        else:
            out = e if all(a is b for a, b in zip(old, new)) else rebuild(e, new)
        memo[e] = out
        return out

    return walk(body)


def _key(e: Expr) -> object:
    """Equal for index expressions that are written alike."""
    if isinstance(e, Const):
        return (e.dtype, e.value)
    if isinstance(e, Binary):
        return (e.op, _key(e.a), _key(e.b))
    return (e.dtype, _key(e.a)) if isinstance(e, Cast) else e


def _substitute(e: Expr, env: dict[Var, Expr]) -> Expr:
    memo: dict[Expr, Expr] = {v: e for v, e in env.items()}  # noqa: C416 (Var keys as Expr keys)
    for x in post_order(e):
        if x not in memo:
            old = children(x)
            new = [memo[c] for c in old]
            memo[x] = x if all(a is b for a, b in zip(old, new)) else rebuild(x, new)
    return memo[e]
