"""Real networks in plain torch, so that the benchmark needs no other package.

Each has the layers, shapes and parameter count of the published network; only the weights are random. Nothing here is
tuned to what any engine does well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from . import classic, mobilenet, resnet, sequence, vision

MakeInputs = Callable[[int], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class ZooModel:
    """One network: how to build it, inputs for a batch size, and the published number of parameters."""

    build: Callable[[], nn.Module]
    inputs: MakeInputs
    parameters: int
    summary: str


def image(size: int = 224) -> MakeInputs:
    """Images ``[batch, 3, size, size]``."""
    return lambda batch: (torch.randn(batch, 3, size, size),)


def tokens(length: int, vocabulary: int, mask: bool = False) -> MakeInputs:
    """Token ids ``[batch, length]`` that reach both ends of the vocabulary, and a padding mask if asked for."""

    def make(batch: int) -> tuple[torch.Tensor, ...]:
        ids = torch.randint(0, vocabulary, (batch, length))
        ids[0, :2] = torch.tensor([0, vocabulary - 1])
        if not mask:
            return (ids,)
        present = torch.ones(batch, length, dtype=torch.int64)
        present[:, length * 3 // 4 :] = 0
        return ids, present

    return make


def decode_step(batch: int) -> tuple[torch.Tensor, ...]:
    cache = (batch, 4, sequence.LLAMA_PAST, 64)
    return torch.randn(batch, 1, 2048), torch.randn(cache), torch.randn(cache)


def features(width: int) -> MakeInputs:
    return lambda batch: (torch.randn(batch, width),)


ZOO: dict[str, ZooModel] = {
    "resnet18": ZooModel(resnet.resnet18, image(), 11_689_512, "residual network, 18 layers"),
    "resnet34": ZooModel(resnet.resnet34, image(), 21_797_672, "residual network, 34 layers"),
    "resnet50": ZooModel(resnet.resnet50, image(), 25_557_032, "residual network with bottlenecks"),
    "resnet101": ZooModel(resnet.resnet101, image(), 44_549_160, "residual network with bottlenecks, deep"),
    "mobilenet_v2": ZooModel(mobilenet.mobilenet_v2, image(), 3_504_872, "depthwise convolutions, ReLU6"),
    "mobilenet_v3_large": ZooModel(mobilenet.mobilenet_v3_large, image(), 5_483_032, "with squeeze-excite, hardswish"),
    "mobilenet_v3_small": ZooModel(mobilenet.mobilenet_v3_small, image(), 2_542_856, "the same for tiny budgets"),
    "efficientnet_b0": ZooModel(mobilenet.efficientnet_b0, image(), 5_288_548, "squeeze-excite and SiLU"),
    "squeezenet1_1": ZooModel(classic.squeezenet1_1, image(), 1_235_496, "fire modules, ceil-mode pooling"),
    "alexnet": ZooModel(classic.alexnet, image(), 61_100_840, "large kernels, very large linear layers"),
    "vgg16": ZooModel(classic.vgg16, image(), 138_357_544, "plain 3x3 convolutions, large linear layers"),
    "densenet121": ZooModel(classic.densenet121, image(), 7_978_856, "concatenations, batch norm before convolution"),
    "vit_b_16": ZooModel(vision.vit_b_16, image(), 86_567_656, "vision transformer"),
    "convnext_tiny": ZooModel(vision.convnext_tiny, image(), 28_589_128, "7x7 depthwise, layer norm over channels"),
    "unet_small": ZooModel(vision.unet_small, image(128), 1_927_108, "segmentation, transposed convolutions"),
    "lstm_classifier": ZooModel(
        sequence.lstm_classifier, tokens(64, 10_000), 3_615_242, "two-layer LSTM over 64 tokens"
    ),
    "gru_classifier": ZooModel(sequence.gru_classifier, tokens(64, 10_000), 3_352_074, "two-layer GRU over 64 tokens"),
    "mlp": ZooModel(sequence.mlp, features(64), 85_002, "three small linear layers: the cost of a call"),
    "minilm": ZooModel(sequence.minilm, tokens(128, 30522, mask=True), 22_713_216, "sentence encoder, 6 layers of 384"),
    "distilbert": ZooModel(sequence.distilbert, tokens(128, 30522, mask=True), 66_362_880, "6 layers of 768"),
    "bert_base": ZooModel(sequence.bert_base, tokens(128, 30522, mask=True), 109_482_240, "12 layers of 768"),
    "gpt2_prefill": ZooModel(sequence.gpt2_prefill, tokens(128, 50257), 124_439_808, "causal decoder, 128 tokens"),
    "llama_block_decode": ZooModel(
        sequence.llama_block_decode, decode_step, 44_044_288, "one block, one token, 511 cached"
    ),
}
