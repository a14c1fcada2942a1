"""The benchmark's models as graphs, for ``nnvm show``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from nnvm.bench.errors import BenchError
from nnvm.cli.source import Model
from nnvm.graph import Graph
from nnvm.testing.reference import random_inputs
from nnvm_torch.bench.models.sources import load_model, resolve
from nnvm_torch.capture import CaptureError, capture
from nnvm_torch.imported import NotImportable
from nnvm_torch.tensors import TorchMemory, constant_tensor

__all__ = ["FAULTS", "graph_model", "read_model"]

#: What `graph_model` raises where the model is at fault, with a message for the user.
FAULTS = (BenchError, CaptureError, NotImportable)


def graph_model(spec: str, batch: int, dtype: str) -> Model:
    """The model that `spec` names (``zoo:NAME`` and so on, see ``nnvm bench --help``) as one graph.

    Raises:
        BenchError, CaptureError, NotImportable: there is no such model, or it is no single graph.
    """
    name = resolve(spec)
    case = load_model(name, batch, getattr(torch, dtype), 0)
    found = capture(case.module, case.inputs)
    tensors = [t.detach() for t in found.tensors]
    return Model(spec, found.imported.graph, lambda sizes: list(tensors),
                 lambda e: constant_tensor(e.node.attrs["value"], e.type), TorchMemory(),
                 tuple(map(str, found.imported.fallbacks)))  # fmt: skip


def read_model(name: str, graph: Graph) -> Model:
    """A graph with calls that ATen runs, on random tensors."""

    def tensors(sizes: Mapping[str, int]) -> list[torch.Tensor]:
        return [constant_tensor(a, v[0].type) for v, a in zip(graph.inputs, random_inputs(graph, symbols=sizes))]

    return Model(name, graph, tensors, lambda e: constant_tensor(e.node.attrs["value"], e.type), TorchMemory())
