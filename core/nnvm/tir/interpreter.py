"""Runs a PrimFunc on numpy arrays: the definition of the Tensor IR, for tests to hold code generators against.

Vectors are numpy arrays of their lanes; every loop runs serially, whatever its kind. Points of the definition:

- A shared expression object is computed once per statement that holds it, as memory may change between statements.
- Memory is read only where it must be: a Load inside a Select only in the lanes that take that branch, a masked Load
  only where its mask holds. Reading or writing outside a buffer is an IndexError: the program is wrong.
- Lanes that a Store's mask drops cannot fail a Check or divide by zero, but their Loads do need masks of their own.
- An operation on half types is computed in float32 and its result rounded to the type; an expansion that should not
  round in between casts to float32 first.
- Fresh memory holds NaN, or 0x5A bytes, so that reading it before writing shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dim import evaluate
from nnvm.te.expr import (
    THREADS,
    Binary,
    Bitcast,
    Broadcast,
    Buffer,
    Cast,
    Check,
    Const,
    Expr,
    Fma,
    Load,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from nnvm.tir import numeric
from nnvm.tir.numeric import DIVISIONS, KernelError, Value
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from nnvm.tir.visitor import children, post_order, reduced

__all__ = ["KernelError", "evaluate_expr", "run"]


def run(func: PrimFunc, arrays: Sequence[np.ndarray[Any, Any]], symbols: Mapping[str, int] | None = None) -> None:
    """Executes `func`; `arrays` are its params in order, outputs are written in place.

    Args:
        arrays: of the shapes and numpy types of the params (bfloat16 as uint16 bits), with any strides.
        symbols: value of each of `func.symbols`.
    Raises:
        KernelError: an Assert or Check did not hold, or an integer was divided by 0.
        ValueError: an array or a symbol does not fit the function.
        IndexError: the function reads or writes outside a buffer.
    """
    sizes = {THREADS: 1, **(symbols or {})}
    missing = [s for s in func.symbols if s not in sizes]
    if missing or len(arrays) != len(func.params):
        raise ValueError(f"{func.name}: {len(func.params)} params and symbols {func.symbols}; "
                         f"got {len(arrays)} arrays, symbols {tuple(sizes)}")  # fmt: skip
    memory: dict[Buffer, np.ndarray[Any, Any]] = {}
    for buffer, array in zip(func.params, arrays):
        shape = tuple(evaluate(d, sizes) for d in buffer.shape)
        if array.shape != shape or array.dtype != buffer.dtype.numpy:
            raise ValueError(f"{func.name}: {buffer.name} is {buffer.dtype}{list(shape)}, "
                             f"the array {array.dtype}{list(array.shape)}")  # fmt: skip
        memory[buffer] = array
    with np.errstate(all="ignore"):
        _Interpreter(memory, sizes).stmt(func.body)


def evaluate_expr(e: Expr, variables: Mapping[Var, Any] | None = None) -> Value:
    """The value of an expression without loads; each variable may be an array, whose elements are then the lanes.

    So a scalar expression is evaluated for a million arguments at once.
    """
    with np.errstate(all="ignore"):
        interpreter = _Interpreter({}, {})
        interpreter.variables.update(variables or {})
        return interpreter.expr(e)


class _Interpreter:
    def __init__(self, memory: dict[Buffer, np.ndarray[Any, Any]], sizes: Mapping[str, int]) -> None:
        self.memory = memory
        self.sizes = sizes
        self.variables: dict[Var, Value] = {}
        self._known: list[dict[Expr, Value]] = [{}]  # values in the current statement, innermost Select branch last
        self._guarded: dict[Expr, bool] = {}
        self._active: Value = True  # lanes that the Selects around take
        self._stored: Value = True  # lanes that the Store will write

    # --- statements

    def stmt(self, s: Stmt) -> None:
        _STATEMENTS[type(s)](self, s)

    def _fresh(self, e: Expr) -> Value:
        """The value of an expression of a statement of its own."""
        self._known = [{}]
        return self.expr(e)

    def store(self, s: Store) -> None:
        self._known = [{}]
        mask: Value = True if s.mask is None else self.expr(s.mask)
        if not np.any(mask):
            return
        self._stored = mask
        value = numeric.to_memory(self.expr(s.value), s.buffer.dtype)
        self._stored = True
        where = self._address(s.buffer, s.indices, mask)
        if isinstance(mask, np.ndarray):
            where = tuple(np.broadcast_to(i, mask.shape)[mask] for i in where)
            value = np.broadcast_to(value, mask.shape)[mask]
        self.memory[s.buffer][where] = value

    def for_loop(self, s: For) -> None:
        for i in range(int(self._fresh(s.extent))):
            self.variables[s.var] = i
            self.stmt(s.body)

    def sequence(self, s: Seq) -> None:
        for x in s.body:
            self.stmt(x)

    def branch(self, s: If) -> None:
        if self._fresh(s.cond):
            self.stmt(s.then)
        elif s.orelse is not None:
            self.stmt(s.orelse)

    def allocate(self, s: Allocate) -> None:
        b = s.buffer
        shape = tuple(evaluate(d, self.sizes) for d in b.shape)
        fresh = np.full(shape, 0x5A5A5A5A & ((1 << min(31, b.dtype.bits)) - 1), b.dtype.numpy)
        if b.dtype.is_float:
            fresh[...] = numeric.to_memory(np.float32(np.nan), b.dtype)
        self.memory[b] = fresh
        self.stmt(s.body)
        del self.memory[b]

    def let(self, s: Let) -> None:
        self.variables[s.var] = self._fresh(s.value)
        self.stmt(s.body)

    def assertion(self, s: Assert) -> None:
        if not self._fresh(s.cond):
            raise KernelError(s.message)

    def prefetch(self, s: Prefetch) -> None:
        for i in s.indices:
            self._fresh(i)

    # --- expressions

    def expr(self, e: Expr) -> Value:
        for known in self._known:
            if e in known:
                return known[e]
        value = _EXPRESSIONS[type(e)](self, e)
        if e.dtype.is_half and isinstance(e, (Unary, Binary, Fma, VectorReduce)):
            value = numeric.cast(value, None, e.dtype)
        self._known[-1][e] = value
        return value

    def constant(self, e: Const) -> Value:
        return numeric.constant(e.value, e.dtype, e.lanes)

    def variable(self, e: Var) -> Value:
        if e in self.variables:
            return self.variables[e]
        if e.name in self.sizes:
            return self.sizes[e.name]
        raise ValueError(f"variable {e.name} has no value here")

    def unary(self, e: Unary) -> Value:
        return numeric.apply_unary(e.op, self.expr(e.a), e.a.dtype)

    def binary(self, e: Binary) -> Value:
        a, b = self.expr(e.a), self.expr(e.b)
        return numeric.apply_binary(e.op, a, b, e.a.dtype, np.logical_and(self._active, self._stored))

    def fma(self, e: Fma) -> Value:
        return numeric.fused_multiply_add(self.expr(e.a), self.expr(e.b), self.expr(e.c), e.dtype)

    def cast(self, e: Cast) -> Value:
        return numeric.cast(self.expr(e.a), e.a.dtype, e.dtype)

    def bitcast(self, e: Bitcast) -> Value:
        return numeric.bitcast(self.expr(e.a), e.a.dtype, e.dtype)

    def select(self, e: Select) -> Value:
        cond = self.expr(e.cond)
        if not isinstance(cond, np.ndarray):
            return self.expr(e.a if cond else e.b)
        if cond.all() or not cond.any():
            return self.expr(e.a if cond.any() else e.b)
        a, b = self._in_lanes(e.a, cond), self._in_lanes(e.b, ~cond)
        return np.asarray(np.where(cond, a, b), numeric.value_type(e.dtype))

    def _in_lanes(self, e: Expr, lanes: Value) -> Value:
        """The value of a Select's branch, which reads memory only in `lanes`."""
        if not self._is_guarded(e):
            return self.expr(e)
        before = self._active
        self._active = np.logical_and(before, lanes)
        self._known.append({})
        value = self.expr(e)
        self._known.pop()
        self._active = before
        return value

    def _is_guarded(self, e: Expr) -> bool:
        """Whether the value depends on which lanes are active: it reads memory, checks or divides integers."""
        known = self._guarded.get(e)
        if known is None:
            for x in post_order(e):
                if x not in self._guarded:
                    divides = isinstance(x, Binary) and x.op in DIVISIONS and not x.dtype.is_float
                    own = divides or isinstance(x, (Load, Check))
                    self._guarded[x] = own or any(self._guarded[c] for c in children(x))
            known = self._guarded[e]
        return known

    def load(self, e: Load) -> Value:
        mask = self._active if e.mask is None else np.logical_and(self._active, self.expr(e.mask))
        if not isinstance(mask, np.ndarray) or e.lanes == 1:
            if not np.any(mask):
                return numeric.constant(0, e.dtype, e.lanes)
            return numeric.from_memory(self.memory[e.buffer][self._address(e.buffer, e.indices, True)], e.dtype)
        where = self._address(e.buffer, e.indices, mask)
        out = np.zeros(mask.shape, e.buffer.dtype.numpy)
        out[mask] = self.memory[e.buffer][tuple(np.broadcast_to(i, mask.shape)[mask] for i in where)]
        return numeric.from_memory(out, e.dtype)

    def _address(self, buffer: Buffer, indices: tuple[Expr, ...], mask: Value) -> tuple[Value, ...]:
        """Values of the indices, in bounds in every lane of `mask`."""
        if buffer not in self.memory:
            raise ValueError(f"buffer {buffer.name} is not allocated here")
        where = tuple([self.expr(i) for i in indices])
        for axis, (i, n) in enumerate(zip(where, self.memory[buffer].shape)):
            if isinstance(i, int):
                outside = not 0 <= i < n and (mask is True or bool(np.any(mask)))
            else:
                outside = bool(np.any(np.logical_and((i < 0) | (i >= n), mask)))
            if outside:
                raise IndexError(f"{buffer.name}: index {i} on axis {axis} of shape {self.memory[buffer].shape}")
        return where

    def ramp(self, e: Ramp) -> Value:
        return self.expr(e.base) + e.stride * np.arange(e.lanes, dtype=e.dtype.numpy)

    def broadcast(self, e: Broadcast) -> Value:
        return np.full(e.lanes, self.expr(e.a), numeric.value_type(e.dtype))

    def shuffle(self, e: Shuffle) -> Value:
        return np.concatenate([self.expr(e.a), self.expr(e.b)])[list(e.order)]

    def vector_reduce(self, e: VectorReduce) -> Value:
        return numeric.reduce_lanes(e.op, self.expr(e.a), e.dtype)

    def reduction(self, e: Reduce) -> Value:
        """Combines the sources one after the other, each with the axes at values of their own."""
        axes = reduced(e)
        sources: list[Value] = []
        positions: list[Value] = []
        for where in np.ndindex(*(int(a.extent) for a in axes)):  # type: ignore[arg-type]
            self.variables.update((a.var, i) for a, i in zip(axes, where))
            outer, self._known = self._known, [{}]  # what depends on the axes is another value each time
            sources.append(self.expr(e.source))
            if e.index is not None:
                positions.append(self.expr(e.index))
            self._known = outer
        lanes = np.array(sources)
        if e.index is None:
            return numeric.reduce_lanes(e.op, lanes, e.dtype)
        best = np.nanargmax if e.op == "argmax" else np.nanargmin
        nan = np.isnan(lanes) if e.source.dtype.is_float else np.zeros(lanes.shape, bool)
        found = nan if nan.any() else lanes == lanes[best(lanes)]
        return min(p for p, hit in zip(positions, found) if hit)

    def check(self, e: Check) -> Value:
        wrong = np.logical_not(self.expr(e.cond))
        if np.any(np.logical_and(wrong, np.logical_and(self._active, self._stored))):
            raise KernelError(e.message)
        value = self.expr(e.value)
        return np.where(wrong, np.zeros_like(value), value) if isinstance(wrong, np.ndarray) else value


_Method = Callable[[Any, Any], Any]
_STATEMENTS: dict[type, _Method] = {
    Store: _Interpreter.store, For: _Interpreter.for_loop, Seq: _Interpreter.sequence, If: _Interpreter.branch,
    Allocate: _Interpreter.allocate, Let: _Interpreter.let, Assert: _Interpreter.assertion,
    Prefetch: _Interpreter.prefetch,
}  # fmt: skip
_EXPRESSIONS: dict[type, _Method] = {
    Const: _Interpreter.constant, Var: _Interpreter.variable, Unary: _Interpreter.unary, Binary: _Interpreter.binary,
    Fma: _Interpreter.fma, Cast: _Interpreter.cast, Bitcast: _Interpreter.bitcast, Select: _Interpreter.select,
    Load: _Interpreter.load, Ramp: _Interpreter.ramp, Broadcast: _Interpreter.broadcast,
    Shuffle: _Interpreter.shuffle,
    Reduce: _Interpreter.reduction, VectorReduce: _Interpreter.vector_reduce, Check: _Interpreter.check,
}  # fmt: skip
