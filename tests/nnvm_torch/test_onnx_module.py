"""`nnvm_torch.from_onnx`: models as modules, against PyTorch."""

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import nnvm_torch  # noqa: E402

F = TensorProto.FLOAT


def network(ops, inputs, outputs, weights):
    infos = [[helper.make_tensor_value_info(n, t, s) for n, (s, t) in v.items()] for v in (inputs, outputs)]
    tensors = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    nodes = [helper.make_node(op, i, o, **attrs) for op, i, o, attrs in ops]
    graph = helper.make_graph(nodes, "g", *infos, initializer=tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.fixture
def perceptron():
    rng = np.random.default_rng(0)
    weights = {"fc.weight": rng.normal(size=(4, 8)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)}
    ops = [("Gemm", ["x", "fc.weight", "b"], ["h"], {"transB": 1}), ("Relu", ["h"], ["y"], {})]
    return network(ops, {"x": (["n", 8], F)}, {"y": (["n", 4], F)}, weights)


def test_a_file_becomes_a_module(perceptron, tmp_path):
    onnx.save(perceptron, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    module = nnvm_torch.from_onnx(tmp_path / "m.onnx")
    weights = dict(module.named_parameters())
    assert {n: tuple(p.shape) for n, p in weights.items()} == {"fc_weight": (4, 8), "b": (4,)}
    for n in (1, 5):
        x = torch.randn(n, 8)
        wanted = torch.relu(x @ weights["fc_weight"].T + weights["b"])
        torch.testing.assert_close(module(x), wanted)
        torch.testing.assert_close(module(x=x.T.contiguous().T), wanted)  # by name, and of other strides


def test_changed_parameters_count(perceptron):
    module = nnvm_torch.from_onnx(perceptron)
    x = torch.randn(3, 8)
    before = module(x)
    state = {n: p + 1 for n, p in module.state_dict().items()}
    module.load_state_dict(state)
    assert not torch.equal(module(x), before)
    torch.testing.assert_close(module(x), torch.relu(x @ state["fc_weight"].T + state["b"]))


def test_several_outputs_and_values_that_decide_shapes():
    ops = [("Reshape", ["x", "s"], ["y"], {}), ("Neg", ["x"], ["z"], {})]
    net = network(ops, {"x": ([2, 3], F), "s": ([1], TensorProto.INT64)}, {"y": (None, F), "z": ([2, 3], F)}, {})
    module = nnvm_torch.from_onnx(net)
    x = torch.randn(2, 3)
    for size in (6, -1):
        y, z = module(x, torch.tensor([size]))
        torch.testing.assert_close(y, x.reshape(6))
        torch.testing.assert_close(z, -x)


def test_wrong_calls_are_errors(perceptron):
    module = nnvm_torch.from_onnx(perceptron)
    with pytest.raises(TypeError, match="the model takes x; got 0 tensors"):
        module()
    with pytest.raises(TypeError, match="input x is float32"):
        module(torch.zeros(2, 8, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"input x is float32\[n, 8\] on the CPU, got \[2, 7\]"):
        module(torch.zeros(2, 7))
