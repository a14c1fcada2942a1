"""Matrix products and convolutions whose sizes only the call knows: every rest of rows, long sums, images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nnvm import te
from nnvm.codegen.llvm import emit
from nnvm.dim import likely_sizes, symbol
from nnvm.dtype import F32
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.schedules.cpu.contraction import contraction
from nnvm.target import Target
from nnvm.te.expr import Binary, Const, select
from nnvm.te.tensor import compute, placeholder, reduce_axis
from nnvm.tir.passes.expand_math import expand_math
from nnvm.tir.verify import verify
from nnvm.tir.visitor import post_order
from tests.schedules.test_contraction import TARGETS, dense, execute, lowered, pack, target, whole

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("k,n,block", [(8, 48, 16), (800, 32, 16), (24, 40, None)])
def test_every_rest_of_symbolic_rows(cpu, k, n, block):
    """All numbers of rows up to two register tiles, and a few beyond a block; long sums are cut into parts."""
    size = symbol("m")
    inputs, o = dense(size, k, n, block)
    where = replace(target(cpu), l2_bytes=64 << 10)
    func = contraction(inputs, [o], where, "f", {})
    assert func is not None
    verify(func)
    (kernel,) = compile_funcs([func], Target.host())
    w, bias = whole(n, k), whole(n)
    packed = w if block is None else pack(w, block)
    for m in (*range(30), 47, 48, 97, 131):
        x, residual, out = whole(m, k), whole(m, n), np.full((m, n), np.nan, np.float32)
        kernel(x, packed, bias, residual, out, symbols={"m": m})
        np.testing.assert_array_equal(out, np.maximum(x @ w.T + bias + residual, 0))


def test_long_sums_of_symbolic_rows_are_as_exact_as_those_of_known_ones():
    m, k, n = 13, 4096, 32
    x, w = RNG.standard_normal((m, k)).astype(np.float32), RNG.standard_normal((n, k)).astype(np.float32)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    errors = []
    for rows in (m, symbol("m")):
        inputs, o = dense(rows, k, n, 16, epilogue=False)
        (out,) = execute(inputs, [o], [x, pack(w, 16)], **({} if rows is m else {"m": m}))
        errors.append(np.abs(out.reshape(m, n) - exact).max())
    assert errors[1] <= errors[0] * 1.2


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("channels,taps,stride", [(16, 3, 2), (96, 3, 1), (96, 1, 2)])
def test_convolutions_of_images_known_at_the_call_only(cpu, channels, taps, stride):
    s, t, pad = symbol("s"), symbol("t"), taps // 2
    x = placeholder((1, channels // 8, s, t, 8), F32, "x")
    w = placeholder((2, channels // 8, taps, taps, 8, 8), F32, "w")
    h, v = ((d + 2 * pad - taps) // stride + 1 for d in (s, t))
    outer, ky, kx, inner = (reduce_axis(e, n) for e, n in ((channels // 8, "co"), (taps, "y"), (taps, "x"), (8, "ci")))

    def element(b, c, i, j, ci):
        o, p, q, r = (a.var for a in (outer, ky, kx, inner))
        product = padded[b, o, i * stride + p, j * stride + q, r] * w[c, o, p, q, r, ci]
        return te.sum(product, [outer, ky, kx, inner])

    def border(b, c, y, z, ci):
        inside = (y >= pad) & (y - pad < te.const(s)) & (z >= pad) & (z - pad < te.const(t))
        return select(inside, x[b, c, y - pad, z - pad, ci], 0.0)

    padded = compute((1, channels // 8, s + 2 * pad, t + 2 * pad, 8), border, "padded") if pad else x
    y = compute((1, 2, h, v, 8), element, "y")
    func = contraction([x, w], [y], target(cpu), "f", {})
    assert func is not None
    verify(func)
    (kernel,) = compile_funcs([func], Target.host())
    weight = whole(16, channels, taps, taps)
    blocked = np.ascontiguousarray(weight.reshape(2, 8, channels // 8, 8, taps, taps).transpose(0, 2, 4, 5, 3, 1))
    for height, width in ((1, 1), (2, 5), (7, 13), (29, 17), (12, 57)):
        data = whole(1, channels, height, width)
        plain = torch.nn.functional.conv2d(torch.from_numpy(data), torch.from_numpy(weight), None, stride, pad).numpy()
        out = np.full((1, 2, *plain.shape[2:], 8), np.nan, np.float32)
        kernel(np.ascontiguousarray(data.reshape(1, -1, 8, height, width).transpose(0, 1, 3, 4, 2)), blocked, out,
               symbols={"s": height, "t": width})  # fmt: skip
        np.testing.assert_array_equal(out.transpose(0, 1, 4, 2, 3).reshape(plain.shape), plain)


def test_register_tiles_behind_conditions_are_functions_of_their_own_where_rows_are_unknown():
    """With several in one function LLVM keeps accumulators in memory."""

    def functions(rows):
        inputs, o = dense(rows, 64, 32, 16)
        ir = emit(expand_math(lowered(inputs, [o]), True), target()).ir
        return [part for part in ir.split("define ")[1:] if "fma" in part.split("declare")[0]]

    assert len(functions(31)) == 1
    tiles = functions(symbol("m"))
    assert len(tiles) > 2 and all("ret i32" in part for part in tiles)


def test_no_tile_divides_by_a_size_where_the_loops_around_give_threads_enough_to_do():
    """Fused with the loops around it, the loop over the tiles of a row would ask each tile which one it is."""
    s, t = symbol("s"), symbol("t")
    # a column more than is read: the rows of the image lie apart
    x, w = placeholder((1, 3, s, t + 1, 8), F32, "x"), placeholder((18, 3, 8, 8), F32, "w")
    outer, inner = reduce_axis(3, "co"), reduce_axis(8, "ci")

    def element(b, c, i, j, ci):
        return te.sum(x[b, outer.var, i, j, inner.var] * w[c, outer.var, inner.var, ci], [outer, inner])

    y = compute((1, 18, s, t, 8), element, "y")
    for sizes in ([], [("s", 56), ("t", 56)]):
        with likely_sizes(sizes):
            func = contraction([x, w], [y], target("haswell"), "f", {})
        assert func is not None
        verify(func)
        divisors = [e.b for e in post_order(func.body) if isinstance(e, Binary) and e.op in ("floordiv", "floormod")]
        assert divisors and all(isinstance(d, Const) for d in divisors)
        (kernel,) = compile_funcs([func], Target.host())
        for height, width in ((1, 1), (3, 4), (58, 6), (60, 7)):
            data, weight = whole(1, 3, height, width + 1, 8), whole(18, 3, 8, 8)
            out = np.full((1, 18, height, width, 8), np.nan, np.float32)
            kernel(data, weight, out, symbols={"s": height, "t": width})
            np.testing.assert_array_equal(out, np.einsum("bohwi,coij->bchwj", data[:, :, :, :-1], weight))
