"""Walking, rewriting and substitution: identity where nothing changes, sharing kept, no exponential walks."""

from __future__ import annotations

import pytest

from nnvm.dtype import F32
from nnvm.te.expr import Binary, Broadcast, Buffer, Const, Expr, Load, Ramp, Select, Unary, Var, binary, const
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, Seq, Stmt, Store
from nnvm.tir.visitor import (
    ExprMutator,
    ExprVisitor,
    StmtMutator,
    StmtVisitor,
    children,
    free_vars,
    loads,
    map_exprs,
    post_order,
    rebuild,
    stmts,
    substitute,
)

A, B = Buffer("a", (8,), F32), Buffer("b", (8,), F32)
X, Y = Var("x"), Var("y")


def nest() -> For:
    value = Binary("add", Load(A, (X,)), Load(A, (Y,)))
    guarded = If(binary("lt", X, 4), Store(B, (X,), value), Assert(binary("ge", X, 0), "no"))
    local = Buffer("t", (1,), F32, scope="local")
    return For(X, const(8), Allocate(local, Seq((guarded, Let(Var("v"), X, Store(B, (Y,), const(0.0, F32)))))))


def test_post_order_gives_each_node_once_operands_first() -> None:
    shared = Unary("exp", Load(A, (X,)))
    e = Binary("mul", shared, shared)
    order = post_order(e)
    assert [type(o) for o in order] == [Var, Load, Unary, Binary]
    assert order[-1] is e
    assert loads(e) == [order[1]]
    assert all(order.index(c) < order.index(o) for o in order for c in children(o))


def test_statements_and_free_variables() -> None:
    s = nest()
    names = [type(x).__name__ for x in stmts(s)]
    assert names == ["For", "Allocate", "Seq", "If", "Store", "Assert", "Let", "Store"]
    assert free_vars(s) == [Y]
    assert free_vars(X + Y) == [X, Y]
    assert len(loads(s)) == 2


def test_prefetch() -> None:
    hint = Prefetch(A, (X + Y,))
    assert free_vars(hint) == [X, Y] and StmtMutator().stmt(hint) is hint
    new = substitute(hint, {X: const(2), Y: const(3)}, {A: B})
    assert isinstance(new, Prefetch) and new.buffer is B and [i.value for i in new.indices] == [5]


def test_nothing_replaced_gives_the_same_object() -> None:
    s = nest()
    assert substitute(s, {Var("other"): const(1)}) is s
    assert StmtMutator().stmt(s) is s
    assert map_exprs(s, lambda e: e) is s
    e = X * 3 + Y
    assert substitute(e, {}) is e


def test_substitution_folds_indices_and_keeps_what_it_does_not_touch() -> None:
    e = (X * 3 + 1) * 8 + Y
    assert substitute(e, {X: const(2), Y: const(4)}).value == 60  # type: ignore[attr-defined]
    kept = Unary("exp", Load(A, (Y,)))
    out = substitute(Binary("add", Unary("exp", Load(A, (X,))), kept), {X: const(0)})
    assert isinstance(out, Binary) and out.b is kept
    picked = substitute(Select(binary("lt", X, 4), Const(1.0, F32), Const(2.0, F32)), {X: const(5)})
    assert isinstance(picked, Const) and picked.value == 2.0


def test_buffers_and_bound_variables_are_renamed() -> None:
    s, z, other = nest(), Var("z"), Buffer("c", (8,), F32)
    out = substitute(s, {X: z}, {A: other})
    assert isinstance(out, For) and out.var is z
    assert {x.buffer for x in loads(out)} == {other}
    assert free_vars(out) == [Y]
    with pytest.raises(ValueError, match="x is bound inside"):
        substitute(s, {X: const(1)})


def test_walks_are_linear_in_shared_and_deep_expressions() -> None:
    shared: Expr = Var("f", F32)
    for _ in range(200):  # as a tree, 2**200 nodes
        shared = Binary("add", shared, shared)
    assert len(post_order(shared)) == 201
    out = substitute(shared, {post_order(shared)[0]: Const(1.0, F32)})  # type: ignore[dict-item]
    assert len(post_order(out)) == 201
    deep: Expr = X
    for k in range(5000):
        deep = Binary("min", deep, Const(k, X.dtype))
    assert free_vars(substitute(deep, {X: Y})) == [Y]


def test_visitors_see_each_shared_expression_once() -> None:
    class Count(StmtVisitor):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def visit_load(self, e: Load) -> None:
            self.found.append("load")
            self.generic(e)

        def visit_store(self, s: Store) -> None:
            self.found.append("store")
            self.generic_stmt(s)

    x = Load(A, (X,))
    count = Count()
    count.stmt(Seq((Store(B, (X,), Binary("add", x, x)), Store(B, (Y,), x))))
    assert count.found == ["store", "load", "store"]
    plain = ExprVisitor()
    plain.expr(x)


def test_mutators_replace_by_node_and_keep_the_rest() -> None:
    class Halve(StmtMutator):
        def visit_const(self, e: Const) -> Expr:
            return Const(e.value / 2, e.dtype) if e.dtype.is_float else e

        def visit_assert(self, s: Assert) -> Stmt:
            return Seq(())

    untouched = Store(B, (X,), Load(A, (X,)))
    two = Const(2.0, F32)
    both = Binary("add", two, two)
    out = Halve().stmt(Seq((untouched, Store(B, (Y,), both), Assert(binary("lt", X, 1), "no"))))
    assert isinstance(out, Seq) and len(out.body) == 2 and out.body[0] is untouched
    changed = out.body[1]
    assert isinstance(changed, Store) and isinstance(changed.value, Binary)
    assert changed.value.a is changed.value.b
    assert isinstance(changed.value.a, Const) and changed.value.a.value == 1.0


def test_a_handler_for_no_node_is_an_error() -> None:
    with pytest.raises(TypeError, match="visit_laod"):
        type("Wrong", (ExprMutator,), {"visit_laod": lambda self, e: e})


def test_rebuild_of_every_kind() -> None:
    lane = Ramp(X, 1, 8)
    for e in (lane, Load(A, (lane,), binary("lt", lane, 5)), Broadcast(X, 8), Binary("mul", X, Y), Unary("neg", X)):
        copy = rebuild(e, children(e))
        assert type(copy) is type(e) and copy is not e
        assert (copy.dtype, copy.lanes) == (e.dtype, e.lanes)
        assert all(a is b for a, b in zip(children(copy), children(e)))
