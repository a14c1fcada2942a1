"""Schedules of every kind lower to legal kernels that compute what numpy does."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm import te
from nnvm.dim import evaluate, symbol
from nnvm.dtype import F32, I64
from nnvm.te.expr import maximum, select, unary
from nnvm.te.schedule import Schedule, ScheduleError
from nnvm.te.tensor import Tensor, compute, placeholder, reduce_axis
from nnvm.tir.interpreter import run
from nnvm.tir.lower import lower
from nnvm.tir.printer import show
from nnvm.tir.stmt import Allocate, For, If, PrimFunc
from nnvm.tir.verify import verify
from nnvm.tir.visitor import stmts

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def execute(func: PrimFunc, *inputs: np.ndarray, sizes: dict[str, int] | None = None) -> list[np.ndarray]:
    """Outputs of the kernel, by the interpreter."""
    verify(func)
    outputs = []
    for p in func.params[len(func.params) - func.outputs :]:
        shape = [evaluate(d, sizes or {}) for d in p.shape]
        outputs.append(np.full(shape, 77, p.dtype.numpy))
    run(func, [*inputs, *outputs], sizes)
    return outputs


def loops(func: PrimFunc) -> list[For]:
    return [s for s in stmts(func.body) if isinstance(s, For)]


def matmul(m, k, n) -> tuple[Tensor, Tensor, Tensor]:
    x, w = placeholder((m, k), F32, "x"), placeholder((k, n), F32, "w")
    r = reduce_axis(k, "r")
    return x, w, compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], [r]), "y")


def test_default_schedule_of_a_reduction():
    x, w, y = matmul(3, 4, 5)
    a, b = normal(3, 4), normal(4, 5)
    (out,) = execute(lower(Schedule([y]), [x, w, y], "f"), a, b)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)


def test_elementwise_vectorised_with_a_tail_has_no_guard_in_the_main_loop():
    x = placeholder((3, 21), F32, "x")
    y = compute((3, 21), lambda i, j: unary("exp", x[i, j]) + x[i, j], "y")
    s = Schedule([y])
    _, j = s[y].axes
    _, ji = s[y].split(j, 8)
    s[y].vectorize(ji)
    func = lower(s, [x, y], "f")
    a = normal(3, 21)
    np.testing.assert_allclose(execute(func, a)[0], np.exp(a) + a, rtol=1e-6)
    assert not [st for st in stmts(func.body) if isinstance(st, If)]
    assert "5" in show(func)  # the tail is a vector of five lanes


def test_symbolic_extent_vectorised_with_masked_tail():
    n = symbol("n")
    x = placeholder((n,), F32, "x")
    y = compute((n,), lambda j: x[j] * 2.0, "y")
    s = Schedule([y])
    (j,) = s[y].axes
    _, ji = s[y].split(j, 8)
    s[y].vectorize(ji)
    func = lower(s, [x, y], "f")
    assert func.symbols == ("n",)
    for size in (0, 1, 7, 8, 9, 30):
        a = normal(size)
        np.testing.assert_array_equal(execute(func, a, sizes={"n": size})[0], a * 2)


@pytest.mark.parametrize("m,k,n", [(20, 37, 24), (6, 4, 16), (5, 3, 7), (1, 1, 1), (13, 8, 40)])
def test_register_tile_with_epilogue(m, k, n):
    x, w, y = matmul(m, k, n)
    b = placeholder((n,), F32, "b")
    o = compute((m, n), lambda i, j: maximum(y[i, j] + b[j], 0.0), "o")
    s = register_tile(o, y)
    func = lower(s, [x, w, b, o], "f")
    a, c, d = normal(m, k), normal(k, n), normal(n)
    (out,) = execute(func, a, c, d)
    np.testing.assert_allclose(out, np.maximum(a @ c + d, 0), rtol=2e-5, atol=1e-5)
    assert not [st for st in stmts(func.body) if isinstance(st, If)]


def register_tile(o: Tensor, y: Tensor) -> Schedule:
    """Tiles of 6 rows by 16 columns, the reduction unrolled by 4."""
    s = Schedule([o])
    st, i, j = s[o], *s[o].axes
    io, ii = st.split(i, 6)
    jo, ji = st.split(j, 16)
    jv, jl = st.split(ji, 8)
    st.reorder(jo, io, ii, jv, jl)
    st.unroll(ii), st.unroll(jv), st.vectorize(jl)
    acc, ci, cj, ck = s[y], *s[y].axes, *s[y].reduce_axes
    acc.compute_at(st, io)
    acc.set_scope("local")
    cv, cl = acc.split(cj, 8)
    ko, ki = acc.split(ck, 4)
    acc.reorder(ko, ki, ci, cv, cl)
    acc.unroll(ki), acc.unroll(ci), acc.unroll(cv), acc.vectorize(cl)
    return s


def test_register_tile_symbolic_rows():
    m = symbol("m")
    x, w, y = matmul(m, 10, 24)
    b = placeholder((24,), F32, "b")
    o = compute((m, 24), lambda i, j: maximum(y[i, j] + b[j], 0.0), "o")
    func = lower(register_tile(o, y), [x, w, b, o], "f")
    c, d = normal(10, 24), normal(24)
    for size in (1, 5, 6, 7, 20):
        a = normal(size, 10)
        (out,) = execute(func, a, c, d, sizes={"m": size})
        np.testing.assert_allclose(out, np.maximum(a @ c + d, 0), rtol=2e-5, atol=1e-5)


def test_cache_write_and_fused_parallel_blocks():
    x, w, y = matmul(20, 9, 20)
    s = Schedule([y])
    acc = s.cache_write(y, "local")
    st, i, j = s[y], *s[y].axes
    io, ii = st.split(i, 6)
    jo, ji = st.split(j, 8)
    st.reorder(io, jo, ii, ji)
    both = st.fuse(io, jo)
    st.parallel(both), st.unroll(ii), st.vectorize(ji)
    inner = s[acc]
    inner.compute_at(st, both)
    ai, aj = inner.axes
    (k,) = inner.reduce_axes
    inner.reorder(k, ai, aj)
    inner.unroll(ai), inner.vectorize(aj)
    func = lower(s, [x, w, y], "f")
    assert loops(func)[0].kind == "parallel"
    a, b = normal(20, 9), normal(9, 20)
    np.testing.assert_allclose(execute(func, a, b)[0], a @ b, rtol=1e-5, atol=1e-5)


def test_blocked_reduction_accumulates_in_the_output():
    x, w, y = matmul(14, 50, 16)
    s = Schedule([y])
    st, i, j, k = s[y], *s[y].axes, *s[y].reduce_axes
    ko, ki = st.split(k, 16)
    io, ii = st.split(i, 4)
    jo, ji = st.split(j, 8)
    st.reorder(ko, io, jo, ki, ii, ji)
    st.unroll(ii), st.vectorize(ji)
    a, b = normal(14, 50), normal(50, 16)
    func = lower(s, [x, w, y], "f")
    np.testing.assert_allclose(execute(func, a, b)[0], a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [1, 5, 8, 31, 32, 33, 100])
@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_vectorised_reduce_axis(op, k):
    x = placeholder((3, k), F32, "x")
    r = reduce_axis(k, "r")
    y = compute((3,), lambda i: getattr(te, op)(x[i, r], [r]), "y")
    s = Schedule([y])
    st = s[y]
    _ro, ri = st.split(st.reduce_axes[0], 16)
    ru, rv = st.split(ri, 8)
    st.unroll(ru), st.vectorize(rv)
    a = normal(3, k)
    if op == "max":
        a[1, k // 2] = np.nan
    (out,) = execute(lower(s, [x, y], "f"), a)
    np.testing.assert_allclose(out, getattr(np, op)(a, axis=1), rtol=1e-5)


def test_vectorised_reduce_axis_of_symbolic_extent():
    k = symbol("k")
    x = placeholder((2, k), F32, "x")
    r = reduce_axis(k, "r")
    y = compute((2,), lambda i: te.sum(x[i, r] * x[i, r], [r]), "y")
    s = Schedule([y])
    st = s[y]
    _ro, ri = st.split(st.reduce_axes[0], 16)
    ru, rv = st.split(ri, 8)
    st.unroll(ru), st.vectorize(rv)
    func = lower(s, [x, y], "f")
    for size in (0, 3, 16, 37, 64):
        a = normal(2, size)
        np.testing.assert_allclose(execute(func, a, sizes={"k": size})[0], (a * a).sum(1), rtol=1e-5)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_arg_reduction_takes_the_first_and_nan_wins(op, vector):
    x = placeholder((6, 21), F32, "x")
    r = reduce_axis(21, "r")
    y = compute((6,), lambda i: getattr(te, op)(x[i, r], r.var, [r]), "y")
    s = Schedule([y])
    if vector:
        _, rv = s[y].split(s[y].reduce_axes[0], 8)
        s[y].vectorize(rv)
    a = RNG.integers(0, 4, (6, 21)).astype(np.float32)
    a[1, [5, 9]] = np.nan
    a[2, :] = -np.inf
    a[3, :] = np.inf
    (out,) = execute(lower(s, [x, y], "f"), a)
    np.testing.assert_array_equal(out, getattr(np, op)(a, axis=1))


def softmax(rows, columns) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    x = placeholder((rows, columns), F32, "x")
    r, q = reduce_axis(columns, "r"), reduce_axis(columns, "q")
    top = compute((rows,), lambda i: te.max(x[i, r], [r]), "top")
    e = compute((rows, columns), lambda i, j: unary("exp", x[i, j] - top[i]), "e")
    total = compute((rows,), lambda i: te.sum(e[i, q], [q]), "total")
    return x, top, e, total, compute((rows, columns), lambda i, j: e[i, j] / total[i], "y")


@pytest.mark.parametrize("columns", [5, 8, 29])
@pytest.mark.parametrize("symbolic", [False, True])
def test_row_fused_softmax(columns, symbolic):
    x, top, e, total, y = softmax(7, symbol("n") if symbolic else columns)
    s = Schedule([y])
    i, _j = s[y].axes
    s[y].parallel(i)
    for t in (top, e, total):
        s[t].compute_at(s[y], i)
    for t in (top, total):
        _, rv = s[t].split(s[t].reduce_axes[0], 8)
        s[t].vectorize(rv)
    for t in (e, y):
        _, jv = s[t].split(s[t].axes[1], 8)
        s[t].vectorize(jv)
    func = lower(s, [x, y], "f")
    a = normal(7, columns)
    want = np.exp(a - a.max(1, keepdims=True))
    (out,) = execute(func, a, sizes={"n": columns} if symbolic else None)
    np.testing.assert_allclose(out, want / want.sum(1, keepdims=True), rtol=1e-5)
    row = next(b.buffer for b in stmts(func.body) if isinstance(b, Allocate) and b.buffer.name == "e")
    assert row.shape[0] == 1 and row.scope == "scratch"


def test_compute_with_shares_the_loops_of_another_output():
    x = placeholder((5, 12), F32, "x")
    a = compute((5, 12), lambda i, j: x[i, j] + 1.0, "a")
    b = compute((5, 12), lambda i, j: a[i, j] * x[i, j], "b")
    s = Schedule([a, b])
    _i, j = s[a].axes
    jo, ji = s[a].split(j, 8)
    s[a].vectorize(ji)
    _bo, bi = s[b].split(s[b].axes[1], 8)
    s[b].vectorize(bi)
    s[b].compute_with(s[a], jo)
    func = lower(s, [x, a, b], "f")
    v = normal(5, 12)
    one, two = execute(func, v)
    np.testing.assert_array_equal(one, v + 1)
    np.testing.assert_allclose(two, (v + 1) * v, rtol=1e-6)
    assert len(loops(func)) == 1  # over the rows: the columns are one full and one short vector


def test_an_output_attached_to_its_consumer_keeps_its_buffer():
    x = placeholder((6, 10), F32, "x")
    a = compute((6, 10), lambda i, j: x[i, j] + 1.0, "a")
    b = compute((6, 10), lambda i, j: a[i, j] * 2.0, "b")
    s = Schedule([a, b])
    s[a].compute_at(s[b], s[b].axes[0])
    v = normal(6, 10)
    one, two = execute(lower(s, [x, a, b], "f"), v)
    np.testing.assert_array_equal(one, v + 1)
    np.testing.assert_array_equal(two, (v + 1) * 2)


def test_stencil_region_is_the_union_of_its_reads():
    x = placeholder((30,), F32, "x")
    a = compute((30,), lambda i: x[i] * 2.0, "a")
    b = compute((26,), lambda i: a[i] + a[i + 2] * a[i + 4], "b")
    s = Schedule([b])
    io, _ii = s[b].split(s[b].axes[0], 8)
    s[a].compute_at(s[b], io)
    func = lower(s, [x, b], "f")
    v = normal(30)
    np.testing.assert_allclose(execute(func, v)[0], 2 * v[:26] + 4 * v[2:28] * v[4:], rtol=1e-5)
    assert {b.buffer.shape for b in stmts(func.body) if isinstance(b, Allocate)} == {(12,)}


def test_padding_is_cut_to_the_tensor():
    x = placeholder((10,), F32, "x")
    a = compute((10,), lambda i: x[i] + 1.0, "a")
    p = compute((14,), lambda i: select((i >= 2) & (i < 12), a[i - 2], 0.0), "p")
    s = Schedule([p])
    io, _ = s[p].split(s[p].axes[0], 4)
    s[a].compute_at(s[p], io)
    v = normal(10)
    np.testing.assert_array_equal(execute(lower(s, [x, p], "f"), v)[0], np.pad(v + 1, 2))


def test_vectorised_padding_reads_nothing_outside():
    x = placeholder((10,), F32, "x")
    p = compute((16,), lambda i: select((i >= 3) & (i < 13), x[i - 3], 0.0), "p")
    s = Schedule([p])
    _, v8 = s[p].split(s[p].axes[0], 8)
    s[p].vectorize(v8)
    v = normal(10)
    np.testing.assert_array_equal(execute(lower(s, [x, p], "f"), v)[0], np.pad(v, 3))


def test_inlined_chain_is_computed_once_per_element():
    x = placeholder((4, 9), F32, "x")
    a = compute((4, 9), lambda i, j: unary("exp", x[i, j]), "a")
    b = compute((4, 9), lambda i, j: a[i, j] + a[i, j], "b")
    y = compute((4, 9), lambda i, j: b[i, j] * a[i, j], "y")
    s = Schedule([y])
    s[a].inline()
    s[b].inline()
    func = lower(s, [x, y], "f")
    assert show(func).count("exp") == 1
    v = normal(4, 9)
    np.testing.assert_allclose(execute(func, v)[0], 2 * np.exp(v) ** 2, rtol=1e-5)


def test_gather_by_data_reads_the_whole_table():
    table, rows = placeholder((9, 4), F32, "table"), placeholder((5,), I64, "rows")
    doubled = compute((9, 4), lambda i, j: table[i, j] * 2.0, "doubled")
    y = compute((5, 4), lambda i, j: doubled[rows[i], j], "y")
    s = Schedule([y])
    s[doubled].compute_at(s[y], s[y].axes[0])
    t, r = normal(9, 4), RNG.integers(0, 9, 5)
    np.testing.assert_array_equal(execute(lower(s, [table, rows, y], "f"), t, r)[0], t[r] * 2)


def test_fuse_then_split_recovers_both_axes():
    x = placeholder((6, 7), F32, "x")
    y = compute((7, 6), lambda i, j: x[j, i] + 1.0, "y")
    s = Schedule([y])
    both = s[y].fuse(*s[y].axes)
    _, inner = s[y].split(both, 8)
    s[y].vectorize(inner)
    v = normal(6, 7)
    np.testing.assert_array_equal(execute(lower(s, [x, y], "f"), v)[0], v.T + 1)


def test_scalar_tensor():
    x = placeholder((11,), F32, "x")
    r = reduce_axis(11, "r")
    y = compute((), lambda: te.sum(x[r], [r]), "y")
    v = normal(11)
    np.testing.assert_allclose(execute(lower(Schedule([y]), [x, y], "f"), v)[0], v.sum(), rtol=1e-5, atol=1e-5)


def test_vector_loop_around_a_reduction():
    x = placeholder((11, 16), F32, "x")
    r = reduce_axis(11, "r")
    y = compute((16,), lambda j: te.sum(x[r, j], [r]), "y")
    s = Schedule([y])
    _, ji = s[y].split(s[y].axes[0], 8)
    s[y].vectorize(ji)
    v = normal(11, 16)
    np.testing.assert_allclose(execute(lower(s, [x, y], "f"), v)[0], v.sum(0), rtol=1e-5)


def test_strided_argument():
    x = placeholder((4, 3), F32, "x")
    y = compute((4, 3), lambda i, j: x[i, j] + 1.0, "y")
    func = lower(Schedule([y]), [x, y], "f", strides={x: (1, 4)})
    assert func.params[0].strides == (1, 4)


class TestErrors:
    def test_missing_argument(self):
        x, _w, y = matmul(2, 3, 4)
        with pytest.raises(ScheduleError, match="lack w"):
            lower(Schedule([y]), [x, y], "f")

    def test_inlined_reduction(self):
        _, _, y = matmul(2, 3, 4)
        with pytest.raises(ScheduleError, match="reduction"):
            Schedule([y])[y].inline()

    def test_local_buffer_indexed_by_a_serial_loop(self):
        x = placeholder((4, 8), F32, "x")
        a = compute((4, 8), lambda i, j: x[i, j] + 1.0, "a")
        y = compute((4, 8), lambda i, j: a[i, j] * 2.0, "y")
        s = Schedule([y])
        s[a].compute_at(s[y], s[y].axes[0])
        s[a].set_scope("local")
        with pytest.raises(ScheduleError, match="unroll"):
            lower(s, [x, y], "f")

    def test_attached_but_read_elsewhere(self):
        x = placeholder((4,), F32, "x")
        a = compute((4,), lambda i: x[i] + 1.0, "a")
        y, z = compute((4,), lambda i: a[i] * 2.0, "y"), compute((4,), lambda i: a[i] * 3.0, "z")
        s = Schedule([y, z])
        s[a].compute_at(s[y], s[y].axes[0])
        with pytest.raises(ScheduleError, match="outside of it"):
            lower(s, [x, y, z], "f")

    def test_shared_loops_of_different_extent(self):
        x = placeholder((4,), F32, "x")
        a, b = compute((4,), lambda i: x[i] + 1.0, "a"), compute((3,), lambda i: x[i] * 2.0, "b")
        s = Schedule([a, b])
        s[b].compute_with(s[a], s[a].axes[0])
        with pytest.raises(ScheduleError, match="share"):
            lower(s, [x, a, b], "f")

    def test_axis_of_another_stage(self):
        _, _, y = matmul(2, 3, 4)
        _, _, z = matmul(2, 3, 4)
        with pytest.raises(ScheduleError, match="none of its loops"):
            Schedule([y])[y].split(z.axes[0], 2)
