"""Arguments that share memory, at one call and not at another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch.shared_memory import SharedMemory

Make = Callable[[], tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    nnvm_torch.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*share memory.*")
        yield


class Edit(nn.Module):
    """Writes to its first argument."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(1)
        return a * b, b.sum()


class Read(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return a * 2 - b + self.w


def apart() -> tuple[torch.Tensor, ...]:
    return torch.randn(4, 4), torch.randn(4, 4)


def one() -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 4)
    return x, x


def view() -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 4)
    return x, x.view(4, 4)


def rows() -> tuple[torch.Tensor, ...]:
    x = torch.randn(5, 4)
    return x[:4], x[1:]


def neighbours() -> tuple[torch.Tensor, ...]:
    x = torch.randn(8, 4)
    return x[:4], x[4:]


def numpy_rows() -> tuple[torch.Tensor, ...]:
    x = torch.randn(5, 4).numpy()
    return torch.from_numpy(x[:4]), torch.from_numpy(x[1:])


MAKES: list[Make] = [apart, one, view, rows, neighbours, numpy_rows]


def compiled(way: str, module: nn.Module) -> Any:
    return nnvm_torch.compile(module) if way == "module" else torch.compile(module, backend="nnvm")


def check(run: Any, module: nn.Module, make: Make, seed: int) -> None:
    torch.manual_seed(seed)
    mine = make()
    torch.manual_seed(seed)
    theirs = make()
    torch.testing.assert_close(run(*mine), module(*theirs))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("way", ["module", "backend"])
@pytest.mark.parametrize("kind", [Edit, Read])
@pytest.mark.parametrize("first", MAKES)
def test_every_order(way: str, kind: type[nn.Module], first: Make) -> None:
    module = kind()
    run = compiled(way, module)
    with torch.no_grad():
        for seed, make in enumerate([first, *MAKES, first]):
            check(run, module, make, seed)


@pytest.mark.parametrize("way", ["module", "backend"])
def test_an_argument_in_a_buffer_that_is_written_to(way: str) -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean.mul_(0.5).add_(x)
            return self.mean - x

    torch.manual_seed(0)
    mine, theirs = Running(), Running()
    theirs.load_state_dict(mine.state_dict())
    run = compiled(way, mine)
    for _ in range(2):
        x = torch.randn(4)
        torch.testing.assert_close(run(x), theirs(x))
        torch.testing.assert_close(run(mine.mean), theirs(theirs.mean))
        torch.testing.assert_close(run(mine.mean.flip(0)), theirs(theirs.mean.flip(0)))


@pytest.mark.parametrize("way", ["module", "backend"])
def test_gradients_of_one_tensor_twice(way: str) -> None:
    module = Read()
    run = compiled(way, module)
    for make in (one, apart, view, one):
        given = [t.requires_grad_() if t.is_leaf else t for t in make()]
        grads = []
        for fn in (run, module):
            fn(*given).square().sum().backward()
            grads.append([t.grad.clone() for t in (*given, module.w) if t.grad is not None])
            for t in (*given, module.w):
                t.grad = None
        torch.testing.assert_close(*grads)


def test_a_parameter_as_argument_while_tracing() -> None:
    module, x = Read(), torch.randn(4, 4)
    run = nnvm_torch.compile(module, (module.w, module.w))
    for other in (nn.Parameter(torch.randn(4, 4)), module.w):
        torch.testing.assert_close(run(other, x), module(other, x))
        torch.testing.assert_close(run(other, other), module(other, other))


def test_pairs() -> None:
    x = torch.zeros(10)
    args = [x[:4], x[3:6], 7, x[6:], x[5:7], torch.zeros(0), torch.zeros(3), torch.zeros(2, device="meta")]
    positions = range(len(args))
    assert SharedMemory([0], positions).pairs(args) == {(0, 1)}
    assert SharedMemory([4], positions).pairs(args) == {(1, 4), (3, 4)}
    assert SharedMemory([5, 6], positions).pairs(args) == frozenset()
    assert SharedMemory([0], [1]).pairs([x, x[3:], x]) == {(0, 1)}
    assert not SharedMemory([], positions).matters and not SharedMemory([2], [2]).matters


def test_tensors_without_memory_of_their_own() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(4)
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged)
    others = [fake, nested, torch.eye(3).to_sparse(), torch.randn(3, device="meta"), torch._efficientzerotensor(4)]
    x = torch.randn(4)
    assert SharedMemory([0, 1], range(8)).pairs([x, x[1:], *others, 3]) == {(0, 1)}
