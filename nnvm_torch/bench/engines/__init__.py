"""What modules can run in. One row of ``ENGINES`` an engine; ``find_engine`` also makes one for any Dynamo backend."""

from __future__ import annotations

from nnvm.bench.engine import Engine, Runner, Side, lookup

from . import nnvm_engines, onnx_engines, torch_engines
from .base import Setup

__all__ = ["ENGINES", "TORCH", "Engine", "Runner", "Setup", "find_engine"]

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (*torch_engines.ENGINES, *nnvm_engines.ENGINES, *onnx_engines.ENGINES)
}


def find_engine(name: str) -> Engine:
    """The engine of that name; ``backend:NAME`` is ``torch.compile(backend=NAME)``. BenchError if there is none."""
    if name.startswith("backend:") and len(name) > len("backend:"):
        return torch_engines.dynamo_backend(name)
    return lookup(name, ENGINES, ", backend:NAME")


#: Models of PyTorch.
TORCH = Side("nnvm_torch.bench.worker", ENGINES, find_engine)
