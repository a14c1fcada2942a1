"""Reductions and row-fused groups in the interpreter, against numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from nnvm import te
from nnvm.dim import symbol
from nnvm.dtype import BOOL, F32, I64, DType
from nnvm.target import Target
from nnvm.te.expr import Load, VectorReduce, cast, maximum
from nnvm.tir.stmt import Allocate, For
from nnvm.tir.visitor import post_order, stmts
from tests.schedules import programs as p
from tests.schedules.harness import HASWELL, compute, lowered

RNG = np.random.default_rng(0)
AXES = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 2, 70), (40, 3, 8), (1, 9, 1)])
def test_sum_over_any_axes(axes: tuple[int, ...], keepdims: bool, shape: tuple[int, ...]) -> None:
    (x,) = p.placeholders(x=shape)
    y = p.reduction(x, axes, "sum", keepdims)
    a = rand(*shape)
    (out,) = compute([x], [y], [a])
    np.testing.assert_allclose(out, a.sum(axes, keepdims=keepdims), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["max", "min", "prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_other_reducers(op: str, axes: tuple[int, ...]) -> None:
    (x,) = p.placeholders(x=(13, 21))
    a = rand(13, 21)
    (out,) = compute([x], [p.reduction(x, axes, op)], [a])
    np.testing.assert_allclose(out, getattr(np, op)(a, axes), rtol=1e-5)


def test_max_carries_nan() -> None:
    (x,) = p.placeholders(x=(3, 21))
    a = rand(3, 21)
    a[1, 20] = np.nan
    (out,) = compute([x], [p.reduction(x, (1,), "max")], [a])
    np.testing.assert_array_equal(out, a.max(1))


@pytest.mark.parametrize("op", ["any", "all"])
@pytest.mark.parametrize("axis", [0, 1])
def test_any_and_all(op: str, axis: int) -> None:
    (x,) = p.placeholders(BOOL, x=(37, 70))
    a = RNG.random((37, 70)) < (0.02 if op == "any" else 0.98)
    np.testing.assert_array_equal(compute([x], [p.reduction(x, (axis,), op)], [a])[0], getattr(np, op)(a, axis))


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_arg(op: str, axes: tuple[int, ...], dtype: DType) -> None:
    (x,) = p.placeholders(dtype, x=(19, 37))
    a = RNG.integers(-3, 4, (19, 37)).astype(dtype.numpy)  # many equal ones: the first wins
    (out,) = compute([x], [p.reduction(x, axes, op)], [a])
    np.testing.assert_array_equal(out, getattr(np, op)(a, axes[0] if len(axes) == 1 else None))


@pytest.mark.parametrize("axis", [0, 1])
def test_argmax_takes_the_first_nan_and_knows_rows_of_minus_infinity(axis: int) -> None:
    (x,) = p.placeholders(x=(12, 37))
    a = rand(12, 37)
    a[3, 30] = a[9, 30] = a[3, 4] = a[5, 11] = np.nan
    (out,) = compute([x], [p.reduction(x, (axis,), "argmax")], [a])
    np.testing.assert_array_equal(out, np.argmax(a, axis))
    a[:] = -np.inf
    (out,) = compute([x], [p.reduction(x, (axis,), "argmax")], [a])
    assert not out.any()


@pytest.mark.parametrize("shape", [(3, 20), (2, 8), (5, 1), (2, 70), (1, 3)])
def test_softmax(shape: tuple[int, ...]) -> None:
    (x,) = p.placeholders(x=shape)
    a = rand(*shape)
    (out,) = compute([x], [p.softmax(x, 1)], [a])
    np.testing.assert_allclose(out, p.softmax_numpy(a, 1), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_over_any_axis(axis: int) -> None:
    (x,) = p.placeholders(x=(3, 5, 43))
    a = rand(3, 5, 43)
    (out,) = compute([x], [p.softmax(x, axis)], [a])
    np.testing.assert_allclose(out, p.softmax_numpy(a, axis), rtol=1e-5)


def test_softmax_computes_each_exponential_once() -> None:
    (x,) = p.placeholders(x=(3, 64))
    func = lowered([x], [p.softmax(x, 1)])
    assert sum(getattr(e, "op", "") == "exp" for e in post_order(func.body)) == 1
    assert [s.buffer.scope for s in stmts(func.body) if isinstance(s, Allocate)].count("scratch") == 1


def test_layer_norm() -> None:
    x, g, b = p.placeholders(x=(5, 77), g=(77,), b=(77,))
    a, c, d = rand(5, 77), rand(77), rand(77)
    (out,) = compute([x, g, b], [p.layer_norm(x, g, b)], [a, c, d])
    np.testing.assert_allclose(out, p.layer_norm_numpy(a, c, d), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 40), (1, 6, 8)])
def test_residual_layer_norm_writes_the_sum_on_the_way(shape: tuple[int, int, int]) -> None:
    x, r, g, b = p.placeholders(x=shape, r=shape, g=shape[-1:], b=shape[-1:])
    total = te.compute(shape, lambda *i: x[i] + r[i], "total")
    y = p.layer_norm(total, g, b)
    arrays = [rand(*shape), rand(*shape), rand(*shape[-1:]), rand(*shape[-1:])]
    one, two = compute([x, r, g, b], [total, y], arrays)
    np.testing.assert_array_equal(one, arrays[0] + arrays[1])
    np.testing.assert_allclose(two, p.layer_norm_numpy(arrays[0] + arrays[1], *arrays[2:]), rtol=1e-4, atol=1e-5)
    func = lowered([x, r, g, b], [total, y])
    reads = [e for e in post_order(func.body) if isinstance(e, Load) and e.buffer.name == "in1"]
    assert len({id(e) for e in reads}) <= 2, "the sum is read again, not computed again"


def test_group_norm_is_a_row_program() -> None:
    x, g = p.placeholders(x=(2, 6, 5, 7), g=(6,))
    a, c = rand(2, 6, 5, 7), rand(6)
    func = lowered([x, g], [p.group_norm(x, 3, g)])
    assert not any(isinstance(s, Allocate) and s.buffer.scope == "scratch" for s in stmts(func.body))
    (out,) = compute([x, g], [p.group_norm(x, 3, g)], [a, c])
    v = a.reshape(2, 3, -1).astype(np.float64)
    d = v - v.mean(-1, keepdims=True)
    expected = (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)).reshape(a.shape) * c[:, None, None]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_prologue_and_epilogue() -> None:
    x, y = p.placeholders(x=(4, 50), y=(4, 50))
    both = te.compute((4, 50), lambda *i: maximum(x[i] * y[i], cast(0.0, F32)), "both")
    total = p.reduction(both, (1,), "sum")
    out = te.compute((4,), lambda i: total[i] * 0.5 + 1.0, "out")
    a, b = rand(4, 50), rand(4, 50)
    np.testing.assert_allclose(compute([x, y], [out], [a, b])[0], np.maximum(a * b, 0).sum(1) * 0.5 + 1, rtol=1e-5)


def test_different_rows_go_through_scratch() -> None:
    (x,) = p.placeholders(x=(6, 40))
    inner = p.reduction(x, (1,), "max")
    outer = p.reduction(inner, (0,), "sum")
    y = te.compute((6, 40), lambda i, j: x[i, j] - outer[()] + inner[i], "y")
    a = rand(6, 40)
    top = a.max(1)
    np.testing.assert_allclose(compute([x], [y], [a])[0], a - top.sum() + top[:, None], rtol=1e-4, atol=1e-5)


def test_an_output_apart_from_the_rows() -> None:
    x, z = p.placeholders(x=(6, 40), z=(3, 3))
    y = p.softmax(x, 1)
    other = te.compute((3, 3), lambda *i: z[i] * 2.0, "other")
    a, b = rand(6, 40), rand(3, 3)
    one, two = compute([x, z], [y, other], [a, b])
    np.testing.assert_allclose(one, p.softmax_numpy(a, 1), rtol=1e-5)
    np.testing.assert_array_equal(two, b * 2)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_long_float_sums_are_accurate(axes: tuple[int, ...]) -> None:
    shape = (600, 40) if axes == (0,) else (2, 9000)
    (x,) = p.placeholders(x=shape)
    a = (RNG.random(shape) + 1).astype(np.float32)
    (out,) = compute([x], [p.reduction(x, axes, "sum")], [a])
    exact = a.astype(np.float64).sum(axes)
    assert np.abs(out / exact - 1).max() < 4e-7


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 8), (4, 19), (2, 300)])
@pytest.mark.parametrize("axis", [0, 1])
def test_symbolic_rows(m: int, n: int, axis: int) -> None:
    s, t = symbol("s"), symbol("t")
    (x,) = p.placeholders(x=(s, t))
    a = rand(m, n)
    one, two = compute([x], [p.softmax(x, axis), x2(x)], [a], symbols={"s": m, "t": n})
    np.testing.assert_allclose(one, p.softmax_numpy(a, axis), rtol=1e-5)
    np.testing.assert_array_equal(two, a * 2)
    (mean,) = compute([x], [p.mean(x, (axis,))], [a], symbols={"s": m, "t": n})
    np.testing.assert_allclose(mean, a.mean(axis), rtol=1e-4, atol=1e-6)


def x2(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: x[i] * 2.0, "x2")


@pytest.mark.parametrize("target", ["llvm -mcpu=nehalem", "llvm -mcpu=skylake-avx512"])
def test_other_targets(target: str) -> None:
    (x,) = p.placeholders(x=(3, 45))
    a = rand(3, 45)
    for axis in (0, 1):
        (out,) = compute([x], [p.softmax(x, axis)], [a], Target.parse(target))
        np.testing.assert_allclose(out, p.softmax_numpy(a, axis), rtol=1e-5)


def test_rows_run_in_parallel() -> None:
    (x,) = p.placeholders(x=(64, 2, 1024))
    func = lowered([x], [p.softmax(x, 2)], HASWELL)
    assert next(s for s in stmts(func.body) if isinstance(s, For)).kind == "parallel"


@pytest.mark.parametrize("rows", [slice(0, 3), slice(2, 6), None])
def test_outputs_that_are_a_part_of_the_rows_or_more(rows: slice | None) -> None:
    """A slice or a concatenation of a softmax has other rows than the softmax: it must not run in its row loop."""
    (x,) = p.placeholders(x=(6, 40))
    soft = p.softmax(x, 1)
    a = rand(6, 40)
    expected = p.softmax_numpy(a, 1)
    if rows is None:
        y = te.compute((12, 40), lambda i, j: te.select(i < 6, x[i, j], soft[i - 6, j]), "both")
        expected = np.concatenate([a, expected])
    else:
        y = te.compute((rows.stop - rows.start, 40), lambda i, j: soft[i + rows.start, j] * 1.0, "some")
        expected = expected[rows]
    np.testing.assert_allclose(compute([x], [y], [a])[0], expected, rtol=1e-5)


def test_a_shifted_prologue_that_is_an_output_too() -> None:
    """The sum reads the doubled values one place on: they are not written at the place where they are summed."""
    (x,) = p.placeholders(x=(4, 20))
    double = te.compute((4, 20), lambda i, j: x[i, j] * 2.0, "double")
    r = te.reduce_axis(20, "r")
    shifted = te.compute(
        (4,), lambda i: te.sum(te.select(r.var >= 1, double[i, r.var - 1], te.const(0.0, F32)), [r]), "shifted"
    )
    a = rand(4, 20)
    one, two = compute([x], [double, shifted], [a])
    np.testing.assert_array_equal(one, a * 2)
    np.testing.assert_allclose(two, (a * 2)[:, :-1].sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("swapped", [False, True])
def test_statistics_of_rows_do_not_turn_the_vectors_of_sums_over_columns(swapped: bool) -> None:
    """sum over i of g[i, j] * (x[i, j] - m[i]) * s[i]: the matrices lie along j, the little that lies along i does not
    count. Every lane sums a column of its own: none are added up at the end."""
    shape = (21, 70) if not swapped else (70, 21)
    g, x, m, s = p.placeholders(g=shape, x=shape, m=shape[:1], s=shape[:1])
    k = te.reduce_axis(shape[0], "k")
    y = te.compute((shape[1],), lambda j: te.sum(g[k.var, j] * ((x[k.var, j] - m[k.var]) * s[k.var]), [k]), "y")
    a, b, c, d = rand(*shape), rand(*shape), rand(shape[0]), rand(shape[0])
    (out,) = compute([g, x, m, s], [y], [a, b, c, d])
    np.testing.assert_allclose(out, (a * (b - c[:, None]) * d[:, None]).sum(0), rtol=1e-4, atol=1e-4)
    func = lowered([g, x, m, s], [y])
    assert not any(isinstance(e, VectorReduce) for n in stmts(func.body) for e in post_order(n)), func
