"""Tensors with elements and no memory: autograd's zeros."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import nnvm_torch


class Last(nn.Module):
    def forward(self, x):
        return x[-1] + 10, x * 2 + 1


def zeros():
    """The gradient of the sign, as autograd has it."""
    with torch.enable_grad():
        x = torch.randn(3, requires_grad=True)
        (grad,) = torch.autograd.grad(x.sgn().sum(), x)
    assert grad._is_zerotensor() and grad.data_ptr() == 0
    return grad


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("way", ["torch.compile", "nnvm_torch.compile"])
def test_zeros_of_autograd(way, first):
    """Whether they come at the first call or later, and calls with tensors that have memory stay native."""
    made = torch.compile(Last(), backend="nnvm") if way == "torch.compile" else nnvm_torch.compile(Last())
    dense = torch.randn(3)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for x in ([zeros(), dense] if first else [dense, zeros()]) * 2:
            for got, want in zip(made(x), Last()(x), strict=True):
                assert not got._is_zerotensor() and torch.equal(got, want)
