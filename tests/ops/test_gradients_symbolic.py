"""Gradients of graphs with sizes that are known only at the call, compiled, against torch.autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.dim import Dim, symbol
from nnvm.dtype import F64
from nnvm.graph import Graph, NodeEntry, TensorType, apply, variable
from nnvm.graph.passes.gradient import gradient
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.testing.reference import run_graph
from tests.ops.gradient_check import normal

N = symbol("n")


def op(name: str, *inputs: NodeEntry, **attrs: Any) -> NodeEntry:
    return apply(name, inputs, attrs)[0]


def check(net: Any, expected: Any, shapes: dict[str, tuple[Dim, ...]]) -> None:
    """`net` on graph values and `expected` on tensors give one output; the size n is 3 and 5."""
    entries = {k: variable(k, TensorType(s, F64)) for k, s in shapes.items()}
    output = net(**entries)
    graph = gradient(Graph((output,), tuple(e.node for e in entries.values()), {"typed": True}), list(shapes))
    plan = compile_graph(graph, BuildOptions(verify=True)).plan
    run = Executor(plan, NumpyMemory(), [e.node.attrs["value"] for e in plan.constants])
    for n in (3, 5):
        tensors = [normal(*(n if d == N else d for d in s), seed=i) for i, s in enumerate(shapes.values())]
        leaves = [t.clone().requires_grad_() for t in tensors]
        result = expected(*leaves)
        head = normal(*result.shape, seed=9)
        wanted = torch.autograd.grad(result, leaves, head)
        for got, w in zip(run.run([t.numpy() for t in (*tensors, head)]), wanted, strict=True):
            torch.testing.assert_close(torch.from_numpy(got), w, rtol=1e-9, atol=1e-9)


def test_dense_and_norm() -> None:
    def net(x: NodeEntry, w: NodeEntry, b: NodeEntry, g: NodeEntry) -> NodeEntry:
        return op("mean", op("softmax", op("dense", op("layer_norm", x, g, eps=1e-5), w, b), axis=-1), axis=(0,))

    def expected(x: Any, w: Any, b: Any, g: Any) -> Any:
        return F.linear(F.layer_norm(x, (6,), g), w, b).softmax(-1).mean(0)

    check(net, expected, {"x": (2, N, 6), "w": (4, 6), "b": (4,), "g": (6,)})


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_of_a_batch(groups: int) -> None:
    def net(x: NodeEntry, w: NodeEntry) -> NodeEntry:
        return op("max_pool2d", op("conv2d", x, w, strides=(2, 1), padding=((1, 0), (1, 1)), groups=groups),
                  pool_size=(2, 2))  # fmt: skip

    def expected(x: Any, w: Any) -> Any:
        return F.max_pool2d(F.conv2d(F.pad(x, (1, 1, 1, 0)), w, stride=(2, 1), groups=groups), 2)

    check(net, expected, {"x": (N, 4, 8, 7), "w": (6, 4 // groups, 3, 2)})


def test_attention_of_any_length() -> None:
    def net(q: NodeEntry, k: NodeEntry, v: NodeEntry) -> NodeEntry:
        return op("attention", q, k, v, causal=True)

    check(net, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
          {"q": (2, N, 8), "k": (2, N, 8), "v": (2, N, 4)})  # fmt: skip


def test_slices_and_broadcasts() -> None:
    def net(x: NodeEntry, b: NodeEntry) -> NodeEntry:
        part = op("slice", op("add", x, b), begin=(1, None), end=(None, 4))
        return op("sum", part, axis=(0,), keepdims=True)

    check(net, lambda x, b: (x + b)[1:, :4].sum(0, keepdim=True), {"x": (N, 6), "b": (6,)})


def test_mean_over_a_size_that_is_not_known() -> None:
    x = variable("x", TensorType((2, N, 4), F64))
    graph = gradient(Graph((op("mean", x, axis=(1,)),), (x.node,), {"typed": True}), ["x"])
    (got,) = run_graph(graph, [normal(2, 5, 4).numpy(), head := normal(2, 4).numpy()])
    np.testing.assert_allclose(got, np.broadcast_to(head[:, None] / 5, (2, 5, 4)), rtol=1e-12)
