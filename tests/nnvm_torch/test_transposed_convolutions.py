"""Transposed convolutions by phases: kernels that the step does not divide, paddings, sizes that change."""

from __future__ import annotations

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
