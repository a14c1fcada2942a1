"""The interpreter: each construct against numpy, and the corners of the operators' definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nnvm.dim import symbol
from nnvm.dtype import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType, bf16_to_f32, f32_to_bf16
from nnvm.te.expr import (
    MATH,
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
from nnvm.tir.interpreter import KernelError, evaluate_expr, run
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, PrimFunc, Seq, Stmt, Store

ZERO = const(0)


def kernel(params: list[Buffer], body: Stmt, symbols: tuple[str, ...] = ()) -> PrimFunc:
    return PrimFunc("f", tuple(params), 1, symbols, body)


def one(op: str, t: DType, *values: Any) -> Any:
    """The value of one operator on constants, through memory."""
    args = [Const(v, t) for v in values]
    e: Expr = Unary(op, args[0]) if len(args) == 1 else Binary(op, args[0], args[1])
    out = Buffer("out", (1,), e.dtype)
    array = np.zeros(1, e.dtype.numpy)
    run(kernel([out], Store(out, (ZERO,), e)), [array])
    return array[0]


def test_matmul_with_accumulator_and_loop_kinds() -> None:
    n = symbol("n")
    a, b, c = Buffer("a", (n, 5), F32), Buffer("b", (5, 4), F32), Buffer("c", (n, 4), F32)
    acc = Buffer("acc", (4,), F32, scope="local")
    i, j, k, z = Var("i"), Var("j"), Var("k"), Var("z")
    update = Load(acc, (j,)) + Load(a, (i, k)) * Load(b, (k, j))
    body = Allocate(acc, Seq((
        For(z, const(4), Store(acc, (z,), const(0.0, F32)), "unrolled"),
        For(k, const(5), For(j, const(4), Store(acc, (j,), update), "vectorized")),
        For(j, const(4), Store(c, (i, j), Load(acc, (j,)))),
    )))  # fmt: skip
    x, y = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)[0], np.ones((5, 4), np.float32)
    out = np.zeros((3, 4), np.float32)
    run(kernel([a, b, c], For(i, dim_expr(n), body, "parallel"), ("n",)), [x, y, out], {"n": 3})
    np.testing.assert_allclose(out, x @ y, rtol=1e-6)


def test_vectors_masks_and_reductions() -> None:
    n = 13
    a, b, s = Buffer("a", (n,), F32), Buffer("b", (n,), F32), Buffer("s", (1,), F32)
    i = Var("i")
    lane = Ramp(i * 8, 1, 8)
    mask = binary("lt", lane, n)
    x = Load(a, (lane,), mask)
    body = For(i, const(2), Seq((
        Store(b, (lane,), x * 2.0, mask),
        Store(s, (ZERO,), Load(s, (ZERO,)) + VectorReduce("sum", x)),
    )))  # fmt: skip
    values = np.arange(n, dtype=np.float32)
    out, total = np.zeros(n, np.float32), np.zeros(1, np.float32)
    run(PrimFunc("f", (a, b, s), 2, (), body), [values, out, total])
    np.testing.assert_array_equal(out, values * 2)
    assert total[0] == values.sum()


def test_unmasked_access_outside_a_buffer_is_an_error() -> None:
    a, b = Buffer("a", (5,), F32), Buffer("b", (8,), F32)
    body = Store(b, (Ramp(ZERO, 1, 8),), Load(a, (Ramp(ZERO, 1, 8),)))
    with pytest.raises(IndexError, match=r"a: index .* on axis 0 of shape \(5,\)"):
        run(kernel([a, b], body), [np.zeros(5, np.float32), np.zeros(8, np.float32)])
    negative = Store(b, (const(-1),), const(0.0, F32))
    with pytest.raises(IndexError):
        run(kernel([b], negative), [np.zeros(8, np.float32)])


def test_select_reads_only_the_branch_taken() -> None:
    a, b = Buffer("a", (4,), F32), Buffer("b", (6,), F32)
    i = Var("i")
    inside = binary("and", binary("ge", i - 1, 0), binary("lt", i - 1, 4))
    scalar = For(i, const(6), Store(b, (i,), Select(inside, Load(a, (i - 1,)), const(-1.0, F32))))
    lane = Ramp(const(-1), 1, 6)
    guard = binary("and", binary("ge", lane, 0), binary("lt", lane, 4))
    padded = Select(guard, Load(a, (lane,)) + 1.0, Broadcast(const(-1.0, F32), 6))
    vector = Store(b, (Ramp(ZERO, 1, 6),), padded)
    x = np.array([1, 2, 3, 4], np.float32)
    for body, shift in ((scalar, 0), (vector, 1)):
        out = np.zeros(6, np.float32)
        run(kernel([a, b], body), [x, out])
        np.testing.assert_array_equal(out, [-1, *(x + shift), -1])


def test_a_stores_mask_silences_checks_but_not_loads() -> None:
    b, d = Buffer("b", (4,), I32), Buffer("d", (4,), I32)
    lane = Ramp(ZERO, 1, 4)
    mask = binary("lt", lane, 2)
    ten = Broadcast(const(10, I32), 4)
    divide = Store(b, (lane,), Binary("floordiv", ten, Load(d, (lane,))), mask)
    out = np.zeros(4, np.int32)
    run(kernel([d, b], divide), [np.array([3, 5, 0, 0], np.int32), out])
    np.testing.assert_array_equal(out, [3, 2, 0, 0])
    with pytest.raises(KernelError, match="ZeroDivisionError"):
        run(kernel([d, b], divide), [np.array([3, 0, 1, 1], np.int32), out])
    outside = Store(b, (lane,), Load(d, (lane + 3,)), mask)
    with pytest.raises(IndexError):
        run(kernel([d, b], outside), [np.zeros(4, np.int32), out])


def test_failures() -> None:
    b = Buffer("b", (4,), F32)
    out = np.zeros(4, np.float32)
    with pytest.raises(KernelError, match="rows differ"):
        run(kernel([b], Assert(const(False, BOOL), "rows differ")), [out])
    value = Check(const(1.0, F32), binary("lt", Var("n"), 3), "index out of range")
    func = kernel([b], Store(b, (ZERO,), value), ("n",))
    run(func, [out], {"n": 2})
    assert out[0] == 1
    with pytest.raises(KernelError, match="index out of range"):
        run(func, [out], {"n": 3})
    with pytest.raises(ValueError, match="symbols"):
        run(func, [out])
    with pytest.raises(ValueError, match=r"float32\[4\]"):
        run(func, [np.zeros(5, np.float32)], {"n": 1})


def test_let_if_and_fresh_memory() -> None:
    b, t = Buffer("b", (3,), F32), Buffer("t", (1,), F32, scope="scratch")
    i, v = Var("i"), Var("v", F32)
    square = Let(v, Cast(i, F32), Store(b, (i,), Binary("mul", v, v)))
    body = Allocate(t, For(i, const(3), If(binary("lt", i, 2), square, Store(b, (i,), Load(t, (ZERO,))))))
    out = np.zeros(3, np.float32)
    run(kernel([b], body), [out])
    assert out[:2].tolist() == [0, 1]
    assert math.isnan(out[2])


def test_a_shared_load_is_read_again_in_the_next_statement() -> None:
    b = Buffer("b", (1,), F32)
    bump = Store(b, (ZERO,), Load(b, (ZERO,)) + 1.0)
    out = np.zeros(1, np.float32)
    run(kernel([b], Seq((bump, bump))), [out])
    assert out[0] == 2


def test_strided_arrays() -> None:
    a, b = Buffer("a", (2, 3), F32, strides=(1, 2)), Buffer("b", (2, 3), F32)
    i, j = Var("i"), Var("j")
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T
    out = np.zeros((2, 3), np.float32)
    run(kernel([a, b], For(i, const(2), For(j, const(3), Store(b, (i, j), Load(a, (i, j)))))), [x, out])
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("t", [F16, BF16])
def test_half_types_are_computed_wide_and_rounded_after_each_operation(t: DType) -> None:
    def narrow(x: Any) -> Any:
        with np.errstate(over="ignore"):
            return f32_to_bf16(x) if t == BF16 else x.astype(np.float16)

    def wide(x: Any) -> Any:
        return bf16_to_f32(x) if t == BF16 else x.astype(np.float32)

    b = Buffer("b", (4,), t)
    bits = narrow(np.array([1.0, 1.001, -3.14159, 65000.0], np.float32))
    x = Load(b, (Ramp(ZERO, 1, 4),))
    once = wide(bits) * np.float32(1.5)
    through_float32 = Cast(Binary("sub", Cast(x, F32) * 1.5, Broadcast(const(1.0, F32), 4)), t)
    for value, expected in (
        (x * 1.5 - 1.0, wide(narrow(once)) - np.float32(1)),
        (through_float32, once - np.float32(1)),
    ):
        out = bits.copy()
        run(kernel([b], Store(b, (Ramp(ZERO, 1, 4),), value)), [out])
        np.testing.assert_array_equal(out, narrow(expected))


def test_casts() -> None:
    def convert(value: Any, source: DType, target: DType) -> Any:
        out = Buffer("out", (1,), target)
        array = np.zeros(1, target.numpy)
        run(kernel([out], Store(out, (ZERO,), Cast(Const(value, source), target))), [array])
        return array[0]

    assert convert(-2.7, F32, I32) == -2
    assert convert(300, I32, U8) == 44
    assert convert(200, I32, I8) == -56
    assert convert(-1.0, F32, U8) == 255
    assert convert(float("nan"), F32, BOOL)
    assert not convert(0.0, F32, BOOL)
    assert convert(True, BOOL, F32) == 1
    assert convert(1 / 3, F64, F32) == np.float32(1 / 3)
    assert convert(1 / 3, F64, F16) == np.float16(np.float32(1 / 3))
    assert bf16_to_f32(np.array([convert(1 / 3, F32, BF16)]))[0] == 0.333984375
    assert convert(2**53 + 1, I64, F64) == 2.0**53


def test_bitcast() -> None:
    x = Var("x", F32)
    assert evaluate_expr(Bitcast(x, I32), {x: np.float32(1)}) == 0x3F800000
    i = Var("i", I32)
    np.testing.assert_array_equal(evaluate_expr(Bitcast(i, F32), {i: np.array([0x40000000], np.int32)}), [2.0])


def test_integer_division() -> None:
    for x, y in ((7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3)):
        assert one("floordiv", I32, x, y) == x // y
        assert one("floormod", I32, x, y) == x % y
        assert one("truncdiv", I32, x, y) == int(x / y)
        assert one("truncmod", I32, x, y) == math.fmod(x, y)
    assert one("floordiv", I32, -(2**31), -1) == -(2**31)
    assert one("add", I32, 2**31 - 1, 1) == -(2**31)
    assert one("mul", I64, 2**62, 2) == -(2**63)
    for op in ("floordiv", "floormod", "truncdiv", "truncmod"):
        with pytest.raises(KernelError, match="ZeroDivisionError"):
            one(op, I16, 1, 0)


def test_shifts_and_bits() -> None:
    assert one("shl", I32, 1, 31) == -(2**31)
    assert one("shl", I32, 1, 32) == 0
    assert one("shr", I32, -8, 1) == -4
    assert one("shr", I32, -8, 40) == -1
    assert one("shr", I32, 8, 40) == 0
    assert one("shr", U8, 255, 8) == 0
    assert one("not", I32, 5) == -6
    assert one("not", BOOL, True) == False  # noqa: E712 (a numpy bool)
    assert one("xor", BOOL, True, True) == False  # noqa: E712
    assert one("pow", I32, 3, 4) == 81
    assert one("pow", I32, 2, -1) == 0
    assert one("pow", I32, -1, -3) == -1
    a, b = Var("a", I32), Var("b", I32)
    shifted = evaluate_expr(Binary("shl", a, b), {a: np.ones(3, np.int32), b: np.array([3, 32, -1], np.int32)})
    np.testing.assert_array_equal(shifted, [8, 0, 0])


def test_float_division_and_nan() -> None:
    nan, inf = float("nan"), float("inf")
    assert one("floordiv", F64, 1.0, 0.1) == 9
    assert math.isnan(one("floordiv", F32, inf, 1.0))
    assert one("floordiv", F32, -1.0, 0.0) == -inf
    assert one("floormod", F32, -1.0, 3.0) == 2
    assert one("truncmod", F32, -1.0, 3.0) == -1
    assert one("truncdiv", F32, -7.0, 2.0) == -3
    assert math.isnan(one("max", F32, nan, 1.0)) and math.isnan(one("min", F32, 1.0, nan))
    assert one("fmax", F32, nan, 1.0) == 1 and one("fmin", F32, 1.0, nan) == 1
    assert one("round", F32, 2.5) == 2 and one("round", F32, -0.5) == 0
    assert not one("eq", F32, nan, nan) and one("ne", F32, nan, nan)
    assert one("isnan", F32, nan) and not one("isinf", F32, nan) and one("isinf", F32, -inf)


def test_fma_rounds_once() -> None:
    a, b, c = Var("a", F32), Var("b", F32), Var("c", F32)
    x = np.float32(1 + 2**-12)
    assert evaluate_expr(Fma(a, b, c), {a: x, b: x, c: np.float32(-1 - 2**-11)}) == np.float32(2.0**-24)
    rng = np.random.default_rng(3)
    from fractions import Fraction

    def check(t: DType, make: Any) -> None:
        va, vb, vc = (Var(n, t) for n in "abc")
        values = [make(rng.standard_normal(300) * 2.0 ** rng.integers(-12, 12, 300)) for _ in range(3)]
        got = evaluate_expr(Fma(va, vb, vc), dict(zip((va, vb, vc), values)))
        for p, q, r, g in zip(*values, got):
            exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
            below, above = (np.nextafter(g, g.dtype.type(s * np.inf)) for s in (-1, 1))
            error = abs(Fraction(float(g)) - exact)
            assert all(error <= abs(Fraction(float(n)) - exact) for n in (below, above))

    check(F32, np.float32)
    check(F64, np.float64)


def test_every_function_has_a_value() -> None:
    x = Var("x", F32)
    at = np.array([0.25, 0.5, 0.75], np.float32)
    for op in MATH:
        value = evaluate_expr(Unary(op, x), {x: at if op != "acosh" else at + 1})
        assert value.dtype == np.float32 and np.isfinite(value).all(), op
    np.testing.assert_allclose(evaluate_expr(Unary("lgamma", x), {x: at}), [math.lgamma(v) for v in at], rtol=1e-6)
    ends = np.array([-200.0, 200.0, np.nan], np.float64)
    y = Var("y", F64)
    np.testing.assert_allclose(evaluate_expr(Unary("sigmoid", y), {y: ends}), [math.exp(-200), 1, np.nan])
