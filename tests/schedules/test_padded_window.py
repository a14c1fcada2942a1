"""Depthwise convolutions from padded blocks of channels: right values, and only where padding is much of the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nnvm import te
from nnvm.dtype import F16, F32, DType
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.schedules.cpu.padded_window import padded_window
from nnvm.schedules.select import lower_tensors
from nnvm.target import Target
from nnvm.te.expr import cast, maximum, select
from nnvm.te.tensor import Tensor, compute, placeholder, reduce_axis
from nnvm.tir.stmt import For, PrimFunc
from nnvm.tir.verify import verify
from nnvm.tir.visitor import stmts

HASWELL = Target.parse("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu")
RNG = np.random.default_rng(0)


def depthwise(
    blocks: int, size: int, kernel: int, stride: int, pad: int, dilation: int = 1, lanes: int = 8, dtype: DType = F32
) -> tuple[list[Tensor], Tensor]:
    """relu(depthwise convolution of NCHWc + bias); the weight is [blocks, KH, KW, c]."""
    x = placeholder((2, blocks, size, size, lanes), dtype, "x")
    w, bias = placeholder((blocks, kernel, kernel, lanes), dtype, "w"), placeholder((blocks, lanes), F32, "bias")

    def inside(h: te.Expr, v: te.Expr) -> te.Expr:
        return (h >= pad) & (h < size + pad) & (v >= pad) & (v < size + pad)

    wide = size + 2 * pad
    padded = compute(
        (2, blocks, wide, wide, lanes),
        lambda n, c, h, v, i: select(inside(h, v), x[n, c, h - pad, v - pad, i], te.const(0, dtype)),
        "padded",
    )
    out = (wide - dilation * (kernel - 1) - 1) // stride + 1
    kh, kw = reduce_axis(kernel, "kh"), reduce_axis(kernel, "kw")
    d = compute(
        (2, blocks, out, out, lanes),
        lambda n, c, h, v, i: te.sum(
            cast(padded[n, c, h * stride + kh.var * dilation, v * stride + kw.var * dilation, i], F32)
            * cast(w[c, kh.var, kw.var, i], F32),
            [kh, kw],
        ),
        "d",
    )
    y = compute(d.shape, lambda n, c, h, v, i: maximum(d[n, c, h, v, i] + bias[c, i], 0.0), "y")
    return [x, w, bias], y


def kernel_of(inputs: Sequence[Tensor], y: Tensor, target: Target = HASWELL) -> PrimFunc | None:
    return padded_window(inputs, [y], target, "f", {})


def expected(x: np.ndarray, w: np.ndarray, bias: np.ndarray, stride: int, pad: int, dilation: int) -> np.ndarray:
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad), (0, 0)))
    kernel = w.shape[1]
    out = (wide.shape[2] - dilation * (kernel - 1) - 1) // stride + 1
    total = np.zeros((*x.shape[:2], out, out, x.shape[-1]))
    for a in range(kernel):
        for b in range(kernel):
            rows = slice(a * dilation, a * dilation + stride * (out - 1) + 1, stride)
            columns = slice(b * dilation, b * dilation + stride * (out - 1) + 1, stride)
            total += wide[:, :, rows, columns] * w[None, :, a, b][:, :, None, None]
    return np.maximum(total + bias[None, :, None, None], 0)


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512"])
@pytest.mark.parametrize(
    "size,kernel,stride,pad,dilation",
    [(7, 5, 1, 2, 1), (14, 3, 1, 1, 1), (14, 5, 2, 2, 1), (5, 3, 2, 1, 1), (9, 3, 1, 2, 2), (40, 7, 1, 12, 4)],
)
def test_values(cpu: str, size: int, kernel: int, stride: int, pad: int, dilation: int) -> None:
    inputs, y = depthwise(3, size, kernel, stride, pad, dilation, lanes=16)
    func = kernel_of(inputs, y, Target.parse(f"llvm -mcpu={cpu} -mtriple=x86_64-unknown-linux-gnu"))
    assert func is not None
    verify(func)
    arrays = [RNG.integers(-3, 4, t.shape).astype(np.float32) for t in inputs]  # sums are exact in any order
    got = np.full(y.shape, np.nan, np.float32)
    compile_funcs([func], Target.host())[0](*arrays, got)
    np.testing.assert_array_equal(got, expected(*arrays, stride, pad, dilation))


def test_half_types_are_summed_in_float32() -> None:
    inputs, y = depthwise(2, 7, 5, 1, 2, dtype=F16)
    func = kernel_of(inputs, y)
    assert func is not None
    x, w = (RNG.standard_normal(t.shape).astype(np.float16) for t in inputs[:2])
    bias = RNG.standard_normal(inputs[2].shape).astype(np.float32)
    got = np.full(y.shape, np.nan, np.float32)
    compile_funcs([func], Target.host())[0](x, w, bias, got)
    np.testing.assert_allclose(got, expected(x, w, bias, 1, 2, 1), rtol=1e-5, atol=1e-5)


def test_pixels_of_a_row_share_a_tap() -> None:
    inputs, y = depthwise(3, 14, 5, 1, 2)
    func = kernel_of(inputs, y)
    assert func is not None
    unrolled = [s.extent.value for s in stmts(func.body) if isinstance(s, For) and s.kind == "unrolled"]
    assert 14 in unrolled and 18 in unrolled  # the pixels of a row; the elements of a padded one


@pytest.mark.parametrize("size,kernel,stride,pad", [(28, 3, 1, 1), (112, 3, 2, 1), (7, 3, 1, 0), (200, 33, 1, 48)])
def test_must_not_fire(size: int, kernel: int, stride: int, pad: int) -> None:
    """Little or no padding, and a block that does not stay in the cache."""
    assert kernel_of(*depthwise(3, size, kernel, stride, pad)) is None


def test_must_not_fire_where_channels_mix_or_are_no_vectors() -> None:
    assert kernel_of(*depthwise(3, 7, 5, 1, 2, lanes=4)) is None
    x, w = placeholder((7, 7, 8), F32, "x"), placeholder((8, 3, 3, 8), F32, "w")
    padded = compute(
        (9, 9, 8), lambda h, v, i: select((h > 0) & (h < 8) & (v > 0) & (v < 8), x[h - 1, v - 1, i], 0.0), "padded"
    )
    c, kh, kw = reduce_axis(8, "c"), reduce_axis(3, "kh"), reduce_axis(3, "kw")
    y = compute(
        (7, 7, 8),
        lambda h, v, i: te.sum(padded[h + kh.var, v + kw.var, c.var] * w[c.var, kh.var, kw.var, i], [c, kh, kw]),
        "y",
    )
    assert kernel_of([x, w], y) is None


def test_it_is_chosen_for_small_images() -> None:
    inputs, y = depthwise(3, 7, 5, 1, 2)
    chosen = lower_tensors(inputs, [y], HASWELL, "f", {})
    assert str(chosen.body) == str(kernel_of(inputs, y).body)  # type: ignore[union-attr]
