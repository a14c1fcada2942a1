"""Graphs that are called without AOTAutograd's wrappers, and graphs that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch import backend, direct, runner
from nnvm_torch.faults import runtime_faults

close = torch.testing.assert_close


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.relu(self.norm(self.first(x))))


class Of(nn.Module):
    """A function as a module with a parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.rand(6) + 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.w)


def torch_compile(m: nn.Module) -> Any:
    return torch.compile(m, backend=nnvm_torch.nnvm)


WAYS: dict[str, Callable[[nn.Module], Any]] = {"torch.compile": torch_compile, "nnvm_torch.compile": nnvm_torch.compile}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of arguments of each direct call."""
    seen: list[int] = []

    def counted(*given: Any) -> Callable[..., Any]:
        call = direct.direct_call(*given)

        def count(*args: Any) -> Any:
            seen.append(len(args))
            return call(*args)

        return count

    monkeypatch.setattr(backend, "direct_call", counted)
    return seen


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grad", [False, True])
def test_native_code_alone_is_called_directly(way: str, grad: bool, calls: list[int]) -> None:
    """Whether gradients are on or not: no parameter requires one."""
    m = Mlp().eval().requires_grad_(False)
    compiled = WAYS[way](m)
    with torch.set_grad_enabled(grad):
        for rows in (3, 3, 3):
            x = torch.randn(rows, 6)
            got = compiled(x)
            close(got, m(x))
            assert not got.requires_grad and torch.is_grad_enabled() is grad
    assert len(calls) == 3 and min(calls) > 1


@torch.no_grad()
def test_results_of_a_direct_call_are_new_tensors(calls: list[int]) -> None:
    compiled = torch_compile(Of(lambda x, w: (x * w, x + w)))
    x = torch.randn(3, 6)
    first, second = compiled(x), compiled(x)
    assert len({t.data_ptr() for t in (*first, *second)}) == 4 and len(calls) == 2
    first[0].zero_()
    close(second[0], compiled(x)[0])


@torch.no_grad()
def test_sizes_known_at_the_call(calls: list[int]) -> None:
    m = Mlp().eval()
    compiled = nnvm_torch.compile(m, dynamic={"rows": (2, 9)})
    for rows in (2, 9, 4):
        x = torch.randn(rows, 6)
        close(compiled(x), m(x))
    assert len(calls) == 3


def test_inference_mode(calls: list[int]) -> None:
    m = Mlp().eval()
    compiled, x = torch_compile(m), torch.randn(3, 6)
    with torch.inference_mode():
        got = compiled(x)
        close(got, m(x))
    assert got.is_inference() and len(calls) == 1


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + w


def _permanent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    torch.set_grad_enabled(True)
    return y


#: Calls around which there is something to do, or that are not native code alone.
WRAPPED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "an argument": lambda x, w: (x, x * w),
    "a view of an argument": lambda x, w: (x.view(-1), x * w),
    "a view of another result": lambda x, w: (y := x * w, y.view(-1)),
    "an argument is written": _written,
    "the grad mode is changed": _permanent,
    "an operator of ATen's": lambda x, w: torch.linalg.eigvalsh((x * w).mT @ x),
    "random numbers": lambda x, w: torch.rand_like(x) * 0 + w,
    "a number": lambda x, w: (x * w, 3),
}


#: torch.export leaves out a change of the grad mode.
CASES = [(w, n) for w in WAYS for n in WRAPPED if (w, n) != ("nnvm_torch.compile", "the grad mode is changed")]


@pytest.mark.parametrize(("way", "name"), CASES)
def test_what_is_not_called_directly(way: str, name: str, calls: list[int]) -> None:
    m = Of(WRAPPED[name])
    compiled = WAYS[way](m)
    for _ in range(2):
        results, given = [], torch.randn(3, 6)
        for run in (m, compiled):
            x = given.clone()
            with torch.no_grad():
                out = run(x)
                assert torch.is_grad_enabled() is (name == "the grad mode is changed")
            tensors = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor)]
            results.append((tensors, x, [t.data_ptr() == x.data_ptr() for t in tensors]))
        for a, b in zip(results[0][0], results[1][0]):
            close(a, b)
        close(results[0][1], results[1][1])
        assert results[0][2] == results[1][2]
    # Dynamo itself returns numbers, and breaks the graph where it cannot trace
    assert not calls or (way == "torch.compile" and name in ("a number", "an argument", "the grad mode is changed"))


@pytest.mark.parametrize("way", WAYS)
def test_training_is_not_called_directly(way: str, calls: list[int]) -> None:
    m = Mlp()
    compiled, x = WAYS[way](m), torch.randn(4, 6)
    compiled(x).sum().backward()
    with torch.no_grad():  # running statistics are written
        compiled(x)
    assert m.first.weight.grad is not None and not calls


OTHERS = ("fw_metadata", "act", "subclass_inp_meta", "input_info", "dynamic_outputs")


@torch.no_grad()
@pytest.mark.parametrize("name", [*direct._NOTHING, *OTHERS])
def test_metadata_that_says_otherwise(name: str, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any one thing that AOTAutograd tells, or does not tell, is enough for its wrappers."""
    plain = direct.marks_alone

    def changed(gm: Any, inputs: Any) -> Any:
        assert plain(gm, inputs) == ()
        context = torch._guards.TracingContext.get()
        meta = context.fw_metadata
        target, attribute = (context, name) if name == "fw_metadata" else (meta, name)
        if name == "act":
            (attribute,) = (n for n in direct._COLLECTIVES if hasattr(meta, n))
        before = getattr(target, attribute)
        other: Any = [*before, 0] if isinstance(before, list) else 1 if isinstance(before, (int, dict)) else None
        if name == "grad_enabled_mutation":
            other = True
        setattr(target, attribute, other)
        try:
            return plain(gm, inputs)
        finally:
            setattr(target, attribute, before)

    monkeypatch.setattr(backend, "marks_alone", changed)
    m, x = Mlp().eval(), torch.randn(3, 6)
    close(torch_compile(m)(x), m(x))
    assert not calls


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_of_a_direct_call(way: str, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen takes over, and leaves gradients and autocast alone."""
    m = Mlp().eval().requires_grad_(False)
    compiled, x = WAYS[way](m), torch.randn(3, 6)
    want = m(x)
    close(compiled(x), want)

    def fail(*args: Any) -> Any:
        raise RuntimeError(f"a fault that a test of {way} makes")

    monkeypatch.setattr(runner.Weights, "updated", fail)
    m.first.bias.add_(1)
    before = len(runtime_faults)
    with pytest.warns(UserWarning, match=f"fault that a test of {way} makes"):
        got = compiled(x)
    close(got, m(x))
    m.last.bias.add_(1)
    close(compiled(x), m(x))
    assert len(runtime_faults) == before + 1 and len(calls) == 3
    runtime_faults.clear()
