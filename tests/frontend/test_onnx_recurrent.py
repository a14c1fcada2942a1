"""Recurrent layers in all their forms against ONNX Runtime."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import Backend  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, SIZE, HIDDEN = 4, 3, 5, 2


@pytest.mark.parametrize("op, attrs, lengths", [
    ("LSTM", {}, True), ("LSTM", {"direction": "bidirectional"}, True), ("LSTM", {"direction": "reverse"}, True),
    ("GRU", {"clip": 0.3}, False), ("RNN", {"clip": 0.3}, False),
    ("LSTM", {"activations": ["HardSigmoid", "ScaledTanh", "Affine"], "activation_alpha": [0.3, 0.9, 1.2],
              "activation_beta": [0.4, 0.8, 0.1]}, False),
    ("GRU", {"direction": "bidirectional"}, True), ("GRU", {"linear_before_reset": 1}, False),
    ("GRU", {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.2]}, False),
    ("RNN", {"activations": ["Elu"], "activation_alpha": [0.5]}, False), ("RNN", {"activations": ["Relu"]}, True),
])  # fmt: skip
def test_recurrent(op, attrs, lengths):
    rng = np.random.default_rng(5)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    d, gates = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op]
    weights = {"w": normal(d, gates * HIDDEN, SIZE), "r": normal(d, gates * HIDDEN, HIDDEN),
               "b": normal(d, 2 * gates * HIDDEN), "h0": normal(d, BATCH, HIDDEN)}  # fmt: skip
    if lengths:
        weights["n"] = np.array([2, 4, 1], np.int32)
    names = ["x", "w", "r", "b", "n" if lengths else "", "h0"]
    node = helper.make_node(op, names, ["y", "h"], hidden_size=HIDDEN, **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, [STEPS, BATCH, SIZE])],
        [helper.make_tensor_value_info(n, 1, None) for n in ("y", "h")],
        initializer=[numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    x = normal(STEPS, BATCH, SIZE)
    session = ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(Backend.run_model(net, [x]), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5)


@pytest.mark.parametrize("op, attrs", [
    ("LSTM", {}), ("LSTM", {"direction": "bidirectional"}), ("GRU", {"linear_before_reset": 1, "direction": "reverse"}),
    ("RNN", {"direction": "bidirectional"}), ("RNN", {"activations": ["Relu"]}),
])  # fmt: skip
@pytest.mark.parametrize("whole", [True, False])
def test_sequences_of_any_length(op, attrs, whole):
    """One kernel for all, in a graph that is no longer for a longer sequence; with all inputs, and with the least."""
    rng = np.random.default_rng(6)
    d, gates, states = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op], 2 if op == "LSTM" else 1
    size = HIDDEN + 17

    def normal(*shape):
        return (rng.normal(size=shape) * 0.3).astype(np.float32)

    weights = {"w": normal(d, gates * size, SIZE), "r": normal(d, gates * size, size)}
    if whole:
        weights |= {"b": normal(d, 2 * gates * size), **{f"s{i}": normal(d, BATCH, size) for i in range(states)}}
    names = ["x", "w", "r", *(["b", "", *(f"s{i}" for i in range(states))] if whole else ())]
    outputs = ["y", "h", "c"][: 1 + states]
    node = helper.make_node(op, names, outputs, hidden_size=size, **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, ["T", BATCH, SIZE])],
        [helper.make_tensor_value_info(n, 1, None) for n in outputs],
        initializer=[numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    prepared = Backend.prepare(net)
    for steps in (3, 600, 1):
        x = normal(steps, BATCH, SIZE)
        for ours, theirs in zip(prepared.run([x]), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5)
