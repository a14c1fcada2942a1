"""JSON and DOT."""

import contextlib
import copy
import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnvm
import nnvm.symbol as sym
from nnvm.attribute import AttrScope
from nnvm.compiler.pipeline import pipeline
from nnvm.dim import dim_max, symbol
from nnvm.dtype import BOOL, F32, I8, DType
from nnvm.graph import Graph, OpPattern, TensorType, apply, variable
from nnvm.graph.json import decode_value, encode_value, load_json, register_value, save_json
from nnvm.graph.op import get, known
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.verify import verify
from nnvm.testing.assert_graph_equal import assert_graph_equal
from tests.graph.build import const, graph, op, param, scalar, var
from tests.graph.test_pipeline import residual_network, transformer_layer


@pytest.mark.parametrize("build", [residual_network, transformer_layer])
def test_json_and_back(build):
    for g in (build(), apply_passes(build(), pipeline(), PassContext())):
        again = verify(load_json(save_json(g)))
        assert_graph_equal(again, g)
        assert [n.name for n in again.nodes] == [n.name for n in g.nodes]
        assert save_json(again) == save_json(g)


def test_json_keeps_what_literals_cannot_say():
    n = symbol("n")
    x = var("x", n, 4)
    y = op("add", op("reshape", x, shape=(2 * n, 2)), const(np.array([[1.5, np.nan]], np.float32)))
    z = op("clip", y, a_min=-float("inf"), a_max=float("inf"))
    w = op("pad", z, pad_width=((0, dim_max(n, 3) // 2 % 5 - 1), (0, 0)))
    g = graph(op("multiply", op("cast", w, dtype="float16"), scalar(2, "float16")), x, param("unused", 3))
    again = load_json(g.with_attrs(output_strides=((1, 2 * n),)).json())
    assert_graph_equal(again, g)
    assert again.attrs["output_strides"] == ((1, 2 * n),) and again.inputs[1].name == "unused"


def test_json_is_nnvms():
    data = json.loads(graph(op("dense", var("x", 2, 3), param("w", 4, 3), at="fc")).json())
    assert data["arg_nodes"] == [0, 1] and data["heads"] == [[2, 0, 0]] and data["node_row_ptr"] == [0, 1, 2, 3]
    assert [n["op"] for n in data["nodes"]] == ["null", "null", "dense"] and data["nodes"][2]["name"] == "fc"
    assert data["nodes"][2]["inputs"] == [[0, 0, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="NNVM"):
        load_json("{}")


def netron_accepts(data):
    """What Netron's reader of this format (mxnet.js) takes for granted, down to the fields of nodes."""
    assert all(isinstance(data[key], list) for key in ("nodes", "arg_nodes", "heads", "node_row_ptr"))
    nodes, rows = data["nodes"], data["node_row_ptr"]
    assert len(rows) == len(nodes) + 1 and rows[0] == 0 and all(a < b for a, b in itertools.pairwise(rows))
    assert len({n["name"] for n in nodes}) == len(nodes)
    for i, n in enumerate(nodes):
        assert type(n["op"]) is str and type(n["name"]) is str and set(n) == {"op", "name", "attrs", "inputs"}
        assert all(type(k) is str and type(v) is str for k, v in n["attrs"].items())
        for source in n["inputs"]:
            at, index, version = source
            assert 0 <= at < i and 0 <= index < rows[at + 1] - rows[at] and version == 0
    for at in data["arg_nodes"]:
        assert nodes[at]["op"] == "null" and nodes[at]["inputs"] == []
    assert sorted(data["arg_nodes"]) == [i for i, n in enumerate(nodes) if n["op"] == "null"]
    for at, index, version in data["heads"]:
        assert 0 <= index < rows[at + 1] - rows[at] and version == 0
    kind, version = data["attrs"]["nnvm_version"]
    assert kind == "int" and type(version) is int


@pytest.mark.parametrize("build", [residual_network, transformer_layer])
def test_json_has_the_structure_that_netron_reads(build):
    for g in (build(), apply_passes(build(), pipeline(), PassContext())):
        netron_accepts(json.loads(g.json()))
    x = var("x", 3, 4)
    halves = apply("split", [x], {"indices_or_sections": 2, "axis": 1})
    netron_accepts(json.loads(graph([halves[1], op("relu", halves[0]), x], x, var("unused", 2)).json()))


def test_types_are_readable_and_exact():
    n = symbol("n")
    g = graph(op("reshape", op("exp", var("x", n, 4)), shape=(2 * n, 2)))
    data = json.loads(g.json())
    assert [node["attrs"]["output types"] for node in data["nodes"]] == ["float32[n, 4]", "float32[n, 4]",
                                                                         "float32[2*n, 2]"]  # fmt: skip
    own = DType("handle", "u", 8)
    for t in (TensorType((dim_max(n, 3), 4), F32), TensorType((2, 3), F32, "cuda:0", "NCHW8c"), TensorType(()),
              TensorType((1,), own), TensorType((4,), F32, "a place", "two words")):  # fmt: skip
        (again,) = load_json(graph(variable("x", t)).json()).inputs
        assert again.types == (t,)


N = symbol("n")
ARRAYS = [np.float32(1.5), np.int64(-3), np.bool_(True), np.arange(6.0).reshape(2, 3), np.zeros((0, 2), np.int32)]
LEAVES = [
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(),
    st.sampled_from([F32, I8, BOOL]), st.sampled_from([N, N * 2 + 1, N // 3 % 5, dim_max(N, 3)]),
    st.builds(TensorType, st.tuples(st.integers(0, 5), st.just(N)), st.sampled_from([F32, I8])),
    st.sampled_from(ARRAYS),
]  # fmt: skip
VALUES = st.recursive(
    st.one_of(LEAVES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VALUES)
def test_any_value_comes_back_the_same(value):
    same_value(decode_value(encode_value(value)), value)


def same_value(got, want):
    assert type(got) is type(want)
    if isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            same_value(a, b)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same_value(got[key], want[key])
    elif isinstance(want, (np.ndarray, np.generic)):
        assert got.dtype == want.dtype and np.shape(got) == np.shape(want) and np.array_equal(got, want)
    else:
        assert got == want and repr(got) == repr(want)


def test_every_kind_of_parameter_comes_back():
    """Of every op: its defaults, and what its `convert` makes of values that it takes."""
    candidates = (0, 1, 2, 0.5, True, "float32", "NCHW", "constant", "add", (0, 1), (1, 1), ((1, 1), (0, 2)), None,
                  (symbol("n"), 2), -float("inf"), "mean", "NK16n", OpPattern.INJECTIVE, np.float32(2))  # fmt: skip
    seen = 0
    for name in known():
        for key, parameter in get(name).params.items():
            values = [] if parameter.required else [parameter.default]
            for c in candidates:
                with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError, IndexError):
                    values.append(parameter.convert(c))
            for value in values:
                if isinstance(value, (Graph, OpPattern)):
                    continue  # normalised back by the op; see test_json_and_back
                same_value(decode_value(encode_value(value)), value)
                seen += 1
            assert values or key in ("graph", "call", "types"), f"{name}.{key}: nothing was tried"
    assert seen > 200


def test_users_notes_and_names_are_kept():
    with AttrScope(types="mine", source=("a", 1.5), mirror=True):
        x = op("relu", var("x", 2), at="a; b [1] %")
    again = load_json(graph(x).json())
    assert again.outputs[0].node.attrs == x.node.attrs and again.outputs[0].node.name == "a; b [1] %"
    assert again.outputs[0].node.types == x.node.types


def test_what_cannot_be_written_is_named():
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        encode_value((1, object()))
    with pytest.raises(ValueError, match="no value is written as 'alien'"):
        decode_value('{"alien": 1}')


def test_frontends_may_add_kinds_of_values():
    class Point(tuple):
        pass

    register_value("point", Point, list, lambda data: Point(data))
    same_value(decode_value(encode_value({"at": Point((1, 2))})), {"at": Point((1, 2))})
    with pytest.raises(ValueError, match="registered already, for Point"):
        register_value("point", Point, list, tuple)


def test_dot():
    text = apply_passes(residual_network(), pipeline(), PassContext()).dot()
    assert text.startswith("digraph") and text.count("[label") > 10 and "conv2d\\nrelu" in text
    assert text.count("{") == text.count("}") == 1


def test_copies_and_pickles():
    x = sym.Variable("x", shape=(2, 3))
    net = sym.dense(x * 2, units=4, name="fc")
    again = pickle.loads(pickle.dumps(net))
    assert again.tojson() == net.tojson() and again.infer_shape()[1] == [(2, 4)]
    g = nnvm.graph.create(net).apply("InferType")
    for other in (copy.copy(g), copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert_graph_equal(other, g)
        assert all(a.op is b.op for a, b in zip(other.nodes, g.nodes, strict=True))
    assert copy.deepcopy(g).with_attrs(mine=1).attrs != g.attrs
    op = nnvm.graph.get("relu")
    assert copy.deepcopy(op) is op and pickle.loads(pickle.dumps(op)) is op


def test_deep_graphs_are_copied_and_pickled():
    net = sym.Variable("x")
    for _ in range(3000):
        net = sym.tanh(net)
    g = nnvm.graph.create(net)
    assert len(copy.deepcopy(g).nodes) == len(pickle.loads(pickle.dumps(g)).nodes) == 3001


def test_cycles_are_told():
    a = nnvm.graph.apply("relu", [nnvm.graph.variable("x")], name="a")
    b = nnvm.graph.apply("exp", [nnvm.graph.apply("tanh", [a[0]], name="t")[0]], name="b")
    a.inputs = (b[0],)  # which nothing but a fault does
    for use in (Graph.ir, Graph.json, Graph.dot, lambda g: g.apply("InferType"), nnvm.compiler.build):
        with pytest.raises(ValueError, match="b and a depend on each other"):
            use(Graph((b[0],), ()))
