"""Transposed convolutions by phases: kernels that the step does not divide, paddings, sizes that change, groups, types,
training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch


@pytest.mark.parametrize("rank,kernel,step,padding,more", [
    (1, 3, 2, 1, 1), (1, 7, 3, 2, 0), (2, 3, 2, 1, 1), (2, 3, 2, 0, 0), (2, 4, 2, 1, 0), (2, 5, 3, 1, 2),
    (2, 5, 4, 2, 3), (2, 3, 2, 2, 1), (2, 2, 3, 0, 0), (3, 3, 2, 1, 0),
])  # fmt: skip
@pytest.mark.parametrize("dynamic", [False, True])
def test_values(rank: int, kernel: int, step: int, padding: int, more: int, dynamic: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    f = getattr(F, f"conv_transpose{rank}d")
    w, b = torch.randn(5, 7, *[kernel] * rank), torch.randn(7)

    def run(x: torch.Tensor) -> torch.Tensor:
        return f(x, w, b, stride=step, padding=padding, output_padding=more)

    compiled = torch.compile(run, backend="nnvm", dynamic=dynamic)
    for size in (6, 9):
        x = torch.randn(2, 5, *[size] * rank)
        expected = run(x)
        torch.testing.assert_close(compiled(x), expected)
        assert compiled(x).stride() == expected.stride()


def test_steps_that_differ_between_axes_and_groups() -> None:
    torch.manual_seed(0)
    for options in ({"stride": (2, 1)}, {"stride": (1, 3), "padding": (1, 0)}, {"stride": 2, "groups": 2}):
        module = torch.nn.ConvTranspose2d(4, 6, (3, 5), **options)  # type: ignore[arg-type]
        x = torch.randn(1, 4, 7, 8)
        with torch.no_grad():
            torch.testing.assert_close(nnvm_torch.compile(module)(x), module(x))


@pytest.mark.parametrize("dtype,tolerance", [
    (torch.float32, 1e-4), (torch.float64, 1e-10), (torch.bfloat16, 3e-2), (torch.float16, 5e-3),
])  # fmt: skip
@pytest.mark.parametrize("rank,channels,options", [
    (1, (8, 12), {"kernel_size": 4, "stride": 2, "padding": 1, "groups": 4}),
    (2, (16, 16), {"kernel_size": 4, "stride": 2, "padding": 1, "groups": 16}),
    (2, (8, 16), {"kernel_size": 3, "stride": 2, "dilation": 3, "output_padding": 2, "groups": 2}),
    (2, (4, 8), {"kernel_size": (3, 4), "stride": (3, 2), "dilation": (3, 2), "padding": (4, 0)}),
    (2, (4, 3), {"kernel_size": 10, "stride": 5, "padding": 2}),
    (3, (4, 6), {"kernel_size": (3, 1, 2), "stride": (2, 2, 1), "dilation": (1, 1, 2), "groups": 2}),
])  # fmt: skip
def test_groups_dilation_and_types(dtype: torch.dtype, tolerance: float, rank: int, channels: tuple[int, int],
                                   options: dict[str, Any]) -> None:  # fmt: skip
    torch.manual_seed(0)
    module = getattr(torch.nn, f"ConvTranspose{rank}d")(*channels, **options).to(dtype)
    x = torch.randn(2, channels[0], *(5, 7, 4)[:rank]).to(dtype)
    with torch.no_grad():
        got, expected = nnvm_torch.compile(module)(x), module(x)
        truth = module.double()(x.double()).to(dtype)
    assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())
    torch.testing.assert_close(got, truth, atol=tolerance, rtol=tolerance)


def test_training() -> None:
    """Forward, and the gradients of the data, of the weight and of the bias."""
    torch.manual_seed(0)
    layers = [torch.nn.ConvTranspose2d(4, 8, 3, 2, 1, 1, groups=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
              torch.nn.ConvTranspose2d(8, 3, 4, 2, 1), torch.nn.Tanh()]  # fmt: skip
    module = torch.nn.Sequential(*layers)
    compiled = torch.compile(copy.deepcopy(module), backend="nnvm")
    for _ in range(2):
        found = []
        for m in (module, compiled):
            torch.manual_seed(1)
            x = torch.randn(2, 4, 6, 5, requires_grad=True)
            m.zero_grad()
            out = m(x)
            out.square().sum().backward()
            found.append([out, x.grad, *(p.grad for p in m.parameters())])
            with torch.no_grad():
                for p in m.parameters():
                    p -= 0.01 * p.grad
        for got, expected in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_new_weights_are_prepared_anew() -> None:
    torch.manual_seed(0)
    module, x = torch.nn.ConvTranspose2d(4, 8, 4, 2, 1), torch.randn(1, 4, 5, 5)
    compiled = nnvm_torch.compile(module)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x))
            module.weight.mul_(2)


def test_zeros_that_fill_up_are_no_terms() -> None:
    """An infinity in the data reaches what its kernel elements reach, and is nowhere multiplied by 0."""
    x = torch.ones(1, 1, 3, 3)
    x[0, 0, 1, 1] = torch.inf
    module = torch.nn.ConvTranspose2d(1, 1, 3, 2, 1, 1)
    torch.nn.init.constant_(module.weight, 0.5)
    with torch.no_grad():
        got, expected = nnvm_torch.compile(module)(x), module(x)
    assert not got.isnan().any()
    torch.testing.assert_close(got, expected)
