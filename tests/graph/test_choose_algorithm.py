"""ChooseAlgorithm: Winograd where it is faster, the convolution itself where it is not or must not be."""

import numpy as np
import pytest

from nnvm.dim import likely_sizes, symbol
from nnvm.dtype import F32
from nnvm.graph import TensorType, variable
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.target import Target
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, op, param, var


def choose(g, cpu="haswell", **options):
    """The graph after layouts and algorithms are chosen, values checked."""
    g = g.with_attrs(typed=True)
    context = PassContext(verify=True, target=Target.parse(f"llvm -mcpu={cpu}"), options=options)
    out = apply_passes(g, ["AlterOpLayout", "ChooseAlgorithm", "EliminateDead"], context)
    arrays = random_inputs(g)
    for a, b in zip(run_graph(out, arrays), run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    return [(n.op.name, n.attrs.get("tile")) for n in out.nodes if n.op.name.startswith("conv")]


def conv(x, outputs, k=3, name="w", **attrs):
    weight = param(name, outputs, x.type.shape[1] // attrs.get("groups", 1), k, k)
    return op("conv2d", x, weight, **{"padding": (((k - 1) // 2,) * 2,) * 2, **attrs})


def test_large_images_take_large_tiles():
    assert choose(graph(conv(var("x", 1, 16, 24, 24), 32))) == [("conv2d_winograd", 4)]
    assert choose(graph(conv(var("x", 1, 32, 24, 24), 32)), "skylake-avx512") == [("conv2d_winograd", 4)]


def test_bias_padded_channels_and_neighbours():
    x = var("x", 2, 16, 16, 17)
    y = op("relu", op("conv2d", x, param("w", 20, 16, 3, 3), param("b", 20), padding=((1, 1), (1, 1))))
    assert choose(graph(conv(y, 16, name="v"))) == [("conv2d_winograd", 4)] * 2


@pytest.mark.parametrize("attrs", [{"strides": (2, 2)}, {"groups": 2}, {"dilation": (2, 2)}, {"k": 5}, {"k": 1}])
def test_other_convolutions_stay(attrs):
    assert choose(graph(conv(var("x", 1, 16, 16, 16), 16, **attrs))) == [("conv2d", None)]


def test_few_pixels_stay_with_many_channels():
    assert choose(graph(conv(var("x", 1, 256, 3, 3), 256))) == [("conv2d", None)]


def test_images_of_unknown_size_go_by_the_likely_one():
    s = symbol("s")
    x = variable("x", TensorType((1, 256, s, s), F32))
    g = graph(conv(x, 256)).with_attrs(typed=True)

    def chosen(*likely):
        with likely_sizes(likely):
            out = apply_passes(g, ["AlterOpLayout", "ChooseAlgorithm", "EliminateDead"],
                               PassContext(verify=True, target=Target.parse("llvm -mcpu=haswell")))  # fmt: skip
        return next(n.op.name for n in out.nodes if n.op.name.startswith("conv"))

    assert chosen() == chosen(("s", 28)) == "conv2d_winograd"
    assert chosen(("s", 3)) == "conv2d"


def test_weights_that_change_at_each_call_stay():
    x, w = var("x", 1, 16, 24, 24), var("w", 16, 16, 3, 3)
    assert choose(graph(op("conv2d", x, w, padding=((1, 1), (1, 1))))) == [("conv2d", None)]


@pytest.mark.parametrize("option", ["precise", "training"])
def test_options_that_forbid_it(option):
    assert choose(graph(conv(var("x", 1, 16, 24, 24), 32)), **{option: True}) == [("conv2d", None)]


def test_other_types_stay():
    x = var("x", 1, 16, 24, 24, dt="float64")
    w = param("w", 16, 16, 3, 3, dt="float64")
    assert choose(graph(op("conv2d", x, w, padding=((1, 1), (1, 1))))) == [("conv2d", None)]
