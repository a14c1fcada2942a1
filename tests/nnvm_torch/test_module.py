"""`nnvm_torch.compile`: a module in place of another."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch.module import CaptureError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, scale: float = 2.0, *, extra: torch.Tensor | None = None) -> Any:
        y = self.norm(self.linear(x))
        return {"y": y * scale if extra is None else y * extra, "parts": [y, y.relu()]}


@torch.no_grad()
def test_arguments_structures_and_lifecycle() -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(5, 4)
    compiled = nnvm_torch.compile(net, (x,))
    close = torch.testing.assert_close
    close(compiled(x), net(x))
    close(compiled(x[:2], 3.0), net(x[:2], 3.0))
    close(compiled(x, extra=x[:, :1]), net(x, extra=x[:, :1]))
    net.linear.weight = nn.Parameter(torch.randn(3, 4))
    close(compiled(x), net(x))
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert list(compiled.parameters()) == list(net.parameters())
    assert not compiled.training and compiled.train() is compiled and net.training
    compiled.eval()
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        close(other(x), net(x))
    assert nnvm_torch.report(compiled).native_fraction == 1.0


def test_gradients() -> None:
    torch.manual_seed(0)
    net = Net()
    compiled, x = nnvm_torch.compile(net), torch.randn(5, 4)
    compiled(x)["y"].square().sum().backward()
    got = [p.grad for p in net.parameters()]
    other = copy.deepcopy(net)
    other.zero_grad()
    other(x)["y"].square().sum().backward()
    torch.testing.assert_close(got, [p.grad for p in other.parameters()], atol=1e-4, rtol=1e-3)


def test_wrong_use() -> None:
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, got function"):
        nnvm_torch.compile(lambda x: x)  # type: ignore[arg-type]
    compiled = nnvm_torch.compile(nn.Linear(4, 3))
    with pytest.raises(TypeError, match=r"parameters are torch\.float32, an input is torch\.float64"):
        compiled(torch.randn(2, 4, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(torch.randn(2, 5))
    with pytest.raises(TypeError, match="neither a tensor nor a constant"):
        compiled(object())


def test_a_module_that_cannot_be_captured() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(CaptureError, match=r"(?s)Branch cannot be captured.*torch\.compile"):
        nnvm_torch.compile(Branch(), torch.ones(3))


def test_the_mode_of_a_call_counts() -> None:
    """Autocast, types and flags of submodules are those of the call, not of the first one."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.randn(6, 4)
    net[1].eval()
    compiled = nnvm_torch.compile(net)

    def same(tolerance: float = 1e-5) -> None:
        before = copy.deepcopy(net.state_dict())
        got = compiled(x)
        after = copy.deepcopy(net.state_dict())
        net.load_state_dict(before)
        want = net(x)
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(after, net.state_dict(), atol=tolerance, rtol=tolerance)

    for _ in range(2):
        same()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same(2e-2)
        net[2].eval()
        same()
        net[2].train()
        same()
        net.eval()
        with torch.no_grad():
            same()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                same(2e-2)
            same()
        net.train()
        net[1].eval()


def test_negative_and_conjugate_views() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

    torch.manual_seed(0)
    net = Twice()
    compiled, z = nnvm_torch.compile(net), torch.randn(4, 4, dtype=torch.complex64)
    plain, negative = torch.randn(4, 4, 2)[..., 0], z.conj().imag
    assert negative.is_neg() and negative.stride() == plain.stride()
    for x in (plain, negative, plain, z, z.conj(), z, negative):
        torch.testing.assert_close(compiled(x), net(x))


def test_classes_of_tensors_are_refused_before_anything_is_traced() -> None:
    class Image(torch.Tensor):
        pass

    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = nnvm_torch.compile(net)
    with pytest.raises(TypeError, match="an argument is a Image, whose methods would be lost"):
        compiled(x.as_subclass(Image))
    torch.testing.assert_close(compiled(x), net(x))
