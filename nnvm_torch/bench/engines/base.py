"""What an engine of PyTorch's side is given, and how tensors become arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from nnvm.bench.engine import Array, Runner

from ..models.case import Inputs

__all__ = ["Setup", "arrays_of", "tensors_of", "torch_runner"]


@dataclass(frozen=True)
class Setup:
    """What an engine is given. ``folder`` is its own, empty, and removed with the worker."""

    module: nn.Module
    inputs: Inputs
    threads: int
    cores: tuple[int, ...]
    folder: Path


def tensors_of(answer: Any) -> list[torch.Tensor]:
    """The tensors in a model's answer, whatever holds them."""
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def arrays_of(answer: Any) -> list[Array]:
    """The same as arrays; floats, of which numpy lacks a type, as float64."""
    return [(x.double() if x.is_floating_point() else x).detach().numpy() for x in tensors_of(answer)]


def torch_runner(function: Callable[..., Any]) -> Runner:
    """For engines that take and return tensors."""
    return Runner(lambda inputs: function(*inputs), lambda inputs: inputs, arrays_of)
