"""Compares an op's gradients with those of torch.autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.dtype import dtype
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.graph.passes.gradient import gradient
from nnvm.graph.verify import verify
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.testing.reference import run_graph


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uniform(*shape: int, low: float, high: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(shape, dtype=torch.float64, generator=generator) * (high - low) + low


def run_compiled(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """The outputs of the graph, by native code."""
    plan = compile_graph(graph, BuildOptions(verify=True)).plan
    return Executor(plan, NumpyMemory(), [e.node.attrs["value"] for e in plan.constants]).run(arrays)


def check_gradient(
    op: str, inputs: Sequence[torch.Tensor], expected: Callable[..., Any], tolerance: float = 1e-9,
    run: Callable[..., Any] = run_graph, **attrs: Any,
) -> None:  # fmt: skip
    """The gradients of op `op` by its float inputs are those of the torch function `expected`."""
    types = [TensorType(tuple(t.shape), dtype(str(t.dtype).removeprefix("torch."))) for t in inputs]
    entries = [variable(f"p{i}", t) for i, t in enumerate(types)]
    node = apply(op, entries, attrs)
    graph = Graph(node.outputs, tuple(e.node for e in entries), {"typed": True})
    wrt = [e.node.name for e in entries if e.type.dtype.is_float]
    backward = gradient(graph, wrt)
    verify(backward, f"gradient of {op}")

    leaves = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
    result = expected(*leaves)
    floats = [t for t in ([result] if isinstance(result, torch.Tensor) else result) if t.is_floating_point()]
    assert [tuple(t.shape) for t in floats] == [e.type.shape for e in node.outputs if e.type.dtype.is_float]
    heads = [normal(*t.shape, seed=7 + i) for i, t in enumerate(floats)]
    by = [t for t in leaves if t.is_floating_point()]
    wanted = torch.autograd.grad(floats, by, heads, allow_unused=True, materialize_grads=True)
    got = run(backward, [t.numpy() for t in (*inputs, *heads)])
    for name, g, w in zip(wrt, got, wanted, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(g.copy()), w, rtol=tolerance, atol=tolerance, equal_nan=True,
            msg=lambda m: f"{op} {attrs} by {name}: {m}",  # noqa: B023
        )  # fmt: skip
