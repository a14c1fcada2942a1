"""FoldScaleAxis: scales and shifts in weights, forwards and backwards, with groups; and where they must stay."""

import numpy as np
import pytest

from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.views import is_view
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import const, graph, op, param, var


def fold(g, *before, **options):
    """Runs the pass and PrecomputePrune; gives the main graph after comparing values."""
    g = g.with_attrs(typed=True)
    main = apply_passes(
        g, [*before, "FoldScaleAxis", "FoldConstant", "PrecomputePrune"], PassContext(verify=True, options=options)
    )
    arrays = random_inputs(g)
    for v, a in zip(g.inputs, arrays):
        if "var" in v.name:
            np.abs(a, out=a)
    by_name = dict(zip((v.name for v in g.inputs), arrays))
    prepare = main.attrs["prepare"]
    early = run_graph(prepare, [by_name[v.name] for v in prepare.inputs])
    got = run_graph(main, [*arrays, *early])
    for a, b in zip(got, run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    return main


def ops(g):
    """Op names of a graph without its views."""
    return [n.op.name for n in g.nodes if not (n.is_variable or n.is_constant or is_view(n))]


CONV = {"padding": ((1, 1), (1, 1))}


def channels(name, c):
    return param(name, c, 1, 1)


def test_batch_norm_goes_into_the_convolution():
    x, w = var("x", 1, 4, 5, 5), param("w", 6, 4, 3, 3)
    stats = [param(n, 6) for n in ("gamma", "beta", "mean", "variance")]
    main = fold(graph(op("relu", op("batch_norm", op("conv2d", x, w, **CONV), *stats))), "SimplifyInference")
    assert ops(main) == ["conv2d", "relu"] and len(main.outputs[0].node.inputs[0].node.inputs) == 3


def test_batch_norm_after_a_bias():
    x, w, b = var("x", 1, 4, 5, 5), param("w", 6, 4, 3, 3), param("b", 6)
    stats = [param(n, 6) for n in ("gamma", "beta", "mean", "variance")]
    main = fold(graph(op("batch_norm", op("conv2d", x, w, b, **CONV), *stats)), "SimplifyInference")
    assert ops(main) == ["conv2d"]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_convolutions_both_ways(groups):
    x, w = var("x", 1, 4, 5, 5), param("w", 8, 4 // groups, 3, 3)
    y = op("conv2d", op("multiply", x, channels("s", 4)), w, groups=groups, **CONV)
    assert ops(fold(graph(op("multiply", y, channels("t", 8))))) == ["conv2d"]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_convolutions_both_ways(groups):
    x, w = var("x", 1, 4, 5, 5), param("w", 4, 8 // groups, 3, 3)
    y = op("conv2d_transpose", op("multiply", x, channels("s", 4)), w, groups=groups, strides=(2, 2), **CONV)
    assert ops(fold(graph(op("add", op("multiply", y, channels("t", 8)), channels("u", 8))))) == ["conv2d_transpose"]


def test_dense():
    x, w, b = var("x", 3, 4), param("w", 6, 4), param("b", 6)
    y = op("subtract", op("divide", op("dense", op("multiply", x, param("s", 4)), w, b), param("t", 6)), param("u", 6))
    assert ops(fold(graph(y))) == ["dense"]
    scalar = op("add", op("multiply", op("dense", x, w), const(-2.0)), const(1.0))
    assert ops(fold(graph(scalar))) == ["dense"]


def test_through_relu_and_pooling_only_with_positive_constants():
    x, w = var("x", 1, 4, 6, 6), param("w", 2, 4, 3, 3)

    def net(s):
        y = op("max_pool2d", op("relu", op("conv2d", x, w, **CONV)), pool_size=(2, 2))
        return graph(op("multiply", y, s))

    positive = const(np.array([1.5, 0.5], np.float32).reshape(2, 1, 1))
    negative = const(np.array([1.5, -0.5], np.float32).reshape(2, 1, 1))
    assert ops(fold(net(positive))) == ["conv2d", "relu", "max_pool2d"]
    assert ops(fold(net(negative))) == ["conv2d", "relu", "max_pool2d", "multiply"]
    assert ops(fold(net(channels("s", 2)))) == ["conv2d", "relu", "max_pool2d", "multiply"], "its sign is not known"


def test_what_must_stay():
    x, w = var("x", 1, 4, 5, 5), param("w", 4, 4, 3, 3)
    y = op("conv2d", x, w, **CONV)
    s = channels("s", 4)
    assert ops(fold(graph([op("multiply", y, s), y]))) == ["conv2d", "multiply"], "the unscaled value is needed too"
    assert ops(fold(graph(op("multiply", y, var("t", 4, 1, 1))))) == ["conv2d", "multiply"], "no parameter"
    assert ops(fold(graph(op("multiply", y, param("r", 1, 5))))) == ["conv2d", "multiply"], "along another axis"
    assert ops(fold(graph(op("add", y, var("q", 1, 4, 5, 5))))) == ["conv2d", "add"], "a residual"
    shifted = graph(op("conv2d", op("add", x, s), w, **CONV))
    assert ops(fold(shifted)) == ["add", "conv2d"], "padding is not shifted"
    grown = graph(op("multiply", op("conv2d", x, w), param("big", 3, 4, 1, 1)))
    assert ops(fold(grown)) == ["conv2d", "multiply"], "the scale makes the output larger"
    assert ops(fold(graph(op("multiply", y, s)), precise=True)) == ["conv2d", "multiply"]
