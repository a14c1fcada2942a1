"""Every network of the benchmark's zoo in small: the same blocks, fewer and narrower, on small inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from nnvm_torch.bench.models.randomize import calibrate_batch_norms, randomize_constant_parameters
from nnvm_torch.bench.zoo import classic, sequence, tokens, vision
from nnvm_torch.bench.zoo.layers import SqueezeExcite, conv_bn, relu, relu6, silu
from nnvm_torch.bench.zoo.mobilenet import V3Row, inverted_residual, mobilenet_v3
from nnvm_torch.bench.zoo.resnet import Block

__all__ = ["SMALL", "small"]

Inputs = tuple[torch.Tensor, ...]


def _classifier(*layers: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, 10))


def _resnet(bottleneck: bool, repeats: int) -> nn.Module:
    width = 4 if bottleneck else 1
    blocks = [Block(16 if i == 0 else 8 * width, 8, 1, bottleneck) for i in range(repeats)]
    tail = Block(8 * width, 16, 2, bottleneck)
    return _classifier(conv_bn(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, tail, channels=16 * width)


def _mobilenet_v2() -> nn.Module:
    rows = [inverted_residual(16, 48, 16, 3, 1, relu6), inverted_residual(16, 48, 24, 3, 2, relu6)]
    return _classifier(conv_bn(3, 16, 3, 2, activation=relu6), *rows, nn.Dropout(0.2), channels=24)


def _mobilenet_v3(hard: bool) -> nn.Module:
    rows = ((3, 16, 16, True, hard, 2), (5, 40, 16, True, True, 1), (3, 40, 24, False, hard, 1))
    return mobilenet_v3(tuple(V3Row(16, *row) for row in rows), 32)


def _efficientnet() -> nn.Module:
    def block(a: int, b: int, kernel: int, stride: int) -> nn.Module:
        squeeze = SqueezeExcite(2 * a, a // 4, silu, nn.Sigmoid)
        return inverted_residual(a, 2 * a, b, kernel, stride, silu, squeeze=squeeze)

    return _classifier(conv_bn(3, 16, 3, 2, activation=silu), block(16, 16, 3, 1), block(16, 24, 5, 2), channels=24)


def _alexnet() -> nn.Module:
    first = (nn.Conv2d(3, 16, 11, 4, 2), relu(), nn.MaxPool2d(3, 2), nn.Conv2d(16, 24, 5, padding=2), relu())
    last = (nn.AdaptiveAvgPool2d(2), nn.Flatten(1), nn.Dropout(), nn.Linear(96, 64), relu(), nn.Linear(64, 10))
    return nn.Sequential(*first, *last)


def _vgg() -> nn.Module:
    first = (nn.Conv2d(3, 16, 3, padding=1), relu(), nn.Conv2d(16, 16, 3, padding=1), relu(), nn.MaxPool2d(2, 2))
    last = (nn.Conv2d(16, 32, 3, padding=1), relu(), nn.MaxPool2d(2, 2), nn.Flatten(1), nn.Linear(32 * 16, 10))
    return nn.Sequential(*first, *last)


def _squeezenet() -> nn.Module:
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    first = (nn.Conv2d(3, 16, 3, 2), relu(), pool(), classic.Fire(16, 4, 12), classic.Fire(24, 8, 16), pool())
    return nn.Sequential(*first, nn.Conv2d(32, 10, 1), relu(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1))


def _densenet() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), *(classic.DenseLayer(16 + 8 * i, 8) for i in range(3))]
    tail = [*classic.norm_relu_conv(40, 16, 1), nn.AvgPool2d(2, 2), classic.DenseLayer(16, 8), nn.BatchNorm2d(24)]
    return _classifier(*layers, *tail, relu(), channels=24)


def _convnext() -> nn.Module:
    block = vision.ConvNextBlock(16)
    with torch.no_grad():
        block.scale.normal_()
    down = (vision.ChannelNorm(16), nn.Conv2d(16, 24, 2, 2), vision.ConvNextBlock(24))
    return _classifier(nn.Conv2d(3, 16, 4, 4), vision.ChannelNorm(16), block, *down, channels=24)


def _recurrent(cell: type[nn.LSTM] | type[nn.GRU]) -> Callable[[], nn.Module]:
    return lambda: sequence.RecurrentClassifier(cell, 50, 16, 5)


def _image(size: int) -> Callable[[], Inputs]:
    return lambda: (torch.randn(1, 3, size, size),)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def _masked() -> Inputs:
    return tokens(12, 30522, mask=True)(1)


#: The zoo's name -> (builds the network, makes inputs).
SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "resnet18": (lambda: _resnet(False, 1), _image(24)),
    "resnet34": (lambda: _resnet(False, 2), _image(24)),
    "resnet50": (lambda: _resnet(True, 1), _image(24)),
    "resnet101": (lambda: _resnet(True, 2), _image(24)),
    "mobilenet_v2": (_mobilenet_v2, _image(20)),
    "mobilenet_v3_large": (lambda: _mobilenet_v3(False), _image(20)),
    "mobilenet_v3_small": (lambda: _mobilenet_v3(True), _image(16)),
    "efficientnet_b0": (_efficientnet, _image(20)),
    "squeezenet1_1": (_squeezenet, _image(32)),
    "alexnet": (_alexnet, _image(48)),
    "vgg16": (_vgg, _image(16)),
    "densenet121": (_densenet, _image(16)),
    "vit_b_16": (lambda: vision.VisionTransformer(16, 4, 2, 32, 4, 64), _image(16)),
    "convnext_tiny": (_convnext, _image(32)),
    "unet_small": (lambda: vision.UNet(8, 3, 4), _image(16)),
    "lstm_classifier": (_recurrent(nn.LSTM), lambda: tokens(4, 50)(2)),
    "gru_classifier": (_recurrent(nn.GRU), lambda: tokens(4, 50)(2)),
    "mlp": (_mlp, lambda: (torch.randn(2, 16),)),
    "minilm": (lambda: sequence.Bert(24, 2, 4), _masked),
    "distilbert": (lambda: sequence.Bert(32, 2, 4, segments=False, pooler=False), _masked),
    "bert_base": (lambda: sequence.Bert(32, 2, 2), _masked),
    "gpt2_prefill": (lambda: sequence.Gpt2(32, 2, 4, 60, 16), lambda: tokens(9, 60)(1)),
    "llama_block_decode": (lambda: sequence.LlamaDecodeBlock(32, 4, 2, 48, 7),
                           lambda: (torch.randn(1, 1, 32), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8))),
}  # fmt: skip


@cache
def small(name: str) -> tuple[nn.Module, Any]:
    """The network in inference mode with random weights and statistics, and its inputs; the same in every process."""
    build, inputs = SMALL[name]
    torch.manual_seed(0)
    module, args = build().eval(), inputs()
    generator = torch.Generator().manual_seed(0)
    randomize_constant_parameters(module, generator)
    calibrate_batch_norms(module, args, generator)
    return module, args
