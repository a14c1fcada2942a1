"""MobileNetV2 (Sandler et al., 2018), MobileNetV3 (Howard et al., 2019) and EfficientNet-B0 (Tan and Le, 2019)."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from .layers import (
    ModuleFactory,
    Residual,
    SqueezeExcite,
    conv_bn,
    hardswish,
    initialize_convolutions,
    relu,
    relu6,
    round_channels,
    silu,
)


def inverted_residual(
    inputs: int,
    expanded: int,
    outputs: int,
    kernel: int,
    stride: int,
    activation: ModuleFactory,
    eps: float = 1e-5,
    squeeze: SqueezeExcite | None = None,
) -> nn.Module:
    """1x1 expansion, depthwise convolution, optional squeeze-excite, 1x1 projection; residual if shapes allow."""
    layers: list[nn.Module] = []
    if expanded != inputs:
        layers.append(conv_bn(inputs, expanded, activation=activation, eps=eps))
    layers.append(conv_bn(expanded, expanded, kernel, stride, groups=expanded, activation=activation, eps=eps))
    if squeeze is not None:
        layers.append(squeeze)
    layers.append(conv_bn(expanded, outputs, activation=None, eps=eps))
    body = nn.Sequential(*layers)
    return Residual(body) if stride == 1 and inputs == outputs else body


def classifier(features: list[nn.Module], head: list[nn.Module]) -> nn.Module:
    network = nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), *head)
    initialize_convolutions(network)
    return network


def mobilenet_v2() -> nn.Module:
    features: list[nn.Module] = [conv_bn(3, 32, 3, 2, activation=relu6)]
    channels = 32
    # expansion, output channels, repeats, stride of the first
    for expansion, outputs, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for index in range(repeats):
            first = stride if index == 0 else 1
            features.append(inverted_residual(channels, channels * expansion, outputs, 3, first, relu6))
            channels = outputs
    features.append(conv_bn(channels, 1280, activation=relu6))
    return classifier(features, [nn.Dropout(0.2), nn.Linear(1280, 1000)])


class V3Row(NamedTuple):
    """One block of MobileNetV3 as the paper's tables 1 and 2 list it."""

    inputs: int
    kernel: int
    expanded: int
    outputs: int
    squeeze: bool
    hard: bool
    stride: int


V3_LARGE = (
    V3Row(16, 3, 16, 16, False, False, 1),
    V3Row(16, 3, 64, 24, False, False, 2),
    V3Row(24, 3, 72, 24, False, False, 1),
    V3Row(24, 5, 72, 40, True, False, 2),
    V3Row(40, 5, 120, 40, True, False, 1),
    V3Row(40, 5, 120, 40, True, False, 1),
    V3Row(40, 3, 240, 80, False, True, 2),
    V3Row(80, 3, 200, 80, False, True, 1),
    V3Row(80, 3, 184, 80, False, True, 1),
    V3Row(80, 3, 184, 80, False, True, 1),
    V3Row(80, 3, 480, 112, True, True, 1),
    V3Row(112, 3, 672, 112, True, True, 1),
    V3Row(112, 5, 672, 160, True, True, 2),
    V3Row(160, 5, 960, 160, True, True, 1),
    V3Row(160, 5, 960, 160, True, True, 1),
)
V3_SMALL = (
    V3Row(16, 3, 16, 16, True, False, 2),
    V3Row(16, 3, 72, 24, False, False, 2),
    V3Row(24, 3, 88, 24, False, False, 1),
    V3Row(24, 5, 96, 40, True, True, 2),
    V3Row(40, 5, 240, 40, True, True, 1),
    V3Row(40, 5, 240, 40, True, True, 1),
    V3Row(40, 5, 120, 48, True, True, 1),
    V3Row(48, 5, 144, 48, True, True, 1),
    V3Row(48, 5, 288, 96, True, True, 2),
    V3Row(96, 5, 576, 96, True, True, 1),
    V3Row(96, 5, 576, 96, True, True, 1),
)


def mobilenet_v3(rows: tuple[V3Row, ...], hidden: int) -> nn.Module:
    eps = 0.001
    features: list[nn.Module] = [conv_bn(3, 16, 3, 2, activation=hardswish, eps=eps)]
    for row in rows:
        squeeze = None
        if row.squeeze:
            squeeze = SqueezeExcite(row.expanded, round_channels(row.expanded / 4), relu, nn.Hardsigmoid)
        activation = hardswish if row.hard else relu
        features.append(
            inverted_residual(row.inputs, row.expanded, row.outputs, row.kernel, row.stride, activation, eps, squeeze)
        )
    last = rows[-1].outputs
    features.append(conv_bn(last, 6 * last, activation=hardswish, eps=eps))
    head = [nn.Linear(6 * last, hidden), hardswish(), nn.Dropout(0.2), nn.Linear(hidden, 1000)]
    return classifier(features, head)


def mobilenet_v3_large() -> nn.Module:
    return mobilenet_v3(V3_LARGE, 1280)


def mobilenet_v3_small() -> nn.Module:
    return mobilenet_v3(V3_SMALL, 1024)


def efficientnet_b0() -> nn.Module:
    features: list[nn.Module] = [conv_bn(3, 32, 3, 2, activation=silu)]
    channels = 32
    # expansion, kernel, stride of the first, output channels, repeats
    for expansion, kernel, stride, outputs, repeats in (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    ):
        for index in range(repeats):
            expanded = channels * expansion
            # The squeeze is a quarter of the block's *input*, unlike MobileNetV3's quarter of the expansion.
            squeeze = SqueezeExcite(expanded, max(1, channels // 4), silu, nn.Sigmoid)
            first = stride if index == 0 else 1
            features.append(inverted_residual(channels, expanded, outputs, kernel, first, silu, squeeze=squeeze))
            channels = outputs
    features.append(conv_bn(channels, 1280, activation=silu))
    return classifier(features, [nn.Dropout(0.2), nn.Linear(1280, 1000)])
