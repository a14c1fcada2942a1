"""Decompose: transposed convolutions as convolutions between each other, and what stays as it is."""

import numpy as np
import pytest

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.dim import symbol
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.testing import assert_graph_equal
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, op, ops, param, scalar, var
from tests.graph.passes.test_elide_copies import native


def decompose(g, symbols=None):
    """After the pass, which leaves all values as they are."""
    g = g.with_attrs(typed=True)
    out = apply_passes(g, ["Decompose"], PassContext(verify=True))
    arrays = random_inputs(g, symbols=symbols)
    for a, b in zip(run_graph(out, arrays, symbols), run_graph(g, arrays, symbols), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    return out


def test_a_convolution_for_each_phase():
    x, w, b = var("x", 1, 2, 4, 5), param("w", 2, 3, 3, 3), param("b", 3)
    before = graph(op("conv2d_transpose", x, w, b, strides=(2, 2), padding=1, output_padding=(1, 1)))
    turned = op("transpose", w, axes=(1, 0, 2, 3))

    def part(begin, padding, flipped=()):
        kernel = op("slice", turned, begin=(0, 0, *begin), end=(3, 2, 3, 3), step=(1, 1, 2, 2))
        return op("conv2d", x, op("flip", kernel, axes=flipped) if flipped else kernel, b, padding=padding)

    parts = [part((1, 1), ((0, 0), (0, 0))), part((1, 0), ((0, 0), (0, 1)), (3,)),
             part((0, 1), ((0, 1), (0, 0)), (2,)), part((0, 0), ((0, 1), (0, 1)), (2, 3))]  # fmt: skip
    expected = graph(op("interleave", *parts, axes=(2, 3), steps=(2, 2)))
    assert_graph_equal(decompose(before), expected)


def test_stride_one_is_a_convolution():
    y = op("conv2d_transpose", var("x", 1, 4, 6, 6), param("w", 4, 2, 3, 3), groups=2, dilation=(1, 2))
    found = decompose(graph(y))
    assert ops(found) == ["reshape", "transpose", "reshape", "flip", "conv2d"]
    assert found.outputs[0].node.attrs["padding"] == ((2, 2), (4, 4))


def test_what_nothing_reaches_is_the_bias():
    y = op("conv1d_transpose", var("x", 1, 2, 4), param("w", 2, 3, 1), param("b", 3), strides=(2,), output_padding=(1,))
    assert ops(decompose(graph(y))).count("conv1d") == 1
    y = op("conv1d_transpose", var("x", 1, 2, 4), param("w", 2, 3, 2), strides=(2,), dilation=(2,))
    assert ops(decompose(graph(y))).count("broadcast_to") == 1


@pytest.mark.parametrize("groups,padding", [(1, ((0, 0), (0, 0))), (2, ((3, 2), (1, 6)))])
def test_many_phases_are_channels(groups, padding):
    x, w, b = var("x", 2, 4, 3, 5), param("w", 4, 3, 10, 5), param("b", 3 * groups)
    y = op("conv2d_transpose", x, w, b, strides=(5, 5), padding=padding, groups=groups)
    found = ops(decompose(graph(y)))
    assert found.count("conv2d") == 1 and "interleave" not in found and found[-1] == "slice"


@pytest.mark.parametrize("rank,kernel,strides,dilation,padding,more,groups", [
    (1, (4,), (2,), (1,), ((1, 1),), (0,), 1), (1, (5,), (3,), (2,), ((4, 0),), (1,), 4),
    (2, (4, 3), (2, 3), (1, 1), ((1, 0), (2, 1)), (1, 2), 2), (2, (3, 3), (2, 4), (2, 6), ((0, 3), (1, 1)), (1, 3), 1),
    (2, (2, 5), (3, 1), (1, 1), ((0, 0), (4, 2)), (2, 0), 4), (3, (3, 2, 1), (2, 1, 2), (1, 2, 1), ((1, 1),) * 3,
     (1, 1, 1), 2), (2, (6, 6), (6, 3), (1, 1), ((2, 5), (1, 4)), (0, 0), 2),
])  # fmt: skip
def test_every_geometry(rank, kernel, strides, dilation, padding, more, groups):
    geometry = {"strides": strides, "dilation": dilation, "padding": padding, "output_padding": more, "groups": groups}
    w = param("w", 4, 8 // groups, *kernel)
    for extents in ((5, 4, 3), tuple(map(symbol, "abc"))):
        y = op(f"conv{rank}d_transpose", var("x", 2, 4, *extents[:rank]), w, **geometry)
        for n in (5, 3) if rank < 3 else (4,):
            assert f"conv{rank}d_transpose" not in ops(decompose(graph(y), dict.fromkeys("abc", n)))


def test_what_stays():
    x, w = var("x", 1, 4, 5, 6), param("w", 4, 6, 3, 3)
    nhwc = op("conv2d_transpose", var("x", 1, 5, 6, 4), w, strides=(2, 2), data_layout="NHWC")
    blocked = op("conv2d_transpose", x, w, strides=(2, 2), out_layout="NCHW2c")
    fewer = op("conv2d_transpose", x, w, strides=(2, 2), channels=5)
    single = op("conv2d_transpose", var("x", 1, 4, 1, 1), w, strides=(2, 2), padding=1)
    uneven = op("conv2d_transpose", x, param("w", 4, 6, 10, 10), strides=(9, 9))
    for y in (nhwc, blocked, fewer, single, uneven, op("conv2d", x, param("w", 4, 4, 3, 3))):
        g = graph(y).with_attrs(typed=True)
        assert apply_passes(g, ["Decompose"], PassContext()) is g


def test_weights_are_prepared_once_and_parts_are_written_in_place():
    x = var("x", 1, 16, 6, 6)
    y = op("conv2d_transpose", x, param("w", 16, 32, 4, 4), param("b", 32), strides=(2, 2), padding=1)
    z = op("conv2d_transpose", y, param("v", 32, 16, 3, 3), strides=(2, 2), padding=1, output_padding=(1, 1))
    compiled = compile_graph(graph(z).with_attrs(typed=True), BuildOptions(verify=True))
    ran = [n for k in compiled.kernels for n in k.ops]
    assert ran.count("conv2d") == 8 and ran.count("interleave") == 1, "only the last, into the plain layout"
    assert not {"slice", "flip", "transpose"} & set(ran)


@pytest.mark.parametrize("after", ["relu", "add"])
def test_compiled(after):
    x, s = symbol("s"), var("x", 2, 8, symbol("s"), 7)
    y = op("conv2d_transpose", s, param("w", 8, 16, 5, 3), strides=(3, 2), padding=1)
    y = op("relu", y) if after == "relu" else op("add", y, scalar(1.5))
    for n in (1, 4):
        native(graph(y, s), symbols={str(x): n})
