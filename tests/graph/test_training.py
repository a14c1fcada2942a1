"""Networks trained with Gradient, compiled, against PyTorch's training: the same losses step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nnvm.symbol as sym
from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.graph import Graph, constant
from nnvm.graph.passes.gradient import gradient
from nnvm.graph.types import TensorType
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory

Tensors = dict[str, torch.Tensor]


def training_step(loss: sym.Symbol, weights: list[str], mirrored: str) -> Graph:
    """(loss, new weights) from the data, the weights and the rate: a step of SGD as one graph."""
    forward = loss.infer_type()
    backward = gradient(forward, weights, [constant(np.float32(1).reshape(()), TensorType(()))], mirrored)
    rate = sym.Variable("rate", ())
    entries = {v.name: v[0] for v in forward.inputs}
    moved = [sym.Symbol([entries[w]]) - rate * sym.Symbol([g]) for w, g in zip(weights, backward.outputs)]
    outputs = (*forward.outputs, *(s.entries[0] for s in moved))
    return Graph(outputs, (*backward.inputs, rate.entries[0].node), {"typed": True})


def train(graph: Graph, arrays: dict[str, np.ndarray], weights: list[str], steps: int) -> list[float]:
    """The losses of `steps` calls of the compiled graph."""
    plan = compile_graph(graph, BuildOptions(verify=True)).plan
    run = Executor(plan, NumpyMemory(), [e.node.attrs["value"] for e in plan.constants])
    values, losses = dict(arrays), []
    for _ in range(steps):
        loss, *moved = run.run([values[v.name] for v in plan.graph.inputs])
        values.update(zip(weights, moved))
        losses.append(float(loss))
    return losses


def torch_losses(
    loss: Callable[[Tensors], torch.Tensor], values: Tensors, weights: list[str], rate: float, steps: int
) -> list[float]:
    values, losses = dict(values), []
    for _ in range(steps):
        leaves = {w: values[w].detach().requires_grad_() for w in weights}
        out = loss({**values, **leaves})
        grads = torch.autograd.grad(out, list(leaves.values()))
        values.update({w: (leaves[w] - rate * g).detach() for w, g in zip(weights, grads)})
        losses.append(out.item())
    return losses


def check_training(
    net: Callable[[dict[str, sym.Symbol]], sym.Symbol], expected: Callable[[Tensors], torch.Tensor],
    shapes: dict[str, tuple[int, ...]], batch: int, classes: int, rate: float, steps: int,
    mirrored: str = "marked",
) -> None:  # fmt: skip
    """`net` and `expected` give logits from the values called in `shapes`, of which `x` is the data."""
    generator = torch.Generator().manual_seed(0)
    values = {k: torch.randn(s, generator=generator) for k, s in shapes.items()}
    weights = [k for k in shapes if k != "x"]
    for w in weights:
        values[w] *= 0.5 if values[w].dim() == 1 else values[w][0].numel() ** -0.5
    labels = torch.randint(0, classes, (batch,), generator=generator)
    values["labels"] = F.one_hot(labels, classes).float()
    symbols = {k: sym.Variable(k, tuple(v.shape)) for k, v in values.items()}
    loss = sym.mean(sym.log_softmax(net(symbols), axis=-1) * symbols["labels"]) * float(-classes)
    graph = training_step(loss, weights, mirrored)
    assert any(n.op.name == "optimization_barrier" for n in graph.nodes) == (mirrored != "marked")
    losses = train(graph, {k: v.numpy() for k, v in {**values, "rate": torch.tensor(rate)}.items()}, weights, steps)
    wanted = torch_losses(lambda v: F.cross_entropy(expected(v), labels), values, weights, rate, steps)
    np.testing.assert_allclose(losses, wanted, rtol=2e-4)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("mirrored", ["marked", "sqrt"])
def test_mlp(mirrored: str) -> None:
    def net(s: dict[str, sym.Symbol]) -> sym.Symbol:
        hidden = sym.relu(sym.dense(s["x"], s["w1"], s["b1"]))
        return sym.dense(sym.tanh(sym.dense(hidden, s["w2"], s["b2"])), s["w3"], s["b3"])

    def expected(v: Tensors) -> torch.Tensor:
        hidden = F.linear(v["x"], v["w1"], v["b1"]).relu()
        return F.linear(F.linear(hidden, v["w2"], v["b2"]).tanh(), v["w3"], v["b3"])

    shapes = {"x": (16, 10), "w1": (32, 10), "b1": (32,), "w2": (24, 32), "b2": (24,), "w3": (4, 24), "b3": (4,)}
    check_training(net, expected, shapes, batch=16, classes=4, rate=0.2, steps=50, mirrored=mirrored)


def test_cnn() -> None:
    def net(s: dict[str, sym.Symbol]) -> sym.Symbol:
        y = sym.relu(sym.conv2d(s["x"], s["w1"], s["b1"], padding=(1, 1)))
        y = sym.max_pool2d(y, pool_size=(2, 2), strides=(2, 2))
        y = sym.group_norm(
            sym.conv2d(y, s["w2"], s["b2"], strides=(2, 2), padding=(1, 1)), s["g"], s["b"], num_groups=4
        )
        y = sym.reshape(sym.global_avg_pool2d(sym.silu(y)), shape=(8, 16))
        return sym.dense(y, s["w3"], s["b3"])

    def expected(v: Tensors) -> torch.Tensor:
        y = F.max_pool2d(F.conv2d(v["x"], v["w1"], v["b1"], padding=1).relu(), 2)
        y = F.group_norm(F.conv2d(y, v["w2"], v["b2"], 2, 1), 4, v["g"], v["b"])
        return F.linear(F.silu(y).mean((2, 3)), v["w3"], v["b3"])

    shapes = {"x": (8, 3, 12, 12), "w1": (8, 3, 3, 3), "b1": (8,), "w2": (16, 8, 3, 3), "b2": (16,), "g": (16,),
              "b": (16,), "w3": (3, 16), "b3": (3,)}  # fmt: skip
    check_training(net, expected, shapes, batch=8, classes=3, rate=0.15, steps=50)


def test_transformer() -> None:
    heads, width, length, batch = 2, 16, 6, 4

    def net(s: dict[str, sym.Symbol]) -> sym.Symbol:
        y = sym.layer_norm(s["x"], s["g1"], s["b1"])
        q, k, v = (
            sym.transpose(sym.reshape(sym.dense(y, s[w]), shape=(batch, length, heads, 8)), axes=(0, 2, 1, 3))
            for w in ("wq", "wk", "wv")
        )
        mixed = sym.transpose(sym.attention(q, k, v, causal=True), axes=(0, 2, 1, 3))
        y = s["x"] + sym.dense(sym.reshape(mixed, shape=(batch, length, width)), s["wo"])
        y = y + sym.dense(sym.gelu(sym.dense(sym.layer_norm(y, s["g2"], s["b2"]), s["w1"])), s["w2"])
        return sym.dense(sym.mean(y, axis=(1,)), s["w3"])

    def expected(v: Tensors) -> torch.Tensor:
        y = F.layer_norm(v["x"], (width,), v["g1"], v["b1"])
        q, k, u = (F.linear(y, v[w]).view(batch, length, heads, 8).transpose(1, 2) for w in ("wq", "wk", "wv"))
        mixed = F.scaled_dot_product_attention(q, k, u, is_causal=True).transpose(1, 2)
        y = v["x"] + F.linear(mixed.reshape(batch, length, width), v["wo"])
        y = y + F.linear(F.gelu(F.linear(F.layer_norm(y, (width,), v["g2"], v["b2"]), v["w1"])), v["w2"])
        return F.linear(y.mean(1), v["w3"])

    square = (width, width)
    shapes = {"x": (batch, length, width), "g1": (width,), "b1": (width,), "wq": square, "wk": square, "wv": square,
              "wo": square, "g2": (width,), "b2": (width,), "w1": (32, width), "w2": (width, 32),
              "w3": (3, width)}  # fmt: skip
    check_training(net, expected, shapes, batch=batch, classes=3, rate=0.1, steps=50)
