"""nnvm as a ``torch.compile`` backend, and called directly without Dynamo's guards."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from nnvm.bench.engine import Engine, Runner
from nnvm.bench.errors import BenchError

from .base import Setup, torch_runner

__all__ = ["ENGINES"]


def nnvm(setup: Setup) -> Runner:
    """By its registered name; in a source tree that is not installed, by the function itself."""
    if "nnvm" in torch._dynamo.list_backends(exclude_tags=()):
        return torch_runner(torch.compile(setup.module, backend="nnvm"))
    try:
        backend = importlib.import_module("nnvm_torch.backend").nnvm
    except (ModuleNotFoundError, AttributeError):
        raise BenchError("torch.compile does not know the nnvm backend: pip install nnvm-torch") from None
    return torch_runner(torch.compile(setup.module, backend=backend))


def nnvm_direct(setup: Setup) -> Runner:
    compile_module = getattr(importlib.import_module("nnvm_torch"), "compile", None)
    if compile_module is None:
        raise BenchError("this nnvm_torch has no compile(module, example_inputs)")
    return torch_runner(compile_module(setup.module, setup.inputs))


def details() -> dict[str, Any]:
    """What ``nnvm_torch.report()`` says of everything compiled in this process, as plain data."""
    report = importlib.import_module("nnvm_torch").report()
    return {
        "graphs": len(report.graphs),
        "native_fraction": float(report.native_fraction),
        "fallbacks": [
            *(f"of a whole graph: {graph.failure}" for graph in report.graphs if graph.failure),
            *(str(fallback) for fallback in report.fallbacks),
        ],
        "kernels": len(report.kernels),
        "compile_phases": {str(phase): float(seconds) for phase, seconds in report.compile_seconds.items()},
        "graph_breaks": {str(reason): int(count) for reason, count in report.graph_breaks.items()},
        "recompiles": [str(reason) for reason in report.recompiles],
        "prepared_bytes": int(report.prepared_bytes),
    }


ENGINES = (
    Engine("nnvm", "torch.compile(backend='nnvm')", nnvm, details=details),
    Engine("nnvm-direct", "nnvm_torch.compile(module, example_inputs)", nnvm_direct, details=details),
)
