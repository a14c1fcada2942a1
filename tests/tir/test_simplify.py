"""Index simplification: cases that must fire, cases that must not, and random expressions against evaluation."""

from __future__ import annotations

import random

import pytest

from nnvm.dim import ceildiv, symbol
from nnvm.dtype import F32, I32, U8
from nnvm.te.expr import (
    BOOL,
    INDEX,
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
    binary,
    const,
    dim_expr,
    maximum,
    minimum,
    select,
    size_var,
)
from nnvm.tir.simplify import Analyzer, linear, simplify, simplify_stmt
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Seq, Store
from nnvm.tir.visitor import children


def text(e: Expr) -> str:
    """Fully parenthesised text."""
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Const):
        return str(e.value)
    inside = ", ".join(map(text, children(e)))
    name = getattr(e, "op", type(e).__name__)
    extra = f", {e.stride}, {e.lanes}" if isinstance(e, Ramp) else f", {e.lanes}" if isinstance(e, Broadcast) else ""
    return f"{name}({inside}{extra})"


def same(a: Analyzer, x: Expr, y: Expr) -> bool:
    return a.simplify(x) is a.simplify(y)


@pytest.fixture
def ijk() -> tuple[Analyzer, Var, Var, Var]:
    a = Analyzer()
    i, j, k = Var("i"), Var("j"), Var("k")
    a.bind(i, 10)
    a.bind(j, 3)
    a.bind(k, 4)
    return a, i, j, k


def test_linear_of_sums_and_constant_products() -> None:
    i, j = Var("i"), Var("j")
    assert linear(i * 3 + (j - i) * 2 - 5) == ({i: 1, j: 2}, -5)
    assert linear(-(i + 1)) == ({i: -1}, -1)
    product = i * j
    assert linear(product + 1) == ({product: 1}, 1)
    assert linear(const(7)) == ({}, 7)


