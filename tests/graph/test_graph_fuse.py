"""GraphFuse: what becomes one kernel and what must not."""

import time

import numpy as np
import pytest

from nnvm.graph import OpPattern
from nnvm.graph.passes.fuse_groups import near_users
from nnvm.graph.passes.fused_graph import build_fused_graph
from nnvm.graph.passes.graph_fuse import FuseLimits, fuse_graph
from nnvm.graph.verify import verify
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, groups, op, param, scalar, var


def fuse(g, **limits):
    """Fuses, verifies and checks the values."""
    fused = fuse_graph(g, FuseLimits(**limits))
    verify(fused)
    inputs = random_inputs(g)
    for a, b in zip(run_graph(g, inputs), run_graph(fused, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return fused


def test_chain():
    x, y = var("x", 4, 8), var("y", 8)
    f = fuse(graph(op("relu", op("add", op("multiply", x, scalar(2)), y))))
    assert groups(f) == [["multiply", "add", "relu"]]
    (group,) = [n for n in f.nodes if n.op.name == "group"]
    assert [e.node.name for e in group.inputs] == ["x", "y"], "the scalar constant is inside"
    assert group.attrs["pattern"] == OpPattern.BROADCAST


def test_diamond_ends_in_one_group():
    x = var("x", 4, 8)
    a = op("exp", x)
    f = fuse(graph(op("add", op("sqrt", a), op("negative", a))))
    assert groups(f) == [["exp", "sqrt", "negative", "add"]]


def test_value_needed_outside_is_a_further_output():
    x, w = var("x", 4, 8), param("w", 3, 8)
    a = op("exp", x)
    f = fuse(graph([op("negative", a), op("dense", a, w)]))
    assert groups(f) == [["exp", "negative"], ["dense"]]
    assert len(f.outputs[0].node.types) == 2


def test_a_stored_value_is_not_doubled():
    x, w, r = var("x", 4, 8), param("w", 8, 8), var("r", 4, 8)
    a = op("dense", x, w)
    f = fuse(graph(op("multiply", op("exp", a), op("sum", a, axis=0))))
    assert groups(f) == [["dense"], ["sum"], ["exp", "multiply"]], "exp is computed where it is used"
    f = fuse(graph([op("dense", op("relu", op("multiply", a, r)), w), a]))
    assert groups(f) == [["dense", "multiply", "relu"], ["dense"]], "relu is stored anyway"


def test_outputs_of_other_shapes_stay_apart():
    x, y = var("x", 8), var("y", 4, 8)
    a = op("exp", x)
    f = fuse(graph([op("add", a, y), a]))
    assert groups(f) == [["add"], ["exp"]] or groups(f) == [["exp"], ["add"]]


def test_expensive_value_is_not_computed_for_each_element_it_is_broadcast_to():
    x, y = var("x", 8), var("y", 4, 8)
    assert groups(fuse(graph(op("add", op("exp", x), y)))) == [["exp"], ["add"]]
    assert groups(fuse(graph(op("add", op("negative", x), y)))) == [["negative", "add"]]
    assert groups(fuse(graph(op("add", op("negative", x), y)), broadcast_nodes=0)) == [["negative"], ["add"]]


def test_epilogue_with_residual():
    x, w, b, r = var("x", 4, 8), param("w", 8, 8), param("b", 8), var("r", 4, 8)
    y = op("relu", op("add", op("add", op("dense", x, w), b), r))
    f = fuse(graph([op("negative", op("dense", y, w)), op("sqrt", op("dense", y, w))]))
    assert groups(f)[0] == ["dense", "add", "add", "relu"]
    assert groups(f)[1:] == [["dense", "negative"], ["dense", "sqrt"]]


def test_sum_of_two_masters_goes_to_the_later():
    x, w, v = var("x", 4, 8), param("w", 8, 8), param("v", 8, 8)
    f = fuse(graph(op("add", op("dense", x, w), op("dense", op("dense", x, v), w))))
    assert groups(f) == [["dense"], ["dense"], ["dense", "add"]]


def test_epilogue_may_not_close_a_cycle():
    x, w = var("x", 4, 8), param("w", 8, 8)
    a = op("dense", x, w)
    b = op("softmax", a)
    f = fuse(graph(op("add", a, b)))
    assert groups(f) == [["dense"], ["softmax", "add"]]
    c = op("concatenate", b, b, axis=0)
    f = fuse(graph(op("add", a, op("slice", c, begin=(0, 0), end=(4, 8)))))
    assert ["dense", "add"] not in groups(f)


def test_groups_that_span_others_close_no_cycle():
    """The group of `d` and `f` comes after `s`, which needs a node of the group of `a` and `e`, which needs `d`."""
    x, y, z = var("x", 4, 8), var("y", 4, 1), var("z", 4)
    a = op("relu", x)
    s = op("sum", a, axis=1)
    d = op("relu", y)
    e = op("multiply", a, op("reshape", op("multiply", op("relu", z), op("reshape", d, shape=(4,))), shape=(4, 1)))
    f = op("multiply", op("reshape", s, shape=(4, 1)), d)
    assert ["relu", "multiply"] in groups(fuse(graph([s, e, f])))
    assert len(fuse(graph([e, s, f])).outputs) == 3


def test_groups_that_depend_on_each_other_are_an_error():
    x = var("x", 4)
    a = op("relu", x)
    b = op("exp", a)
    g = graph(op("add", a, b))
    index = {n: i for i, n in enumerate(g.nodes)}
    with pytest.raises(ValueError, match="depends on itself"):
        build_fused_graph(g, [[g.outputs[0].node, a.node], [b.node]], index)


def test_side_operand_is_computed_in_the_epilogue():
    x, w, r, s = var("x", 4, 8), param("w", 8, 8), var("r", 4, 8), var("s", 4, 1)
    f = fuse(graph(op("add", op("dense", x, w), op("exp", r))))
    assert sorted(groups(f)[0]) == ["add", "dense", "exp"] and len(groups(f)) == 1
    f = fuse(graph(op("add", op("dense", x, w), op("exp", s))))
    assert sorted(map(sorted, groups(f))) == [["add", "dense"], ["exp"]], "exp of 4 elements, not of 32"


def test_epilogue_keeps_the_shape_of_the_master():
    x, w, y = var("x", 1, 8), param("w", 8, 8), var("y", 4, 8)
    assert groups(fuse(graph(op("add", op("dense", x, w), y)))) == [["dense"], ["add"]]
    assert groups(fuse(graph(op("transpose", op("dense", x, w), axes=(1, 0))))) == [["dense"], ["transpose"]]


def test_a_master_has_one_epilogue():
    """As in the backward pass of a dense layer after a layer norm: two ends of one product."""
    x, w, r, s = var("x", 4, 8), param("w", 8, 8), var("r", 4, 8), param("s", 8)
    d = op("multiply", op("dense", x, w), s)
    f = fuse(graph([op("multiply", d, scalar(2)), op("multiply", d, r)]))
    assert groups(f) == [["dense", "multiply"], ["multiply"], ["multiply"]]
    f = fuse(graph([op("multiply", d, scalar(2)), op("sum", op("multiply", d, r), axis=1)]))
    assert groups(f) == [["dense", "multiply"], ["multiply"], ["multiply", "sum"]], "the reduction has its prologue"
    a = op("relu", d)
    f = fuse(graph([op("exp", a), op("sqrt", a), op("tanh", d)]))
    assert groups(f)[0] == ["dense", "multiply"] and sum(map(len, groups(f))) == 6


def test_an_epilogue_of_several_outputs_is_left_as_it_is():
    x, w, r = var("x", 4, 8), param("w", 8, 8), var("r", 4, 8)
    d = op("dense", x, w)
    a = op("multiply", op("sigmoid", d), d)
    f = fuse(graph([op("add", a, r), d]))
    assert groups(f) == [["dense", "sigmoid", "multiply", "add"]], "one end, that needs everything"
    n = op("softmax", x)
    f = fuse(graph([op("exp", n), op("sqrt", n)]))
    assert groups(f) == [["softmax", "exp", "sqrt"]], "rows have as many ends as they like"


def test_reduction_takes_what_comes_before_and_after():
    x, y = var("x", 4, 8), var("y", 4, 8)
    f = fuse(graph(op("sqrt", op("sum", op("exp", op("multiply", x, y)), axis=1))))
    assert groups(f) == [["multiply", "exp", "sum", "sqrt"]]


def test_one_thread_does_not_get_the_work_of_all():
    x = var("x", 8, 8)
    total = graph(op("sum", op("exp", x), axis=(0, 1)))
    assert groups(fuse(total)) == [["exp", "sum"]]
    assert groups(fuse(total, serial_elements=63)) == [["exp"], ["sum"]]
    assert groups(fuse(total, serial_elements=64)) == [["exp", "sum"]]
    cheap = graph(op("sum", op("multiply", x, x), axis=(0, 1)))
    assert groups(fuse(cheap, serial_elements=63)) == [["multiply", "sum"]], "cheap nodes cost less than memory does"
    by_row = graph(op("sum", op("exp", x), axis=1))
    assert groups(fuse(by_row, serial_elements=63)) == [["exp", "sum"]], "rows are shared out"


def test_reduction_leaves_what_others_need():
    x, w = var("x", 4, 8), param("w", 8, 8)
    a = op("exp", x)
    f = fuse(graph([op("sum", a, axis=1), op("dense", a, w)]))
    assert groups(f) == [["exp"], ["sum"], ["dense"]]


def test_row_master_takes_a_residual_sum_and_gives_it_out():
    x, r, g, b, w = var("x", 4, 8), var("r", 4, 8), param("g", 8), param("b", 8), param("w", 8, 8)
    s = op("add", x, r)
    n = op("layer_norm", s, g, b)
    f = fuse(graph(op("add", op("dense", n, w), s)))
    assert groups(f) == [["add", "layer_norm"], ["dense", "add"]]
    assert len(f.nodes[[n.op.name for n in f.nodes].index("group")].types) == 2
    e = op("exp", x)
    assert groups(fuse(graph(op("layer_norm", e, g, b)))) == [["exp"], ["layer_norm"]], "exp would run once a pass"
    assert groups(fuse(graph(op("layer_norm", s, g, b)), prologue_nodes=0)) == [["add"], ["layer_norm"]]


def test_no_prologue_into_matmul():
    x, w = var("x", 4, 8), param("w", 8, 8)
    assert groups(fuse(graph(op("dense", op("negative", x), w)))) == [["negative"], ["dense"]]


def test_views_stay_outside():
    x = var("x", 4, 8)
    f = fuse(graph(op("relu", op("reshape", op("transpose", x, axes=(1, 0)), shape=(32,)))))
    assert groups(f) == [["transpose"], ["reshape"], ["relu"]]


def test_a_view_of_a_strided_input_is_a_copy():
    x = var("x", 4, 8)
    g = graph(op("reshape", op("reshape", x, shape=(32,)), shape=(8, 4)))
    assert groups(fuse(g)) == [["reshape"], ["reshape"]]
    f = fuse_graph(g.with_attrs(input_strides=((1, 4),)))
    assert [n.op.name for n in f.nodes if not n.is_variable] == ["group", "reshape"]


def test_rotary_embedding_is_one_kernel():
    x, cos, sin = var("x", 2, 4, 8), var("cos", 4, 8), var("sin", 4, 8)
    x1 = op("slice", x, begin=(0, 0, 0), end=(2, 4, 4))
    x2 = op("slice", x, begin=(0, 0, 4), end=(2, 4, 8))
    rotated = op("concatenate", op("negative", x2), x1, axis=2)
    f = fuse(graph(op("add", op("multiply", x, cos), op("multiply", rotated, sin))))
    assert len(groups(f)) == 1


def test_expensive_value_is_not_read_twice_through_slices():
    x = var("x", 4, 8)
    e = op("exp", x)
    left, right = (op("slice", e, begin=(0, a), end=(4, a + 4)) for a in (0, 4))
    f = fuse(graph(op("concatenate", right, left, axis=1)))
    assert ["exp"] in groups(f)


def test_lstm_step_is_one_kernel():
    g, c = var("g", 2, 32), var("c", 2, 8)
    i, f_, o, z = (op("slice", g, begin=(0, 8 * k), end=(2, 8 * k + 8)) for k in range(4))
    cell = op("add", op("multiply", op("sigmoid", f_), c), op("multiply", op("sigmoid", i), op("tanh", z)))
    f = fuse(graph([op("multiply", op("sigmoid", o), op("tanh", cell)), cell]))
    assert len(groups(f)) == 1 and f.outputs[0].node is f.outputs[1].node


def test_cast_is_computed_again_rather_than_stored():
    x, w = var("x", 4, 8, dt="float64"), var("w", 4, 8)
    c = op("cast", x, dtype="float32")
    s = op("sum", c, axis=1, keepdims=True)
    g = graph(op("multiply", op("softmax", op("multiply", w, s)), c))
    assert sum(names.count("cast") for names in groups(fuse(graph([op("sum", c, axis=0), op("sum", c, axis=1)])))) == 2
    assert sum(names.count("cast") for names in groups(
        fuse(graph([op("sum", c, axis=0), op("sum", c, axis=1)]), recompute_nodes=0))) == 1  # fmt: skip
    fuse(g)


def test_limits_on_nodes_inputs_and_outputs():
    x = var("x", 4)
    y = x
    for _ in range(20):
        y = op("negative", y)
    assert [len(names) for names in groups(fuse(graph(y), nodes=8))] == [8, 8, 4]
    total = x
    for k in range(6):
        total = op("add", total, var(f"v{k}", 4))
    assert len(groups(fuse(graph(total), inputs=4))) == 2 and len(groups(fuse(graph(total)))) == 1
    steps, y = [], x
    for _ in range(6):
        y = op("exp", y)
        steps.append(y)
    assert len(groups(fuse(graph(steps), outputs=3))) == 2 and len(groups(fuse(graph(steps), outputs=6))) == 1


def test_search_limit_refuses_rather_than_risks():
    x, w = var("x", 4, 8), param("w", 8, 8)
    y = op("dense", x, w)
    for _ in range(8):
        y = op("softmax", op("dense", y, w))
    g = graph(op("add", op("dense", x, w), y))
    fuse(g, search=1)


def test_inplace_is_offered_only_where_reads_and_writes_are_at_one_index():
    x, y, s = var("x", 4, 8), var("y", 4, 8), var("s", 8)
    inner = fuse(graph(op("relu", op("add", op("multiply", x, y), s)))).outputs[0].node.attrs["graph"]
    assert inner.attrs["inplace"] == ((0, 0), (1, 0))
    f = fuse(graph(op("add", op("transpose", var("t", 8, 8), axes=(1, 0)), var("u", 8, 8))))
    assert "inplace" not in f.outputs[0].node.attrs["graph"].attrs
    f = fuse(graph(op("equal", x, y)))
    assert "inplace" not in f.outputs[0].node.attrs["graph"].attrs, "four bytes are read, one is written"


def test_opt_level_below_two_fuses_nothing():
    from nnvm.graph.pass_manager import PassContext, apply_passes

    g = graph(op("relu", op("negative", var("x", 4))))
    f = apply_passes(g, ["GraphFuse"], PassContext(opt_level=1))
    assert groups(f) == [["negative"], ["relu"]] and f.attrs["fused"]


@pytest.mark.parametrize("steps", [250])
def test_scales_to_thousands_of_nodes(steps):
    w, u = param("w", 32, 8), param("u", 32, 8)
    h, c = var("h", 1, 8), var("c", 1, 8)
    hs = []
    for t in range(steps):
        gates = op("add", op("dense", var(f"x{t}", 1, 8), w), op("dense", h, u))
        i, f_, o, z = (op("slice", gates, begin=(0, 8 * k), end=(1, 8 * k + 8)) for k in range(4))
        c = op("add", op("multiply", op("sigmoid", f_), c), op("multiply", op("sigmoid", i), op("tanh", z)))
        h = op("multiply", op("sigmoid", o), op("tanh", c))
        hs.append(h)
    g = graph(hs)
    start = time.perf_counter()
    f = fuse_graph(g)
    seconds = time.perf_counter() - start
    assert len([n for n in f.nodes if n.op.name == "group"]) <= 3 * steps + 1
    assert seconds < 20, f"{seconds:.1f} s for {len(g.nodes)} nodes"


def test_reductions_of_one_tensor_are_siblings_on_a_gpu():
    x = var("x", 4, 8)
    deviation = op("sqrt", op("variance", x, axis=(1,)))
    g = graph([op("mean", x, axis=(1,), keepdims=True), deviation, op("max", x, axis=(1,))])
    assert groups(fuse(g, siblings=True)) == [["mean", "variance", "sqrt", "max"]]
    assert len(groups(fuse(g))) == 3


def test_other_axes_other_tensors_and_positions_are_no_siblings():
    x, y = var("x", 6, 6), var("y", 6, 6)
    for pair in ((op("sum", x, axis=(0,)), op("max", x, axis=(1,))), (op("sum", x, axis=(1,)), op("max", y, axis=(1,))),
                 (op("max", x, axis=1), op("argmax", x, axis=1))):  # fmt: skip
        assert len(groups(fuse(graph(list(pair)), siblings=True))) == 2
    # one that needs the other by way of a group between them
    total = op("sum", x, axis=(1,))
    shown = op("dense", op("reshape", total, shape=(1, 6)), param("w", 6, 6))
    scaled = op("sum", op("multiply", x, op("reshape", shown, shape=(6, 1))), axis=(1,))
    assert len(groups(fuse(graph([total, scaled]), siblings=True))) >= 3


@pytest.mark.parametrize("layers", [2, 40])
def test_masks_of_inputs_stand_beside_their_use(layers):
    """Where much of the graph comes between; what is near stays where it is."""
    x, y = var("x", 4, 8), var("y", 4, 8)
    for _ in range(layers):
        y = op("softmax", op("exp", y))
    mask = op("bitwise_or", op("less_equal", x, scalar(0)), op("greater_equal", x, scalar(6)))
    g = graph(op("where", mask, scalar(0), y))
    order = [n.op.name for n in near_users(g, 64) if not (n.is_variable or n.is_constant)]
    masks = ["less_equal", "greater_equal", "bitwise_or"]
    assert order[-4:] == [*masks, "where"] if layers == 40 else order[:3] == masks
    assert [n.op.name for n in g.nodes if n.op.name in order][:3] == masks
    fuse(g)
