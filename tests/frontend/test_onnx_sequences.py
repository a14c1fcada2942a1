"""Sequences that begin and end inside a model, against ONNX Runtime."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import UnsupportedModel, from_onnx  # noqa: E402
from nnvm.testing.reference import run_graph  # noqa: E402

FLOAT = TensorProto.FLOAT


def node(op, inputs, outputs, **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def model(nodes, outputs, weights=()):
    initial = [numpy_helper.from_array(np.asarray(a, np.int64), n) for n, a in dict(weights).items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [6, 4])],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs],
        initial,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agree(m):
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    want = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    graph, params = from_onnx(m)
    for g, w in zip(run_graph(graph, {"x": x, **params}), want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5)
        assert g.dtype == w.dtype


def test_built_changed_and_read():
    agree(
        model(
            [
                node("Neg", "x", "a"),
                node("SequenceConstruct", "x a", "s"),
                node("Abs", "x", "b"),
                node("SequenceInsert", "s b one", "t"),
                node("SequenceInsert", "t b", "u"),
                node("SequenceErase", "u zero", "v"),
                node("SequenceErase", "v", "w"),
                node("Identity", "w", "w2"),
                node("SequenceAt", "w2 minus", "y"),
                node("SequenceLength", "v", "n"),
                node("ConcatFromSequence", "v", "joined", axis=1),
                node("ConcatFromSequence", "v", "stacked", axis=-1, new_axis=1),
            ],
            [("y", FLOAT), ("n", TensorProto.INT64), ("joined", FLOAT), ("stacked", FLOAT)],
            {"one": 1, "zero": 0, "minus": -1},
        )
    )


@pytest.mark.parametrize(
    "split, attrs",
    [
        (None, {"axis": 1}),
        (None, {"keepdims": 0}),
        (4, {}),
        ([1, 3, 2], {}),
        ([3, 1], {"axis": -1}),
    ],
)
def test_pieces(split, attrs):
    inputs, weights = ("x", {}) if split is None else ("x split", {"split": split})
    nodes = [
        node("SplitToSequence", inputs, "s", **attrs),
        node("SequenceAt", "s at", "y"),
        node("SequenceLength", "s", "n"),
    ]
    agree(model(nodes, [("y", FLOAT), ("n", TensorProto.INT64)], {**weights, "at": 1}))


def test_a_loop_that_collects():
    body = helper.make_graph(
        [
            node("Gather", "x i", "row"),
            node("Relu", "row", "kept"),
            node("SequenceInsert", "s kept", "t"),
            node("Identity", "going", "still"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("s", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("t", FLOAT, None),
        ],
    )
    nodes = [
        node("SequenceEmpty", "", "none", dtype=FLOAT),
        helper.make_node("Loop", ["trips", "", "none"], ["all"], body=body),
        node("ConcatFromSequence", "all", "y", axis=0, new_axis=1),
    ]
    agree(model(nodes, [("y", FLOAT)], {"trips": 3}))


def test_a_body_for_each():
    body = helper.make_graph(
        [node("Mul", "a b", "c")],
        "body",
        [helper.make_tensor_value_info(n, FLOAT, None) for n in "ab"],
        [helper.make_tensor_value_info("c", FLOAT, None)],
    )
    nodes = [
        node("SplitToSequence", "x", "s"),
        helper.make_node("SequenceMap", ["s", "x"], ["t"], body=body),
        node("ConcatFromSequence", "t", "y", axis=0),
    ]
    agree(model(nodes, [("y", FLOAT)]))


def test_what_is_refused():
    for nodes, weights, message in (
        (
            [node("SequenceConstruct", "x", "s"), node("SequenceAt", "s at", "y")],
            {"at": 3},
            "position 3 in a sequence of 1",
        ),
        ([node("SequenceAt", "x at", "y")], {"at": 0}, "input 0 is no sequence"),
        (
            [node("SequenceConstruct", "x", "s"), node("Relu", "s", "y")],
            {},
            "a sequence of 1 tensors, where one tensor",
        ),
        ([node("SequenceConstruct", "x", "y")], {}, "a sequence of 1 tensors"),
        ([node("SplitToSequence", "x n", "s"), node("SequenceAt", "s n", "y")], {"n": 0}, "pieces of 0"),
        ([node("NonMaxSuppression", "x x", "y")], {}, "the number of results depends on the values of floats"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            from_onnx(model(nodes, [("y", FLOAT)], weights))
