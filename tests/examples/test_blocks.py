"""Examples in the style of NNVM's documentation: small graphs from symbols, built, run and compared with PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import nnvm
import nnvm.compiler
import nnvm.graph
import nnvm.symbol as sym

rng = np.random.default_rng(2)
README = Path(__file__).parents[2] / "README.md"


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def run(net: sym.Symbol, params: dict[str, Any], **inputs: np.ndarray[Any, Any]) -> list[Any]:
    shape = {k: v.shape for k, v in inputs.items()}
    graph, lib, built = nnvm.compiler.build(net, "llvm", shape=shape, params=params)
    module = nnvm.runtime.create(graph, lib)
    module.set_input(**built)
    module.run(**inputs)
    return [module.get_output(i) for i in range(module.get_num_outputs())]


def test_elementwise() -> None:
    x, y = sym.Variable("x"), sym.Variable("y")
    z = sym.elemwise_add(x, sym.sqrt(y))
    graph, lib, _ = nnvm.compiler.build(z, "llvm", shape={"x": (4,)})
    assert graph.index.input_names == ["x", "y"]
    module = nnvm.runtime.create(graph, lib)
    a, b = normal(4), np.abs(normal(4))
    module.set_input(x=a, y=b)
    module.run()
    np.testing.assert_allclose(module.get_output(0), a + np.sqrt(b), rtol=1e-6)
    assert nnvm.graph.create(z).ir().count("sqrt") > 0


def test_a_block_of_convolution_norm_activation_and_pooling() -> None:
    x = sym.Variable("data")
    x = sym.conv2d(x, channels=12, kernel_size=(3, 3), strides=(2, 2), padding=(1, 1), use_bias=False, name="conv")
    x = sym.relu(sym.batch_norm(x, epsilon=1e-3, name="bn"), name="relu")
    net = sym.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), name="pool")
    data = normal(2, 5, 17, 17)
    w, gamma, beta, mean, var = normal(12, 5, 3, 3), normal(12), normal(12), normal(12), np.abs(normal(12)) + 0.1
    params = {"conv_weight": w, "bn_gamma": gamma, "bn_beta": beta, "bn_moving_mean": mean, "bn_moving_var": var}
    assert net.list_input_names() == ["data", *params]
    (got,) = run(net, params, data=data)
    t = {k: torch.from_numpy(v) for k, v in {**params, "data": data}.items()}
    y = F.conv2d(t["data"], t["conv_weight"], stride=2, padding=1)
    y = F.batch_norm(y, t["bn_moving_mean"], t["bn_moving_var"], t["bn_gamma"], t["bn_beta"], eps=1e-3)
    np.testing.assert_allclose(got, F.max_pool2d(y.relu(), 3, 2, 1).numpy(), rtol=1e-4, atol=1e-5)


def test_a_network_of_networks_with_two_outputs() -> None:
    """Composition by call: one encoder on two inputs that share weights, and a group of outputs."""
    encoder = sym.tanh(sym.dense(sym.Variable("data"), sym.Variable("shared_weight"), units=6, use_bias=False))
    a, b = encoder(data=sym.Variable("a")), encoder(data=sym.Variable("b"))
    net = sym.Group([sym.sum(a * b, axis=1, name="similarity"), a])
    assert net.list_input_names() == ["a", "shared_weight", "b"]
    assert net.list_output_names()[0] == "similarity_output"
    w, x, y = normal(6, 4), normal(3, 4), normal(3, 4)
    similarity, first = run(net, {"shared_weight": w}, a=x, b=y)
    np.testing.assert_allclose(first, np.tanh(x @ w.T), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(similarity, (np.tanh(x @ w.T) * np.tanh(y @ w.T)).sum(1), rtol=1e-5, atol=1e-6)


def test_arithmetic() -> None:
    x, y = sym.Variable("x"), sym.Variable("y")
    net = (2 - x) * 3 + (y / 4 - 1) ** 2 - 1 / (abs(-y) + 2) + 2**x
    a, b = normal(5, 3), normal(5, 3)
    (got,) = run(net, {}, x=a, y=b)
    np.testing.assert_allclose(got, (2 - a) * 3 + (b / 4 - 1) ** 2 - 1 / (np.abs(b) + 2) + 2**a, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_symbol() -> None:
    from nnvm.compiler.graph_util import get_gradient_graph
    from nnvm.testing.reference import run_graph

    net = sym.mean(sym.square(sym.dense(sym.Variable("data"), units=3, name="fc")))
    g = get_gradient_graph(net, ["fc_weight", "fc_bias"], data=(4, 5))
    values = {v.name: normal(*v[0].type.shape) for v in g.inputs}
    data, w, b = (torch.from_numpy(values[k]) for k in ("data", "fc_weight", "fc_bias"))
    wanted = torch.autograd.grad(F.linear(data, w.requires_grad_(), b.requires_grad_()).square().mean(), [w, b])
    for got, grad in zip(run_graph(g, values), wanted, strict=True):
        np.testing.assert_allclose(got, grad.numpy(), rtol=1e-4, atol=1e-6)


def test_the_example_of_the_readme() -> None:
    """Runs as it stands there."""
    (block,) = re.findall(r"```python symbol\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, str(README), "exec"), names)
    assert names["module"].get_output(0).shape == (1, 10)
