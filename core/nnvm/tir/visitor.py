"""Walking and rewriting expressions and statements.

Expressions are DAGs: a shared object is visited once (memo by identity), so no walk is exponential. A mutator that
changes nothing returns the object it was given. Subclasses say what is special by methods named after the node,
`visit_load(self, e)`, `visit_for(self, s)`; everything else is walked by `generic` / `generic_stmt`.
Rebuilding folds integer constants (`nnvm.te.expr.binary`), so substituting a loop variable gives constant indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from typing import cast as as_type

from nnvm.te.expr import (
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
    binary,
)
from nnvm.te.tensor import IterVar, Read
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, Seq, Stmt, Store, seq

__all__ = ["ExprMutator", "ExprVisitor", "StmtMutator", "StmtVisitor", "children", "free_vars", "loads", "map_exprs",
           "post_order", "rebuild", "reduced", "reductions", "roots", "stmts", "substitute"]  # fmt: skip

Node = Expr | Stmt
T = TypeVar("T", Expr, Stmt)


def _no_children(e: Any) -> tuple[Expr, ...]:
    return ()


def _child_a(e: Any) -> tuple[Expr, ...]:
    return (e.a,)


_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Const: _no_children,
    Var: _no_children,
    Unary: _child_a,
    Cast: _child_a,
    Bitcast: _child_a,
    Broadcast: _child_a,
    VectorReduce: _child_a,
    Binary: lambda e: (e.a, e.b),
    Shuffle: lambda e: (e.a, e.b),
    Fma: lambda e: (e.a, e.b, e.c),
    Select: lambda e: (e.cond, e.a, e.b),
    Load: lambda e: e.indices if e.mask is None else (*e.indices, e.mask),
    Ramp: lambda e: (e.base,),
    Check: lambda e: (e.value, e.cond),
    Reduce: lambda e: (e.source,) if e.index is None else (e.source, e.index),
    Read: lambda e: e.indices,
}


def _rebuild_binary(e: Binary, new: Sequence[Expr]) -> Expr:
    a, b = new
    return Binary(e.op, a, b) if a.dtype.is_float and a.lanes == b.lanes else binary(e.op, a, b)


def _rebuild_select(e: Select, new: Sequence[Expr]) -> Expr:
    cond, a, b = new
    if isinstance(cond, Const):
        return a if cond.value else b
    return Select(cond, a, b)


def _rebuild_load(e: Load, new: Sequence[Expr]) -> Expr:
    return Load(e.buffer, tuple(new), None) if e.mask is None else Load(e.buffer, tuple(new[:-1]), new[-1])


_REBUILD: dict[type, Callable[[Any, Sequence[Expr]], Expr]] = {
    Unary: lambda e, new: Unary(e.op, new[0]),
    Cast: lambda e, new: Cast(new[0], e.dtype),
    Bitcast: lambda e, new: Bitcast(new[0], e.dtype),
    Broadcast: lambda e, new: Broadcast(new[0], e.lanes),
    VectorReduce: lambda e, new: VectorReduce(e.op, new[0]),
    Shuffle: lambda e, new: Shuffle(new[0], new[1], e.order),
    Binary: _rebuild_binary,
    Fma: lambda e, new: Fma(*new),
    Select: _rebuild_select,
    Load: _rebuild_load,
    Ramp: lambda e, new: Ramp(new[0], e.stride, e.lanes, e.dtype),
    Check: lambda e, new: Check(new[0], new[1], e.message),
    Reduce: lambda e, new: Reduce(e.op, new[0], e.axes, new[1] if len(new) > 1 else None),
    Read: lambda e, new: Read(e.tensor, tuple(new)),
}


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions in field order; a Load's mask comes last."""
    return _CHILDREN[type(e)](e)


def rebuild(e: Expr, new: Sequence[Expr]) -> Expr:
    """`e` with other children (as many, in the order of `children`); integer arithmetic is folded."""
    return _REBUILD[type(e)](e, new)


def reduced(e: Reduce) -> tuple[IterVar, ...]:
    """The axes that a reduction binds."""
    return as_type("tuple[IterVar, ...]", e.axes)


