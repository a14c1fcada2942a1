"""Printed loop nests, and keys of equal kernels."""

from __future__ import annotations

import textwrap

from nnvm.dim import symbol
from nnvm.dtype import BOOL, F16, F32, I32
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
    Select,
    Unary,
    Var,
    VectorReduce,
    binary,
    const,
    dim_expr,
)
from nnvm.tir.printer import show, structural_key
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, PrimFunc, Seq, Store


def scale(
    names: tuple[str, ...] = ("x", "y", "i", "n"), factor: float = 2.0, kind: str = "parallel", lanes: int = 8
) -> PrimFunc:
    n = symbol(names[3])
    x, y = Buffer(names[0], (n, 8), F32), Buffer(names[1], (n, 8), F32, (32, 1))
    i = Var(names[2])
    lane = Ramp(const(0), 1, lanes)
    value = Load(x, (i, lane)) * factor
    body = For(i, dim_expr(n), Store(y, (i, lane), value), kind)
    return PrimFunc(f"scale_{names[0]}", (x, y), 1, (names[3],), body, {"kind": "elementwise"})


def test_function() -> None:
    assert show(scale()) == textwrap.dedent("""\
        func scale_x(x: float32[n, 8], y: float32[n, 8] strides=(32, 1)) outputs=1 sizes=(n) kind='elementwise'
          parallel i in 0..n:
            y[i, ramp(0, 1, 8)] = x[i, ramp(0, 1, 8)] * x8(2.0)""")


def test_every_statement() -> None:
    b, t, u = Buffer("b", (16,), F32), Buffer("t", (4,), F32, scope="local"), Buffer("t", (4,), F32, scope="scratch")
    i, j, v = Var("i"), Var("i"), Var("v", F32)
    mask = binary("lt", Ramp(i, 1, 4), 9)
    body = Seq((
        Assert(binary("ge", i, 0), "no"),
        Prefetch(b, (i + 64,)),
        Allocate(t, Let(v, const(1.5, F32), Store(b, (i,), Binary("add", v, Load(t, (const(2),)))))),
        Allocate(u, If(binary("lt", i, 3), For(j, const(4), Store(u, (j,), const(-1.0, F32)), "unrolled"), Seq(()))),
        Store(b, (Ramp(i, 1, 4),), Load(b, (Ramp(i, 1, 4),), mask), mask),
    ))  # fmt: skip
    assert show(For(i, const(9), body)) == textwrap.dedent("""\
        for i in 0..9:
          assert i >= 0, 'no'
          prefetch b[i + 64]
          local t: float32[4]
          let v: float32 = 1.5
          b[i] = v + t[2]
          scratch t_1: float32[4]
          if i < 3:
            unrolled i_1 in 0..4:
              t_1[i_1] = -1.0
          else:
            pass
          t0 := ramp(i, 1, 4) < x4(9)
          b[ramp(i, 1, 4)] = (b[ramp(i, 1, 4)] if t0) if t0""")


def test_expressions() -> None:
    x, y, f = Var("x"), Var("y"), Var("f", F32)
    cases: list[tuple[Expr, str]] = [
        ((x + y) * 3 - x, "(x + y) * 3 - x"),
        (x - (y - x), "x - (y - x)"),
        (x // (y * 2) % 4, "x // (y * 2) % 4"),
        (binary("and", binary("lt", x, y), binary("eq", x, -1)), "x < y & x == -1"),
        (binary("mul", x, -2), "x * (-2)"),
        (Fma(f, f, Unary("exp", f)), "fma(f, f, exp(f))"),
        (Select(Const(True, BOOL), f, Const(float("inf"), F32)), "select(True, f, inf)"),
        (Cast(x, F16), "float16(x)"),
        (Bitcast(f, I32), "bits_int32(f)"),
        (Const(7, I32), "7:int32"),
        (Const(0.5, F32, 4), "0.5x4"),
        (VectorReduce("sum", Broadcast(f, 4)), "reduce_sum(x4(f))"),
        (Check(x, binary("lt", x, 4), "bad"), "check(x, x < 4, 'bad')"),
        (binary("min", x, binary("truncdiv", x, y)), "min(x, truncdiv(x, y))"),
    ]
    for e, text in cases:
        assert show(e) == text


def test_shared_parts_are_printed_once() -> None:
    x = Var("x", F32)
    e: Expr = x * 2.0 + 1.0
    for _ in range(60):  # as a tree this has 2**60 leaves
        e = Binary("mul", e, e)
    text = show(e)
    assert text.startswith("t59 * t59\nwhere t0 := x * 2.0 + 1.0\nwhere t1 := t0 * t0\n")
    assert len(text) < 2000


def test_equal_kernels_have_equal_keys() -> None:
    assert structural_key(scale()) == structural_key(scale(("other", "names", "k", "m")))


def test_different_kernels_have_different_keys() -> None:
    base = scale()
    x = base.params[0]
    other_attrs = PrimFunc(base.name, base.params, 1, base.symbols, base.body, {"kind": "reduce"})
    wide = PrimFunc(base.name, (x, Buffer("y", base.params[1].shape, F32)), 1, base.symbols, base.body, base.attrs)
    variants = [base, scale(factor=-2.0), scale(factor=0.0), scale(factor=-0.0), scale(kind="serial"), scale(lanes=4)]
    variants.append(other_attrs)
    keys = [structural_key(f) for f in variants]
    assert len(set(keys)) == len(keys)
    stores = [f.body.body for f in (base,) if isinstance(f.body, For)]
    assert isinstance(stores[0], Store)
    swapped = For(Var("i"), const(3), stores[0])
    assert structural_key(PrimFunc("f", base.params, 1, base.symbols, swapped)) not in keys
    assert wide.params[1].strides is None
    rebuilt = PrimFunc(
        "f", (x, wide.params[1]), 1, base.symbols, Store(wide.params[1], stores[0].indices, stores[0].value)
    )
    plain = PrimFunc("f", base.params, 1, base.symbols, stores[0])
    assert structural_key(rebuilt) != structural_key(plain)


def test_sharing_and_reused_variables_do_not_matter() -> None:
    b = Buffer("b", (8,), F32)
    i, j, k = Var("i"), Var("j"), Var("k")

    def func(first: Var, second: Var, shared: bool) -> PrimFunc:
        def loop(v: Var) -> For:
            x = Load(b, (v,))
            return For(v, const(8), Store(b, (v,), Binary("mul", x, x if shared else Load(b, (v,)))))

        return PrimFunc("f", (b,), 1, (), Seq((loop(first), loop(second))))

    keys = {structural_key(func(*args)) for args in ((i, j, True), (i, j, False), (k, k, True), (k, k, False))}
    assert len(keys) == 1


def test_nesting_shows_in_the_key() -> None:
    b = Buffer("b", (8,), F32)
    i, one = Var("i"), const(1.0, F32)
    inside = For(i, const(8), Seq((Store(b, (i,), one), Store(b, (const(0),), one))))
    outside = Seq((For(i, const(8), Store(b, (i,), one)), Store(b, (const(0),), one)))
    assert structural_key(PrimFunc("f", (b,), 1, (), inside)) != structural_key(PrimFunc("f", (b,), 1, (), outside))
