"""The parameters and buffers of a module as they are now."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch.structure import Place, state_of


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2, bias=False))


def places_of(m: nn.Module) -> list[Place]:
    return [(where, name) for inner in m.modules() for where in (inner._parameters, inner._buffers)
            for name, t in where.items() if t is not None]  # fmt: skip


def names_of(m: nn.Module) -> list[torch.Tensor]:
    return [where[name] for where, name in places_of(m)]


def _direct(m: nn.Sequential) -> None:
    m[0]._parameters["weight"] = nn.Parameter(torch.randn(4, 3))


def _swapped(m: nn.Sequential) -> None:
    m[0].weight, m[2].weight = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(2, 4))


#: Other tensors in the same places.
TENSORS: dict[str, Callable[[nn.Sequential], Any]] = {
    "an attribute": lambda m: setattr(m[2], "weight", nn.Parameter(torch.randn(2, 4))),
    "register_parameter": lambda m: m[2].register_parameter("weight", nn.Parameter(torch.randn(2, 4))),
    "in the dictionary": _direct,
    "a buffer": lambda m: setattr(m[1][0], "running_mean", torch.randn(4)),
    "load_state_dict": lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
    "two": _swapped,
}
#: Something is not there any more, is no tensor, or there are more submodules.
MISSING: dict[str, Callable[[nn.Sequential], Any]] = {
    "a submodule more": lambda m: m.append(nn.Sigmoid()),
    "a submodule of a submodule": lambda m: m[0].add_module("more", nn.ReLU()),
    "a submodule is another one": lambda m: m.__setitem__(2, nn.Linear(4, 2, bias=False)),
    "an inner one": lambda m: m[1].__setitem__(1, nn.GELU()),
    "a submodule is gone": lambda m: m.__delitem__(2),
    "a submodule is None": lambda m: m._modules.__setitem__("2", None),
    "a parameter is None": lambda m: setattr(m[0], "bias", None),
    "a parameter is gone": lambda m: delattr(m[0], "bias"),
    "a buffer is gone": lambda m: m[1][0]._buffers.clear(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_other_tensors(name: str) -> None:
    m = model()
    now = state_of(m, places_of(m))
    for _ in range(2):
        found = now()
        assert found is not None and list(map(id, found)) == list(map(id, names_of(m)))
        TENSORS[name](m)


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing(name: str) -> None:
    m = model()
    now = state_of(m, places_of(m))
    assert now() is not None
    MISSING[name](m)
    assert now() is None and now() is None


def test_a_module_without_submodules_or_tensors() -> None:
    assert state_of(nn.ReLU(), [])() == []


def test_references_are_counted_right() -> None:
    m = model()
    tensor, now = m[0].weight, state_of(m, places_of(m))
    before = sys.getrefcount(tensor)
    for _ in range(100):
        now()
    m[0].bias = None
    for _ in range(100):
        assert now() is None
    assert sys.getrefcount(tensor) == before
    alive = weakref.ref(m[2].weight)
    m[2].weight = nn.Parameter(torch.zeros(2, 4))
    gc.collect()
    assert alive() is None


FOLLOWED = ("an inner one", "a submodule is another one", "a submodule more", "a parameter is None")


@torch.no_grad()
@pytest.mark.parametrize("name", [*TENSORS, *FOLLOWED])
def test_compiled_modules_follow(name: str) -> None:
    torch.manual_seed(0)
    m = model().eval()
    compiled, x = nnvm_torch.compile(m), torch.randn(5, 3)
    torch.testing.assert_close(compiled(x), m(x))
    {**TENSORS, **MISSING}[name](m)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), m(x))


class Structured(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make, self.linear = make, nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.linear(x))


@torch.no_grad()
@pytest.mark.parametrize("make", [
    lambda y: y, lambda y: (y,), lambda y: [y, y + 1], lambda y: (y, {"a": y + 1}), lambda y: ((y + 2,), y * 3),
])  # fmt: skip
def test_structures_of_results(make: Callable[[torch.Tensor], Any]) -> None:
    m, x = Structured(make).eval(), torch.randn(2, 3)
    compiled = nnvm_torch.compile(m, x)
    got, want = compiled(x), m(x)
    assert type(got) is type(want)
    torch.testing.assert_close(got, want)


@torch.no_grad()
def test_calls_of_changing_kinds() -> None:
    """Each is run by what was compiled for it, whatever the one before was."""
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    compiled = nnvm_torch.compile(m)
    x = torch.randn(4, 3)
    kinds = [x, x[:2], x.mT.contiguous().mT, x[:, :3].clone(), torch.nn.Parameter(x.clone(), requires_grad=False)]
    for a in (*kinds, *reversed(kinds), *kinds):
        torch.testing.assert_close(compiled(a), m(a))
    for training in (True, False):
        m.train(training)
        twin = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train(training)
        twin.load_state_dict(m.state_dict())
        torch.testing.assert_close(compiled(x), twin(x))
        torch.testing.assert_close(m[1].running_mean, twin[1].running_mean)
    with pytest.raises(TypeError, match=r"parameters are torch\.float32"):
        compiled(x.double())
    with torch.enable_grad():
        assert compiled(x).requires_grad
    assert not compiled(x).requires_grad
