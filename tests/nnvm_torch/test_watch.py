"""Whether tensors are those that were seen, by PyTorch's exported functions and by Python."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nnvm_torch import watch
from nnvm_torch.watch import Counter


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(watch, "_functions", lambda: None)
    return str(request.param)


def tensors() -> list[torch.Tensor]:
    base = torch.randn(40)
    return [torch.nn.Parameter(torch.randn(7, 30)), base[5:25], torch.randint(0, 9, (3,)), torch.zeros(0, 4)]


def _write_through_numpy(t: torch.Tensor) -> None:
    t.detach().numpy().reshape(-1)[0] += 1


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda t: t.mul_(3),
    "through data": lambda t: t.data.add_(1),
    "data assigned": lambda t: setattr(t, "data", t.detach().clone()),
    "set_": lambda t: t.set_(t.detach().clone()),
    "through numpy": _write_through_numpy,
    "version alone": torch.autograd.graph.increment_version,
}


@torch.no_grad()
@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_each_tensor(way: str, name: str) -> None:
    counter = Counter()
    for changed in range(3):
        given = tensors()
        same = watch.watch(given, [3, 1, 0, 2], counter, 0)
        args = (given[2], given[1], given[3], given[0])
        assert same(*args) and same(*args, "more")
        CHANGES[name](given[changed])
        assert not same(*args)
        assert watch.watch(given, [3, 1, 0, 2], counter, 0)(*args)


@torch.no_grad()
def test_other_tensors_and_other_places(way: str) -> None:
    given, counter = tensors(), Counter()
    same = watch.watch(given, [0, 1, 2, 3], counter, 0)
    assert same(*given)
    assert not same(*given[:3])
    assert not same(given[1], given[0], *given[2:])
    assert not same(given[0].clone(), *given[1:])
    assert not same(given[0].detach(), *given[1:])


@torch.no_grad()
def test_a_tensor_that_is_no_argument(way: str) -> None:
    given = tensors()
    same = watch.watch(given, [0, -1, 1, 2], Counter(), 0)
    args = (given[0], given[2], given[3])
    assert same(*args)
    given[1].add_(1)
    assert not same(*args)


@torch.no_grad()
def test_a_counter(way: str) -> None:
    given, counter = tensors(), Counter()
    counter.increase()
    for make in (watch.watch, watch.watch_identity):
        seen = counter.value
        same = make(given, [0, 1, 2, 3], counter, seen)
        assert same(*given)
        counter.increase()
        assert not same(*given) and not make(given, [0, 1, 2, 3], counter, seen)(*given)


@torch.no_grad()
def test_identity_alone() -> None:
    given = tensors()
    same = watch.watch_identity(given, [0, 1, 2, 3], Counter(), 0)
    for change in CHANGES.values():
        change(given[0])
    assert same(*given)
    assert not same(given[0].detach(), *given[1:])


def test_tensors_without_versions(way: str) -> None:
    with torch.inference_mode():
        given = [torch.randn(50), torch.randn(3, 3)]
    given.append(torch.ones(5))
    same = watch.watch(given, [0, 1, 2], Counter(), 0)
    assert same(*given)
    with torch.inference_mode():
        given[0][0] = 7.5  # the first element is among those that are compared
    assert not same(*given)


def test_a_watch_keeps_no_tensor_alive(way: str) -> None:
    given = tensors()
    refs = [weakref.ref(t) for t in given]
    same = watch.watch(given, [0, 1, 2, 3], Counter(), 0)
    assert same(*given)
    given.clear()
    gc.collect()
    assert all(r() is None for r in refs)


def test_functions_that_tell_something_else_are_not_used() -> None:
    functions = watch._functions()
    assert functions is not None, "PyTorch exports them under other names: the look at weights is slow"
    assert watch._agree(functions)
    assert not watch._agree((functions[0], functions[0]))


def test_never() -> None:
    assert not watch.never() and not watch.never(1, 2)


FIRST_CALLS = """
import sys
import torch, nnvm_torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.BatchNorm1d(7)).eval()

x = torch.randn(3, 5)
before = model()
for made_there in (False, True):
    with torch.inference_mode():
        net = model() if made_there else before
        compiled = nnvm_torch.compile(net, (x,)) if sys.argv[1] == "module" else torch.compile(net, backend="nnvm")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), net(x))
            net[0].weight.data.mul_(1.5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
"""


@pytest.mark.parametrize("first", ["backend", "module"])
def test_first_call_of_a_process_in_inference_mode(first: str) -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS, first], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