def roots(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself holds, not those of the statements inside it."""
    kind = type(s)
    if kind is Store:
        store = as_type(Store, s)
        return (*store.indices, store.value) if store.mask is None else (*store.indices, store.value, store.mask)
    if kind is For:
        return (as_type(For, s).extent,)
    if kind is Let:
        return (as_type(Let, s).value,)
    if kind is If or kind is Assert:
        return (as_type(If, s).cond,)
    if kind is Prefetch:
        return as_type(Prefetch, s).indices
    return ()


def reductions(s: Stmt) -> list[Reduce]:
    """The reductions in the expressions that a statement itself holds."""
    return [e for root in roots(s) for e in post_order(root) if isinstance(e, Reduce)]


def _inner(s: Stmt) -> tuple[Stmt, ...]:
    if isinstance(s, Seq):
        return s.body
    if isinstance(s, (For, Let, Allocate)):
        return (s.body,)
    if isinstance(s, If):
        return (s.then,) if s.orelse is None else (s.then, s.orelse)
    return ()


def stmts(s: Stmt) -> Iterator[Stmt]:
    """Every statement, outer before inner, in program order."""
    stack = [s]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(_inner(x)))


def post_order(e: Node) -> list[Expr]:
    """Every sub-expression once, operands before users (of a statement: of all its expressions). Never recursive."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    start: tuple[Expr, ...] = (e,) if isinstance(e, Expr) else tuple(r for s in stmts(e) for r in roots(s))
    table = _CHILDREN
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(start)]
    while stack:
        x, done = stack.pop()
        if done:
            order.append(x)
            continue
        if x in seen:
            continue
        seen.add(x)
        kids = table[type(x)](x)
        if not kids:
            order.append(x)
            continue
        stack.append((x, True))
        for k in reversed(kids):
            if k not in seen:
                stack.append((k, False))
    return order


def free_vars(e: Node) -> list[Var]:
    """Variables that occur but are not bound by a For, Let or Reduce inside, each once, in order of first use."""
    order = post_order(e)
    used = [x for x in order if isinstance(x, Var)]
    bound = {a.var for x in order if isinstance(x, Reduce) for a in reduced(x)}
    if isinstance(e, Stmt):
        bound |= {s.var for s in stmts(e) if isinstance(s, (For, Let))}
    return [v for v in used if v not in bound]


def loads(e: Node) -> list[Load]:
    """Every Load once, operands before users."""
    return [x for x in post_order(e) if isinstance(x, Load)]


def substitute(node: T, env: Mapping[Var, Expr], buffers: Mapping[Buffer, Buffer] | None = None) -> T:
    """`node` with variables (and buffers) replaced; what is not touched stays the same object.

    A For or Let that binds a variable of `env` is renamed when it maps to a Var, and is an error otherwise.
    """
    return as_type(T, _Substitute(env, buffers or {})(node))


def map_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """`s` with each expression it holds replaced by `fn` of it (whole expressions, not their parts)."""
    return _MapExprs(fn).stmt(s)


class _Dispatch:
    """Finds `visit_<node>` methods once per class."""

    _handlers: dict[type, str] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kinds: tuple[type, ...] = (*_CHILDREN, Store, For, Seq, If, Allocate, Let, Assert, Prefetch)
        names = {k: "visit_" + _snake(k.__name__) for k in kinds}
        cls._handlers = {k: n for k, n in names.items() if hasattr(cls, n)}
        unknown = {n for n in vars(cls) if n.startswith("visit_")} - set(names.values())
        if unknown:
            raise TypeError(f"{cls.__name__}: {sorted(unknown)} name no node")


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


class ExprVisitor(_Dispatch):
    """Calls `visit_<node>(e)` on each sub-expression once; a handler goes on into the operands by `generic(e)`."""

    def __init__(self) -> None:
        self._seen: set[Expr] = set()

    def expr(self, e: Expr) -> None:
        if e in self._seen:
            return
        self._seen.add(e)
        handler = self._handlers.get(type(e))
        if handler is None:
            self.generic(e)
        else:
            getattr(self, handler)(e)

    def generic(self, e: Expr) -> None:
        for k in _CHILDREN[type(e)](e):
            self.expr(k)


class StmtVisitor(ExprVisitor):
    """An ExprVisitor that walks statements too, in program order; a handler goes on inside by `generic_stmt(s)`."""

    def stmt(self, s: Stmt) -> None:
        handler = self._handlers.get(type(s))
        if handler is None:
            self.generic_stmt(s)
        else:
            getattr(self, handler)(s)

    def generic_stmt(self, s: Stmt) -> None:
        for e in roots(s):
            self.expr(e)
        for x in _inner(s):
            self.stmt(x)


