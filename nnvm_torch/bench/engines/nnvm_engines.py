"""nnvm as a ``torch.compile`` backend, and called directly without Dynamo's guards."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..errors import BenchError
from .base import Engine, Runner, Setup, torch_runner

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
    """What ``nnvm_torch.report()`` says of everything compiled in this process; empty where it has none."""
    report_function = getattr(importlib.import_module("nnvm_torch"), "report", None)
    if report_function is None:
        return {}
    report = report_function()
    facts: dict[str, Any] = {}
    fraction = getattr(report, "native_fraction", None)
    if fraction is not None:
        facts["native_fraction"] = float(fraction)
    for name in ("fallbacks", "graph_breaks", "recompiles"):
        found = getattr(report, name, None)
        if found is not None:
            facts[name] = [str(entry) for entry in found] if not isinstance(found, int) else found
    kernels = getattr(report, "kernels", None)
    if kernels is not None:
        facts["kernels"] = len(kernels)
    phases = getattr(report, "compile_seconds", None)
    if isinstance(phases, dict):
        facts["compile_phases"] = {str(phase): float(seconds) for phase, seconds in phases.items()}
    return facts


ENGINES = (
    Engine("nnvm", "torch.compile(backend='nnvm')", nnvm, details=details),
    Engine("nnvm-direct", "nnvm_torch.compile(module, example_inputs)", nnvm_direct, details=details),
)
