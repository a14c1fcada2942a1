"""EliminateIdentity, CanonicalizeMatmul, CanonicalizeReshape."""

import pytest

from nnvm.dim import symbol
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.testing.assert_graph_equal import assert_graph_equal
from tests.graph.build import graph, op, ops, param, scalar, var
from tests.graph.compare import checked, work


def identity(g):
    return checked(g, "EliminateIdentity")


def matmul(g):
    return checked(g, "CanonicalizeMatmul")


def reshape(g, **kw):
    return checked(g, "CanonicalizeReshape", **kw)


def test_copies_whole_slices_and_empty_reshapes_go():
    x = var("x", 2, 3)
    y = op("slice", op("identity", x), begin=(0, 0), end=(2, 3))
    y = op("reshape", op("broadcast_to", op("cast", y, dtype="float32"), shape=(2, 3)), shape=(2, 3))
    assert_graph_equal(identity(graph(op("relu", y))), graph(op("relu", x)))
    part = graph(op("slice", x, begin=(0, 0), end=(2, 2)))
    assert identity(part).outputs == part.outputs


@pytest.mark.parametrize(("first", "second", "left"), [
    ("float16", "float32", 0), ("bfloat16", "float32", 0), ("int32", "float64", 0), ("bool", "int64", 0),
    ("int64", "int32", 2), ("float64", "float32", 2), ("int32", "float32", 2), ("int8", "uint8", 2),
])  # fmt: skip
def test_pairs_of_casts_go_where_nothing_is_lost(first, second, left):
    x = var("x", 3, dt=first)
    assert len(ops(identity(graph(op("cast", op("cast", x, dtype=second), dtype=first))))) == left


def test_a_chain_of_casts_is_shortened():
    x = var("x", 3, dt="float16")
    assert ops(identity(graph(op("cast", op("cast", x, dtype="float32"), dtype="float64")))) == ["cast"]


def test_broadcasts_go_where_the_reader_broadcasts():
    v, x = var("v", 1, 3), var("x", 2, 3)
    assert ops(identity(graph(op("add", op("broadcast_to", v, shape=(2, 3)), x)))) == ["add"]
    assert ops(identity(graph(op("add", *[op("broadcast_to", v, shape=(2, 3))] * 2)))) == ["broadcast_to", "add"], (
        "one of them gives the shape")  # fmt: skip
    moved = identity(graph(op("exp", op("broadcast_to", v, shape=(2, 3)))))
    assert ops(moved) == ["exp", "broadcast_to"]
    a, b = var("a", 1, 4, 3), var("b", 5, 3, 2)
    spread = op("broadcast_to", a, shape=(5, 4, 3))
    assert ops(identity(graph(op("matmul", spread, b)))) == ["matmul"]


def test_transposes_merge_cancel_or_are_views():
    x = var("x", 2, 3, 4)
    t = op("transpose", op("transpose", x, axes=(1, 2, 0)), axes=(2, 0, 1))
    assert ops(matmul(graph(op("relu", t)))) == ["relu"]
    assert ops(matmul(graph(op("transpose", op("transpose", x, axes=(1, 0, 2)), axes=(2, 0, 1))))) == ["transpose"]
    assert ops(matmul(graph(op("transpose", var("y", 1, 3, 4), axes=(1, 0, 2))))) == ["reshape"]
    assert ops(matmul(graph(op("transpose", x, axes=(1, 0, 2))))) == ["transpose"]


def test_transposes_go_into_products():
    a, b = var("a", 2, 4, 3), var("b", 2, 5, 4)
    m = matmul(graph(op("matmul", op("transpose", a, axes=(0, 2, 1)), op("transpose", b, axes=(0, 2, 1)))))
    assert ops(m) == ["matmul"] and m.outputs[0].node.attrs == {"transpose_a": True, "transpose_b": True}
    back = matmul(graph(op("matmul", op("transpose", a, axes=(0, 2, 1)), var("c", 2, 3, 5), transpose_a=True)))
    assert ops(back) == ["matmul"] and not back.outputs[0].node.attrs["transpose_a"]
    c = var("c", 4, 2, 5)
    assert ops(matmul(graph(op("matmul", op("transpose", c, axes=(1, 0, 2)), b)))) == ["transpose", "matmul"]


def test_products_with_weights_are_dense():
    x = var("x", 2, 3, 4)
    assert ops(matmul(graph(op("matmul", x, param("w", 4, 5))))) == ["transpose", "dense"]
    assert ops(matmul(graph(op("matmul", x, op("transpose", param("w", 5, 4), axes=(1, 0)))))) == ["dense"]
    assert ops(matmul(graph(op("matmul", x, param("w", 5, 4), transpose_b=True)))) == ["dense"]
    assert ops(matmul(graph(op("matmul", x, var("w", 4, 5))))) == ["matmul"], "no weight"
    assert ops(matmul(graph(op("matmul", x, param("w", 2, 4, 5))))) == ["matmul"], "a batch of weights"


