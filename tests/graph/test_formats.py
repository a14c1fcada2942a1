"""JSON and DOT."""

import json

import numpy as np
import pytest

from nnvm.compiler.pipeline import pipeline
from nnvm.dim import dim_max, symbol
from nnvm.graph.json import load_json, save_json
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


def test_dot():
    text = apply_passes(residual_network(), pipeline(), PassContext()).dot()
    assert text.startswith("digraph") and text.count("[label") > 10 and "conv2d\\nrelu" in text
    assert text.count("{") == text.count("}") == 1
