"""Training on a CPU: products in our kernels or in MKL and oneDNN, and that both ways give what eager gives."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nnvm_torch
from nnvm.compiler.choose_library import Choice
from nnvm.dtype import F32, F64, DType
from nnvm.graph import TensorType, apply, variable
from nnvm.target import Target
from nnvm_torch import cpu_choice, options
from nnvm_torch.cpu_choice import cpu_rule
from nnvm_torch.partition import AtenCall

SERVER = Target.parse("llvm -mcpu=skylake-avx512")


class Net(nn.Module):
    """Every kind of product that the library can be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.BatchNorm2d(32),
            nn.Conv2d(32, 48, 3, 2, 1, bias=False), nn.ReLU(), nn.Conv2d(48, 32, 1),
        )  # fmt: skip
        self.first, self.last = nn.Linear(32, 40), nn.Linear(40, 5, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.gelu(self.first(self.convs(x).flatten(2).transpose(1, 2)))
        return self.last(y), y.mean((0, 1)) @ y.mean(0).t()


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes all choices one way; gives the names of the products asked for."""

    def always(library: bool) -> list[str]:
        asked: list[str] = []

        def choose(product: Any, rest: float) -> Choice:
            asked.append(product.op.name)
            return Choice(2e-6, 1e-6, False) if library else Choice(1e-6, 2e-6, False)

        monkeypatch.setattr(options, "cpu_rule", lambda target: choose)
        torch._dynamo.reset()
        nnvm_torch.reset()
        return asked

    return always


def gradients(call: Any, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = call(x)
    sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in out).backward()
    return [*out, x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("library", [True, False])
def test_both_ways_give_what_eager_gives(library: bool, decide: Any) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 12, 12)
    mine, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    asked = decide(library)
    got = gradients(torch.compile(mine, backend="nnvm"), mine, x)
    want, right = gradients(model, model, x), gradients(exact, exact, x.double())
    for a, b, r in zip(got, want, right, strict=True):
        assert a.stride() == b.stride()
        assert (a - r).abs().max() <= 2 * (b - r).abs().max() + 1e-5 * r.abs().max() + 1e-7
    assert {"dense", "matmul", "conv2d"} <= set(asked)
    text = str(nnvm_torch.report())
    assert ("in the vendor's library (by rule" in text) == library and ("in our kernel (by rule" in text) != library


def test_sizes_that_change(decide: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    mine = copy.deepcopy(model)
    decide(True)
    call = torch.compile(mine, backend="nnvm", dynamic=True)
    for n in (3, 17, 8):
        x = torch.randn(n, 6)
        got, want = (gradients(lambda x, f=f: (f(x),), m, x) for f, m in ((call, mine), (model, model)))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert "in the vendor's library" in str(nnvm_torch.report())


def test_weights_that_stay_are_ours(decide: Any) -> None:
    """In evaluation they are packed once."""
    asked = decide(True)
    with torch.no_grad():
        torch.compile(Net().eval(), backend="nnvm")(torch.randn(2, 3, 12, 12))
    assert asked == [] and "library" not in str(nnvm_torch.report())


def test_without_a_library_strides_are_blocked(decide: Any) -> None:
    """Only what is sure to go there is left in plain layout for it."""
    decide(True)
    call = torch.compile(Net(), backend="nnvm", options={"disabled_passes": ["ChooseLibrary"]})
    call(torch.randn(2, 3, 12, 12))[0].sum().backward()
    assert any("layout_transform" in k.ops for g in nnvm_torch.report().graphs for k in g.kernels)


def chosen(op: str, *shapes: tuple[int, ...], rest: float = 0.0, dtype: DType = F32, **attrs: Any) -> bool | None:
    rule = cpu_rule(SERVER)
    assert rule is not None
    node = apply(op, [variable(n, TensorType(s, dtype)) for n, s in zip("xwb", shapes)], attrs)
    found = rule(node, rest)
    return None if found is None else found.takes_library


@pytest.mark.parametrize("op, shapes, attrs, library", [
    ("dense", [(256, 1024), (1024, 1024)], {}, True),
    ("dense", [(64, 128), (128, 128)], {}, None),
    ("dense", [(32, 1024), (1024, 1024)], {}, True),
    ("matmul", [(256, 1024), (256, 1024)], {"transpose_a": True}, True),
    ("matmul", [(8, 512, 512), (8, 512, 512)], {}, None),
    ("conv2d", [(8, 64, 32, 32), (64, 64, 3, 3)], {"padding": (1, 1)}, False),
    ("conv2d", [(8, 256, 8, 8), (256, 256, 3, 3)], {"padding": (1, 1)}, True),
    ("conv2d", [(8, 64, 32, 32), (128, 64, 3, 3)], {"padding": (1, 1), "strides": (2, 2)}, True),
    ("conv2d", [(8, 144, 24, 24), (24, 144, 1, 1)], {}, True),
    ("conv2d", [(8, 3, 32, 32), (64, 3, 3, 3)], {"padding": (1, 1)}, None),
    ("conv2d", [(8, 32, 48, 48), (32, 1, 3, 3)], {"padding": (1, 1), "groups": 32}, False),
    ("conv2d", [(8, 384, 6, 6), (384, 1, 3, 3)], {"padding": (1, 1), "groups": 384}, True),
])  # fmt: skip
def test_rule(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], library: bool | None) -> None:
    """As measured."""
    assert chosen(op, *shapes, **attrs) is library


def test_rule_counts_what_is_fused_behind() -> None:
    shapes = [(256, 1024), (1024, 1024)]
    assert chosen("dense", *shapes, rest=2e6) and not chosen("dense", *shapes, rest=1e8)


def test_no_rule_for_what_was_not_measured() -> None:
    assert cpu_rule(Target.parse("llvm -mcpu=haswell")) is None
    assert cpu_rule(Target.parse("cuda -arch=sm_90")) is None
    assert chosen("dense", (256, 1024), (1024, 1024), dtype=F64) is None
    assert cpu_choice.cpu_rule(SERVER) is not None


def test_results_of_aten_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the end of the call."""
    torch._dynamo.reset()
    alive: list[int] = []
    made: list[Any] = []
    plain = AtenCall.__call__

    def call(self: AtenCall, env: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
        gc.collect()
        alive.append(sum(r() is not None for r in made))
        out = plain(self, env, *tensors)
        made.extend(weakref.ref(t) for t in out)
        return out

    monkeypatch.setattr(AtenCall, "__call__", call)

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.fft.fft(x).real.relu() + 1
        return x

    x = torch.randn(8, 16)
    torch.testing.assert_close(torch.compile(fn, backend="nnvm")(x), fn(x))
    assert len(alive) >= 6 and max(alive) <= 2
