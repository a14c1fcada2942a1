"""Random kernels against the interpreter: expressions, loops of every kind, masks, branches, memory that changes."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm.dtype import BOOL, F32, I32, I64, DType
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.te.expr import (
    Binary,
    Broadcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
    Unary,
    Var,
    VectorReduce,
    binary,
    const,
)
from nnvm.tir import interpreter
from nnvm.tir.stmt import Allocate, For, If, Let, PrimFunc, Stmt, Store, seq
from nnvm.tir.verify import verify

SIZE, SEEDS = 48, 16


class Generator:
    """Makes legal TIR: every index is brought into range, or masked."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.inputs = [Buffer("a", (SIZE,), F32), Buffer("b", (6, 8), F32), Buffer("c", (SIZE,), I32)]
        self.outputs = [Buffer("p", (SIZE,), F32), Buffer("q", (6, 8), I32)]
        self.scratch: list[Buffer] = []
        self.vars: list[Var] = []
        self.shared: dict[tuple[DType, int], list[Expr]] = {}

    def pick(self, *choices: object) -> object:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def var(self, prefix: str, t: DType = I64) -> Var:
        self.count += 1
        return Var(f"{prefix}{self.count}", t)

    # -- indices

    def scalar_index(self) -> Expr:
        """Any int64 value of loop variables and sizes."""
        e: Expr = const(int(self.rng.integers(-5, 50)))
        for v in [*self.vars, Var("n")]:
            if self.chance(0.6):
                term = binary("mul", v, int(self.rng.integers(-3, 4)))
                if self.chance(0.3):
                    op = str(self.pick("floordiv", "floormod", "min", "max"))
                    term = binary(op, term, int(self.rng.integers(1, 9)))
                e = binary(str(self.pick("add", "sub")), e, term)
        return e

    def index(self, limit: int, lanes: int) -> Expr:
        """An index of `lanes` lanes inside 0 .. limit - 1."""
        if lanes == 1:
            return binary("floormod", self.scalar_index(), limit)
        step = int(self.pick(1, 1, 1, -1, 2, 3, 0))  # type: ignore[call-overload]
        span = abs(step) * (lanes - 1)
        if span >= limit:
            step, span = 0, 0
        base = binary("floormod", self.scalar_index(), limit - span)
        return Ramp(binary("add", base, span) if step < 0 else base, step, lanes)

    def access(self, buffer: Buffer, lanes: int) -> tuple[Expr, ...]:
        if len(buffer.shape) == 1:
            return (self.index(int(buffer.shape[0]), lanes),)
        if lanes == 1 or self.chance(0.7):
            return (self.index(6, 1), self.index(8, lanes)) if lanes <= 8 else (self.index(6, 1), self.index(8, 1))
        return (Ramp(const(0), 1, lanes) if lanes <= 6 else self.index(6, lanes), self.index(8, 1))

    # -- values

    def value(self, t: DType, lanes: int, depth: int) -> Expr:
        known = self.shared.setdefault((t, lanes), [])
        if known and self.chance(0.15):
            return known[int(self.rng.integers(len(known)))]
        e = self._value(t, lanes, depth)
        known.append(e)
        return e

    def _value(self, t: DType, lanes: int, depth: int) -> Expr:
        if depth == 0 or self.chance(0.15):
            return self.leaf(t, lanes)
        if t == BOOL:
            other = F32 if self.chance(0.5) else I32
            if self.chance(0.3):
                return Binary(str(self.pick("and", "or", "xor")), self.value(BOOL, lanes, depth - 1),
                              self.value(BOOL, lanes, depth - 1))  # fmt: skip
            op = str(self.pick("lt", "le", "gt", "ge", "eq", "ne"))
            return Binary(op, self.value(other, lanes, depth - 1), self.value(other, lanes, depth - 1))
        kind = self.pick("binary", "binary", "binary", "unary", "select", "cast", "reduce", "broadcast")
        if kind == "select":
            return Select(self.value(BOOL, lanes, depth - 1), self.value(t, lanes, depth - 1),
                          self.value(t, lanes, depth - 1))  # fmt: skip
        if kind == "cast":
            return Cast(self.value(I32 if t == F32 else BOOL, lanes, depth - 1), t)
        if kind == "reduce" and lanes == 1:
            return VectorReduce(str(self.pick("max", "min")), self.value(t, 8, depth - 1))
        if kind == "broadcast" and lanes > 1:
            return Broadcast(self.value(t, 1, depth - 1), lanes)
        if kind == "unary":
            return Unary(str(self.pick("neg", "abs")), self.value(t, lanes, depth - 1))
        ops = ("add", "sub", "mul", "min", "max", *(() if t == F32 else ("and", "xor", "shl", "shr")))
        x, y = self.value(t, lanes, depth - 1), self.value(t, lanes, depth - 1)
        if t == I32 and self.chance(0.15):
            one = const(1, I32) if lanes == 1 else Broadcast(const(1, I32), lanes)
            return Binary(str(self.pick("floordiv", "floormod", "truncdiv", "truncmod")), x, Binary("or", y, one))
        return Binary(str(self.pick(*ops)), x, y)

    def leaf(self, t: DType, lanes: int) -> Expr:
        if t == BOOL:
            return Binary("lt", self.lane_index(lanes), self.splat(self.scalar_index(), lanes))
        sources = [b for b in [*self.inputs, *self.scratch] if b.dtype == t]
        if self.chance(0.7) and sources:
            buffer = sources[int(self.rng.integers(len(sources)))]
            indices = self.access(buffer, lanes)
            got = max(i.lanes for i in indices)
            if got == lanes and lanes > 1 and self.chance(0.3):
                return self.masked(buffer, lanes)
            return Load(buffer, indices) if got == lanes else Broadcast(Load(buffer, indices), lanes)
        number = float(self.rng.integers(-8, 8)) / 4 if t == F32 else int(self.rng.integers(-20, 20))
        return self.splat(const(number, t), lanes)

    def lane_index(self, lanes: int) -> Expr:
        return self.scalar_index() if lanes == 1 else Ramp(self.scalar_index(), int(self.rng.integers(-2, 4)), lanes)

    def splat(self, e: Expr, lanes: int) -> Expr:
        return e if lanes == 1 else Broadcast(e, lanes)

    def masked(self, buffer: Buffer, lanes: int) -> Expr:
        """A load that may reach over the end, masked or under a select."""
        at = [self.index(int(d), 1) for d in buffer.shape]
        last = Ramp(at[-1], 1, lanes)
        indices = tuple(Broadcast(i, lanes) if self.chance(0.3) else i for i in at[:-1])
        inside = Binary("lt", last, Broadcast(const(int(buffer.shape[-1])), lanes))
        if self.chance(0.5):
            return Load(buffer, (*indices, last), inside)
        return Select(inside, Load(buffer, (*indices, last)), self.splat(const(0, buffer.dtype), lanes))

    # -- statements

    def store(self) -> Stmt:
        targets = [*self.outputs, *self.scratch]
        buffer = targets[int(self.rng.integers(len(targets)))]
        self.shared.clear()
        lanes = int(self.pick(1, 1, 8, 8, 4))  # type: ignore[call-overload]
        if lanes > 1 and self.chance(0.3):
            at = [self.index(int(d), 1) for d in buffer.shape]
            last = Ramp(at[-1], 1, lanes)
            inside = Binary("lt", last, Broadcast(const(int(buffer.shape[-1])), lanes))
            return Store(buffer, (*at[:-1], last), self.value(buffer.dtype, lanes, 2), inside)
        indices = self.access(buffer, lanes)
        lanes = max(i.lanes for i in indices)
        if any(isinstance(i, Ramp) and i.stride == 0 for i in indices):
            indices, lanes = tuple(i.base if isinstance(i, Ramp) else i for i in indices), 1
        return Store(buffer, indices, self.value(buffer.dtype, lanes, 3))

    def stmt(self, depth: int) -> Stmt:
        kind = self.pick("store", "for", "for", "if", "let", "allocate") if depth else "store"
        if kind == "for":
            loop = self.var("i")
            unrolled = self.chance(0.3)
            extent: Expr = const(int(self.rng.integers(0, 5)))
            if not unrolled and self.chance(0.3):
                extent = binary("floordiv", Var("n"), int(self.rng.integers(1, 4)))
            self.vars.append(loop)
            body = self.block(depth - 1)
            self.vars.pop()
            return For(loop, extent, body, "unrolled" if unrolled else "serial")
        if kind == "if":
            self.shared.clear()
            cond = self.value(BOOL, 1, 2)
            return If(cond, self.block(depth - 1), self.block(depth - 1) if self.chance(0.5) else None)
        if kind == "let":
            name = self.var("t")
            self.shared.clear()
            value: Expr = self.scalar_index()
            if self.chance(0.5):
                value = Cast(self.value(I32, 1, 1), I64)
            self.vars.append(name)
            body = self.block(depth - 1)
            self.vars.pop()
            return Let(name, value, body)
        if kind == "allocate":
            t = F32 if self.chance(0.5) else I32
            self.count += 1
            buffer = Buffer(f"s{self.count}", (16,), t, scope=str(self.pick("local", "scratch")))
            fill_var = self.var("z")
            fill = For(fill_var, const(16), Store(buffer, (fill_var,), const(1, t)))
            self.scratch.append(buffer)
            body = self.block(depth - 1)
            self.scratch.pop()
            return Allocate(buffer, seq([fill, body]))
        return self.store()

    def block(self, depth: int) -> Stmt:
        return seq([self.stmt(depth) for _ in range(int(self.rng.integers(1, 4)))])

    def func(self) -> PrimFunc:
        return PrimFunc("random", (*self.inputs, *self.outputs), 2, ("n",), self.block(3))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_kernel(seed: int) -> None:
    generator = Generator(seed)
    func = generator.func()
    verify(func)
    rng = np.random.default_rng(seed)
    a = (rng.integers(-20, 20, SIZE) / 4).astype(np.float32)
    b = (rng.integers(-20, 20, (6, 8)) / 4).astype(np.float32)
    c = rng.integers(-50, 50, SIZE).astype(np.int32)
    (kernel,) = compile_funcs([func])
    for n in (0, 5):
        expected = [np.full(SIZE, 0.5, np.float32), np.full((6, 8), 3, np.int32)]
        found = [e.copy() for e in expected]
        interpreter.run(func, [a, b, c, *expected], {"n": n})
        kernel(a, b, c, *found, symbols={"n": n})
        for f, e in zip(found, expected):
            np.testing.assert_array_equal(f, e)


def test_the_generator_makes_all_kinds() -> None:
    """The random kernels above do hold what they are meant to test."""
    seen: set[type] = set()
    kinds: set[str] = set()
    for seed in range(SEEDS):
        stack: list[object] = [Generator(seed).func().body]
        while stack:
            x = stack.pop()
            seen.add(type(x))
            if isinstance(x, For):
                kinds.add(x.kind)
            for name in getattr(type(x), "__dataclass_fields__", ()):
                v = getattr(x, name)
                stack.extend(v if isinstance(v, tuple) else (v,))
    expressions = {Load, Ramp, Broadcast, Select, Cast, VectorReduce, Unary, Binary, Const}
    assert {Store, For, If, Let, Allocate, *expressions} <= seen
    assert kinds == {"serial", "unrolled"}
