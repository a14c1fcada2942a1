"""Expressions to values: one method a node, shared nodes once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnvm.codegen.llvm import arith, linear
from nnvm.codegen.llvm.builder import Builder
from nnvm.codegen.llvm.convert import convert
from nnvm.codegen.llvm.index import splat
from nnvm.codegen.llvm.linear import Lin
from nnvm.codegen.llvm.lltype import literal, mask_type, register_type, suffix
from nnvm.codegen.llvm.memory import MemoryEmitter
from nnvm.dtype import I64
from nnvm.target import Target
from nnvm.te.expr import (
    COMPARISONS,
    Binary,
    Bitcast,
    Broadcast,
    Cast,
    Check,
    Const,
    Expr,
    Fma,
    Load,
    Ramp,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from nnvm.tir.visitor import children, post_order

__all__ = ["ExprEmitter"]

_LINEAR = ("add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max")


class ExprEmitter(MemoryEmitter):
    """Values of one function's expressions.

    `active` is the mask of the statement being written: lanes outside it may compute anything, but fail nothing.
    """

    def __init__(self, b: Builder, target: Target, message: Callable[[str], int]) -> None:
        super().__init__(b)
        self.target = target
        self.message = message
        self.memo: dict[tuple[Expr, str | None], str] = {}
        self.active: tuple[str, int] | None = None
        self.fails = False
        self._known_traits: dict[Expr, int] = {}

    def value(self, e: Expr) -> str:
        """The register value of an expression (a bool vector is a mask)."""
        kind = type(e)
        if kind is Const:
            return literal(e.value, e.dtype, e.lanes)  # type: ignore[attr-defined]
        key = (e, self.mask)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = _EMIT[kind](self, e)
        return found

    def forget(self) -> None:
        """Start a new statement: memory may have changed, and variables may stand for something else."""
        self.memo.clear()
        self.lins.clear()

    # -- leaves

    def _var(self, e: Var) -> str:
        found = self.variable(e)
        return linear.materialise(self.b, found) if isinstance(found, Lin) else found

    def _ramp(self, e: Ramp) -> str:
        form = self.lanes_of(e)
        assert form is not None
        return self.vector(form)

    def _broadcast(self, e: Broadcast) -> str:
        return splat(self.b, self.value(e.a), register_type(e.dtype), e.lanes) if e.lanes > 1 else self.value(e.a)

    # -- operators

    def _unary(self, e: Unary) -> str:
        value = self.value(e.a)
        if e.op == "not" and value in ("true", "false"):
            return "false" if value == "true" else "true"
        return arith.unary(self.b, self.target, e.op, value, e.a.dtype, e.lanes)

    def _binary(self, e: Binary) -> str:
        t = e.a.dtype
        if t == I64:
            if e.op in COMPARISONS:
                decided = self.compare(e)
                if decided is not None:
                    return decided
            elif e.lanes == 1 and e.op in _LINEAR:
                form = self._lin_binary(e)
                if form is not None:
                    return linear.materialise(self.b, form)
            elif e.lanes > 1:
                lanes = self.lanes_of(e)
                if lanes is not None:
                    return self.vector(lanes)
        x = self.value(e.a)
        if e.lanes == 1 and t.is_bool and x == {"and": "false", "or": "true"}.get(e.op):
            return x
        return arith.binary(self.b, self.target, e.op, x, self.value(e.b), t, e.lanes,
                            lambda bad, message: self.fail(bad, e.lanes, message))  # fmt: skip

    def _fma(self, e: Fma) -> str:
        x, y, z = self.value(e.a), self.value(e.b), self.value(e.c)
        return arith.fma(self.b, self.target, x, y, z, e.dtype, e.lanes)

    def _cast(self, e: Cast) -> str:
        return convert(self.b, self.target, self.value(e.a), e.a.dtype, e.dtype, e.lanes)

    def _bitcast(self, e: Bitcast) -> str:
        from_, to = register_type(e.a.dtype, e.lanes), register_type(e.dtype, e.lanes)
        value = self.value(e.a)
        return value if from_ == to else self.b.convert("bitcast", from_, value, to)

    def _shuffle(self, e: Shuffle) -> str:
        return arith.shuffle(self.b, self.value(e.a), self.value(e.b), e.dtype, e.a.lanes, e.order)

    def _vector_reduce(self, e: VectorReduce) -> str:
        return arith.reduce_lanes(self.b, self.target, e.op, self.value(e.a), e.dtype, e.a.lanes)

    # -- conditions

    def _select(self, e: Select) -> str:
        cond = self.value(e.cond)
        if cond in ("true", "false"):
            return self.value(e.a if cond == "true" else e.b)
        traits = self._traits(e.a) | self._traits(e.b)
        uniform = e.cond.lanes == 1 or isinstance(e.cond, Broadcast)
        guarded = bool(traits & _GUARDED) and (self._guarded(e.a) or self._guarded(e.b))
        if uniform and (guarded or traits & _CALLS):
            scalar = cond if e.cond.lanes == 1 else self.value(e.cond.a)  # type: ignore[attr-defined]
            return self._branch(scalar, e.a, e.b)
        mask, lanes = mask_type(e.cond.lanes), e.cond.lanes
        if guarded:
            a = self._under(cond, lanes, e.a)
            b = self._under(self.b.binary("xor", mask, cond, _ones(lanes)), lanes, e.b)
        elif traits & _CALLS:
            a = self._if_any(cond, lanes, e.a)
            b = self._if_any(self.b.binary("xor", mask, cond, _ones(lanes)), lanes, e.b)
        else:
            a, b = self.value(e.a), self.value(e.b)
        return self.b.select(mask, cond, register_type(e.dtype, e.lanes), a, b)

    def _if_any(self, cond: str, lanes: int, e: Expr) -> str:
        """A value, skipped where no lane wants it and it costs calls of the math library."""
        if not self._traits(e) & _CALLS:
            return self.value(e)
        return self._branch(self._mask_for(cond, lanes, 1), e, None)

    def _under(self, cond: str, lanes: int, e: Expr) -> str:
        """A value whose loads and failures happen only in the lanes where `cond` holds."""
        saved = self.mask, self.mask_lanes
        if self.mask is not None and self.mask != cond:
            outer = self._mask_for(self.mask, self.mask_lanes, lanes)
            cond = self.b.binary("and", mask_type(lanes), outer, cond)
        self.mask, self.mask_lanes = cond, lanes
        out = self.value(e)
        self.mask, self.mask_lanes = saved
        return out

    def _branch(self, cond: str, a: Expr, b: Expr | None) -> str:
        """`a` or `b` (None: 0), computed only in the branch taken."""
        assert a.dtype is not None
        arms, out = [], []
        for arm in (a, b):
            saved = self.memo, self.lins
            self.memo, self.lins = dict(self.memo), dict(self.lins)
            self.b.open_arm()
            out.append(self.value(arm) if arm is not None else literal(0, a.dtype, a.lanes))
            arms.append(self.b.close())
            self.memo, self.lins = saved
        self.b.close_branch(cond, arms[0], arms[1])
        return self.b.phi(register_type(a.dtype, a.lanes), [(v, arm.block) for v, arm in zip(out, arms)])

    def _check(self, e: Check) -> str:
        cond = self.value(e.cond)
        lanes, t = e.cond.lanes, e.dtype
        bad = self.b.binary("xor", mask_type(lanes), cond, "true" if lanes == 1 else _ones(lanes))
        if cond in ("true", "false"):
            bad = "false" if cond == "true" else "true"
        self.fail(bad, lanes, e.message)
        if cond == "true":
            return self.value(e.value)
        if self._guarded(e.value):
            if lanes == 1:
                return self._branch(cond, e.value, None)
            value = self._under(cond, lanes, e.value)
        else:
            value = self.value(e.value)
        out = self.b.select(mask_type(lanes), cond, register_type(t, e.lanes), value, literal(0, t, e.lanes))
        self._bound_by(e, out)
        return out

    def _bound_by(self, e: Check, out: str) -> None:
        """Where the condition is `0 <= value < constant`, the checked index is known to be in that range."""
        c = e.cond
        if e.lanes != 1 or e.dtype != I64 or out[0] != "%" or not isinstance(c, Binary) or c.op != "and":
            return
        low, high = (c.a, c.b) if isinstance(c.a, Binary) and c.a.op == "ge" else (c.b, c.a)
        if isinstance(low, Binary) and low.op == "ge" and low.a is e.value and isinstance(low.b, Const) \
                and isinstance(high, Binary) and high.op == "lt" and high.a is e.value \
                and isinstance(high.b, Const) and low.b.value == 0 < high.b.value:  # fmt: skip
            self.b.ranges[out] = (0, int(high.b.value) - 1)

    def _traits(self, e: Expr) -> int:
        """What an expression contains: things that may need guarding, calls of the math library."""
        known = self._known_traits.get(e)
        if known is None:
            table = self._known_traits
            for x in post_order(e):
                if x not in table:
                    own = _own_traits(x)
                    for c in children(x):
                        own |= table[c]
                    table[x] = own
            known = table[e]
        return known

    def _guarded(self, e: Expr) -> bool:
        """Whether computing `e` where it is not asked for may read out of bounds or fail."""
        stack, seen = [e], set()
        while stack:
            x = stack.pop()
            if x in seen or not self._traits(x) & _GUARDED:
                continue
            seen.add(x)
            if isinstance(x, Load):
                # what is loaded already, as for a condition, may be used in both arms
                loaded = (x, self.mask) in self.memo
                # a mask of its own (what is left of a row) says nothing of the condition at hand (padding); to ask
                # where an index lies computes it, which may itself read out of bounds or fail
                if not loaded and (any(map(self._guarded, x.indices)) or not self.in_bounds(x.buffer, x.indices)):
                    return True
            elif _own_traits(x) & _GUARDED:
                return True
            stack.extend(children(x))
        return False

    # -- failures

    def fail(self, bad: str, lanes: int, message: str) -> None:
        """Make the kernel fail with `message` where `bad` holds in a lane that matters; it goes on regardless."""
        b = self.b
        if bad in ("false", "zeroinitializer"):
            return
        for outer in ((self.mask, self.mask_lanes), self.active or (None, 1)):
            if outer[0] is not None:
                mask = self._mask_for(outer[0], outer[1], lanes)
                bad = b.binary("and", mask_type(lanes), bad, mask)
        if lanes > 1:
            type_ = mask_type(lanes)
            bad = b.call("i1", f"llvm.vector.reduce.or.{suffix(type_)}", [(type_, bad)])
        self.fails = True
        code = self.message(message) + 1
        if not b.remember(f"fail {bad} {code}"):
            return
        b.open_arm()
        old = b.here("load i32, ptr %status, align 4")
        fresh = b.here(f"icmp eq i32 {old}, 0")
        b.effect(f"store i32 {b.here(f'select i1 {fresh}, i32 {code}, i32 {old}')}, ptr %status, align 4")
        b.close_branch(bad, b.close(), None, unlikely=True)


def _ones(lanes: int) -> str:
    return "true" if lanes == 1 else "<" + ", ".join(["i1 true"] * lanes) + ">"


_GUARDED, _CALLS = 1, 2


def _own_traits(x: Expr) -> int:
    if isinstance(x, (Load, Check)):
        return _GUARDED
    if isinstance(x, Binary):
        if x.a.dtype.is_float:
            return _CALLS if x.op in arith.CALLS else 0
        return _GUARDED if x.op in _DIVISIONS and not isinstance(x.b, Const) else 0
    return _CALLS if isinstance(x, Unary) and x.op in arith.CALLS and x.a.dtype.is_float else 0


_DIVISIONS = ("floordiv", "floormod", "truncdiv", "truncmod")

_EMIT: dict[type, Callable[[Any, Any], str]] = {
    Var: ExprEmitter._var,
    Ramp: ExprEmitter._ramp,
    Broadcast: ExprEmitter._broadcast,
    Unary: ExprEmitter._unary,
    Binary: ExprEmitter._binary,
    Fma: ExprEmitter._fma,
    Cast: ExprEmitter._cast,
    Bitcast: ExprEmitter._bitcast,
    Shuffle: ExprEmitter._shuffle,
    VectorReduce: ExprEmitter._vector_reduce,
    Select: ExprEmitter._select,
    Load: ExprEmitter.load,
    Check: ExprEmitter._check,
}
