"""Engines that come with PyTorch: eager, Inductor in three settings, and any other Dynamo backend."""

from __future__ import annotations

import torch

from nnvm.bench.engine import Engine, Runner
from nnvm.bench.errors import BenchError

from .base import Setup, torch_runner

__all__ = ["ENGINES", "dynamo_backend"]


def eager(setup: Setup) -> Runner:
    return torch_runner(setup.module)


def inductor(setup: Setup) -> Runner:
    return torch_runner(torch.compile(setup.module, backend="inductor"))


def inductor_freezing(setup: Setup) -> Runner:
    from torch._inductor import config

    config.freezing = True
    return inductor(setup)


def inductor_max_autotune(setup: Setup) -> Runner:
    """Max-autotune with freezing: Inductor's C++ matmul templates for the CPU need constant weights."""
    from torch._inductor import config

    config.freezing = True
    return torch_runner(torch.compile(setup.module, backend="inductor", mode="max-autotune"))


def dynamo_backend(name: str) -> Engine:
    """The engine ``backend:NAME``."""
    backend = name.removeprefix("backend:")

    def prepare(setup: Setup) -> Runner:
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise BenchError(f"torch.compile has no backend {backend!r}; known: {', '.join(known)}")
        return torch_runner(torch.compile(setup.module, backend=backend))

    return Engine(name, f"torch.compile(backend={backend!r})", prepare)


ENGINES = (
    Engine("eager", "PyTorch as it is", eager),
    Engine("inductor", "torch.compile, its default backend", inductor),
    Engine("inductor-freezing", "the same with weights as constants", inductor_freezing),
    Engine("inductor-max-autotune", "the same with freezing and measured kernels", inductor_max_autotune),
)
