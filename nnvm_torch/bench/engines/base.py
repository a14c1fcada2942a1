"""What an engine is: a way to make a model callable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..models.case import Inputs

__all__ = ["Engine", "Runner", "Setup", "tensors_of"]


@dataclass(frozen=True)
class Setup:
    """What an engine is given. ``folder`` is its own, empty, and removed with the worker."""

    module: nn.Module
    inputs: Inputs
    threads: int
    cores: tuple[int, ...]
    folder: Path


@dataclass(frozen=True)
class Runner:
    """A compiled model. Only ``call`` is timed; ``convert`` and ``outputs`` are the way in and out.

    Attributes:
        call: takes what ``convert`` made.
        convert: torch inputs to the engine's own.
        outputs: the engine's answer to its tensors, in order.
    """

    call: Callable[[Any], Any]
    convert: Callable[[Inputs], Any]
    outputs: Callable[[Any], list[torch.Tensor]]


@dataclass(frozen=True)
class Engine:
    """One row of the comparison.

    Attributes:
        prepare: compiles; what it leaves to the first call is counted as compile time too.
        packages: what must be importable (the pip names are the same).
        openmp: its kernels run on torch's OpenMP pool, whose threads are then bound to one core each.
        details: after the first call, facts for the JSON: compile phases, fallbacks, kernels.
    """

    name: str
    summary: str
    prepare: Callable[[Setup], Runner]
    packages: tuple[str, ...] = ()
    openmp: bool = True
    details: Callable[[], dict[str, Any]] = dict


def tensors_of(answer: Any) -> list[torch.Tensor]:
    """The tensors in a model's answer, whatever holds them."""
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def torch_runner(function: Callable[..., Any]) -> Runner:
    """For engines that take and return tensors."""
    return Runner(lambda inputs: function(*inputs), lambda inputs: inputs, tensors_of)
