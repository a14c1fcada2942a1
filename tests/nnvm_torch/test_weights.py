"""Prepared weights follow the parameters, however these are changed."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch import watch, weights


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)
    ).eval()


def _replace(m: nn.Sequential) -> None:
    m[4].weight = nn.Parameter(torch.randn(5, 128))


def _assign_data(m: nn.Sequential) -> None:
    m[4].weight.data = torch.randn(5, 128)


def _step(m: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(m.parameters(), lr=0.5)
    with torch.enable_grad():
        m(torch.randn(2, 3, 4, 4)).square().sum().backward()
    optimizer.step()
    m.zero_grad()


def _load(m: nn.Sequential) -> None:
    m.load_state_dict({k: torch.rand_like(v) if v.is_floating_point() else v for k, v in m.state_dict().items()})


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "in place": lambda m: m[0].weight.mul_(2),
    "through data": lambda m: m[0].weight.data.mul_(3),
    "bias through data": lambda m: m[0].bias.data.add_(1),
    "buffer": lambda m: m[1].running_var.fill_(4),
    "data assigned": _assign_data,
    "parameter replaced": _replace,
    "optimizer": _step,
    "load_state_dict": _load,
    "one element": lambda m: m[4].weight.__setitem__((2, 77), 9.0),
}


@torch.no_grad()
def test_every_change_is_noticed() -> None:
    torch._dynamo.reset()
    m = _model()
    compiled = torch.compile(m, backend=nnvm_torch.nnvm)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(compiled(x), m(x), atol=1e-4, rtol=1e-4)
    for name, change in CHANGES.items():
        before = m(x)
        change(m)
        want = m(x)
        assert not torch.allclose(before, want), name
        torch.testing.assert_close(compiled(x), want, atol=1e-4, rtol=1e-4, msg=lambda s, name=name: f"{name}: {s}")


@torch.no_grad()
def test_only_what_changed_is_prepared_again() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    compiled = torch.compile(m, backend=nnvm_torch.nnvm)
    x = torch.randn(4, 64)
    compiled(x)
    before = {id(p) for p in weights._shared.values()}
    assert len(before) >= 2
    m[2].weight.mul_(2)
    torch.testing.assert_close(compiled(x), m(x))
    gc.collect()
    after = {id(p) for p in weights._shared.values()}
    assert before & after and after - before


@torch.no_grad()
def test_parameters_that_are_gone_leave_nothing_behind() -> None:
    torch._dynamo.reset()
    m = nn.Linear(64, 64).eval()
    compiled, x = nnvm_torch.compile(m), torch.randn(4, 64)
    compiled(x)
    gc.collect()
    before = weights.prepared_bytes()
    for _ in range(3):
        m.weight = nn.Parameter(torch.randn(64, 64))
        torch.testing.assert_close(compiled(x), m(x))
        gc.collect()
        assert weights.prepared_bytes() == before


@torch.no_grad()
def test_two_modules_of_one_code_keep_their_own_weights() -> None:
    torch._dynamo.reset()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu()

    a, b = Block(), Block()
    ca, cb = torch.compile(a, backend=nnvm_torch.nnvm), torch.compile(b, backend=nnvm_torch.nnvm)
    x = torch.randn(2, 16)
    for _ in range(2):
        torch.testing.assert_close(ca(x), a(x))
        torch.testing.assert_close(cb(x), b(x))
    a.linear.weight.mul_(2)
    torch.testing.assert_close(ca(x), a(x))
    torch.testing.assert_close(cb(x), b(x))


@torch.no_grad()
def test_shapes_of_one_module_share_prepared_weights() -> None:
    torch._dynamo.reset()
    weights.drop_prepared()
    m = nn.Linear(64, 64).eval()
    compiled = nnvm_torch.compile(m)
    bytes_after = []
    for rows in (4, 8):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(compiled(x), m(x))
        bytes_after.append(weights.prepared_bytes())
    assert bytes_after[0] == bytes_after[1] > 0


def test_a_probe_sees_a_changed_element() -> None:
    t = torch.zeros(1000)
    t[500] = 1.0
    others = [torch.ones(3, dtype=torch.float16), torch.ones(())]
    probe = watch.Probe([t, *others])
    assert not probe.changed()
    t.data.mul_(2)
    assert probe.changed()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_a_converted_module(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    m = nn.Linear(8, 8).eval()
    compiled = torch.compile(m, backend=nnvm_torch.nnvm)
    compiled(torch.randn(2, 8))
    m.to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    torch.testing.assert_close(compiled(x), copy.deepcopy(m)(x))


@torch.no_grad()
@pytest.mark.parametrize("way", ["torch.compile", "nnvm_torch.compile"])
def test_frozen_weights_change_at_refresh(way: str) -> None:
    torch._dynamo.reset()
    m, x = _model(), torch.randn(2, 3, 4, 4)
    run = torch.compile(m, backend="nnvm", options={"freeze": True}) if way == "torch.compile" else None
    run = run or nnvm_torch.compile(m, x, freeze=True)
    before = m(x)
    torch.testing.assert_close(run(x), before, atol=1e-4, rtol=1e-4)
    m[4].bias.mul_(-2)
    m[0].weight.mul_(3)
    for _ in range(2):
        torch.testing.assert_close(run(x), before, atol=1e-4, rtol=1e-4)
    for refresh in (lambda: nnvm_torch.refresh(m), nnvm_torch.refresh):
        m[1].running_var.fill_(float(torch.rand(())) + 1)
        refresh()
        torch.testing.assert_close(run(x), m(x), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(m(x), before)


@torch.no_grad()
def test_frozen_weights_whose_memory_is_gone() -> None:
    m, x = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300)).eval(), torch.randn(4, 300)
    run, looking = nnvm_torch.compile(m, x, freeze=True), nnvm_torch.compile(m, x)
    want = run(x)
    torch.testing.assert_close(looking(x), want, atol=0, rtol=0)
    for p in m.parameters():
        p.untyped_storage().resize_(0)
    torch.testing.assert_close(run(x), want, atol=0, rtol=0)
    with pytest.raises(RuntimeError, match=r"no memory|out of bounds for storage of size 0"):  # the second is eager's
        looking(x)


def test_frozen_weights_train() -> None:
    m, x = _model().train(), torch.randn(2, 3, 4, 4)
    run = nnvm_torch.compile(m, freeze=True)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    for _ in range(2):
        twin = copy.deepcopy(m)
        want, got = twin(x), run(x)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        want.square().sum().backward()
        got.square().sum().backward()
        for p, q in zip(m.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-3, rtol=1e-3)
        optimizer.step()
        optimizer.zero_grad()
