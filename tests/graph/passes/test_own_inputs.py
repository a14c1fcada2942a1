"""OwnInputs: loop nests that ops build themselves read copies of what the caller does not give contiguous."""

from nnvm.graph.pass_manager import PassContext, apply_passes
from tests.graph.build import graph, op, var


def own(g, strides):
    typed = g.with_attrs(typed=True, input_strides=strides)
    return typed, apply_passes(typed, ["OwnInputs"], PassContext())


def test_a_strided_input_of_a_loop_nest_is_copied_once():
    x = var("x", 4, 8)
    _, got = own(graph([op("cumsum", x, axis=0), op("cumprod", x, axis=1), op("exp", x)]), ((1, 4),))
    scans = [e.node for e in got.outputs[:2]]
    assert [n.inputs[0].node.op.name for n in scans] == ["identity", "identity"]
    assert scans[0].inputs == scans[1].inputs
    assert got.outputs[2].node.inputs[0].node.is_variable


def test_what_reads_through_strides_or_is_contiguous_stays():
    x = var("x", 4, 8)
    before, after = own(graph([op("exp", x), op("softmax", x, axis=1)]), ((1, 4),))
    assert after is before
    before, after = own(graph([op("cumsum", x, axis=0)]), (None,))
    assert after is before
