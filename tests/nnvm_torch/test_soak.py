"""The soak in short: our own objects are counted, which is exact where resident memory is not. The whole is
``python -m benchmarks.soak``."""

from __future__ import annotations

import gc
import re
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from benchmarks import soak

WAYS = ("nnvm_torch.compile", "torch.compile")
OURS = ("nnvm", "nnvm_torch")


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, width), nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x)))).softmax(-1)


def objects() -> Counter[str]:
    """How many objects of our types are alive."""
    gc.collect()
    kinds = (type(o) for o in gc.get_objects())
    names = (f"{k.__module__}.{k.__qualname__}" for k in kinds if str(k.__module__).partition(".")[0] in OURS)
    return Counter(re.sub(r"_Array_\d+$", "_Array", name) for name in names)  # of elements that depend on values


def dropped(way: str, dynamic: bool = False, training: bool = False) -> weakref.ref[nn.Module]:
    """A model that was compiled, called and dropped."""
    m = Model(8).train(training)
    run = soak.WAYS[way](m, dynamic)
    x = torch.randn(4, 6)
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(run(x), m(x))
        if training:
            run(x).sum().backward()
    return weakref.ref(m)


@pytest.mark.parametrize("way", WAYS)
def test_dropped_models_leave_nothing(way: str) -> None:
    torch.manual_seed(0)
    nnvm_torch.reset()
    before: Counter[str] = Counter()
    gone = []
    for number in range(5):
        gone.append(dropped(way, dynamic=number % 2 == 0, training=number % 2 == 1))
        torch._dynamo.reset()
        nnvm_torch.reset()
        if number == 1:  # each kind once: code that is kept for later is there
            before = objects()
    assert before and objects() - before == Counter()
    assert not any(ref() for ref in gone)


def test_without_a_reset_only_the_report_remembers() -> None:
    nnvm_torch.reset()
    dropped("torch.compile")
    torch._dynamo.reset()
    before = objects()
    dropped("torch.compile")
    torch._dynamo.reset()
    kinds = {name.rpartition(".")[2] for name in objects() - before}
    assert kinds == {"GraphRecord", "KernelInfo", "Memory"}  # what report() tells
    nnvm_torch.reset()
    assert objects() - before == Counter()


@pytest.mark.parametrize("way", WAYS)
def test_calls_with_new_sizes_and_new_weights_leave_nothing(way: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    nnvm_torch.reset()
    m = Model(8).eval()
    run = soak.WAYS[way](m, True)
    states = [{k: torch.randn_like(v) for k, v in m.state_dict().items()} for _ in range(2)]

    def calls(count: int) -> None:
        for i in range(count):
            x = torch.randn(2 + i % 7, 6)
            if i % 10 == 0:
                m.load_state_dict(states[i // 10 % 2])
            if i % 25 == 0:
                m.last.weight = nn.Parameter(torch.randn(3, 8))
            got = run(x)
            if i % 10 == 0:
                torch.testing.assert_close(got, m(x))

    with torch.no_grad():
        calls(50)
        before = objects()
        calls(200)
    assert objects() - before == Counter()


# the soak itself


@pytest.mark.parametrize("way", WAYS)
def test_wrong_answers_are_seen(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "resident_bytes", lambda: 1 << 20)
    lines: list[str] = []
    wrong: Callable[..., Any] = lambda m, dynamic: lambda x: m(x) * 1.01  # noqa: E731
    monkeypatch.setitem(soak.WAYS, way, wrong)
    outcome = soak.run_calls(way, 20, lines.append)
    assert len(lines) == 10 and not soak.verdict(outcome)[0] and soak.verdict(outcome)[1].endswith("NOT GOOD")
    right: Callable[..., Any] = lambda m, dynamic: m  # noqa: E731
    monkeypatch.setitem(soak.WAYS, way, right)
    assert soak.verdict(soak.run_calls(way, 20, lines.append))[0]
    assert soak.verdict(soak.drop_models(way, 10, lines.append))[0]


def test_a_leak_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(100 << 20, 200 << 20, 2 << 20))
    monkeypatch.setattr(soak, "resident_bytes", lambda: next(sizes))
    kept: list[Any] = []
    keeps: Callable[..., Any] = lambda m, dynamic: kept.append(m) or m  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setitem(soak.WAYS, "aot_eager", keeps)
    outcome = soak.drop_models("aot_eager", 10, lambda line: None)
    assert outcome.alive == 10 and outcome.growth > 0.1 and not soak.verdict(outcome)[0]


def test_the_floor_is_not_ours() -> None:
    run = soak.Outcome("torch.compile", "9 calls", settled=1000_000, last=1030_000)
    good, words = soak.verdict(run, soak.Outcome("aot_eager", "9 calls", settled=900_000, last=925_000))
    assert good and "memory +3.00% after the warm-up, +0.50% beside aot_eager (+2.78%)" in words
    assert not soak.verdict(run)[0]
    assert not soak.verdict(run, soak.Outcome("aot_eager", "9 calls", 900_000, 850_000))[0]