def test_division_splits_exactly(ijk: tuple[Analyzer, Var, Var, Var]) -> None:
    a, i, j, k = ijk
    flat = i * 12 + j * 4 + k
    assert same(a, flat // 4, i * 3 + j)
    assert same(a, flat % 4, k)
    assert same(a, flat // 12, i)
    assert same(a, flat % 12, j * 4 + k)
    assert same(a, (flat // 4) % 3, j)
    assert same(a, (i * 4 + k) // 8, i // 2)
    assert same(a, (i * 4 + k) % 8, (i % 2) * 4 + k)
    assert same(a, (i * 12 + j * 4 + k + 24) // 12, i + 2)
    assert same(a, (k - 4) // 4, const(-1))
    assert same(a, (k - 4) % 4, k)


def test_division_that_does_not_split_stays(ijk: tuple[Analyzer, Var, Var, Var]) -> None:
    a, i, _, k = ijk
    assert text(a.simplify((i * 12 + k * 4) // 12)) == "add(i, floordiv(k, 3))"
    assert text(a.simplify((i + k) // 4)) == "floordiv(add(i, k), 4)"
    free = Var("free")
    assert text(a.simplify((i * 4 + free) // 4)) == "add(i, floordiv(free, 4))"
    assert text(a.simplify((i * 4 + free) // 8)) == "floordiv(add(mul(i, 4), free), 8)"


def test_nested_divisions_and_recombination(ijk: tuple[Analyzer, Var, Var, Var]) -> None:
    a, *_ = ijk
    f = Var("f")
    a.bind(f, 1000)
    assert same(a, f // 4 // 5, f // 20)
    assert same(a, f % 20 % 5, f % 5)
    assert same(a, (f // 4) * 4 + f % 4, f)
    assert same(a, (f // 20) * 20 + ((f // 4) % 5) * 4 + f % 4, f)
    assert same(a, (f % 20) // 4, (f // 4) % 5)
    assert not same(a, (f // 4) * 4 + f % 5, f)


def test_min_max_and_comparisons_by_range(ijk: tuple[Analyzer, Var, Var, Var]) -> None:
    a, i, j, k = ijk
    assert same(a, minimum(i, 9), i)
    assert same(a, maximum(j - 2, 0), const(0))
    assert text(a.simplify(minimum(i, 8))) == "min(i, 8)"
    assert a.prove(i * 12 + j * 4 + k < 120)
    assert not a.prove(i * 12 + j * 4 + k < 119)
    assert a.prove(i + 1 > i)
    assert a.prove((i * 2).not_equal(k * 2 + 1))
    assert not a.prove(i.not_equal(k))
    assert a.bounds(i * 12 - j) == (-2, 108)
    assert a.bounds(Var("free") + i) == (None, None)
    assert a.prove(((i < 10) & (k >= 0)) | (i > j))


def test_casts_and_selects_have_bounds() -> None:
    a = Analyzer()
    b = Buffer("b", (4,), U8)
    byte = Cast(Load(b, (const(0),)), INDEX)
    assert a.bounds(byte) == (0, 255)
    assert a.prove(byte < 256)
    i = Var("i")
    a.bind(i, 4)
    assert a.bounds(select(i < 2, i, const(7))) == (0, 7)


def test_values_from_memory_may_wrap() -> None:
    """x + 1 > x is false for the greatest integer, and (8*x)//8 is not x, so nothing may be concluded."""
    a = Analyzer()
    x = Load(Buffer("x", (4,), INDEX), (const(0),))
    assert not a.prove(x + 1 > x)
    assert text(a.simplify((x * 8) // 8)).startswith("floordiv(")
    y = Var("y")
    a.bind_value(y, x)
    assert not a.prove(y + 1 > y)
    assert isinstance(a.simplify(minimum(y + 1, y)), Binary)


def test_narrow_integers_are_left_alone() -> None:
    x = Load(Buffer("x", (4,), I32), (const(0),))
    e = (x + 1) * 2 // 2
    assert simplify(e) is e


def test_symbolic_sizes() -> None:
    a = Analyzer()
    n, m = symbol("n"), symbol("m")
    i, j, o, lane = Var("i"), Var("j"), Var("o"), Var("lane")
    a.bind(i, n)
    a.bind(j, m)
    N, M = size_var("n"), size_var("m")
    assert a.prove(i < N)
    assert a.prove(i <= N - 1)
    assert not a.prove(i < N - 1)
    flat = i * M + j
    assert a.prove(flat < dim_expr(n * m))
    assert not a.prove(flat < dim_expr(n * m - 1))
    assert same(a, flat // M, i)
    assert same(a, flat % M, j)
    assert same(a, (flat // M) * M + flat % M, flat)
    f = Var("f")
    a.bind(f, n * m)
    assert same(a, (f // M) * M + f % M, f)
    assert a.prove(f % M < M)
    a.bind(o, n // 8)
    a.bind(lane, 8)
    assert a.prove(o * 8 + lane < N)
    a.bind(o, ceildiv(n, 8))
    assert not a.prove(o * 8 + lane < N)
    assert a.prove(o * 8 + lane < N + 7)
    assert a.prove(minimum(o * 8, N - 8) + lane < N)
    assert a.prove(maximum(minimum(o * 8, N - 8), 0) >= 0)
    assert a.bounds(N) == (0, None)


def test_extent_that_depends_on_an_outer_variable() -> None:
    a = Analyzer()
    i, j = Var("i"), Var("j")
    a.bind(i, symbol("n"))
    a.bind(j, i + 1)
    assert a.prove(j <= i)
    assert a.prove(j < size_var("n"))
    assert not a.prove(j < i)


def test_vectors() -> None:
    a = Analyzer()
    i = Var("i")
    a.bind(i, 10)
    lane = Ramp(i * 8, 1, 8)
    assert text(a.simplify(lane * 2 + 3)) == "Ramp(add(mul(i, 16), 3), 2, 8)"
    assert text(a.simplify(lane // 8)) == "Broadcast(i, 8)"
    assert text(a.simplify(lane % 8)) == "Ramp(0, 1, 8)"
    assert text(a.simplify(lane // 16)) == "Broadcast(floordiv(i, 2), 8)"
    assert text(a.simplify(Ramp(i * 16, 2, 8) // 2)) == "Ramp(mul(i, 8), 1, 8)"
    assert text(a.simplify(lane // 4)) == "floordiv(Ramp(mul(i, 8), 1, 8), Broadcast(4, 8))"
    assert a.prove(lane < 80)
    assert text(a.simplify(lane < 79)) == "lt(Ramp(mul(i, 8), 1, 8), Broadcast(79, 8))"
    assert text(a.simplify(lane - lane)) == "Broadcast(0, 8)"


def test_facts_hold_inside_a_branch_only() -> None:
    a = Analyzer()
    x = Var("x")
    assert not a.prove(x + 1 < 9)
    with a.assume((x < 8) & (x >= 0)):
        assert a.prove(x + 1 < 9)
        assert not a.prove(x < 7)
        assert a.prove(x > -1)
    assert not a.prove(x + 1 < 9)


def test_a_range_bound_later_counts() -> None:
    a = Analyzer()
    i = Var("i")
    assert not a.prove(i < 4)
    a.bind(i, 4)
    assert a.prove(i < 4)
    a.bind(i, 8)
    assert not a.prove(i < 4)


def test_canonical_expressions_stay_the_same_object() -> None:
    i, j = Var("i"), Var("j")
    e = simplify((i * 3 + j) // 2 + (j + i * 3) // 2)
    assert text(e) == "mul(floordiv(add(mul(i, 3), j), 2), 2)"
    assert simplify(e) is e


def test_bool_logic() -> None:
    x, y = Var("x"), Var("y")
    assert text(simplify(Unary("not", x < y))) == "ge(x, y)"
    assert text(simplify((x < y) & (x < y))) == "lt(x, y)"
    f = Var("f", F32)
    nan_safe = Unary("not", binary("lt", f, 1.0))
    assert text(simplify(nan_safe)) == "not(lt(f, 1.0))"


# --- statements


def _store(b: Buffer, index: Expr, value: Expr, mask: Expr | None = None) -> Store:
    return Store(b, (index,), value, mask)


def test_statements_disappear() -> None:
    b = Buffer("b", (64,), F32)
    i, v = Var("i"), Var("v")
    one, two = const(1.0, F32), const(2.0, F32)
    body = Seq((
        If(i < 8, _store(b, i, one), _store(b, i, two)),
        Assert(i >= 0, "no"),
        For(Var("z"), const(0), _store(b, i, one)),
        For(v, const(1), _store(b, i + v, two)),
        Let(Var("t"), const(3), Seq(())),
        Allocate(Buffer("s", (4,), F32, scope="local"), Seq(())),
    ))  # fmt: skip
    out = simplify_stmt(For(i, const(8), body))
    assert isinstance(out, For) and isinstance(out.body, Seq)
    assert [type(s) for s in out.body.body] == [Store, Store]
    first, second = out.body.body
    assert isinstance(first, Store) and first.value is one
    assert isinstance(second, Store) and second.indices == (i,)


def test_statements_that_must_stay() -> None:
    b = Buffer("b", (64,), F32)
    i = Var("i")
    s = For(i, const(8), Seq((If(i < 7, _store(b, i, const(1.0, F32))), Assert(i > 0, "no"))))
    assert simplify_stmt(s) is s


def test_masks_and_branches() -> None:
    b = Buffer("b", (symbol("n"),), F32)
    i = Var("i")
    N = size_var("n")
    all_lanes = Broadcast(const(1.0, F32), 8)
    mask = Ramp(i * 8, 1, 8) < dim_expr(symbol("n"))
    store = Store(b, (Ramp(i * 8, 1, 8),), all_lanes, mask)
    full = If(i * 8 + 8 <= N, store, store)
    out = simplify_stmt(For(i, dim_expr(ceildiv(symbol("n"), 8)), full))
    assert isinstance(out, For) and isinstance(out.body, If)
    then, orelse = out.body.then, out.body.orelse
    assert isinstance(then, Store) and then.mask is None
    assert isinstance(orelse, Store) and orelse.mask is not None
    never = Store(b, (Ramp(i, 1, 8),), all_lanes, Broadcast(const(False, BOOL), 8))
    assert simplify_stmt(never).body == ()  # type: ignore[attr-defined]


# --- random expressions


def _evaluate(e: Expr, env: dict[Var, int]) -> int | bool:
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return env[e]
    v = [_evaluate(c, env) for c in children(e)]
    if isinstance(e, Select):
        return v[1] if v[0] else v[2]
    if isinstance(e, Unary):
        return -v[0] if e.op == "neg" else not v[0]
    assert isinstance(e, Binary)
    x, y = v
    trunc = abs(x) // abs(y) * (1 if x * y >= 0 else -1) if y and e.op.startswith("trunc") else 0
    return {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "floordiv": lambda: x // y,
            "floormod": lambda: x % y, "truncdiv": lambda: trunc, "truncmod": lambda: x - y * trunc,
            "min": lambda: min(x, y), "max": lambda: max(x, y), "lt": lambda: x < y, "le": lambda: x <= y,
            "gt": lambda: x > y, "ge": lambda: x >= y, "eq": lambda: x == y, "ne": lambda: x != y,
            "and": lambda: x and y, "or": lambda: x or y}[e.op]()  # fmt: skip


def _random(rng: random.Random, leaves: list[Var], divisors: list[Var], depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(leaves) if rng.random() < 0.75 else Const(rng.randint(-9, 9), INDEX)
    x = _random(rng, leaves, divisors, depth - 1)
    op = rng.choice(["add", "add", "sub", "mul", "floordiv", "floormod", "floordiv", "floormod", "truncdiv", "truncmod",
                     "min", "max", "select"])  # fmt: skip
    if op in ("floordiv", "floormod", "truncdiv", "truncmod"):
        y: Expr = (
            rng.choice(divisors) if divisors and rng.random() < 0.3 else Const(rng.choice([2, 3, 4, 6, 8, 12]), INDEX)
        )
        return Binary(op, x, y)
    if op == "mul" and rng.random() < 0.7:
        return Binary("mul", x, Const(rng.choice([-1, 2, 3, 4, 6, 8, 12]), INDEX))
    y = _random(rng, leaves, divisors, depth - 1)
    if op == "select":
        cond = Binary(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]), x, y)
        return Select(cond, y, _random(rng, leaves, divisors, depth - 1))
    return Binary(op, x, y)


def test_random_expressions_keep_their_value() -> None:
    rng = random.Random(7)
    fired = 0
    for _ in range(1500):
        a = Analyzer()
        n, m = size_var("n"), size_var("m")
        i, j, k, f = Var("i"), Var("j"), Var("k"), Var("f")
        sizes = {n: rng.randint(1, 9), m: rng.randint(1, 9)}
        extents: dict[Var, Expr] = {i: Const(rng.choice([1, 3, 4, 8]), INDEX), j: n, k: Const(4, INDEX), f: n * m}
        for v, extent in extents.items():
            a.bind(v, extent)
        e = _random(rng, [i, j, k, f, n, m], [n, m], 4)
        if rng.random() < 0.5:
            e = Binary(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]), e, _random(rng, [i, j, k, f, n, m], [n, m], 3))
        out = a.simplify(e)
        fired += out is not e
        low, high = a.bounds(out) if out.dtype == INDEX else (None, None)
        for _ in range(12):
            env = dict(sizes)
            env |= {v: rng.randrange(int(_evaluate(x, sizes))) for v, x in extents.items()}
            value = _evaluate(e, env)
            assert _evaluate(out, env) == value, (
                f"{text(e)} became {text(out)} under { {v.name: x for v, x in env.items()} }"
            )
            assert low is None or low <= value
            assert high is None or value <= high
    assert fired > 700