def test_linear_layers_stand_side_by_side():
    x = var("x", 2, 3, 8)
    w, v = param("w", 16, 8), param("v", 8, 16)
    h = op("reshape", op("dense", op("reshape", x, shape=(6, 8)), w), shape=(2, 3, 16))
    y = op("reshape", op("dense", op("reshape", op("gelu", h), shape=(6, 16)), v), shape=(2, 3, 8))
    g = reshape(graph(op("layer_norm", op("add", y, x), param("g", 8), param("b", 8))))
    assert ops(g) == ["reshape", "dense", "gelu", "dense", "reshape", "add", "layer_norm"] or work(g) == [
        "dense", "gelu", "dense", "add", "layer_norm"]  # fmt: skip
    order = [n.op.name for n in g.nodes if not n.is_variable]
    between = order[order.index("dense") : len(order) - order[::-1].index("dense")]
    assert "reshape" not in between


def test_residuals_take_the_shape_of_the_matrix():
    x, w = var("x", 2, 3, 8), param("w", 8, 8)
    r = op("exp", x)
    y = op("reshape", op("dense", op("reshape", r, shape=(6, 8)), w), shape=(2, 3, 8))
    g = reshape(graph(op("softmax", op("add", op("multiply", y, param("s", 8)), r), axis=2)))
    assert work(g) == ["exp", "dense", "multiply", "add", "softmax"] and g.outputs[0].node.op.name == "reshape"


def test_dense_layers_work_on_matrices():
    n = symbol("n")
    g = apply_passes(graph(op("dense", var("x", 2, n, 8), param("w", 4, 8))).with_attrs(typed=True),
                     ["CanonicalizeReshape"], PassContext(verify=True))  # fmt: skip
    assert ops(g) == ["reshape", "dense", "reshape"]
    assert g.outputs[0].type.shape == (2, n, 4) and g.nodes[3].types[0].shape == (2 * n, 4)


def test_what_stops_a_view():
    x, w = var("x", 2, 3, 8), param("w", 8, 24)
    flat = op("dense", op("reshape", x, shape=(2, 24)), w)
    assert ops(reshape(graph(flat))) == ["reshape", "dense"], "the last axis changes"
    y = op("reshape", op("exp", var("y", 6, 8)), shape=(2, 3, 8))
    other = op("add", y, var("p", 3, 8))
    assert ops(reshape(graph(other))) == ["exp", "reshape", "add"], "the other operand broadcasts along what is merged"
    both = op("add", y, op("exp", x))
    assert ops(reshape(graph(both)))[-1] == "add", "the other operand would lose its own fusion"


def test_chains_of_views_are_one():
    x = var("x", 2, 3, 4)
    y = op("expand_dims", op("flatten", op("squeeze", op("reshape", x, shape=(2, 1, 12)), axis=1)), axis=0)
    assert ops(reshape(graph(op("relu", op("reshape", y, shape=(2, 3, 4)))))) == ["relu"]
    assert ops(reshape(graph(op("transpose", y, axes=(1, 0, 2))))) == ["reshape", "transpose"]


def test_batched_products_of_merged_heads():
    q, k = var("q", 2, 4, 5, 8), var("k", 2, 4, 6, 8)
    a, b = op("reshape", q, shape=(8, 5, 8)), op("reshape", k, shape=(8, 6, 8))
    s = op("reshape", op("matmul", a, b, transpose_b=True), shape=(2, 4, 5, 6))
    assert ops(reshape(graph(op("softmax", op("multiply", s, scalar(0.5)), axis=-1)))) == [
        "matmul", "multiply", "softmax"]  # fmt: skip
    c = op("reshape", var("c", 4, 2, 6, 8), shape=(8, 6, 8))
    assert ops(reshape(graph(op("matmul", a, c, transpose_b=True)))) == ["reshape", "matmul", "reshape"]
    lone = op("reshape", var("d", 2, 20, 8), shape=(8, 5, 8))
    assert ops(reshape(graph(op("matmul", lone, b, transpose_b=True)))) == ["reshape", "reshape", "matmul"]


def test_heads_out_of_one_projection():
    qkv = var("x", 1, 5, 24)
    q = op("slice", qkv, begin=(0, 0, 8), end=(1, 5, 16))
    heads = op("transpose", op("reshape", q, shape=(1, 5, 2, 4)), axes=(0, 2, 1, 3))
    assert ops(reshape(graph(heads))) == ["reshape", "slice", "transpose"]
    odd = op("slice", qkv, begin=(0, 0, 6), end=(1, 5, 14))
    assert ops(reshape(graph(op("reshape", odd, shape=(1, 5, 2, 4))))) == ["slice", "reshape"]


def test_patches_become_a_sequence_in_one_step():
    x = var("x", 2, 8, 3, 5)
    y = op("transpose", op("reshape", x, shape=(2, 8, 15)), axes=(0, 2, 1))
    g = reshape(graph(op("layer_norm", y, param("g", 8), param("b", 8))))
    assert ops(g) == ["transpose", "layer_norm", "reshape"] and g.nodes[1].attrs["axes"] == (0, 2, 3, 1)
