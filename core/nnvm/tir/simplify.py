"""Simplification of whole expressions and statements; `nnvm.tir.analyzer` says what is done to an expression."""

from __future__ import annotations

from typing import cast as as_type

from nnvm.te.expr import Const, Expr, Unary, Var, const
from nnvm.tir.analyzer import Analyzer, truth_of
from nnvm.tir.linear import Linear, linear
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Seq, Stmt, Store, seq
from nnvm.tir.visitor import StmtMutator, substitute

__all__ = ["Analyzer", "Linear", "linear", "simplify", "simplify_stmt"]


def simplify(e: Expr) -> Expr:
    """`e` simplified without knowing anything about its variables."""
    return Analyzer().simplify(e)


def simplify_stmt(s: Stmt, analyzer: Analyzer | None = None) -> Stmt:
    """`s` with every expression simplified under the loops and branches around it.

    Loops of one iteration, branches that are decided, masks and assertions that always hold, and lets of constants
    or variables disappear; a statement that does nothing becomes an empty Seq.
    """
    return _Simplify(analyzer or Analyzer()).stmt(s)


class _Simplify(StmtMutator):
    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._known = analyzer

    def expr(self, e: Expr) -> Expr:
        return self._known.simplify(e)

    def visit_for(self, s: For) -> Stmt:
        extent = self.expr(s.extent)
        high = self._known.bounds(extent)[1]
        if high is not None and high <= 0:
            return Seq(())
        if isinstance(extent, Const) and extent.value == 1:
            return self.stmt(substitute(s.body, {s.var: const(0)}))
        self._known.bind(s.var, extent)
        body = self.stmt(s.body)
        if _is_empty(body):
            return body
        return s if extent is s.extent and body is s.body else For(s.var, extent, body, s.kind)

    def visit_if(self, s: If) -> Stmt:
        cond = self.expr(s.cond)
        truth = truth_of(cond)
        if truth is not None:
            return self.stmt(s.then) if truth else self.stmt(s.orelse) if s.orelse is not None else Seq(())
        with self._known.assume(cond):
            then = self.stmt(s.then)
        orelse = None
        if s.orelse is not None:
            with self._known.assume(self._known.simplify(Unary("not", cond))):
                orelse = self.stmt(s.orelse)
        if orelse is not None and _is_empty(orelse):
            orelse = None
        if _is_empty(then):
            return then if orelse is None else If(self.expr(Unary("not", cond)), orelse)
        same = cond is s.cond and then is s.then and orelse is s.orelse
        return s if same else If(cond, then, orelse)

    def visit_store(self, s: Store) -> Stmt:
        new = as_type(Store, self._store(s))
        truth = None if new.mask is None else truth_of(new.mask)
        if truth is False:
            return Seq(())
        return Store(new.buffer, new.indices, new.value) if truth else new

    def visit_let(self, s: Let) -> Stmt:
        value = self.expr(s.value)
        if isinstance(value, (Const, Var)):
            return self.stmt(substitute(s.body, {s.var: value}))
        self._known.bind_value(s.var, value)
        body = self.stmt(s.body)
        if _is_empty(body):
            return body
        return s if value is s.value and body is s.body else Let(s.var, value, body)

    def visit_allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        return body if _is_empty(body) else s if body is s.body else Allocate(s.buffer, body)

    def visit_assert(self, s: Assert) -> Stmt:
        cond = self.expr(s.cond)
        if truth_of(cond) is True:
            return Seq(())
        return s if cond is s.cond else Assert(cond, s.message)

    def visit_seq(self, s: Seq) -> Stmt:
        new = [self.stmt(x) for x in s.body]
        return s if all(a is b for a, b in zip(s.body, new)) else seq(new)


def _is_empty(s: Stmt) -> bool:
    return isinstance(s, Seq) and not s.body
