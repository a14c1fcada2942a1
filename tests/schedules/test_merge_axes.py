"""Rows of an image as one axis: where they may be, and where not."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm import te
from nnvm.dim import Dim, likely_sizes, symbol
from nnvm.dtype import F32
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.schedules.cpu.contraction import contraction
from nnvm.schedules.cpu.contraction_match import match
from nnvm.schedules.cpu.merge_axes import merge_rows
from nnvm.schedules.select import lower_tensors
from nnvm.target import Target
from nnvm.te.expr import Binary, Const, select
from nnvm.te.tensor import Tensor, compute, placeholder, reduce_axis
from nnvm.tir.verify import verify
from nnvm.tir.visitor import post_order
from tests.schedules.test_contraction import target, whole

S, T = symbol("s"), symbol("t")


def pointwise(s: Dim, t: Dim, stride: int = 1, pad: bool = False, batch: Dim = 1, extra: bool = False):
    """relu(1x1 convolution + residual) in blocks of 8 channels, and where asked for the sum before it too."""
    x, w = placeholder((batch, 3, s * stride, t * stride, 8), F32, "x"), placeholder((5, 3, 8, 8), F32, "w")
    residual = placeholder((batch, 5, s, t, 8), F32, "residual")
    outer, inner = reduce_axis(3, "co"), reduce_axis(8, "ci")

    def border(b, c, i, j, lane):
        return select(i < s - 1, x[b, c, i, j, lane], 0.0)

    data = compute(x.shape, border, "padded") if pad else x

    def element(b, c, i, j, lane):
        product = data[b, outer.var, i * stride, j * stride, inner.var] * w[c, outer.var, inner.var, lane]
        return te.sum(product, [outer, inner])

    y = compute((batch, 5, s, t, 8), element, "y")
    z = compute(y.shape, lambda *i: te.binary("max", y[i] + residual[i], 0.0), "z")
    return [x, w, residual], [y, z] if extra else [z]


def merged(inputs: list[Tensor], outputs: list[Tensor], strides=None):
    found = match(inputs, outputs, strides or {})
    assert found is not None
    return merge_rows(found, inputs, outputs, strides or {})


def test_rows_of_an_image_become_one_axis_in_all_tensors():
    inputs, outputs = pointwise(S, T, extra=True)
    group = merged(inputs, outputs)
    assert group is not None
    (x, w, residual), (y, z), _ = group
    assert x.shape == (1, 3, S * T, 8) and w is inputs[1]
    assert residual.shape == y.shape == z.shape == (1, 5, S * T, 8)


@pytest.mark.parametrize("case", [{"stride": 2}, {"pad": True}])
def test_rows_that_lie_apart_or_differ_stay(case):
    assert merged(*pointwise(S, T, **case)) is None


def test_rows_with_gaps_in_memory_stay():
    inputs, outputs = pointwise(S, T)
    x = inputs[0]
    gaps = {x: (3 * S * (T + 1) * 8, S * (T + 1) * 8, (T + 1) * 8, 8, 1)}
    assert merged(inputs, outputs, gaps) is None
    row = {x: (3 * S * T * 16, S * T * 16, T * 16, 16, 1)}  # gaps between pixels that are all the same
    group = merged(inputs, outputs, row)
    assert group is not None and group[2] == {group[0][0]: (3 * S * T * 16, S * T * 16, 16, 1)}


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("batch", [1, symbol("b")])
@pytest.mark.parametrize("likely", [(), (("s", 7), ("t", 7), ("b", 2)), (("s", 300), ("t", 300), ("b", 2))])
def test_every_rest_of_a_merged_image(cpu, batch, likely):
    inputs, outputs = pointwise(S, T, batch=batch, extra=True)
    with likely_sizes(likely):
        func = contraction(inputs, outputs, target(cpu), "f", {})
    assert func is not None
    verify(func)
    (kernel,) = compile_funcs([func], Target.host())
    n = 1 if batch == 1 else 3
    for s, t in ((1, 1), (1, 13), (2, 7), (5, 5), (3, 9), (7, 7), (4, 29), (17, 31), (40, 41)):
        x, w, r = whole(n, 3, s, t, 8), whole(5, 3, 8, 8), whole(n, 5, s, t, 8)
        y, z = (np.full((n, 5, s * t, 8), np.nan, np.float32) for _ in range(2))
        sizes = {"s": s, "t": t, "b": n}
        given = {name: sizes[name] for name in func.symbols}
        kernel(x.reshape(n, 3, -1, 8), w, r.reshape(n, 5, -1, 8), y, z, symbols=given)
        want = np.einsum("bohwi,coij->bchwj", x, w)
        np.testing.assert_array_equal(y.reshape(want.shape), want)
        np.testing.assert_array_equal(z.reshape(want.shape), np.maximum(want + r, 0))


def test_strips_of_tiles_are_shared_out_without_a_division_by_a_size():
    for likely in ((), (("s", 56), ("t", 56))):
        with likely_sizes(likely):
            func = lower_tensors(*pointwise(S, T), Target.host(), "f", {})
        divisors = [e.b for e in post_order(func.body) if isinstance(e, Binary) and e.op in ("floordiv", "floormod")]
        assert divisors and all(isinstance(d, Const) for d in divisors)
