"""Winograd convolution: its matrices, and the op against a direct convolution in float64, every way of running it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from nnvm.dtype import F32
from nnvm.graph.graph import Graph
from nnvm.graph.layout import Layout
from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType
from nnvm.ops.nn_conv import from_plain, to_plain
from nnvm.ops.nn_winograd import POINTS, matrices, winograd_weight
from nnvm.testing.reference import run_graph
from nnvm.testing.run_op import run_op

RNG = np.random.default_rng(0)


def transformed(w: np.ndarray, tile: int, width: int) -> np.ndarray:
    """U, as the graph of `winograd_weight` computes it."""
    v = variable("w", TensorType(w.shape, F32))
    made = winograd_weight(v, tile, width, -(-w.shape[1] // 8) * 8)
    (u,) = run_graph(Graph((made,), (v.node,)), [w])
    return u


@pytest.mark.parametrize("tile", sorted(POINTS))
def test_matrices_give_the_correlation_exactly(tile: int) -> None:
    t = matrices(tile)
    d, w = RNG.integers(-4, 5, tile + 2), RNG.integers(-4, 5, 3)
    exact = [[[Fraction(x) for x in row] for row in rows] for rows in (t.at, t.bt)]
    g = np.asarray(t.g) @ w
    left = [sum(a * b for a, b in zip(row, map(Fraction, map(int, d)))) for row in exact[1]]
    products = [x * Fraction(float(y)) for x, y in zip(left, g)]
    got = [float(sum(a * p for a, p in zip(row, products))) for row in exact[0]]
    np.testing.assert_allclose(got, [int(np.dot(d[i : i + 3], w)) for i in range(tile)], rtol=1e-12, atol=1e-12)
    for rows in (t.at, t.bt):  # so that transforming data loses nothing but in the sums
        assert all(np.float32(x) == x for row in rows for x in row)


@pytest.mark.parametrize("route", ["reference", "interpreter", "scheduled"])
@pytest.mark.parametrize("tile", sorted(POINTS))
@pytest.mark.parametrize("batch,inputs,outputs,height,width,padding", [
    (1, 8, 8, 4, 4, ((1, 1), (1, 1))),
    (2, 8, 20, 5, 7, ((1, 1), (1, 1))),
    (1, 16, 24, 3, 9, ((0, 2), (3, 0))),
    (1, 5, 16, 6, 3, ((0, 0), (0, 0))),
])  # fmt: skip
def test_against_direct(route, tile, batch, inputs, outputs, height, width, padding) -> None:
    if route == "interpreter" and height * width > 20:
        pytest.skip("the interpreter has the smallest one")
    x, w = RNG.standard_normal((batch, inputs, height, width)), RNG.standard_normal((outputs, inputs, 3, 3))
    b, layout = RNG.standard_normal(outputs), Layout.parse("NCHW8c")
    (top, bottom), (left, right) = padding
    wide = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(wide, torch.from_numpy(w), torch.from_numpy(b)).numpy()
    arrays = [from_plain(x, layout, "NCHW"), transformed(w.astype(np.float32), tile, 16), b]
    arrays = [np.ascontiguousarray(a, np.float32) for a in arrays]
    attrs = {"tile": tile, "padding": padding, "layout": "NCHW8c", "channels": None if outputs % 16 == 0 else outputs}
    (out,) = run_op("conv2d_winograd", arrays, [TensorType(a.shape, F32) for a in arrays], attrs, route)
    plain = to_plain(out, layout, "NCHW")[:, :outputs]
    assert np.abs(plain - expected).max() < 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize("weight,attrs,message", [
    ((6, 6, 1, 8, 16), {"tile": 3}, "transforms for 2, 4"),
    ((4, 4, 1, 8, 16), {"tile": 4}, r"must be \[6, 6"),
    ((6, 6, 1, 16, 16), {}, "has 8 channels, the weight takes 16"),
    ((6, 6, 2, 8, 16), {"channels": 16}, "do not fit"),
    ((6, 6, 1, 8, 16), {"layout": "NCHW"}, "blocks of channels last"),
    ((6, 6, 1, 8, 16), {"padding": ((-1, -2), (1, 1))}, "larger than the padded data"),
])  # fmt: skip
def test_wrong_use(weight, attrs, message) -> None:
    x, w = variable("x", TensorType((1, 1, 4, 4, 8), F32)), variable("w", TensorType(weight, F32))
    with pytest.raises(TypeInferenceError, match=message):
        apply("conv2d_winograd", [x, w], {"tile": 4, "layout": "NCHW8c", **attrs})
