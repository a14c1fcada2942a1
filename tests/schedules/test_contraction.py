"""One schedule for matrix products and convolutions: right for every shape, layout and target, in registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nnvm import te
from nnvm.compiler.lower_group import lower_group
from nnvm.dim import evaluate, row_major, symbol
from nnvm.dtype import F16, F32
from nnvm.graph.graph import Graph
from nnvm.graph.node import apply, variable
from nnvm.graph.types import TensorType
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.schedules.cpu.contraction import contraction, match
from nnvm.schedules.cpu.contraction_prefetch import AHEAD
from nnvm.schedules.cpu.contraction_tile import tile_rows
from nnvm.target import Target
from nnvm.te.expr import Fma, cast, maximum, select
from nnvm.te.tensor import Tensor, compute, placeholder, reduce_axis
from nnvm.tir import interpreter
from nnvm.tir.stmt import Allocate, For, Prefetch, PrimFunc, Seq, Stmt, Store
from nnvm.tir.verify import verify
from nnvm.tir.visitor import StmtMutator, stmts

TARGETS = ["x86-64", "haswell", "skylake-avx512"]
RNG = np.random.default_rng(0)


def target(cpu: str = "haswell") -> Target:
    return Target.parse(f"llvm -mcpu={cpu} -mtriple=x86_64-unknown-linux-gnu")


#: Caches so small that blocks, parts and packing are needed for matrices of a few dozen rows.
TINY = replace(target(), l1_bytes=1 << 10, l2_bytes=64 << 10)


def whole(*shape: int) -> np.ndarray:
    """Small integers: sums are exact in any order."""
    return RNG.integers(-3, 4, shape).astype(np.float32)


def execute(inputs, outputs, arrays, cpu="haswell", strides=None, **sizes) -> list[np.ndarray]:
    where = target(cpu) if isinstance(cpu, str) else cpu
    func = contraction(inputs, outputs, where, "f", strides or {})
    assert func is not None
    verify(func)
    outs = [np.full([evaluate(d, sizes) for d in t.shape], np.nan, t.dtype.numpy) for t in outputs]
    # Scheduled for any processor, run on this one: vectors of another width only cost it time.
    (kernel,) = compile_funcs([func], Target.host())
    kernel(*arrays, *outs, symbols=sizes)
    return outs


def lowered(inputs, outputs, cpu="haswell") -> PrimFunc:
    func = contraction(inputs, outputs, target(cpu), "f", {})
    assert func is not None
    return func


def dense(m, k, n, block=None, epilogue=True) -> tuple[list[Tensor], Tensor]:
    """x [m, k], w [n/block, k, block] (or [n, k]), bias [n], residual [m, n]."""
    x, r = placeholder((m, k), F32, "x"), reduce_axis(k, "r")
    bias, residual = placeholder((n,), F32, "bias"), placeholder((m, n), F32, "residual")
    if block is None:
        w = placeholder((n, k), F32, "w")
        y = compute((m, n), lambda i, j: te.sum(x[i, r] * w[j, r], [r]), "y")
    else:
        blocks = -(-n // block)
        w = placeholder((blocks, k, block), F32, "w")
        d = compute((m, blocks, block), lambda i, jo, ji: te.sum(x[i, r] * w[jo, r, ji], [r]), "d")
        y = compute((m, n), lambda i, j: d[i, j // block, j % block], "y")
    if not epilogue:
        return [x, w], y
    o = compute((m, n), lambda i, j: maximum(y[i, j] + bias[j] + residual[i, j], 0.0), "o")
    return [x, w, bias, residual], o


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("block", [16, 32, None])
@pytest.mark.parametrize("m,k,n", [(1, 9, 32), (13, 5, 64), (28, 16, 96), (7, 33, 40)])
def test_dense_with_epilogue(cpu, block, m, k, n):
    inputs, o = dense(m, k, n, block)
    x, w, bias, residual = whole(m, k), whole(n, k), whole(n), whole(m, n)
    packed = w if block is None else pack(w, block)
    (out,) = execute(inputs, [o], [x, packed, bias, residual], cpu)
    np.testing.assert_array_equal(out, np.maximum(x @ w.T + bias + residual, 0))


def pack(w: np.ndarray, block: int) -> np.ndarray:
    n, k = w.shape
    w = np.pad(w, [(0, -n % block), (0, 0)])
    return np.ascontiguousarray(w.reshape(-1, block, k).transpose(0, 2, 1))


@pytest.mark.parametrize("m", [1, 5, 6, 14, 31])
def test_dense_of_symbolic_rows(m):
    size = symbol("m")
    inputs, o = dense(size, 8, 48, 16)
    x, w, bias, residual = whole(m, 8), whole(48, 8), whole(48), whole(m, 48)
    (out,) = execute(inputs, [o], [x, pack(w, 16), bias, residual], m=m)
    np.testing.assert_array_equal(out, np.maximum(x @ w.T + bias + residual, 0))


def test_the_accumulators_are_a_register_tile():
    inputs, o = dense(60, 64, 64, 16)
    func = lowered(inputs, [o])
    local = [s.buffer for s in stmts(func.body) if isinstance(s, Allocate)]
    assert {b.scope for b in local} == {"local"} and local[0].shape == (6, 1, 16)
    assert next(s.kind for s in stmts(func.body) if isinstance(s, For)) == "parallel"


@pytest.mark.parametrize("registers,vectors,most", [(16, 2, 6), (16, 3, 4), (32, 2, 14)])
def test_rows_of_a_tile_leave_registers_for_the_operands(registers, vectors, most):
    assert tile_rows(1000 * most, vectors, registers)[0] == most


@pytest.mark.parametrize("m,rows", [(128, 6), (197, 6), (8, 4), (4, 4)])
def test_rows_left_over_are_better_than_small_tiles(m, rows):
    inputs, o = dense(m, 64, 64, 16)
    widths = {s.buffer.shape[0] for s in stmts(lowered(inputs, [o]).body) if isinstance(s, Allocate)}
    assert max(widths) == rows


def test_rows_of_a_tile_divide_a_narrow_image():
    assert tile_rows(7, 1, 16)[0] == 7
    assert tile_rows(28, 2, 32)[0] == 14


@pytest.mark.parametrize("layout", ["plain", "transposed"])
@pytest.mark.parametrize("b,m,k,n", [(2, 7, 9, 24), (3, 1, 4, 8), (1, 12, 8, 17)])
def test_batched_matmul(layout, b, m, k, n):
    x, r = placeholder((b, m, k), F32, "x"), reduce_axis(k, "r")
    if layout == "plain":
        w = placeholder((b, k, n), F32, "w")
        y = compute((b, m, n), lambda h, i, j: te.sum(x[h, i, r] * w[h, r, j], [r]), "y")
        wv = whole(b, k, n)
    else:
        w = placeholder((b, n, k), F32, "w")
        y = compute((b, m, n), lambda h, i, j: te.sum(x[h, i, r] * w[h, j, r], [r]), "y")
        wv = whole(b, n, k)
    xv = whole(b, m, k)
    want = xv @ (wv if layout == "plain" else wv.transpose(0, 2, 1))
    np.testing.assert_array_equal(execute([x, w], [y], [xv, wv])[0], want)


def windows(x: np.ndarray, w: np.ndarray, stride: int, pad: int, groups: int = 1) -> np.ndarray:
    """Reference convolution, NCHW and OIHW."""
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    kh, kw = w.shape[2:]
    view = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))[:, :, ::stride, ::stride]
    parts = np.split(view, groups, axis=1), np.split(w, groups, axis=0)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", a, b) for a, b in zip(*parts)], axis=1)


def blocked(x: np.ndarray, block: int) -> np.ndarray:
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2))


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("size,kernel,stride,pad", [(9, 3, 1, 1), (8, 3, 2, 1), (7, 1, 1, 0), (6, 5, 1, 2)])
def test_blocked_convolution_with_padding(cpu, size, kernel, stride, pad):
    blocked_convolution(target(cpu), 2, 2, 3, size, kernel, stride, pad)


@pytest.mark.parametrize("size,kernel,pad", [(9, 3, 1), (12, 1, 0)])
def test_blocked_convolution_in_parts(size, kernel, pad):
    blocked_convolution(TINY, 1, 80 if kernel == 1 else 9, 17, size, kernel, 1, pad)


@pytest.mark.parametrize("n,size,kernel,stride,pad", [(8, 5, 3, 1, 1), (6, 7, 1, 1, 0), (7, 6, 3, 2, 1)])
def test_small_images_of_a_batch_share_a_large_weight(n, size, kernel, stride, pad):
    """A weight of half the second cache: as many images are worked on together as that cache has room for."""
    blocked_convolution(TINY, n, 3, 16 if kernel == 3 else 96, size, kernel, stride, pad)


def blocked_convolution(where, n, ci, co, size, kernel, stride, pad) -> None:
    p = where.lanes()
    out_size = (size + 2 * pad - kernel) // stride + 1
    x = placeholder((n, ci, size, size, p), F32, "x")
    w = placeholder((co, ci, kernel, kernel, p, p), F32, "w")
    bias = placeholder((co, p), F32, "bias")
    padded = x
    if pad:
        inside = lambda i: (i >= pad) & (i < size + pad)  # noqa: E731
        padded = compute(
            (n, ci, size + 2 * pad, size + 2 * pad, p),
            lambda b, c, h, v, e: select(inside(h) & inside(v), x[b, c, h - pad, v - pad, e], 0.0),
            "padded",
        )
    axes = [reduce_axis(d, a) for d, a in ((ci, "c"), (kernel, "kh"), (kernel, "kw"), (p, "cb"))]
    c, kh, kw, cb = (a.var for a in axes)
    y = compute(
        (n, co, out_size, out_size, p),
        lambda b, o, h, v, e: te.sum(
            padded[b, c, h * stride + kh, v * stride + kw, cb] * w[o, c, kh, kw, cb, e], axes
        ),
        "y",
    )  # fmt: skip
    o = compute(y.shape, lambda b, k, h, v, e: maximum(y[b, k, h, v, e] + bias[k, e], 0.0), "o")
    xv, wv, bv = whole(n, ci * p, size, size), whole(co * p, ci * p, kernel, kernel), whole(co * p)
    packed = np.ascontiguousarray(wv.reshape(co, p, ci, p, kernel, kernel).transpose(0, 2, 4, 5, 3, 1))
    (out,) = execute([x, w, bias], [o], [blocked(xv, p), packed, bv.reshape(co, p)], where)
    want = np.maximum(windows(xv, wv, stride, pad) + bv[:, None, None], 0)
    np.testing.assert_array_equal(out, blocked(want, p))


def test_plain_convolution_runs_its_pixels_as_vectors():
    x, w = placeholder((1, 3, 9, 19), F32, "x"), placeholder((5, 3, 3, 3), F32, "w")
    axes = [reduce_axis(3, "c"), reduce_axis(3, "kh"), reduce_axis(3, "kw")]
    c, kh, kw = (a.var for a in axes)
    y = compute((1, 5, 7, 17), lambda b, o, h, v: te.sum(x[b, c, h + kh, v + kw] * w[o, c, kh, kw], axes), "y")
    found = match([x, w], [y], {})
    assert found is not None and found.vector is y.axes[3] and found.w.tensor is x
    xv, wv = whole(1, 3, 9, 19), whole(5, 3, 3, 3)
    np.testing.assert_array_equal(execute([x, w], [y], [xv, wv])[0], windows(xv, wv, 1, 0))


def test_grouped_convolution():
    x, w = placeholder((1, 4, 6, 6, 8), F32, "x"), placeholder((4, 2, 3, 3, 8, 8), F32, "w")
    axes = [reduce_axis(2, "c"), reduce_axis(3, "kh"), reduce_axis(3, "kw"), reduce_axis(8, "cb")]
    c, kh, kw, cb = (a.var for a in axes)
    y = compute(
        (1, 4, 4, 4, 8),
        lambda b, o, h, v, e: te.sum(x[b, o // 2 * 2 + c, h + kh, v + kw, cb] * w[o, c, kh, kw, cb, e], axes),
        "y",
    )
    xv, wv = whole(1, 32, 6, 6), whole(32, 16, 3, 3)
    packed = np.ascontiguousarray(wv.reshape(4, 8, 2, 8, 3, 3).transpose(0, 2, 4, 5, 3, 1))
    (out,) = execute([x, w], [y], [blocked(xv, 8), packed])
    np.testing.assert_array_equal(out, blocked(windows(xv, wv, 1, 0, groups=2), 8))


def test_half_precision_is_summed_in_float32_and_rounded_once():
    x, w, r = placeholder((5, 40), F16, "x"), placeholder((40, 16), F16, "w"), reduce_axis(40, "r")
    y = compute((5, 16), lambda i, j: te.sum(cast(x[i, r], F32) * cast(w[r, j], F32), [r]), "y")
    o = compute((5, 16), lambda i, j: cast(y[i, j], F16), "o")
    a, b = RNG.standard_normal((5, 40)).astype(np.float16), RNG.standard_normal((40, 16)).astype(np.float16)
    (out,) = execute([x, w], [o], [a, b])
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32), rtol=2e-3, atol=1e-3)


def test_an_activation_and_what_it_is_made_from_are_both_outputs():
    inputs, o = dense(9, 6, 32, 16)
    y = compute((9, 32), lambda i, j: o[i, j] * 2.0, "twice")
    x, w, bias, residual = whole(9, 6), whole(32, 6), whole(32), whole(9, 32)
    first, second = execute(inputs, [o, y], [x, pack(w, 16), bias, residual])
    want = np.maximum(x @ w.T + bias + residual, 0)
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(second, want * 2)


def test_the_product_itself_is_an_output_too():
    inputs, y = dense(9, 6, 32, None, epilogue=False)
    o = compute((9, 32), lambda i, j: y[i, j] + 1.0, "o")
    x, w = whole(9, 6), whole(32, 6)
    first, second = execute(inputs, [y, o], [x, w])
    np.testing.assert_array_equal(first, x @ w.T)
    np.testing.assert_array_equal(second, x @ w.T + 1)


def scratch(func: PrimFunc) -> set[str]:
    return {s.buffer.name for s in stmts(func.body) if isinstance(s, Allocate) and s.buffer.scope == "scratch"}


@pytest.mark.parametrize("rows", [193, 197, 198, 204])
def test_the_rows_left_over_make_no_block_of_their_own(rows):
    """33 or 34 tiles of rows in two blocks; a third one would read all of `w` for the last few rows."""
    inputs, o = dense(rows, 768, 64, 16)
    loop = next(s for s in stmts(lowered(inputs, [o]).body) if isinstance(s, For) and s.kind == "parallel")
    assert loop.extent.value == 2 * (64 // 16)


class OnlyHints(StmtMutator):
    """A loop nest without what it computes."""

    def visit_store(self, s: Store) -> Stmt:
        return Seq(())

    def visit_for(self, s: For) -> Stmt:
        return self._for(s) if any(isinstance(x, Prefetch) for x in stmts(s)) else Seq(())


def asked_for(func: PrimFunc) -> list[tuple[str, int]]:
    """The buffers and cache lines that the hints of a kernel name, in order."""
    found = []
    func = replace(func, body=OnlyHints().stmt(func.body))

    class Recorder(interpreter._Interpreter):
        def prefetch(self, s: Prefetch) -> None:
            place = np.ravel_multi_index([0] * len(s.buffer.shape), s.buffer.shape)
            for i, stride in zip(s.indices, row_major(s.buffer.shape)):
                place += int(self._fresh(i)) * stride
            found.append((s.buffer.name, place * 4 // 64))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(interpreter._STATEMENTS, Prefetch, Recorder.prefetch)
        interpreter.run(func, [np.zeros(b.shape, np.float32) for b in func.params])
    return found


@pytest.mark.parametrize("cpu,block", [("haswell", 16), ("haswell", 8), ("skylake-avx512", 32)])
@pytest.mark.parametrize(
    "m,k,cache",
    [(60, 20, 8), (29, 400, 128), (60, 400, 128), (97, 400, 128)],
    ids=["whole", "few", "parts", "chunks"],
)
def test_the_next_panel_is_fetched(cpu, block, m, k, cache):
    """The hints for `w` name its cache lines: but for the first panel nearly all where the last block is smaller."""
    inputs, o = dense(m, k, block * 32 if k == 20 else max(128, 8 * block), block)
    where = replace(target(cpu), l1_bytes=1 << 10, l2_bytes=cache << 10)
    func = contraction(inputs, [o], where, "f", {})
    assert func is not None
    verify(func)
    found = asked_for(func)
    assert {name for name, _ in found} == {"w"}
    lines = int(np.prod(inputs[1].shape)) * 4 // 64
    panel = min(k, 256) * block * 4 // 64 + 1
    missing = set(range(panel, lines)) - {line for _, line in found}
    assert len(missing) <= (0.1 * lines if m == 97 else 0)
    assert len(found) <= 2.1 * lines * (2 if m == 97 else 1)  # two blocks of rows read all of it


@pytest.mark.parametrize("m,block", [(2, 8), (3, 16), (6, 16), (4, 32)])
def test_a_weight_that_one_row_tile_reads_is_asked_for_in_order(m, block):
    """Each line that lies further than `AHEAD` behind the first, once; and no others but those behind the last."""
    inputs, o = dense(m, 300, 320 // block * block, block)
    func = contraction(inputs, [o], replace(target("skylake-avx512"), l1_bytes=1 << 10, l2_bytes=8 << 10), "f", {})
    assert func is not None
    found = asked_for(func)
    assert {name for name, _ in found} == {"w"}
    lines, ahead = int(np.prod(inputs[1].shape)) * 4 // 64, AHEAD // 64
    assert set(range(ahead + 2, lines)) <= {line for _, line in found} <= set(range(ahead, lines + ahead + 2))
    assert len(found) <= 1.1 * lines


@pytest.mark.parametrize("m,block", [(1, 8), (1, 16), (2, 16), (3, 8), (3, 32)])
@pytest.mark.parametrize("n", [128, 96, 32])
def test_very_few_rows_read_several_panels_at_a_time(m, block, n):
    inputs, o = dense(m, 40, n, block)
    x, w, bias, residual = whole(m, 40), whole(n, 40), whole(n), whole(m, n)
    (out,) = execute(inputs, [o], [x, pack(w, block), bias, residual])
    np.testing.assert_array_equal(out, np.maximum(x @ w.T + bias + residual, 0))


@pytest.mark.parametrize("m,n", [(1, 320), (48, 16)])
def test_nothing_is_fetched_for_one_row_or_small_weights(m, n):
    inputs, o = dense(m, 300, n, 16)
    func = contraction(inputs, [o], TINY, "f", {})
    assert func is not None and not any(isinstance(s, Prefetch) for s in stmts(func.body))


@pytest.mark.parametrize("rows", [1, 100])
def test_symbolic_rows_fetch_a_panel_once(rows):
    m = symbol("m")
    inputs, o = dense(m, 301, 64, 16)
    func = contraction(inputs, [o], TINY, "f", {})
    assert func is not None and any(isinstance(s, Prefetch) for s in stmts(func.body))
    x, w, bias, residual = whole(rows, 301), whole(64, 301), whole(64), whole(rows, 64)
    (out,) = execute(inputs, [o], [x, pack(w, 16), bias, residual], TINY, m=rows)
    np.testing.assert_array_equal(out, np.maximum(x @ w.T + bias + residual, 0))


@pytest.mark.parametrize("layout", ["kn", "nk"])
@pytest.mark.parametrize("where", [target(), TINY], ids=["caches", "tiny caches"])
@pytest.mark.parametrize("m,k,n", [(130, 33, 80), (161, 600, 72)])
def test_far_columns_are_packed_once_per_tile(layout, where, m, k, n):
    x, r = placeholder((2, m, k), F32, "x"), reduce_axis(k, "r")
    w = placeholder((2, k, n) if layout == "kn" else (2, n, k), F32, "w")
    at = (lambda b, j: w[b, r, j]) if layout == "kn" else (lambda b, j: w[b, j, r])
    y = compute((2, m, n), lambda b, i, j: te.sum(x[b, i, r] * at(b, j), [r]), "y")
    func = contraction([x, w], [y], where, "f", {})
    assert func is not None and "w_packed" in scratch(func)
    a, b = whole(2, m, k), whole(*w.shape)
    (out,) = execute([x, w], [y], [a, b], where)
    np.testing.assert_array_equal(out, a @ (b if layout == "kn" else b.transpose(0, 2, 1)))


def test_a_product_with_itself_packs_the_columns_only():
    x, r = placeholder((40, 50), F32, "x"), reduce_axis(50, "r")
    y = compute((40, 40), lambda i, j: te.sum(x[i, r] * x[j, r], [r]), "y")
    a = whole(40, 50)
    np.testing.assert_array_equal(execute([x], [y], [a])[0], a @ a.T)


@pytest.mark.parametrize("m,k,n", [(40, 1100, 48), (200, 700, 32)])
def test_long_reductions_are_summed_in_parts(m, k, n):
    inputs, o = dense(m, k, n, 16)
    func = contraction(inputs, [o], TINY, "f", {})
    assert func is not None and "d" in scratch(func)
    x, w, bias, residual = whole(m, k), whole(n, k), whole(n), whole(m, n)
    (out,) = execute(inputs, [o], [x, pack(w, 16), bias, residual], TINY)
    np.testing.assert_array_equal(out, np.maximum(x @ w.T + bias + residual, 0))


class TestNotAContraction:
    def test_two_reductions(self):
        inputs, y = dense(4, 5, 16, None, epilogue=False)
        q = reduce_axis(16, "q")
        total = compute((4,), lambda i: te.sum(y[i, q], [q]), "total")
        assert match(inputs, [total], {}) is None

    def test_a_sum_of_one_tensor(self):
        x, r = placeholder((4, 5), F32, "x"), reduce_axis(5, "r")
        assert match([x], [compute((4,), lambda i: te.sum(x[i, r], [r]), "y")], {}) is None

    def test_an_epilogue_that_reads_neighbours(self):
        inputs, y = dense(4, 5, 17, None, epilogue=False)
        o = compute((4, 16), lambda i, j: y[i, j] + y[i, j + 1], "o")
        assert match(inputs, [o], {}) is None


def test_a_large_weight_is_read_once_though_the_rows_overflow_the_cache() -> None:
    """x of 96 KiB (the cache has 64), w of 1 MiB: a second block of rows would read all of w again."""
    (inputs, y) = dense(24, 1024, 256, block=16, epilogue=False)
    func = contraction(inputs, [y], TINY, "f", {})
    assert func is not None
    parallel = [s for s in stmts(func.body) if isinstance(s, For) and s.kind == "parallel"]
    assert [s.extent.value for s in parallel] == [16]  # the blocks of columns, not blocks of rows too
    x, w = whole(24, 1024), whole(16, 1024, 16)
    expected = x @ w.transpose(1, 0, 2).reshape(1024, 256)
    np.testing.assert_array_equal(execute(inputs, [y], [x, w], TINY)[0], expected)


@pytest.mark.parametrize("columns", [3, 12])
def test_a_step_of_a_tile_holds_one_element_of_a_row_at_a_time(columns: int) -> None:
    """Blocks of columns come before the pixels in the output (NCHW8c); in the innermost step the rows are outside: of
    vectors there are few, of rows as many as registers allow."""
    x, w = placeholder((64, 49), F32, "x"), placeholder((columns, 64, 8), F32, "w")
    k = reduce_axis(64, "k")
    y = compute((columns, 49, 8), lambda c, p, i: te.sum(x[k, p] * w[c, k, i], [k]), "y")
    func = lowered([x, w], [y])
    tiles = [
        (s.extent.value, s.body.extent.value)
        for s in stmts(func.body)
        if isinstance(s, For) and isinstance(s.body, For) and isinstance(s.body.body, Store)
        and isinstance(s.body.body.value, Fma)
    ]  # fmt: skip
    assert (5, 2) in tiles and (2, 5) not in tiles
    a, b = whole(64, 49), whole(columns, 64, 8)
    np.testing.assert_array_equal(execute([x, w], [y], [a, b])[0], np.einsum("kp,cki->cpi", a, b))


@pytest.mark.parametrize("cpu,block", [("haswell", 8), ("skylake-avx512", 16)])
@pytest.mark.parametrize("kernel,channels,size", [(3, 64, 7), (1, 512, 7), (3, 80, 9)])
def test_the_weight_of_a_convolution_is_fetched(cpu: str, block: int, kernel: int, channels: int, size: int) -> None:
    """Nearly each line of the weight but those of the first panel, a few at a time between the steps of the sums."""
    pad, where = kernel // 2, target(cpu)
    shapes = (1, channels // block, size, size, block), (channels // block,) * 2 + (kernel, kernel, block, block)
    x, w = (variable(n, TensorType(s, F32)) for n, s in zip("xw", shapes))
    layouts = {"data_layout": f"NCHW{block}c", "kernel_layout": f"OIHW{block}i{block}o"}
    out = apply("conv2d", [x, w], {"padding": ((pad, pad),) * 2, **layouts})[0]
    func = lower_group(Graph((out,), (x.node, w.node)), where, "f")
    verify(func)
    found = asked_for(func)
    lines, named = int(np.prod(shapes[1])) * 4 // 64, {line for _, line in found}
    weight = {b.name for b in func.params if b.shape == shapes[1]}
    assert {name for name, _ in found} == weight
    assert len(set(range(lines)) & named) >= 0.75 * lines and len(found) <= 2.5 * lines
