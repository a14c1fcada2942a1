"""Activations and their gradients at NaN, at infinity and where their pieces meet, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch

#: The function and where its pieces meet.
ACTIVATIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[float, ...]]] = {
    "relu": (F.relu, (0,)),
    "relu6": (F.relu6, (0, 6)),
    "elu": (F.elu, (0,)),
    "elu of alpha": (lambda x: F.elu(x, -0.7), (0,)),
    "elu of its result": (lambda x: F.elu(x * 1, 0.7, inplace=True), (0,)),
    "selu": (F.selu, (0,)),
    "celu": (lambda x: F.celu(x, 2), (0,)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.7, 0.7), (-0.7, 0.7)),
    "hardswish": (F.hardswish, (-3, 3)),
    "hardsigmoid": (F.hardsigmoid, (-3, 3)),
    "hardshrink": (lambda x: F.hardshrink(x, 0.7), (-0.7, 0.7)),
    "softshrink": (lambda x: F.softshrink(x, 0.7), (-0.7, 0.7)),
    "leaky_relu": (lambda x: F.leaky_relu(x, -0.3), (0,)),
    "threshold": (lambda x: F.threshold(x, 0.7, 0.3), (0.7,)),
    "softplus": (lambda x: F.softplus(x, 2, 3), (1.5,)),
    "logsigmoid": (F.logsigmoid, (0,)),
    "mish": (F.mish, (0,)),
}
POINTS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 40.0, -40.0, 1e-4)
GRADS = (1.0, 0.0, -0.0, math.inf, -math.inf, math.nan, -2.5)


def cases(breaks: tuple[float, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Each point with each gradient, as many as fill eager's vectors: it has other code for what is left over."""
    at = torch.tensor(breaks, dtype=dtype)
    by = 1 / 64 if dtype.itemsize == 2 else 1e-5
    points = torch.cat([torch.tensor(POINTS, dtype=dtype), at, at - by, at + by])
    x, grad = torch.cartesian_prod(points, torch.tensor(GRADS, dtype=dtype)).T
    count = -(-x.numel() // 64) * 64
    return x.repeat(2)[:count].clone(), grad.repeat(2)[:count].clone()


def value_and_gradient(
    fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    y = fn(x)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_at_the_edges(name: str, dtype: torch.dtype) -> None:
    fn, breaks = ACTIVATIONS[name]
    x, grad = cases(breaks, dtype)
    nnvm_torch.reset()
    got = value_and_gradient(torch.compile(fn, backend="nnvm"), x, grad)
    for mine, theirs in zip(got, value_and_gradient(fn, x, grad)):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert nnvm_torch.report().native_fraction == 1
