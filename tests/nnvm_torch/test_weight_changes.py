"""Every way of changing parameters, buffers and modules, for `torch.compile` and for `nnvm_torch.compile`."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch import mapped_weights, watch, weights

close = torch.testing.assert_close


class LoraLinear(nn.Linear):
    """A layer with a low-rank addition that can be merged into its weight."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))

    def merge(self) -> None:
        self.weight.data += self.b @ self.a


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.lora = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), LoraLinear(128, 6)
        self.register_buffer("scale", torch.rand(6) + 1)
        self.register_buffer("shift", torch.rand(6), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.lora(y.flatten(1)) * self.scale.exp() + self.shift


def step(m: Net) -> None:
    optimizer = torch.optim.AdamW(m.parameters(), lr=0.1)
    with torch.enable_grad():
        m(torch.randn(2, 3, 4, 4)).square().sum().backward()
    optimizer.step()
    m.zero_grad()


def swap(m: Net) -> None:
    old = m.lora
    m.lora = LoraLinear(128, 6)
    m.lora.weight.data.copy_(old.weight * -1)


def load(m: Net, **how: Any) -> None:
    m.load_state_dict({k: torch.rand_like(v) if v.is_floating_point() else v for k, v in m.state_dict().items()}, **how)


CHANGES: dict[str, Callable[[Net], Any]] = {
    "in place": lambda m: m.conv.weight.mul_(2),
    "one element": lambda m: m.lora.bias.__setitem__(2, 9.0),
    "all through data": lambda m: m.conv.weight.data.mul_(-1),
    "data assigned": lambda m: setattr(m.lora.weight, "data", torch.randn(6, 128)),
    "parameter replaced": lambda m: setattr(m.lora, "bias", nn.Parameter(torch.randn(6))),
    "LoRA merged": lambda m: m.lora.merge(),
    "load_state_dict": load,
    "load_state_dict that assigns": lambda m: load(m, assign=True),
    "optimizer": step,
    "running statistics by hand": lambda m: m.norm.running_mean.add_(0.5),
    "running statistics replaced": lambda m: setattr(m.norm, "running_var", torch.rand(8) + 0.5),
    "buffer replaced": lambda m: setattr(m, "scale", torch.rand(6)),
    "buffer in place": lambda m: m.scale.add_(1),
    "buffer that is not saved": lambda m: m.shift.neg_(),
    "submodule replaced": swap,
    "set_ of the storage": lambda m: m.lora.weight.set_(torch.randn(6, 128)),
    "vector_to_parameters": lambda m: nn.utils.vector_to_parameters(
        torch.randn(sum(p.numel() for p in m.parameters())) * 0.1, m.parameters()),
}  # fmt: skip

COMPILERS: dict[str, Callable[[nn.Module], Any]] = {
    "torch.compile": lambda m: torch.compile(m, backend=nnvm_torch.nnvm),
    "nnvm_torch.compile": nnvm_torch.compile,
    "keep_original=False": lambda m: nnvm_torch.compile(m, keep_original=False),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("how", COMPILERS)
def test_every_change_is_noticed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_weights, "SMALLEST", 0)
    m = Net().eval()
    compiled, x = COMPILERS[how](m), torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        close(compiled(x), m(x), atol=1e-4, rtol=1e-4)
        for name, change in CHANGES.items():
            before = m(x)
            change(m)
            want = m(x)
            assert not torch.allclose(before, want), name
            close(compiled(x), want, atol=1e-4, rtol=1e-4, msg=lambda s, name=name: f"{name}: {s}")
        m.double()
        close(compiled(x.double()), m(x.double()))


@pytest.mark.parametrize("how", ["torch.compile", "nnvm_torch.compile"])
def test_a_module_that_takes_integers_and_changes_its_dtype(how: str) -> None:
    m = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4)).eval()
    compiled, ids = COMPILERS[how](m), torch.randint(0, 10, (3, 5))
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
            m.to(dtype)
            got = compiled(ids)
            assert got.dtype == dtype
            close(got, m(ids))


@pytest.mark.parametrize("how", ["torch.compile", "nnvm_torch.compile"])
def test_requires_grad_is_followed(how: str) -> None:
    m = nn.Linear(4, 3)
    compiled, x = COMPILERS[how](m), torch.randn(2, 4)
    for wanted in (True, False, True):
        m.requires_grad_(wanted)
        out = compiled(x)
        assert out.requires_grad is wanted
        if wanted:
            m.zero_grad()
            out.sum().backward()
            close(m.weight.grad, x.sum(0).expand(3, 4))


