"""The benchmark's models as graphs, for ``nnvm show``."""

from __future__ import annotations

import torch

from nnvm.cli.source import Model
from nnvm_torch.bench.errors import BenchError
from nnvm_torch.bench.models.sources import load_model, resolve
from nnvm_torch.capture import CaptureError, capture
from nnvm_torch.fx_importer import NotImportable
from nnvm_torch.tensors import TorchMemory, constant_tensor

__all__ = ["FAULTS", "graph_model"]

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
