"""Random weights that make outputs mean something.

A fresh network often starts with zero heads, unit norms and layer scales of 1e-6: whole branches contribute nothing,
and a compiler that drops them still looks right. And batch-norm statistics of a fresh network (0 and 1) do not fit its
activations, so that the signal of a deep one dies out or explodes. Both are repaired here, from a fixed seed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .case import Inputs

__all__ = ["calibrate_batch_norms", "randomize_constant_parameters"]


@torch.no_grad()
def randomize_constant_parameters(module: nn.Module, generator: torch.Generator) -> None:
    """Replaces every parameter whose elements are all equal: about one times U(0.5, 1.5), about zero by small noise."""
    for parameter in module.parameters():
        if parameter.numel() < 2 or not parameter.dtype.is_floating_point:
            continue
        first = parameter.flatten()[0]
        if not bool((parameter == first).all()):
            continue
        value = float(first)
        if abs(value) >= 0.1:
            noise = value * (0.5 + torch.rand(parameter.shape, generator=generator))
        else:
            deviation = 0.1 if parameter.dim() == 1 else 0.02
            noise = deviation * torch.randn(parameter.shape, generator=generator)
        parameter.copy_(noise)


@torch.no_grad()
def calibrate_batch_norms(module: nn.Module, inputs: Inputs, generator: torch.Generator) -> None:
    """Sets running statistics to those of ``inputs``, layer after layer, then disturbs them by about a tenth.

    Every process must get the same weights to the last bit, so the statistics are taken in float64 and rounded to
    bfloat16's eight bits, which hides that a float64 sum depends on how it was split.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]
    if not norms:
        return
    dtypes = {name: tensor.dtype for name, tensor in module.state_dict().items()}

    def measure(layer: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(layer, _BatchNorm) and layer.running_mean is not None and layer.running_var is not None
        x: torch.Tensor = args[0]
        variance, mean = torch.var_mean(x, [axis for axis in range(x.dim()) if axis != 1], correction=0)
        # One value per channel has no variance: leave the unit one.
        variance = torch.where(variance > 1e-6 * (mean * mean + 1e-12), variance, torch.ones_like(variance))
        shift = 0.1 * torch.randn(mean.shape, generator=generator) * variance.sqrt()
        layer.running_mean.copy_((mean + shift).bfloat16())
        layer.running_var.copy_((variance * (0.75 + 0.5 * torch.rand(mean.shape, generator=generator))).bfloat16())

    handles = [layer.register_forward_pre_hook(measure) for layer in norms]
    try:
        module.double()(*(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs))
    finally:
        for handle in handles:
            handle.remove()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            tensor.data = tensor.data.to(dtypes.get(name, tensor.dtype))
