"""`verify=N`: what counts as different from eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch.verifying import Verified, VerifyError


class Program:
    """Stands for a graph: gives the outputs it was made with."""

    def __init__(self, *outputs: torch.Tensor) -> None:
        self.outputs = outputs

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.outputs


def verified(got: torch.Tensor, wanted: torch.Tensor) -> None:
    Verified(lambda args: (got,), Program(wanted), 1)([])  # type: ignore[arg-type]


def test_rounding_of_sums_that_cancel_is_no_difference() -> None:
    wanted = torch.tensor([100.0, 1e-6, -3.0])
    verified(wanted + torch.tensor([5e-3, 5e-3, -5e-3]), wanted)
    with pytest.raises(VerifyError, match="output 0 differs"):
        verified(wanted + torch.tensor([0.0, 2.5e-2, 0.0]), wanted)


def test_infinities_and_nan_must_agree() -> None:
    odd = torch.tensor([float("inf"), float("nan"), 1.0])
    verified(odd.clone(), odd)
    with pytest.raises(VerifyError):
        verified(torch.tensor([1e30, float("nan"), 1.0]), odd)
    with pytest.raises(VerifyError):
        verified(torch.tensor([float("inf"), 0.0, 1.0]), odd)


def test_integers_must_be_equal() -> None:
    verified(torch.arange(5), torch.arange(5))
    with pytest.raises(VerifyError):
        verified(torch.arange(5) + torch.tensor([0, 0, 0, 0, 1]), torch.arange(5))


def test_a_network_of_winograd_convolutions_is_verified() -> None:
    torch.manual_seed(0)
    m = nn.Sequential(*(f for _ in range(4) for f in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()))).eval()
    torch._dynamo.reset()
    run = torch.compile(m, backend=nnvm_torch.nnvm, options={"verify": 2})
    x = torch.randn(1, 16, 40, 40)
    with torch.no_grad():
        exact = m.double()(x.double())
        m.float()
        error = (run(x) - exact).abs().max() / (exact.max() - exact.min())
    assert error < 1e-5  # far below the bound of 1e-4: this is a small network
