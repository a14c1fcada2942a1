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


def conv(x, name, out=4, **attrs):
    return op("conv2d", x, param(name, out, x.type.shape[1], 3, 3), **CONV, **attrs)


NEGATIVE = np.array([1.5, -0.5, -2.0, 0.25], np.float32).reshape(4, 1, 1)


def test_to_both_sides_of_a_residual_add():
    x = var("x", 1, 4, 6, 6)
    both = op("add", conv(x, "a"), conv(op("relu", conv(x, "b")), "c"))
    assert ops(fold(graph(op("multiply", both, channels("s", 4))))) == ["conv2d", "conv2d", "relu", "conv2d", "add"]
    minus = op("subtract", conv(x, "a"), op("avg_pool2d", conv(x, "b"), pool_size=(3, 3), strides=(1, 1), **CONV))
    main = fold(graph(op("divide", minus, channels("s", 4))))
    assert sorted(ops(main)) == ["avg_pool2d", "conv2d", "conv2d", "subtract"]
    fixed = op("add", op("subtract", param("t", 1, 4, 1, 1), conv(x, "a")), conv(x, "b"))
    assert sorted(ops(fold(graph(op("multiply", fixed, const(NEGATIVE)))))) == ["add", "conv2d", "conv2d", "subtract"]
    own = graph(op("multiply", op("add", conv(x, "a"), var("r", 1, 4, 6, 6)), channels("s", 4)))
    assert ops(fold(own)) == ["conv2d", "add", "multiply"], "one side has no weights"


def test_a_shift_goes_to_either_side_of_a_residual_add():
    x, r = var("x", 1, 4, 6, 6), var("r", 1, 4, 6, 6)
    for sides in ((conv(x, "a"), r), (r, conv(x, "a"))):
        assert ops(fold(graph(op("subtract", op("add", *sides), channels("t", 4))))) == ["conv2d", "add"]
    assert ops(fold(graph(op("add", op("subtract", conv(x, "a"), r), channels("t", 4))))) == ["conv2d", "subtract"]
    right = graph(op("add", op("subtract", r, conv(x, "a")), channels("t", 4)))
    assert ops(fold(right)) == ["conv2d", "subtract", "add"], "the side that is taken away"
    pooled = op("avg_pool2d", conv(x, "a"), pool_size=(3, 3), strides=(1, 1), **CONV)
    assert ops(fold(graph(op("add", pooled, channels("t", 4)))))[-1] == "add", "the border is not shifted"


@pytest.mark.parametrize("scale", [const(NEGATIVE), channels("s", 4), const(-3.0)])
def test_scales_of_any_sign_through_what_is_linear(scale):
    x = var("x", 1, 4, 6, 6)
    for y in (op("avg_pool2d", conv(x, "a"), pool_size=(2, 2)), op("global_avg_pool2d", conv(x, "a")),
              op("resize", conv(x, "a"), size=(9, 9), mode="linear"), op("negative", conv(x, "a")),
              op("mean", conv(x, "a"), axis=(2, 3), keepdims=True), op("sum", conv(x, "a"), axis=(-1,), keepdims=True),
              op("pad", conv(x, "a"), pad_width=((0, 0), (0, 0), (1, 2), (0, 1)))):  # fmt: skip
        main = fold(graph(op("multiply", y, scale)))
        assert ops(main) == ["conv2d", y.node.op.name]


def test_scales_of_any_sign_stay_behind_what_is_not():
    x = var("x", 1, 4, 6, 6)
    bordered = op("pad", conv(x, "a"), pad_width=((0, 0), (0, 0), (1, 2), (0, 1)), value=1.0)
    turned = op("pad", conv(x, "a"), pad_width=((0, 0), (1, -1), (0, 0), (0, 0)))
    for y in (op("relu", conv(x, "a")), op("leaky_relu", conv(x, "a"), alpha=0.1), op("abs", conv(x, "a")), bordered,
              op("max", conv(x, "a"), axis=(2, 3), keepdims=True), op("prelu", conv(x, "a"), param("q", 4, 1, 1)),
              op("sigmoid", conv(x, "a")), op("mean", conv(x, "a"), axis=(1,), keepdims=True), turned):  # fmt: skip
        main = fold(graph(op("multiply", y, const(NEGATIVE))))
        assert ops(main)[-1] == "multiply" and ops(main)[0] == "conv2d"


