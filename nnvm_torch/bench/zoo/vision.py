"""Vision networks beyond the classic classifiers: ViT-B/16, ConvNeXt-Tiny and a small U-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .layers import conv_bn, initialize_convolutions


class SelfAttention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values. ``[batch, tokens, width]``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, causal: bool = False) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        y: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return y


class EncoderBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps)
        self.attention = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y: torch.Tensor = x + self.mlp(self.norm2(x))
        return y


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. (2020)."""

    def __init__(self, image: int, patch: int, depth: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, width).normal_(std=0.02))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, hidden, 1e-6) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return y


def vit_b_16() -> nn.Module:
    return VisionTransformer(image=224, patch=16, depth=12, width=768, heads=12, hidden=3072)


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of ``[batch, channels, height, width]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y


class ConvNextBlock(nn.Module):
    """7x7 depthwise convolution, then an MLP over the channels (Liu et al., 2022)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 1e-6))
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.project(F.gelu(self.expand(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


def convnext_tiny() -> nn.Module:
    widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        layers += [ConvNextBlock(width) for _ in range(depth)]
        if stage + 1 < len(widths):
            layers += [ChannelNorm(width), nn.Conv2d(width, widths[stage + 1], 2, 2)]
    layers += [nn.AdaptiveAvgPool2d(1), ChannelNorm(widths[-1]), nn.Flatten(1), nn.Linear(widths[-1], 1000)]
    network = nn.Sequential(*layers)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return network


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(conv_bn(inputs, outputs, 3), conv_bn(outputs, outputs, 3))


class UNet(nn.Module):
    """Ronneberger et al. (2015) with padding and batch norm: ``[batch, 3, h, w]`` to ``[batch, classes, h, w]``."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        pairs = list(zip(widths[::-1][:-1], widths[::-1][1:], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(double_conv(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)
        initialize_convolutions(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        y: torch.Tensor = self.head(x)
        return y


def unet_small() -> nn.Module:
    return UNet(width=32, levels=4, classes=4)
