"""Gradient: what it sums, prunes and refuses."""

import numpy as np
import pytest

from nnvm.graph import Graph
from nnvm.graph.op import register
from nnvm.graph.pass_manager import PassContext, PassError, apply_passes
from nnvm.graph.passes.gradient import GradientError, gradient
from nnvm.graph.verify import verify
from nnvm.testing.assert_graph_equal import assert_graph_equal
from nnvm.testing.reference import run_graph
from tests.graph.build import graph, op, ops, param, var

register("opaque_a", inputs=["data"], doc="no gradient", infer_type=lambda attrs, t: (t[0],))
register("opaque_b", inputs=["data"], doc="no gradient", infer_type=lambda attrs, t: (t[0],))


def typed(g: Graph) -> Graph:
    return g.with_attrs(typed=True)


def test_product():
    x, w = var("x", 3), param("w", 3)
    before = typed(graph(op("multiply", x, w, at="y"), x, w))
    after = gradient(before, ["x", "w"])
    head = var("y_grad", 3)
    assert_graph_equal(after, graph([op("multiply", head, w), op("multiply", head, x)], x, w, head))
    verify(after, "")


def test_contributions_are_summed():
    x = var("x", 3)
    y = op("add", op("exp", x), op("multiply", x, x))
    after = gradient(typed(graph(y)), ["x"])
    assert ops(after).count("add") == 2  # three contributions
    a, head = np.array([0.5, -1, 2], np.float32), np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(run_graph(after, [a, head])[0], head * (np.exp(a) + 2 * a), rtol=1e-6)


def test_several_outputs_and_a_head_that_is_none():
    x = var("x", 3)
    a, b = op("exp", x, at="a"), op("sin", x, at="b")
    g = typed(graph([a, b]))
    both = gradient(g, ["x"])
    assert [v.name for v in both.inputs] == ["x", "a_grad", "b_grad"]
    head = var("head", 3)
    one = gradient(g, ["x"], [None, head])
    assert ops(one) == ["cos", "multiply"]
    assert [v.name for v in one.inputs] == ["x", "head"]


def test_only_what_leads_to_wrt_is_computed():
    x, w = var("x", 2, 3), param("w", 3)
    y = op("multiply", op("exp", op("tanh", x)), w)
    assert ops(gradient(typed(graph(y, x, w)), ["w"])) == ["tanh", "exp", "multiply", "sum", "reshape"]


def test_inner_values_can_be_asked_for():
    x = var("x", 3)
    inner = op("exp", x)
    after = gradient(typed(graph(op("square", inner))), [inner])
    assert ops(after) == ["exp", "multiply", "multiply"]


def test_zero_gradients_are_pruned():
    x = var("x", 3)
    y = op("add", op("floor", op("exp", x)), x)
    after = gradient(typed(graph(y, x)), ["x"])
    assert ops(after) == []
    assert after.outputs[0].node is after.inputs[1]


def test_no_way_gives_zeros_of_the_type():
    x, z = var("x", 3), var("z", 2, 2)
    compared = op("cast", op("less", x, x), dtype="float32")
    after = gradient(typed(graph([op("exp", x), compared], x, z)), ["z", "x"], [None, var("h", 3)])
    assert ops(after) == ["full", "full"]
    assert [e.type.shape for e in after.outputs] == [(2, 2), (3,)]


def test_broadcast_operands_get_their_own_shape():
    x, b, s = var("x", 4, 2, 3), param("b", 2, 1), param("s")
    y = op("multiply", op("add", x, b), s)
    after = gradient(typed(graph(y, x, b, s)), ["b", "s"])
    assert [e.type.shape for e in after.outputs] == [(2, 1), ()]


def test_all_ops_without_gradient_are_named_at_once():
    x, z = var("x", 3), var("z", 3)
    hidden = op("opaque_a", op("exp", x), at="inner_bad")
    y = op("add", op("opaque_b", op("tanh", hidden), at="outer_bad"), op("opaque_a", z, at="elsewhere"))
    g = typed(graph(y, x, z))
    with pytest.raises(GradientError) as error:
        gradient(g, ["x"])
    message = str(error.value)
    assert "inner_bad" in message and "outer_bad" in message and "elsewhere" not in message
    assert "op opaque_b has no attribute gradient" in message
    aside = typed(graph([op("exp", x), op("opaque_a", x, at="unused")], x))
    assert ops(gradient(aside, ["x"], [var("h", 3), None])) == ["exp", "multiply"]


def test_wrong_arguments():
    x, i = var("x", 3), var("i", 3, dt="int64")
    g = typed(graph([op("exp", x), i], x, i))
    with pytest.raises(GradientError, match="no input 'q'; the graph has x, i"):
        gradient(g, ["q"])
    with pytest.raises(GradientError, match=r"only floats have gradients, not i: int64\[3\]"):
        gradient(g, ["i"])
    with pytest.raises(GradientError, match="1 out_grads for 2 outputs"):
        gradient(g, ["x"], [x])
    with pytest.raises(GradientError, match=r"the out_grad of .*: float32\[3\] has the type float32\[4\]"):
        gradient(g, ["x"], [var("h", 4), None])


def test_as_a_pass():
    x, w = var("x", 3), param("w", 3)
    g = graph(op("multiply", x, w, at="y"), x, w)
    with pytest.raises(PassError, match="InferType"):
        apply_passes(g, ["Gradient"], PassContext())
    after = apply_passes(g, ["InferType", "Gradient"], PassContext(verify=True))
    assert len(after.outputs) == 1 and ops(after) == ["multiply"]
    chosen = apply_passes(g, ["InferType", "Gradient"], PassContext(options={"wrt": ["x", "w"]}))
    assert len(chosen.outputs) == 2


def test_twice():
    """Gradients are graphs of the same ops: x**3 has the second derivative 6x."""
    x = var("x", 3)
    cube = typed(graph(op("multiply", op("square", x), x, at="y")))
    first = gradient(cube, ["x"])
    second = gradient(first, ["x"])
    a = np.array([1, 2, -3], np.float32)
    one = np.ones(3, np.float32)
    np.testing.assert_allclose(run_graph(second, [a, one, one])[0], 6 * a)