def test_positive_constants_through_what_keeps_the_order():
    x = var("x", 1, 4, 6, 6)
    for y in (op("leaky_relu", conv(x, "a"), alpha=0.1), op("abs", conv(x, "a")),
              op("prelu", conv(x, "a"), param("q", 4, 1, 1)), op("max", conv(x, "a"), axis=(2, 3), keepdims=True),
              op("global_max_pool2d", conv(x, "a"))):  # fmt: skip
        for s in (const(np.abs(NEGATIVE)), const(0.125), op("reshape", const(np.abs(NEGATIVE)), shape=(1, 4, 1, 1))):
            assert ops(fold(graph(op("multiply", y, s)))) == ["conv2d", y.node.op.name]


def test_forwards_through_pooling_adds_and_other_ops():
    x, y = var("x", 1, 4, 6, 6), var("y", 1, 4, 6, 6)
    s = channels("s", 4)
    pooled = op("avg_pool2d", op("multiply", x, s), pool_size=(2, 2))
    assert ops(fold(graph(conv(pooled, "a")))) == ["avg_pool2d", "conv2d"]
    positive = const(np.abs(NEGATIVE))
    high = op("max_pool2d", op("relu", op("multiply", x, positive)), pool_size=(2, 2))
    assert ops(fold(graph(conv(high, "a")))) == ["relu", "max_pool2d", "conv2d"]
    low = op("max_pool2d", op("relu", op("multiply", x, const(NEGATIVE))), pool_size=(2, 2))
    assert ops(fold(graph(conv(low, "a")))) == ["multiply", "relu", "max_pool2d", "conv2d"]
    both = op("add", op("divide", x, s), op("divide", y, s))
    assert ops(fold(graph(conv(both, "a", groups=1)))) == ["add", "conv2d"]
    other = op("add", op("multiply", x, s), op("multiply", y, channels("t", 4)))
    assert ops(fold(graph(conv(other, "a")))) == ["multiply", "multiply", "add", "conv2d"]


def test_through_transposes():
    x = var("x", 2, 6, 6, 4)
    to_front, to_back = {"axes": (0, 3, 1, 2)}, {"axes": (0, 2, 3, 1)}
    y = op("transpose", op("dense", x, param("w", 5, 4)), **to_front)
    y = op("add", op("multiply", y, channels("s", 5)), channels("t", 5))
    assert ops(fold(graph(y))) == ["dense", "transpose"]
    y = op("multiply", op("transpose", conv(op("transpose", x, **to_front), "a"), **to_back), param("s", 4))
    assert ops(fold(graph(y))) == ["transpose", "conv2d", "transpose"]
    y = conv(op("transpose", op("multiply", x, param("s", 4)), **to_front), "a")
    assert ops(fold(graph(y))) == ["transpose", "conv2d"]
    along_rows = op("multiply", op("transpose", conv(op("transpose", x, **to_front), "a"), **to_back), param("s", 6, 1))
    assert ops(fold(graph(along_rows)))[-1] == "multiply"


def test_scales_on_the_way_come_together():
    x = var("x", 1, 4, 6, 6)
    y = op("multiply", op("relu", op("divide", conv(x, "a"), channels("s", 4))), const(0.5))
    assert ops(fold(graph(y))) == ["conv2d", "relu"]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_negative_scales_with_groups(groups):
    x = var("x", 1, 4, 5, 5)
    y = op("conv2d", op("multiply", x, const(NEGATIVE)), param("w", 4, 4 // groups, 3, 3), groups=groups, **CONV)
    assert ops(fold(graph(op("divide", y, const(NEGATIVE))))) == ["conv2d"]
    t = op(
        "conv2d_transpose", op("divide", x, const(NEGATIVE)), param("w", 4, 4 // groups, 3, 3), groups=groups, **CONV
    )
    assert ops(fold(graph(op("multiply", op("add", t, const(NEGATIVE)), const(NEGATIVE))))) == ["conv2d_transpose"]


def test_nothing_is_computed_twice():
    x = var("x", 1, 4, 6, 6)
    scaled = op("multiply", conv(x, "a"), channels("s", 4))
    g = graph([op("multiply", op("relu", scaled), const(2.0)), op("exp", scaled)])
    assert sorted(ops(fold(g))) == ["conv2d", "exp", "multiply", "relu"]
    read = op("relu", op("multiply", x, const(2.0)))
    assert ops(fold(graph([conv(read, "a"), read]))) == ["multiply", "relu", "conv2d"]
    side = conv(x, "b")
    g = graph([op("multiply", op("add", conv(x, "a"), side), channels("s", 4)), op("exp", side)])
    assert sorted(ops(fold(g))) == ["add", "conv2d", "conv2d", "exp", "multiply"]


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
