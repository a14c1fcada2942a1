"""The few building blocks that the convolutional networks of the zoo share."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

ModuleFactory = Callable[[], nn.Module]

relu: ModuleFactory = functools.partial(nn.ReLU, inplace=True)
relu6: ModuleFactory = functools.partial(nn.ReLU6, inplace=True)
silu: ModuleFactory = functools.partial(nn.SiLU, inplace=True)
hardswish: ModuleFactory = functools.partial(nn.Hardswish, inplace=True)


def round_channels(channels: float, divisor: int = 8) -> int:
    """Rounds to a multiple of ``divisor`` without going down by more than a tenth (the MobileNet papers' rule)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: ModuleFactory | None = relu,
    eps: float = 1e-5,
) -> nn.Sequential:
    """Convolution without bias (padded to keep the size at stride 1), batch norm, and an activation if one is given."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=eps),
    ]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from the mean of every channel (Hu et al., 2018)."""

    def __init__(self, channels: int, squeezed: int, activation: ModuleFactory, gate: ModuleFactory) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.activation = activation()
        self.gate = gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: torch.Tensor = self.gate(self.expand(self.activation(self.reduce(self.pool(x)))))
        return scale * x


class Residual(nn.Module):
    """``x + body(x)``."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return x + y


def initialize_convolutions(module: nn.Module) -> None:
    """Kaiming-normal (fan out) convolutions and N(0, 0.01) linear layers, as the published networks start."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.01)
            nn.init.zeros_(layer.bias)
