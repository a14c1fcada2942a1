"""What a legal PrimFunc is, as tables of rules; `verify` holds on entry to and exit from every pass.

All problems of a function are reported at once, each with the statement it is in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nnvm.dim import Dim, is_static, symbols
from nnvm.dtype import BOOL
from nnvm.te.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    INDEX,
    LOGICAL,
    MACHINE,
    MATH,
    REDUCERS,
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
from nnvm.tir.printer import show
from nnvm.tir.stmt import LOOP_KINDS, Allocate, Assert, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from nnvm.tir.visitor import post_order, reduced, roots

__all__ = ["VerifyError", "problems", "verify"]

_FLOAT_ONLY = {"div", "atan2", "hypot", "copysign", "nextafter"}
_ANY_NUMBER = {"neg", "abs", "floor", "ceil", "trunc", "round"}  # the other functions of MATH want a float
_LANE_REDUCERS = {"sum", "prod", "max", "min", "any", "all"}
_SHOWN_LINES = 12


class VerifyError(ValueError):
    """A PrimFunc is not legal; the message lists every problem."""


def verify(func: PrimFunc) -> None:
    """Raises VerifyError unless `func` is legal."""
    found = problems(func)
    if found:
        raise VerifyError(f"{func.name} is not legal:\n" + "\n".join(found))


def problems(func: PrimFunc) -> list[str]:
    """Everything that is wrong with `func`, each with the statement around it; empty when it is legal."""
    return _Verifier(func).found


# --- expressions: each rule yields what is wrong, operands having been looked at


def _binary(e: Binary) -> str | None:
    t = e.a.dtype
    if e.a.dtype != e.b.dtype or e.a.lanes != e.b.lanes:
        return f"{e.op} of {_type(e.a)} and {_type(e.b)}"
    if e.op not in ARITHMETIC and e.op not in BITWISE and e.op not in COMPARISONS:
        return f"unknown operator {e.op}"
    if e.op in BITWISE and (t.is_float or (t.is_bool and e.op in ("shl", "shr"))):
        return f"{e.op} of {t}"
    if e.op in _FLOAT_ONLY and not t.is_float:
        return f"{e.op} of {t}: only of floats"
    return f"{e.op} of bool" if e.op in ARITHMETIC and t.is_bool else None


def _unary(e: Unary) -> str | None:
    t = e.a.dtype
    if e.op not in MATH and e.op not in MACHINE and e.op not in LOGICAL:
        return f"unknown function {e.op}"
    if e.op == "not":
        return f"not of {t}" if t.is_float else None
    if e.op in LOGICAL or t.is_float or (e.op in _ANY_NUMBER and t.is_int):
        return None
    return f"{e.op} of {t}: cast to a float first"


def _fma(e: Fma) -> str | None:
    kinds = {(x.dtype, x.lanes) for x in (e.a, e.b, e.c)}
    return f"fma of {_type(e.a)}, {_type(e.b)}, {_type(e.c)}" if len(kinds) > 1 or not e.dtype.is_float else None


def _bitcast(e: Bitcast) -> str | None:
    return f"bitcast of {e.a.dtype} to {e.dtype}: other widths" if e.a.dtype.bits != e.dtype.bits else None


def _select(e: Select) -> str | None:
    if e.a.dtype != e.b.dtype or e.a.lanes != e.b.lanes:
        return f"select between {_type(e.a)} and {_type(e.b)}"
    return _is_mask(e.cond, e.lanes, "the condition of a select", scalar=True)


def _load(e: Load) -> str | None:
    wrong = _indices(e.buffer, e.indices, e.lanes)
    return wrong or (None if e.mask is None else _is_mask(e.mask, e.lanes, f"the mask of a load of {e.buffer.name}"))


def _ramp(e: Ramp) -> str | None:
    if e.base.dtype != e.dtype or e.base.lanes != 1 or e.lanes < 2:
        return f"ramp of {e.lanes} lanes from {_type(e.base)}"
    return None if e.dtype.is_int else f"ramp of {e.dtype}"


def _broadcast(e: Broadcast) -> str | None:
    return f"broadcast of {_type(e.a)} to {e.lanes} lanes" if e.a.lanes != 1 or e.lanes < 2 else None


def _shuffle(e: Shuffle) -> str | None:
    if e.a.dtype != e.b.dtype or e.a.lanes != e.b.lanes or e.a.lanes < 2 or e.lanes < 2:
        return f"shuffle of {_type(e.a)} and {_type(e.b)} to {e.lanes} lanes"
    wrong = next((i for i in e.order if not 0 <= i < 2 * e.a.lanes), None)
    return None if wrong is None else f"shuffle of {_type(e.a)} and {_type(e.b)}: no lane {wrong}"


def _vector_reduce(e: VectorReduce) -> str | None:
    if e.op not in _LANE_REDUCERS:
        return f"unknown reducer {e.op}"
    if e.a.lanes < 2:
        return f"reduction of {_type(e.a)}: no vector"
    return None if (e.op in ("any", "all")) == e.a.dtype.is_bool else f"{e.op} of {e.a.dtype}"


def _reduce(e: Reduce) -> str | None:
    if e.op not in REDUCERS:
        return f"unknown reducer {e.op}"
    if (e.op in ("argmax", "argmin")) != (e.index is not None):
        return f"{e.op} {'with' if e.index is not None else 'without'} an index"
    if any(not isinstance(a.extent, int) for a in reduced(e)):
        return f"{e.op} over an axis of unknown size"
    return None if (e.op in ("any", "all")) == e.source.dtype.is_bool else f"{e.op} of {e.source.dtype}"


def _check(e: Check) -> str | None:
    return _is_mask(e.cond, e.lanes, "the condition of a check", scalar=True)


def _const(e: Const) -> str | None:
    t, v = e.dtype, e.value
    if t.is_bool:
        return None if isinstance(v, bool) else f"constant {v!r} of bool"
    if t.is_float:
        return None if isinstance(v, float) else f"constant {v!r} of {t}"
    fits = isinstance(v, int) and not isinstance(v, bool) and t.min <= v <= t.max
    return None if fits else f"constant {v!r} of {t}"


_RULES: dict[type, Callable[[Any], str | None]] = {
    Binary: _binary,
    Unary: _unary,
    Fma: _fma,
    Cast: lambda e: None,
    Bitcast: _bitcast,
    Select: _select,
    Load: _load,
    Ramp: _ramp,
    Broadcast: _broadcast,
    Reduce: _reduce,
    Shuffle: _shuffle,
    VectorReduce: _vector_reduce,
    Check: _check,
    Const: _const,
    Var: lambda e: None if e.lanes == 1 or e.dtype != INDEX else f"index variable {e.name} of {e.lanes} lanes",
}


def _indices(buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> str | None:
    if len(indices) != len(buffer.shape):
        return f"{buffer.name} has {len(buffer.shape)} dimensions, indexed with {len(indices)}"
    for i in indices:
        if i.dtype != INDEX or i.lanes not in (1, lanes):
            return f"index of {buffer.name} is {_type(i)}, not {INDEX} of 1 or {lanes} lanes"
    return None


def _is_mask(e: Expr, lanes: int, what: str, scalar: bool = False) -> str | None:
    fits = e.dtype == BOOL and (e.lanes == lanes or (scalar and e.lanes == 1))
    return None if fits else f"{what} is {_type(e)}, not bool of {lanes} lanes"


def _type(e: Expr) -> str:
    return f"{e.dtype}" if e.lanes == 1 else f"{e.dtype}x{e.lanes}"


# --- functions and statements


class _Verifier:
    def __init__(self, func: PrimFunc) -> None:
        self.found: list[str] = []
        self._sizes = {*func.symbols, THREADS}
        self._bound: set[Var] = set()
        self._buffers: set[Buffer] = set(func.params)
        self._inputs = set(func.params[: len(func.params) - func.outputs])
        self._names: set[str] = set()
        self._private: set[Buffer] = set()  # of the thread outside the parallel loop around
        self._loops = 0
        self._in_grid = False
        self._verified: set[Expr] = set()
        if not re.fullmatch(r"[A-Za-z_]\w*", func.name):
            self._say(f"name {func.name!r} is no C identifier")
        if not 0 <= func.outputs <= len(func.params):
            self._say(f"{func.outputs} outputs of {len(func.params)} params")
        for b in func.params:
            if b.scope != "global":
                self._say(f"param {b.name} has scope {b.scope}")
            self._declare(b, None)
        self._stmt(func.body)

    def _say(self, text: str, at: Stmt | None = None) -> None:
        lines = show(at).splitlines() if at is not None else []
        if len(lines) > _SHOWN_LINES:
            lines = [*lines[:_SHOWN_LINES], "..."]
        self.found.append("\n".join([f"- {text}" + (", in" if lines else ""), *("    " + line for line in lines)]))

    def _declare(self, b: Buffer, at: Stmt | None) -> None:
        if b.name in self._names:
            self._say(f"two buffers are called {b.name}", at)
        self._names.add(b.name)
        if b.strides is not None and len(b.strides) != len(b.shape):
            self._say(f"{b.name} has {len(b.shape)} dimensions and {len(b.strides)} strides", at)
        unknown = self._unknown_sizes((*b.shape, *(b.strides or ())))
        if unknown:
            self._say(f"sizes {unknown} of {b.name} are not among the function's", at)

    def _unknown_sizes(self, dims: tuple[Dim, ...]) -> list[str]:
        return sorted({s for d in dims for s in symbols(d)} - self._sizes)

    def _expr(self, root: Expr, at: Stmt) -> None:
        order = post_order(root)
        reductions = [e for e in order if isinstance(e, Reduce)]
        if reductions and not self._in_grid:
            self._say(f"Reduce has no place in a loop nest outside a grid: {_short(reductions[0])}", at)
        inside = {a.var for e in reductions for a in reduced(e)}
        if both := sorted(v.name for v in inside & self._bound):
            self._say(f"variable {', '.join(both)} is bound again inside its own scope", at)
        self._bound |= inside
        self._parts(order, at)
        self._bound -= inside

    def _parts(self, order: list[Expr], at: Stmt) -> None:
        for e in order:
            if isinstance(e, Var):
                self._variable(e, at)
            elif isinstance(e, Load):
                self._access(e.buffer, at)
            if e in self._verified:
                continue
            self._verified.add(e)
            rule = _RULES.get(type(e))
            wrong = f"{type(e).__name__} has no place in a loop nest" if rule is None else rule(e)
            if wrong:
                self._say(f"{wrong}: {_short(e)}", at)

    def _variable(self, v: Var, at: Stmt) -> None:
        if v not in self._bound and v.name not in self._sizes:
            self._say(f"variable {v.name} is not bound", at)

    def _access(self, b: Buffer, at: Stmt) -> None:
        if b not in self._buffers:
            self._say(f"buffer {b.name} is not allocated here", at)
        elif b in self._private:
            self._say(f"{b.scope} buffer {b.name} of the outer thread is used in a parallel loop", at)

    def _stmt(self, s: Stmt) -> None:
        for e in roots(s):
            self._expr(e, s)
        handler = _STATEMENTS.get(type(s))
        if handler is None:
            self.found.append(f"- {s!r} is no statement")
        else:
            handler(self, s)

    def store(self, s: Store) -> None:
        self._access(s.buffer, s)
        if s.buffer in self._inputs:
            self._say(f"input {s.buffer.name} is written", s)
        lanes = max((i.lanes for i in s.indices), default=1)
        wrong = _indices(s.buffer, s.indices, lanes)
        if wrong is None and (s.value.dtype != s.buffer.dtype or s.value.lanes != lanes):
            wrong = f"{_type(s.value)} is stored to {lanes} element(s) of {s.buffer.name}, which is {s.buffer.dtype}"
        if wrong is None and s.mask is not None:
            wrong = _is_mask(s.mask, lanes, f"the mask of a store to {s.buffer.name}")
        if wrong:
            self._say(wrong, s)

    def loop(self, s: For) -> None:
        if s.kind not in LOOP_KINDS:
            self._say(f"unknown loop kind {s.kind}", s)
        if s.extent.dtype != INDEX or s.extent.lanes != 1 or s.var.dtype != INDEX:
            self._say(f"a loop over {_type(s.extent)} by a variable of {s.var.dtype}", s)
        if s.kind in ("vectorized", "unrolled", "tile") and not isinstance(s.extent, Const):
            self._say(f"a {s.kind} loop needs a constant extent", s)
        if s.kind in ("parallel", "grid") and self._loops:
            self._say(f"a {s.kind} loop inside another loop", s)
        if s.kind == "tile" and not self._in_grid:
            self._say("a tile outside a grid", s)
        before, self._in_grid = self._in_grid, self._in_grid or s.kind == "grid"
        private = self._private
        if s.kind == "parallel":
            self._private = {b for b in self._buffers if b.scope != "global"}
        self._loops += 1
        self._scope(s.var, s)
        self._loops -= 1
        self._private, self._in_grid = private, before

    def _scope(self, var: Var, s: For | Let) -> None:
        if var in self._bound:
            self._say(f"variable {var.name} is bound again inside its own scope", s)
            self._stmt(s.body)
            return
        self._bound.add(var)
        self._stmt(s.body)
        self._bound.discard(var)

    def sequence(self, s: Seq) -> None:
        for x in s.body:
            self._stmt(x)

    def branch(self, s: If) -> None:
        if s.cond.dtype != BOOL or s.cond.lanes != 1:
            self._say(f"the condition is {_type(s.cond)}, not bool", s)
        self._stmt(s.then)
        if s.orelse is not None:
            self._stmt(s.orelse)

    def allocate(self, s: Allocate) -> None:
        b = s.buffer
        if b.scope not in ("local", "scratch"):
            self._say(f"a buffer of scope {b.scope} is allocated", s)
        if b.scope == "local" and not is_static(b.shape):
            self._say(f"local buffer {b.name} has a symbolic size", s)
        if b in self._buffers:
            self._say(f"buffer {b.name} is allocated again inside its own scope", s)
            return
        self._declare(b, s)
        self._buffers.add(b)
        self._stmt(s.body)
        self._buffers.discard(b)

    def let(self, s: Let) -> None:
        if s.var.dtype != s.value.dtype or s.var.lanes != s.value.lanes:
            self._say(f"{s.var.name} is {_type(s.var)}, its value {_type(s.value)}", s)
        self._scope(s.var, s)

    def assertion(self, s: Assert) -> None:
        if s.cond.dtype != BOOL or s.cond.lanes != 1:
            self._say(f"the condition is {_type(s.cond)}, not bool", s)

    def prefetch(self, s: Prefetch) -> None:
        self._access(s.buffer, s)
        if wrong := _indices(s.buffer, s.indices, 1):
            self._say(wrong, s)


def _short(e: Expr) -> str:
    text = show(e).splitlines()[0]
    return text if len(text) <= 80 else text[:77] + "..."


_STATEMENTS: dict[type, Callable[[Any, Any], None]] = {
    Store: _Verifier.store, For: _Verifier.loop, Seq: _Verifier.sequence, If: _Verifier.branch,
    Allocate: _Verifier.allocate, Let: _Verifier.let, Assert: _Verifier.assertion,
    Prefetch: _Verifier.prefetch,
}  # fmt: skip