class ExprMutator(_Dispatch):
    """Rewrites expressions bottom-up; `visit_<node>(e)` gives the replacement, `generic(e)` the walked `e`.

    The memo lives as long as the mutator; one whose answers depend on where it is must `forget()` at each change.
    """

    def __init__(self) -> None:
        self._memo: dict[Expr, Expr] = {}

    def forget(self) -> None:
        self._memo = {}

    def expr(self, e: Expr) -> Expr:
        out = self._memo.get(e)
        if out is None:
            handler = self._handlers.get(type(e))
            out = self.generic(e) if handler is None else getattr(self, handler)(e)
            self._memo[e] = out
        return out

    def exprs(self, items: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Each item rewritten; the same tuple when none changed."""
        new = tuple([self.expr(i) for i in items])
        return items if all(a is b for a, b in zip(items, new)) else new

    def generic(self, e: Expr) -> Expr:
        old = _CHILDREN[type(e)](e)
        new = self.exprs(old)
        return e if new is old else _REBUILD[type(e)](e, new)


class StmtMutator(ExprMutator):
    """An ExprMutator for statements too; `generic_stmt(s)` is `s` with everything inside it rewritten."""

    def stmt(self, s: Stmt) -> Stmt:
        handler = self._handlers.get(type(s))
        return self.generic_stmt(s) if handler is None else as_type(Stmt, getattr(self, handler)(s))

    def __call__(self, node: Node) -> Node:
        return self.expr(node) if isinstance(node, Expr) else self.stmt(node)

    def generic_stmt(self, s: Stmt) -> Stmt:
        rewrite: Callable[[Any], Stmt] = _STMT_WALK[type(s)].__get__(self)
        return rewrite(s)

    def _store(self, s: Store) -> Stmt:
        indices, value = self.exprs(s.indices), self.expr(s.value)
        mask = None if s.mask is None else self.expr(s.mask)
        same = indices is s.indices and value is s.value and mask is s.mask
        return s if same else Store(s.buffer, indices, value, mask)

    def _for(self, s: For) -> Stmt:
        extent, body = self.expr(s.extent), self.stmt(s.body)
        return s if extent is s.extent and body is s.body else For(s.var, extent, body, s.kind)

    def _seq(self, s: Seq) -> Stmt:
        new = [self.stmt(x) for x in s.body]
        return s if all(a is b for a, b in zip(s.body, new)) else seq(new)

    def _if(self, s: If) -> Stmt:
        cond, then = self.expr(s.cond), self.stmt(s.then)
        orelse = None if s.orelse is None else self.stmt(s.orelse)
        return s if cond is s.cond and then is s.then and orelse is s.orelse else If(cond, then, orelse)

    def _allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        return s if body is s.body else Allocate(s.buffer, body)

    def _let(self, s: Let) -> Stmt:
        value, body = self.expr(s.value), self.stmt(s.body)
        return s if value is s.value and body is s.body else Let(s.var, value, body)

    def _assert(self, s: Assert) -> Stmt:
        cond = self.expr(s.cond)
        return s if cond is s.cond else Assert(cond, s.message)

    def _prefetch(self, s: Prefetch) -> Stmt:
        indices = self.exprs(s.indices)
        return s if indices is s.indices else Prefetch(s.buffer, indices)


_STMT_WALK: dict[type, Any] = {
    Store: StmtMutator._store,
    For: StmtMutator._for,
    Seq: StmtMutator._seq,
    If: StmtMutator._if,
    Allocate: StmtMutator._allocate,
    Let: StmtMutator._let,
    Assert: StmtMutator._assert,
    Prefetch: StmtMutator._prefetch,
}


class _MapExprs(StmtMutator):
    def __init__(self, fn: Callable[[Expr], Expr]) -> None:
        super().__init__()
        self._fn = fn

    def expr(self, e: Expr) -> Expr:
        out = self._memo.get(e)
        if out is None:
            out = self._memo[e] = self._fn(e)
        return out


class _Substitute(StmtMutator):
    def __init__(self, env: Mapping[Var, Expr], buffers: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self._memo = dict(env.items())
        self._env, self._buffers = env, buffers

    def expr(self, e: Expr) -> Expr:
        memo = self._memo
        out = memo.get(e)
        if out is not None:
            return out
        for x in post_order(e):  # not recursive: long chains (a concatenation of hundreds) stay within the stack
            if x in memo:
                continue
            old = _CHILDREN[type(x)](x)
            new = tuple([memo[k] for k in old])
            y = x if all(a is b for a, b in zip(old, new)) else _REBUILD[type(x)](x, new)
            if isinstance(y, Load) and y.buffer in self._buffers:
                y = Load(self._buffers[y.buffer], y.indices, y.mask)
            memo[x] = y
        return memo[e]

    def visit_store(self, s: Store) -> Stmt:
        new = self._store(s)
        if s.buffer in self._buffers and isinstance(new, Store):
            return Store(self._buffers[s.buffer], new.indices, new.value, new.mask)
        return new

    def visit_prefetch(self, s: Prefetch) -> Stmt:
        new = self._prefetch(s)
        if s.buffer in self._buffers and isinstance(new, Prefetch):
            return Prefetch(self._buffers[s.buffer], new.indices)
        return new

    def visit_allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        buffer = self._buffers.get(s.buffer, s.buffer)
        return s if body is s.body and buffer is s.buffer else Allocate(buffer, body)

    def _bound(self, var: Var) -> Var:
        new = self._env.get(var, var)
        if not isinstance(new, Var):
            raise ValueError(f"{var.name} is bound inside the statement it is to be replaced in")
        return new

    def visit_for(self, s: For) -> Stmt:
        var, extent, body = self._bound(s.var), self.expr(s.extent), self.stmt(s.body)
        return s if (var, extent, body) == (s.var, s.extent, s.body) else For(var, extent, body, s.kind)

    def visit_let(self, s: Let) -> Stmt:
        var, value, body = self._bound(s.var), self.expr(s.value), self.stmt(s.body)
        return s if (var, value, body) == (s.var, s.value, s.body) else Let(var, value, body)