@torch.no_grad()
@pytest.mark.parametrize("how", ["torch.compile", "nnvm_torch.compile"])
@pytest.mark.parametrize("of_all", [False, True])
def test_refresh_after_a_write_that_nothing_shows(how: str, of_all: bool) -> None:
    m = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).eval()
    compiled, x = COMPILERS[how](m), torch.randn(4, 64)
    compiled(x)
    for t in (m[0].weight, m[1].running_mean):
        looked_at = {a - t.data_ptr() for a in watch.sampled(t)}
        unseen = next(i for i in range(9, t.numel() - 1) if 4 * i not in looked_at)
        t.numpy().reshape(-1)[unseen] = -3.5
        nnvm_torch.refresh() if of_all else nnvm_torch.refresh(m)
        close(compiled(x), m(x))
    with pytest.raises(TypeError, match=r"refresh takes a module, or nothing.*got int"):
        nnvm_torch.refresh(3)


def test_refresh_of_parameters_without_versions() -> None:
    with torch.inference_mode():
        m = nn.Linear(64, 64).eval()
        compiled, x = nnvm_torch.compile(m), torch.randn(4, 64)
        close(compiled(x), m(x))
        looked_at = {a - m.weight.data_ptr() for a in watch.sampled(m.weight)}
        unseen = next(i for i in range(1, 4095) if 4 * i not in looked_at)
        m.weight.view(-1)[unseen] = -3.5
        nnvm_torch.refresh(m)
        close(compiled(x), m(x))


@torch.no_grad()
def test_the_state_dict_is_untouched() -> None:
    m = Net().eval()
    before = {k: (v, v.clone()) for k, v in m.state_dict(keep_vars=True).items()}
    compiled = nnvm_torch.compile(m)
    compiled(torch.randn(2, 3, 4, 4))
    for after in (m.state_dict(keep_vars=True), compiled.state_dict(keep_vars=True)):
        assert list(after) == list(before)
        assert all(after[k] is t and torch.equal(t, was) for k, (t, was) in before.items())


@torch.no_grad()
def test_originals_move_to_a_file_and_stay_what_they_are() -> None:
    m = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16)).eval()
    other, x = copy.deepcopy(m), torch.randn(3, 256)
    moved = m[0].weight
    compiled = nnvm_torch.compile(m, x, keep_original=False)
    close(compiled(x), other(x))
    assert m[0].weight is moved and moved.untyped_storage().filename and not os.path.exists(
        moved.untyped_storage().filename)  # fmt: skip
    assert m[2].weight.untyped_storage().filename and not m[0].bias.untyped_storage().filename
    assert mapped_weights.mapped_bytes() >= 256 * 512 * 4
    assert "originals in files" in str(nnvm_torch.report())
    bytes_before = weights.prepared_bytes()
    close(compiled(x[:2]), other(x[:2]))  # another shape: packed weights are those of the first
    assert weights.prepared_bytes() == bytes_before
    for k, v in compiled.state_dict().items():
        close(v, other.state_dict()[k])
    compiled.load_state_dict({k: v + 1 for k, v in other.state_dict().items()})
    other.load_state_dict({k: v + 1 for k, v in other.state_dict().items()})
    close(compiled(x), other(x))
    close(copy.deepcopy(compiled)(x), other(x))
    del compiled, m, moved
    gc.collect()
    assert not [p for p in Path("/proc/self/maps").read_text().splitlines() if "nnvm-weights-" in p]


@torch.no_grad()
def test_tied_weights_do_not_come_apart() -> None:
    m = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128)).eval()
    m[1].weight.data = m[0].weight.data
    compiled, x = nnvm_torch.compile(m, keep_original=False), torch.randn(2, 128)
    close(compiled(x), m(x))
    m[0].weight.mul_(2)
    assert m[1].weight.data_ptr() == m[0].weight.data_ptr()
    close(compiled(x), m(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


@pytest.mark.parametrize("way", ["torch.compile", "nnvm_torch.compile"])
def test_one_parameter_with_two_names(way: str) -> None:
    """As of language models whose head is their table of embeddings: changed, replaced, untied and tied again."""
    m, x = Tied(), torch.randint(0, 9, (2, 3))
    compiled = torch.compile(m, backend="nnvm") if way == "torch.compile" else nnvm_torch.compile(m)
    with torch.no_grad():
        close(compiled(x), m(x))
        m.table.weight.mul_(2)
        close(compiled(x), m(x))
        for holder in (m.head, m.table):
            holder.weight = nn.Parameter(torch.randn(9, 4))
            close(compiled(x), m(x))
        m.head.weight = m.table.weight
        close(compiled(x), m(x))
    with torch.enable_grad():
        grads = []
        for f in (compiled, m):
            m.zero_grad()
            f(x).square().sum().backward()
            grads.append(m.table.weight.grad)
        close(*grads)
