"""Vectorized loops to vector operations.

    for j in vectorized(8): out[i, j] = x[i, j] * 2
->  out[i, ramp(0, 1, 8)] = x[i, ramp(0, 1, 8)] * broadcast(2, 8)

The loop variable becomes a Ramp; what depends on it becomes a vector, the rest stays scalar. A condition that depends
on it becomes the mask of the stores behind it. Buffers allocated inside the loop get a dimension for the lanes.
Requires constant extents of vectorized loops, none inside another; leaves none.
"""

from __future__ import annotations

from nnvm.te.expr import (
    INDEX,
    Binary,
    Broadcast,
    Buffer,
    Cast,
    Check,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
    binary,
    const,
)
from nnvm.tir.stmt import Allocate, Assert, For, If, Seq, Stmt, Store, seq
from nnvm.tir.visitor import StmtMutator, children, rebuild

__all__ = ["vectorize"]


def vectorize(s: Stmt) -> Stmt:
    """`s` without vectorized loops; the same object where it had none. ValueError: a loop that cannot be a vector."""
    return _Vectorize().stmt(s)


class _Vectorize(StmtMutator):
    def expr(self, e: Expr) -> Expr:
        return e

    def visit_for(self, s: For) -> Stmt:
        if s.kind != "vectorized":
            return self._for(s)
        if not isinstance(s.extent, Const):
            raise ValueError(f"the extent of the vectorized loop {s.var.name} is not a constant")
        lanes = int(s.extent.value)
        if lanes == 1:
            raise ValueError(f"the vectorized loop {s.var.name} runs once: leave it out")
        return _Lanes(s.var, lanes).stmt(s.body)


class _Lanes:
    """The body of one vectorized loop."""

    def __init__(self, var: Var, lanes: int) -> None:
        self.var, self.lanes = var, lanes
        self.ramp = Ramp(Const(0, INDEX), 1, lanes)
        self.mask: Expr | None = None
        self.memo: dict[Expr, Expr] = {var: self.ramp}
        self.buffers: dict[Buffer, Buffer] = {}

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return self._store(s)
        if isinstance(s, Seq):
            return seq([self.stmt(x) for x in s.body])
        if isinstance(s, If):
            return self._if(s)
        if isinstance(s, For):
            extent = self.expr(s.extent)
            if extent.lanes > 1 or s.kind == "vectorized":
                raise ValueError(f"loop {s.var.name} inside the vectorized loop {self.var.name} differs between lanes")
            return For(s.var, extent, self.stmt(s.body), s.kind)
        if isinstance(s, Allocate):
            wide = Buffer(s.buffer.name, (*s.buffer.shape, self.lanes), s.buffer.dtype, None, s.buffer.scope)
            self.buffers[s.buffer] = wide
            return Allocate(wide, self.stmt(s.body))
        assert isinstance(s, Assert)
        cond = self.expr(s.cond)
        return Assert(VectorReduce("all", cond) if cond.lanes > 1 else cond, s.message)

    def _if(self, s: If) -> Stmt:
        cond = self.expr(s.cond)
        if cond.lanes == 1:
            return If(cond, self.stmt(s.then), None if s.orelse is None else self.stmt(s.orelse))
        outer = self.mask
        self.mask = cond if outer is None else binary("and", outer, cond)
        parts = [self.stmt(s.then)]
        if s.orelse is not None:
            inverse = Unary("not", cond)
            self.mask = inverse if outer is None else binary("and", outer, inverse)
            parts.append(self.stmt(s.orelse))
        self.mask = outer
        return seq(parts)

    def _store(self, s: Store) -> Stmt:
        buffer, indices = self._access(s.buffer, s.indices)
        value = self.expr(s.value)
        mask = s.mask if s.mask is None else self.expr(s.mask)
        if self.mask is not None:
            mask = self.mask if mask is None else binary("and", self.mask, mask)
        if all(i.lanes == 1 for i in indices):
            if value.lanes == 1 and (mask is None or mask.lanes == 1):
                return Store(buffer, indices, value, mask)
            raise ValueError(f"the lanes of the loop {self.var.name} store to one element of {buffer.name}")
        value = self._wide(value)
        if mask is not None:
            mask = self._wide(mask)
            value = Select(mask, value, self._wide(const(0, value.dtype)))  # loads only where a lane is stored
        return Store(buffer, indices, value, mask)

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        new = tuple([self.expr(i) for i in indices])
        wide = self.buffers.get(buffer)
        return (buffer, new) if wide is None else (wide, (*new, self.ramp))

    def _wide(self, e: Expr) -> Expr:
        if e.lanes > 1:
            return e
        if isinstance(e, Const):
            return Const(e.value, e.dtype, self.lanes)
        return Broadcast(e, self.lanes)

    def expr(self, e: Expr) -> Expr:
        found = self.memo.get(e)
        if found is None:
            found = self.memo[e] = self._convert(e)
        return found

    def _convert(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            buffer, indices = self._access(e.buffer, e.indices)
            mask = None if e.mask is None else self.expr(e.mask)
            if buffer is e.buffer and mask is e.mask and all(a is b for a, b in zip(indices, e.indices)):
                return e
            return Load(buffer, indices, mask)
        old = children(e)
        new = [self.expr(c) for c in old]
        if all(a is b for a, b in zip(old, new)):
            return e
        if all(c.lanes == 1 for c in new):
            return rebuild(e, new)
        if isinstance(e, (VectorReduce, Shuffle, Ramp, Broadcast)):
            raise ValueError(f"a vector inside the vectorized loop {self.var.name}")
        if isinstance(e, Select):  # a condition that is the same for all lanes stays a branch
            return Select(new[0], self._wide(new[1]), self._wide(new[2]))
        if isinstance(e, Check):
            return Check(self._wide(new[0]), self._wide(new[1]), e.message)
        if isinstance(e, Binary) and e.a.dtype == INDEX:
            ramp = _ramp(e.op, new[0], new[1])
            if ramp is not None:
                return ramp
        if isinstance(e, (Unary, Cast)):
            return rebuild(e, new)
        return rebuild(e, [self._wide(c) for c in new])


def _ramp(op: str, a: Expr, b: Expr) -> Expr | None:
    """Ramp arithmetic with scalars: still a Ramp."""
    if isinstance(b, Ramp) and not isinstance(a, Ramp) and a.lanes == 1:
        if op == "add" or op == "mul":
            return _ramp(op, b, a)
        return None
    if not isinstance(a, Ramp) or b.lanes != 1:
        return None
    if op in ("add", "sub"):
        return Ramp(binary(op, a.base, b), a.stride, a.lanes)
    if op == "mul" and isinstance(b, Const):
        return Ramp(binary("mul", a.base, b), a.stride * int(b.value), a.lanes)
    return None
