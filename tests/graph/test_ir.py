"""Printer, structural equality, verify and the evaluator, on ops of this test's own."""

import numpy as np
import pytest

from nnvm.dim import symbol
from nnvm.dtype import BF16, F32, I64
from nnvm.graph import Graph, Node, OpPattern, Param, TensorType, apply, constant, register, variable
from nnvm.graph.evaluate import evaluate_graph
from nnvm.graph.group import make_group
from nnvm.graph.op import known
from nnvm.graph.printer import print_graph
from nnvm.graph.structural import attr_key, same_attr, structural_key, structurally_equal
from nnvm.graph.verify import VerifyError, verify
from nnvm.testing.assert_graph_equal import assert_graph_equal

if "t_scale" not in known():
    register("t_scale", inputs=["x"], params={"by": Param("factor", float, 1.0)}, pattern=OpPattern.ELEMWISE,
             infer_type=lambda attrs, t: t, reference=lambda attrs, x: (x * x.dtype.type(attrs["by"]),))  # fmt: skip
    register("t_plus", inputs=["x", "y"], pattern=OpPattern.ELEMWISE, infer_type=lambda attrs, t: t[:1],
             reference=lambda attrs, x, y: (x + y,))  # fmt: skip


def _graph(by=2.0, prefix="", value=1.0, dtype=F32, shape=(2, 3)):
    x = variable(prefix + "x", TensorType(shape, dtype))
    w = variable(prefix + "w", TensorType(shape, dtype), "param")
    c = constant(np.full((2, 3), value, dtype.numpy), TensorType((2, 3), dtype), prefix + "c")
    a = apply("t_scale", [x], {"by": by}, prefix + "a")
    b = apply("t_plus", [a[0], w], name=prefix + "b")
    return Graph((apply("t_plus", [b[0], c], name=prefix + "d")[0],), (x.node, w.node))


def test_text():
    assert (
        print_graph(_graph())
        == """\
graph(%x: float32[2, 3], %w: float32[2, 3] param):
  %a = t_scale(%x, by=2.0): float32[2, 3]
  %b = t_plus(%a, %w): float32[2, 3]
  %c = constant([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]): float32[2, 3]
  %d = t_plus(%b, %c): float32[2, 3]
  return %d"""
    )


def test_canonical_text_shows_groups_and_hides_defaults():
    x = variable("x", TensorType((symbol("n"),)))
    a = apply("t_scale", [x], name="whatever")
    b = apply("t_plus", [a[0], a[0]], name="other")
    group = make_group([a, b], [a[0], b[0]], OpPattern.ELEMWISE)
    assert (
        print_graph(Graph((group[1], group[0]), (x.node,)), canonical=True)
        == """\
graph(%x: float32[n]):
  %group = group(%x, pattern=ELEMWISE): float32[n], float32[n]
    graph(%p0: float32[n]):
      %t_scale = t_scale(%p0): float32[n]
      %t_plus = t_plus(%t_scale, %t_scale): float32[n]
      return %t_scale, %t_plus
  return %group.1, %group.0"""
    )


def test_equality_ignores_names_only():
    base = _graph()
    assert structurally_equal(base, _graph(prefix="q")) and structural_key(base) == structural_key(_graph(prefix="q"))
    for other in (_graph(by=3.0), _graph(value=2.0), _graph(value=-0.0)):
        assert not structurally_equal(base, other) and structural_key(base) != structural_key(other)
    swapped = Graph(base.outputs, base.inputs[::-1])
    assert not structurally_equal(base, swapped) and structural_key(base) != structural_key(swapped)


def test_attributes_are_compared_by_type():
    for a, b in ((1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ((1,), 1), (None, False)):
        assert not same_attr(a, b) and attr_key(a) != attr_key(b)
    assert same_attr(float("nan"), float("nan")) and attr_key(symbol("n") + 1) == attr_key(1 + symbol("n"))


def test_assert_graph_equal_shows_the_difference():
    assert_graph_equal(_graph(), _graph(prefix="other_"))
    with pytest.raises(AssertionError, match=r"attribute by=2.0 against 3.0(.|\n)*-.*by=3.0(.|\n)*\+.*by=2.0"):
        assert_graph_equal(_graph(), _graph(by=3.0))


def test_verify_accepts_a_good_graph():
    g = _graph()
    assert verify(g) is g


def test_verify_finds_each_fault():
    g = _graph()
    with pytest.raises(
        VerifyError, match=r"after Fold: variable w is used but is no input(.|\n)*%b = t_plus\(%a, %w\)"
    ):
        verify(Graph(g.outputs, g.inputs[:1]), "after Fold")
    with pytest.raises(VerifyError, match="listed twice"):
        verify(Graph(g.outputs, (*g.inputs, g.inputs[0])))
    b = next(n for n in g.nodes if n.name == "b")
    b.types = (TensorType((9,), I64),)
    with pytest.raises(VerifyError, match=r"b says int64\[9\]; inference gives float32\[2, 3\]"):
        verify(g)
    with pytest.raises(VerifyError, match="two nodes are called x"):
        x = variable("x", TensorType((2,)))
        verify(Graph((apply("t_scale", [x], name="x")[0],), (x.node,)))
    with pytest.raises(VerifyError, match="is output 1 of x"):
        verify(Graph((x.node[1],), (x.node,)))
    with pytest.raises(VerifyError, match="attributes"):
        verify(Graph((Node(b.op, b.inputs, {"by": 1}, "odd", None)[0],), g.inputs))


def test_verify_finds_a_cycle():
    x = variable("x", TensorType((2,)))
    a = apply("t_plus", [x, x], name="a")
    b = apply("t_scale", [a[0]], name="b")
    a.inputs = (x, b[0])
    with pytest.raises(VerifyError, match="depend on each other"):
        verify(Graph((b[0],), (x.node,)))


def test_evaluator_runs_nodes_groups_and_bfloat16():
    g = _graph()
    x, w = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    assert np.array_equal(evaluate_graph(g, {"x": x, "w": w})[0], x * 2 + w + 1)
    nodes = [n for n in g.nodes if not n.is_variable and not n.is_constant]
    fused = make_group(nodes, [nodes[-1][0]], OpPattern.ELEMWISE)
    assert np.array_equal(evaluate_graph(Graph((fused[0],), g.inputs), [x, w])[0], x * 2 + w + 1)
    half = variable("h", TensorType((1,), BF16))
    one = np.array([0x3F80], np.uint16)
    (got,) = evaluate_graph(Graph((apply("t_scale", [half], {"by": 3.0})[0],), (half.node,)), [one])
    assert got.dtype == np.uint16 and got[0] == 0x4040


def test_evaluator_reads_sizes_and_rejects_what_does_not_fit():
    n = symbol("n")
    x, y = variable("x", TensorType((n,))), variable("y", TensorType((n,)))
    g = Graph((apply("t_plus", [x, y])[0],), (x.node, y.node))
    assert evaluate_graph(g, [np.ones(4, np.float32), np.ones(4, np.float32)])[0].shape == (4,)
    with pytest.raises(ValueError, match=r"input y is float32\[n\]"):
        evaluate_graph(g, [np.ones(4, np.float32), np.ones(5, np.float32)])


def test_a_number_as_constant_is_an_array():
    c = constant(np.float32(1.5), TensorType(()))
    assert isinstance(c.node.attrs["value"], np.ndarray) and c.node.attrs["value"].shape == ()
