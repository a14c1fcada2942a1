"""Sizes known at the call only: one compilation for all of them, with eager's answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from import_capture import same
from torch import nn

import nnvm_torch


class Encoder(nn.Module):
    """Learned positions cut to the sequence, attention with a mask, a pooled head: what depends on a parameter and on a
    size at once."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, width), nn.Parameter(torch.randn(1, 64, width))
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions[:, : ids.shape[1]] * 0.5
        q, k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in self.qkv)
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
        return self.head(self.norm(x + y.transpose(1, 2).flatten(2))).amax(1)


def residual(channels: int) -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(channels, 2 * channels, 3, 2, 1)
            self.b = nn.Conv2d(2 * channels, 2 * channels, 3, 1, 1)
            self.short = nn.Conv2d(channels, 2 * channels, 1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.b(torch.relu(self.a(x))) + self.short(x))

    return Residual()


def compiled(m: nn.Module) -> Any:
    torch._dynamo.reset()
    nnvm_torch.reset()
    return torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True)


def test_lengths_of_a_sequence() -> None:
    m = Encoder().eval()
    run = compiled(m)
    with torch.no_grad():
        for batch, length in ((2, 9), (3, 17), (2, 64), (5, 30), (7, 2)):
            ids, mask = torch.randint(0, 50, (batch, length)), torch.rand(batch, length) < 0.8
            mask[:, 0] = True
            same(run(ids, mask), m(ids, mask), atol=1e-5, rtol=1e-4)
    assert len(nnvm_torch.report().graphs) <= 2
    assert not any(g.fallbacks for g in nnvm_torch.report().graphs)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True)])
def test_sizes_of_an_image_through_strides(pool: nn.Module) -> None:
    m = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.ReLU(), pool, residual(8), residual(16),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)).eval()  # fmt: skip
    run = compiled(m)
    with torch.no_grad():
        for height, width in ((64, 64), (40, 57), (33, 96), (31, 31)):
            x = torch.randn(1, 3, height, width)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
    assert len(nnvm_torch.report().graphs) <= 2
    assert not any(g.fallbacks for g in nnvm_torch.report().graphs)
