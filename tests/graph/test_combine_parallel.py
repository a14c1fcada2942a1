"""CombineParallel: products of one value with several weights become one, where no epilogue is lost."""

import numpy as np
import pytest

from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.combine_parallel import CombineLimits
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, op, ops, param, var


def combine(g, **options):
    g = g.with_attrs(typed=True)
    out = apply_passes(g, ["CombineParallel", "EliminateDead"], PassContext(verify=True, options=options))
    arrays = random_inputs(g)
    for a, b in zip(run_graph(out, arrays), run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return out


def heads(x, units=(8, 8, 6), bias=True):
    """Products of x with a weight each, as queries, keys and values take them apart."""
    out = []
    for i, n in enumerate(units):
        inputs = [param(f"w{i}", n, x.type.shape[-1]), *([param(f"b{i}", n)] if bias else [])]
        y = op("dense", x, *inputs)
        out.append(op("transpose", op("reshape", y, shape=(*x.type.shape[:-1], 2, n // 2)), axes=(1, 0, 2)))
    return out


@pytest.mark.parametrize("bias", [True, False])
def test_queries_keys_and_values(bias):
    g = combine(graph(heads(var("x", 5, 4), bias=bias)))
    assert ops(g).count("dense") == 1 and ops(g).count("slice") == 3
    (dense,) = (n for n in g.nodes if n.op.name == "dense")
    assert dense[0].type.shape == (5, 22)


def test_layer_upon_layer():
    x = var("x", 5, 4)
    for layer in range(3):
        y = op("relu", x, at=f"relu{layer}")
        parts = [op("exp", op("reshape", op("dense", y, param(f"w{layer}{i}", 4, 4)), shape=(20,))) for i in range(2)]
        x = op("reshape", op("add", *parts), shape=(5, 4))
    assert ops(combine(graph(x))).count("dense") == 3


def test_an_epilogue_is_not_lost():
    x = var("x", 5, 4)
    gate, up = (op("dense", x, param(n, 8, 4)) for n in "gu")
    g = graph(op("multiply", op("silu", gate), up))
    assert ops(combine(g)).count("dense") == 2
    assert ops(combine(g, combine_limits=CombineLimits(loses_epilogue=True))).count("dense") == 1


def test_limit_on_nodes():
    g = graph(heads(var("x", 5, 4), units=(2, 2, 2)))
    assert ops(combine(g, combine_limits=CombineLimits(nodes=2))).count("dense") == 3


def test_what_must_stay_apart():
    x, y = var("x", 5, 4), var("y", 5, 4)
    other = graph([*heads(x, (8,)), *(op("transpose", op("dense", y, param("v", 8, 4))),)])
    assert ops(combine(other)).count("dense") == 2  # other data
    mixed = graph([*heads(x, (8,), bias=True), op("transpose", op("dense", x, param("v", 8, 4)))])
    assert ops(combine(mixed)).count("dense") == 2  # with a bias and without
    changing = graph([op("transpose", op("dense", x, w)) for w in (var("a", 8, 4), var("b", 8, 4))])
    assert ops(combine(changing)).count("dense") == 2  # weights that change at each call
    returned = graph([op("dense", x, param(n, 8, 4)) for n in "ab"])
    assert ops(combine(returned)).count("dense") == 2  # the caller wants each in memory of its own


def test_training_leaves_them():
    assert ops(combine(graph(heads(var("x", 5, 4))), training=True)).count("dense") == 3
