"""A model with inputs, ready to be compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["Inputs", "ModelCase", "fresh_inputs"]

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class ModelCase:
    """A module in eval mode with example inputs.

    Attributes:
        draw: makes inputs from a generator, where ``fresh_inputs`` would make wrong ones; None otherwise.
    """

    module: nn.Module
    inputs: Inputs
    draw: Callable[[torch.Generator], Inputs] | None = None

    def fresh(self, seed: int, index: int) -> Inputs:
        """Inputs number ``index``: the same in every process, never those of another index."""
        generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + index)
        if self.draw is not None:
            return tuple(self.draw(generator))
        return fresh_inputs(self.inputs, generator)


def fresh_inputs(example: Inputs, generator: torch.Generator) -> Inputs:
    """New random inputs that are as valid as ``example``.

    A float tensor keeps its mean and deviation (unit deviation where it has none, so that zeros do not stay zeros); an
    integer tensor is uniform between its own smallest and largest value, so ids stay in the vocabulary. Booleans, float
    tensors with infinities (masks) and everything that is no tensor are taken as they are.
    """
    return tuple(fresh_tensor(x, generator) if isinstance(x, torch.Tensor) else x for x in example)


def fresh_tensor(example: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if example.numel() == 0 or example.dtype == torch.bool or example.dtype.is_complex:
        return example
    if not example.dtype.is_floating_point:
        low, high = int(example.min()), int(example.max())
        return torch.randint(low, high + 1, example.shape, generator=generator, dtype=example.dtype)
    wide = example.double()
    if not bool(wide.isfinite().all()):
        return example
    deviation = float(wide.std()) if example.numel() > 1 else 0.0
    noise = torch.randn(example.shape, generator=generator)
    return (float(wide.mean()) + (deviation or 1.0) * noise).to(example.dtype)
