"""ResNet (He et al., 2015), in the variant with the stride on the 3x3 convolution of a bottleneck."""

from __future__ import annotations

import torch
from torch import nn

from .layers import conv_bn, initialize_convolutions


class Block(nn.Module):
    """``relu(body(x) + shortcut(x))``; the shortcut is a strided 1x1 convolution wherever the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        if bottleneck:
            layers = [
                conv_bn(inputs, width),
                conv_bn(width, width, 3, stride),
                conv_bn(width, outputs, activation=None),
            ]
        else:
            layers = [conv_bn(inputs, width, 3, stride), conv_bn(width, outputs, 3, activation=None)]
        self.body = nn.Sequential(*layers)
        changes = stride != 1 or inputs != outputs
        self.shortcut = conv_bn(inputs, outputs, stride=stride, activation=None) if changes else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


def resnet(depths: tuple[int, int, int, int], bottleneck: bool) -> nn.Module:
    """A classifier of 1000 classes for images ``[batch, 3, 224, 224]``."""
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(Block(channels, width, stride, bottleneck))
            channels = width * 4 if bottleneck else width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, 1000)]
    network = nn.Sequential(*layers)
    initialize_convolutions(network)
    return network


def resnet18() -> nn.Module:
    return resnet((2, 2, 2, 2), bottleneck=False)


def resnet34() -> nn.Module:
    return resnet((3, 4, 6, 3), bottleneck=False)


def resnet50() -> nn.Module:
    return resnet((3, 4, 6, 3), bottleneck=True)


def resnet101() -> nn.Module:
    return resnet((3, 4, 23, 3), bottleneck=True)
