"""InferType, SimplifyInference, FoldConstant, EliminateCommon, EliminateDead, PrecomputePrune."""

import numpy as np
import pytest

from nnvm.dim import symbol
from nnvm.dtype import F32
from nnvm.graph import Graph, OpPattern, TensorType, TypeInferenceError, apply, variable
from nnvm.graph.group import make_group
from nnvm.graph.pass_manager import PassContext, PassError, apply_passes
from nnvm.graph.passes.infer_type import infer_type
from nnvm.graph.verify import verify
from nnvm.testing.assert_graph_equal import assert_graph_equal
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import const, graph, op, ops, param, scalar, var


def run(g, *names, **options):
    out = apply_passes(g.with_attrs(typed=True), names, PassContext(verify=True, options=options))
    verify(out)
    return out


def same_values(a, b):
    inputs = random_inputs(a)
    for x, y in zip(run_graph(a, inputs), run_graph(b, inputs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_infer_type_fills_in():
    x = variable("x")
    y = apply("transpose", [x], {"axes": (1, 0)})
    g = Graph((apply("relu", [y[0]])[0],), (x.node,))
    assert y.types is None
    typed = infer_type(g, {"x": TensorType((2, symbol("n")), F32)})
    assert typed.outputs[0].type == TensorType((symbol("n"), 2), F32)
    assert infer_type(typed) is typed


def test_infer_type_names_what_is_missing_or_wrong():
    x, y = variable("x"), variable("y", TensorType((3,)))
    g = Graph((apply("add", [x, y])[0],), (x.node, y.node))
    with pytest.raises(TypeInferenceError, match="variables x"):
        infer_type(g)
    with pytest.raises(TypeInferenceError, match=r"add .*x: float32\[2\], y: float32\[3\]"):
        infer_type(g, {"x": TensorType((2,))})


def test_a_pass_without_its_requirement_names_the_provider():
    with pytest.raises(PassError, match=r"requires the graph attribute 'typed'; run (Gradient or )?InferType"):
        apply_passes(graph(var("x", 1)), ["FoldConstant"], PassContext())


def test_fold_constant():
    x = var("x", 2)
    g = graph(op("multiply", x, op("add", scalar(2), op("exp", scalar(0)))))
    assert_graph_equal(run(g, "FoldConstant"), graph(op("multiply", x, scalar(3))))
    big = graph(op("add", var("y", 300, 300), op("full", shape=(300, 300), value=1.0)))
    assert run(big, "FoldConstant") is not None and ops(run(big, "FoldConstant")) == ["full", "add"]
    table = op("less", op("arange", length=300), op("reshape", op("arange", length=300), shape=(300, 1)))
    masked = graph(op("where", table, var("z", 300, 300), scalar(0)))
    assert ops(run(masked, "FoldConstant")) == ["where"]
    assert ops(run(masked, "FoldConstant", fold_limit=1 << 16)) == ["less", "where"]


def test_fold_constant_leaves_failures_to_the_call():
    g = graph(op("floor_divide", const([1], "int64"), const([0], "int64")))
    assert ops(run(g, "FoldConstant")) == ["floor_divide"]


def test_eliminate_common():
    x = var("x", 2)
    g = graph(op("add", op("multiply", x, scalar(2)), op("multiply", x, scalar(2))))
    m = op("multiply", x, scalar(2))
    assert_graph_equal(run(g, "EliminateCommon"), graph(op("add", m, m)))
    for a, b in ((2, 3), (0.0, -0.0)):
        other = graph(op("add", op("multiply", x, scalar(a)), op("multiply", x, scalar(b))))
        assert run(other, "EliminateCommon").outputs == other.outputs


def test_eliminate_dead_trims_groups():
    x, y = var("x", 2), var("y", 2)
    a, b = apply("relu", [x]), apply("exp", [y])
    group = make_group([a, b], [a[0], b[0]], OpPattern.ELEMWISE, "g")
    g = run(Graph((group[1],), (x.node, y.node)), "EliminateDead")
    node = g.outputs[0].node
    assert node.num_outputs == 1 and [e.node.name for e in node.inputs] == ["y"]
    assert g.inputs == (x.node, y.node), "inputs of the graph stay, they are its calling convention"
    both = Graph((group[1], group[0]), (x.node, y.node))
    assert apply_passes(both, ["EliminateDead"], PassContext()) is both


def _prepared(g):
    return run(g, "PrecomputePrune")


def test_precompute_prune_splits():
    x, w, v = var("x", 2, 4), param("w", 4, 3), param("v", 3)
    g = graph(op("add", op("dense", x, op("transpose", w, axes=(1, 0), at="t")), op("exp", v, at="e")), x, w, v)
    main = _prepared(g)
    assert ops(main) == ["dense", "add"]
    assert [(n.name, n.attrs["kind"]) for n in main.inputs] == [
        ("x", "input"), ("w", "param"), ("v", "param"), ("t", "prepared"), ("e", "prepared")]  # fmt: skip
    prepare = verify(main.attrs["prepare"])
    assert [v.name for v in prepare.inputs] == ["w", "v"] and ops(prepare) == ["transpose", "exp"]
    assert main.attrs["prepare_depends"] == (frozenset("w"), frozenset("v"))
    arrays = random_inputs(g)
    early = run_graph(prepare, arrays[1:])
    np.testing.assert_allclose(run_graph(main, [*arrays, *early])[0], run_graph(g, arrays)[0], rtol=1e-6)


def test_precompute_prune_leaves_what_is_no_gain():
    x, w = var("x", 4, 3), param("w", 12)
    viewed = graph(op("add", x, op("reshape", w, shape=(4, 3))))
    assert ops(_prepared(viewed)) == ["reshape", "add"] and not _prepared(viewed).attrs["prepare"].outputs
    for rows, left in ((4096, ["broadcast_to", "add"]), (4, ["add"])):
        spread = op("broadcast_to", param("b", 1, 3), shape=(rows, 3))
        assert ops(_prepared(graph(op("add", var("y", rows, 3), spread)))) == left, "only small ones are worth it"
    kept = graph(op("add", x, op("reshape", op("exp", w), shape=(4, 3))))
    assert ops(_prepared(kept)) == ["reshape", "add"] and ops(_prepared(kept).attrs["prepare"]) == ["exp"]


def test_precompute_prune_does_not_hand_out_prepared_values():
    w = param("w", 4)
    assert ops(_prepared(graph(op("exp", w)))) == ["exp"]


def test_precompute_prune_can_be_told_not_to():
    g = graph(op("add", var("x", 4), op("exp", param("w", 4))))
    assert ops(run(g, "PrecomputePrune", precompute=False)) == ["exp", "add"]


def test_precompute_prune_leaves_what_depends_on_a_size():
    s = symbol("s")
    x, w = var("x", s, 3), param("w", 8, 3)
    part = op("slice", op("exp", w), begin=(0,), end=(s,))
    main = _prepared(graph(op("add", x, part)))
    assert ops(main.attrs["prepare"]) == ["exp"] and ops(main) == ["slice", "add"]
    last = op("slice", w, begin=(s - 4,), end=(s,))  # of a known shape, at a place that is not known
    assert last.type.shape == (4, 3)
    assert not _prepared(graph(op("add", var("y", 4, 3), op("exp", last)), x)).attrs["prepare"].outputs
