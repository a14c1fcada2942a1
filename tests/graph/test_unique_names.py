"""Nodes of one name: each gets its own on the way into a graph, and values and shapes stay right."""

import numpy as np

import nnvm
import nnvm.symbol as sym
from nnvm.graph import Graph, apply, variable
from nnvm.graph.types import TensorType
from nnvm.graph.unique_names import with_unique_names
from nnvm.graph.verify import verify


def test_nodes_of_one_name_compute_what_they_say():
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (4, 5), (4, 5)))
    v = sym.Variable("x")
    products = [sym.relu(sym.matmul(v, sym.exp(sym.Variable(p), name="t"), name="y"), name="x") for p in ("w", "b")]
    with nnvm.compiler.build_config(verify=True):
        graph, lib, params = nnvm.compiler.build(sym.Group(products), shape={"x": x.shape}, params={"w": w, "b": b})
    module = nnvm.runtime.create(graph, lib)
    module.set_input(**params)
    module.run(x=x)
    for i, p in enumerate((w, b)):
        np.testing.assert_allclose(module.get_output(i), np.maximum(x @ np.exp(p), 0), rtol=1e-5)


def test_what_is_known_of_one_node_is_not_said_of_another():
    x, y = sym.Variable("x"), sym.Variable("y")
    same = sym.elemwise_add(x, sym.exp(x), name="sum")
    assert sym.broadcast_add(same, y, name="sum").infer_shape(x=(3, 4), y=(4,))[1] == [(3, 4)]
    numbers = sym.Group([sym.add(x, 1, name="n"), sym.add(sym.cast(x, dtype="int32"), 2, name="n")])
    assert [e.type.dtype.name for e in numbers.infer_type(x=TensorType((3,))).outputs] == ["float32", "int32"]


def test_variables_keep_their_names_and_free_names_are_found():
    v = variable("x", TensorType((3,)))
    a = apply("relu", [v], name="x_1")[0]
    b = apply("exp", [apply("abs", [a], name="x")[0]], name="x")[0]
    graph = verify(with_unique_names(Graph((b, a), (v.node,))))
    assert [n.name for n in graph.nodes] == ["x", "x_1", "x_2", "x_3"]
    assert [n.op.name for n in graph.nodes] == ["variable", "relu", "abs", "exp"]
    assert with_unique_names(graph) is graph


def test_symbols_of_json_with_names_twice():
    x = sym.Variable("x")
    net = sym.load_json(sym.Group([sym.add(x, 1, name="n"), sym.subtract(x, 2, name="n")]).tojson())
    assert net.list_output_names() == ["n_output", "n_1_output"]
    assert net.infer_shape(x=(2,))[1] == [(2,), (2,)]
