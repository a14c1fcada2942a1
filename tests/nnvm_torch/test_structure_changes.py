"""Parameters, buffers and hooks that a module gets after `nnvm_torch.compile`."""

from __future__ import annotations

import torch
from torch import nn

import nnvm_torch


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ParameterList([torch.randn(8), torch.randn(8)])
        self.register_parameter("scale", None)
        self.register_buffer("shift", None)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = x * step + 1
        x = x if self.scale is None else x * self.scale
        x = x if self.shift is None else x + self.shift
        return self.last(x + self.more if hasattr(self, "more") else x)


def test_all_are_noticed() -> None:
    torch.manual_seed(0)
    module, x = Chain(), torch.randn(3, 8)
    run = nnvm_torch.compile(module)
    seen = [run(x).detach()]

    def check() -> None:
        torch.testing.assert_close(run(x), module(x))
        assert not any(torch.equal(run(x), before) for before in seen)
        seen.append(run(x).detach())

    module.steps.append(nn.Parameter(torch.randn(8)))
    check()
    module.scale = nn.Parameter(torch.randn(8))
    check()
    module.shift = torch.randn(8)
    check()
    module.register_buffer("more", torch.randn(8))
    check()
    hook = module.last.register_forward_hook(lambda m, args, out: out * 2)
    check()
    hook.remove()
    torch.testing.assert_close(run(x), seen[-2])
    module.last.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    check()
