"""AlexNet, VGG-16, SqueezeNet 1.1 and DenseNet-121: without batch norm, with ceil-mode pooling, with concatenations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from .layers import initialize_convolutions, relu


def alexnet() -> nn.Module:
    """Krizhevsky's "one weird trick" variant (2014)."""
    network = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), relu(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), relu(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), relu(), nn.Conv2d(384, 256, 3, padding=1), relu()),
        *(nn.Conv2d(256, 256, 3, padding=1), relu(), nn.MaxPool2d(3, 2)),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten(1)),
        *(nn.Dropout(), nn.Linear(256 * 36, 4096), relu(), nn.Dropout(), nn.Linear(4096, 4096), relu()),
        nn.Linear(4096, 1000),
    )
    initialize_convolutions(network)
    return network


def vgg16() -> nn.Module:
    """Simonyan and Zisserman (2014), configuration D, without batch norm."""
    layers: list[nn.Module] = []
    channels = 3
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers += [nn.Conv2d(channels, width, 3, padding=1), relu()]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(1)]
    layers += [nn.Linear(512 * 49, 4096), relu(), nn.Dropout(), nn.Linear(4096, 4096), relu(), nn.Dropout()]
    network = nn.Sequential(*layers, nn.Linear(4096, 1000))
    initialize_convolutions(network)
    return network


class Fire(nn.Module):
    """Squeezes to few channels, then expands by a 1x1 and a 3x3 convolution side by side (Iandola et al., 2016)."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.expand1x1(x)), torch.relu(self.expand3x3(x))], 1)


def squeezenet1_1() -> nn.Module:
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    network = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 2), relu(), pool()),
        *(Fire(64, 16, 64), Fire(128, 16, 64), pool()),
        *(Fire(128, 32, 128), Fire(256, 32, 128), pool()),
        *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
        *(nn.Dropout(), nn.Conv2d(512, 1000, 1), relu(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1)),
    )
    initialize_convolutions(network)
    return network


def norm_relu_conv(inputs: int, outputs: int, kernel: int) -> Iterator[nn.Module]:
    yield from (nn.BatchNorm2d(inputs), relu(), nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False))


class DenseLayer(nn.Module):
    """Appends ``growth`` new channels, computed from all channels so far (Huang et al., 2017)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*norm_relu_conv(inputs, 4 * growth, 1), *norm_relu_conv(4 * growth, growth, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121() -> nn.Module:
    growth, channels = 32, 64
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), relu(), nn.MaxPool2d(3, 2, 1))
    ]
    depths = (6, 12, 24, 16)
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if stage + 1 < len(depths):
            layers += [*norm_relu_conv(channels, channels // 2, 1), nn.AvgPool2d(2, 2)]
            channels //= 2
    layers += [nn.BatchNorm2d(channels), relu(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, 1000)]
    network = nn.Sequential(*layers)
    initialize_convolutions(network)
    return network
