"""Elementwise and injective schedules in the interpreter, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm import te
from nnvm.dim import symbol
from nnvm.dtype import F32, F64, I64, U8, DType
from nnvm.target import Target
from nnvm.te.expr import Select, binary, cast, check, const, maximum, select
from nnvm.te.tensor import Tensor
from nnvm.tir.interpreter import KernelError
from nnvm.tir.stmt import For, PrimFunc, Store
from nnvm.tir.visitor import post_order, stmts
from tests.schedules.harness import HASWELL, compute, lowered
from tests.schedules.programs import placeholders

RNG = np.random.default_rng(0)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def doubled(x: Tensor) -> Tensor:
    return te.compute(x.shape, lambda *i: x[i] * 2.0, "doubled")


def loops(func: PrimFunc) -> list[For]:
    return [s for s in stmts(func.body) if isinstance(s, For)]


def conditions(func: PrimFunc) -> int:
    return sum(isinstance(e, Select) for e in post_order(func.body))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (2, 3, 4, 5), (4, 64), (3, 0, 2), (1, 70)])
def test_elementwise(shape: tuple[int, ...]) -> None:
    a, b = te.placeholder(shape, F32, "a"), te.placeholder(shape, F32, "b")
    y = te.compute(shape, lambda *i: maximum(a[i] + b[i], const(0.0, F32)) * a[i], "y")
    x1, x2 = rand(*shape), rand(*shape)
    (out,) = compute([a, b], [y], [x1, x2])
    np.testing.assert_array_equal(out, np.maximum(x1 + x2, 0) * x1)


def test_elementwise_is_one_flat_loop() -> None:
    a = te.placeholder((2, 3, 8, 8), F32, "a")
    func = lowered([a], [te.compute(a.shape, lambda *i: a[i] * 2.0, "y")])
    assert [f.kind for f in loops(func)] == ["serial", "unrolled"]


def test_large_kernels_are_parallel_and_small_ones_are_not() -> None:
    for shape, kind in (((64, 4096), "parallel"), ((64, 16), "serial")):
        (x,) = placeholders(x=shape)
        assert loops(lowered([x], [doubled(x)]))[0].kind == kind


def test_bias_per_channel_is_hoisted() -> None:
    a, b = te.placeholder((2, 3, 4, 5), F32, "a"), te.placeholder((3,), F32, "b")
    y = te.compute(a.shape, lambda n, c, h, w: a[n, c, h, w] + b[c], "y")
    x1, x2 = rand(2, 3, 4, 5), rand(3)
    (out,) = compute([a, b], [y], [x1, x2])
    np.testing.assert_array_equal(out, x1 + x2[:, None, None])


@pytest.mark.parametrize("perm", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(3, 5, 7), (20, 33, 18), (16, 1, 32)])
def test_transpose(perm: tuple[int, ...], shape: tuple[int, ...]) -> None:
    a = te.placeholder(shape, F32, "a")
    inverse = [perm.index(d) for d in range(3)]
    y = te.compute([shape[p] for p in perm], lambda *i: a[tuple(i[k] for k in inverse)], "y")
    x = rand(*shape)
    (out,) = compute([a], [y], [x])
    np.testing.assert_array_equal(out, x.transpose(perm))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_is_loops_without_conditions(axis: int) -> None:
    shapes = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
    for k, s in enumerate(shapes):
        s[axis] = 2 + 3 * k
    tensors = [te.placeholder(tuple(s), F32, f"a{k}") for k, s in enumerate(shapes)]
    total = [2, 3, 4]
    total[axis] = sum(s[axis] for s in shapes)

    def body(*i):  # type: ignore[no-untyped-def]
        value, start = None, total[axis]
        for t in reversed(tensors):
            start -= t.shape[axis]
            at = tuple(e - start if d == axis else e for d, e in enumerate(i))
            value = t[at] if value is None else select(binary("lt", i[axis], start + t.shape[axis]), t[at], value)
        return value

    y = te.compute(total, body, "y")
    func = lowered(tensors, [y])
    assert conditions(func) == 0
    xs = [rand(*s) for s in shapes]
    np.testing.assert_array_equal(compute(tensors, [y], xs)[0], np.concatenate(xs, axis))


def padded(a: Tensor, p: int) -> Tensor:
    n, c, h, w = a.shape

    def body(i, j, y, x):  # type: ignore[no-untyped-def]
        inside = (y >= p) & (y < h + p) & (x >= p) & (x < w + p)
        return select(inside, a[i, j, y - p, x - p], const(0.0, a.dtype))

    return te.compute((n, c, h + 2 * p, w + 2 * p), body, "pad")


def test_pad_has_an_interior_without_conditions() -> None:
    a = te.placeholder((2, 3, 6, 9), F32, "a")
    y = padded(a, 1)
    x = rand(2, 3, 6, 9)
    assert conditions(lowered([a], [y])) == 0
    np.testing.assert_array_equal(compute([a], [y], [x])[0], np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))))


def test_outputs_of_one_shape_share_loops() -> None:
    a = te.placeholder((4, 40), F32, "a")
    s = te.compute(a.shape, lambda i, j: a[i, j] + 1.0, "s")
    r = te.compute(a.shape, lambda i, j: s[i, j] * s[i, j], "r")
    func = lowered([a], [s, r])
    x = rand(4, 40)
    one, two = compute([a], [s, r], [x])
    np.testing.assert_array_equal(one, x + 1)
    np.testing.assert_array_equal(two, (x + 1) ** 2)
    assert len([f for f in loops(func) if f.kind == "serial"]) <= 1


def embedding(rows: int, width: int, n: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    table, index = te.placeholder((rows, width), F32, "table"), te.placeholder(n, I64, "index")

    def body(*i):  # type: ignore[no-untyped-def]
        at = index[i[:-1]]
        ok = binary("and", binary("ge", at, 0), binary("lt", at, rows))
        return table[check(at, ok, "index out of range in self"), i[-1]]

    return table, index, te.compute((*n, width), body, "y")


def test_embedding_checks_once_per_row() -> None:
    table, index, y = embedding(11, 20, (3, 4))
    t, i = rand(11, 20), RNG.integers(0, 11, (3, 4))
    np.testing.assert_array_equal(compute([table, index], [y], [t, i])[0], t[i])
    i[1, 2] = 11
    with pytest.raises(KernelError, match="out of range"):
        compute([table, index], [y], [t, i])


def test_reshape_between_needs_no_division() -> None:
    a = te.placeholder((6, 8), F32, "a")
    flat = te.compute((48,), lambda i: a[i // 8, i % 8] * 2.0, "flat")
    y = te.compute((2, 3, 8), lambda i, j, k: flat[(i * 3 + j) * 8 + k] + 1.0, "y")
    func = lowered([a], [y])
    assert not any(getattr(e, "op", "") in ("floordiv", "floormod") for e in post_order(func.body))
    x = rand(6, 8)
    np.testing.assert_array_equal(compute([a], [y], [x])[0], (x * 2 + 1).reshape(2, 3, 8))


@pytest.mark.parametrize("n", [0, 1, 5, 8, 33, 70])
def test_symbolic_extents(n: int) -> None:
    s = symbol("s")
    a, b = te.placeholder((s, 6), F32, "a"), te.placeholder((6,), F32, "b")
    y = te.compute((s, 6), lambda i, j: a[i, j] * 3.0 + b[j], "y")
    z = te.compute((s, 6), lambda i, j: a[i, j] * 3.0, "z")
    x1, x2 = rand(n, 6), rand(6)
    one, two = compute([a, b], [y, z], [x1, x2], symbols={"s": n})
    np.testing.assert_allclose(one, x1 * 3 + x2, rtol=1e-6)
    np.testing.assert_array_equal(two, x1 * 3)


@pytest.mark.parametrize("n", [1, 6])
def test_symbolic_concat(n: int) -> None:
    s = symbol("s")
    a, b = te.placeholder((2, s), F32, "a"), te.placeholder((2, 5), F32, "b")
    y = te.compute((2, s + 5), lambda i, j: select(binary("lt", j, const(s)), a[i, j], b[i, j - s]), "y")
    assert conditions(lowered([a, b], [y])) == 0
    x1, x2 = rand(2, n), rand(2, 5)
    np.testing.assert_array_equal(compute([a, b], [y], [x1, x2], symbols={"s": n})[0], np.concatenate([x1, x2], 1))


@pytest.mark.parametrize("target", ["llvm -mcpu=nehalem", "llvm -mcpu=skylake-avx512"])
@pytest.mark.parametrize("dtype", [F32, F64, U8, I64])
def test_targets_and_dtypes(target: str, dtype: DType) -> None:
    a = te.placeholder((3, 50), dtype, "a")
    y = te.compute((3, 50), lambda i, j: a[i, j] * a[i, j], "y")
    x = (RNG.standard_normal((3, 50)) * 10).astype(dtype.numpy)
    np.testing.assert_array_equal(compute([a], [y], [x], Target.parse(target))[0], x * x)
    widest = max(s.value.lanes for s in stmts(lowered([a], [y], Target.parse(target)).body) if isinstance(s, Store))
    assert widest == Target.parse(target).lanes(dtype.bits)


def test_strided_input_and_output() -> None:
    a = te.placeholder((4, 6), F32, "a")
    y = te.compute((4, 6), lambda i, j: cast(a[i, j] * 2.0, F32), "y")
    func = lowered([a], [y], strides={a: (10, 1), y: (1, 4)})
    from nnvm.tir import interpreter

    x = rand(36)
    out = np.zeros(24, np.float32)
    interpreter.run(func, [x, out])
    view = np.lib.stride_tricks.as_strided(x, (4, 6), (40, 4))
    np.testing.assert_array_equal(out.reshape(6, 4).T, view * 2)
    assert HASWELL.lanes(32) == 8
