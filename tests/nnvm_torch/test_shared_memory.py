"""Arguments that share memory, at one call and not at another."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch import shared_memory
from nnvm_torch.shared_memory import SharedMemory, overlap

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


def columns() -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 8)
    return x[:, ::2], x[:, 1::2]


def parts_of_complex() -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 4, dtype=torch.complex64)
    return x.real, x.imag


def columns_twice() -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 10)
    return x[:, :8:2], x[:, 2::2]


MAKES: list[Make] = [apart, one, view, rows, neighbours, numpy_rows]
INTERLEAVED: list[Make] = [columns, parts_of_complex]


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


@pytest.mark.parametrize("way", ["module", "backend", "dynamic"])
@pytest.mark.parametrize("first", [apart, *INTERLEAVED, columns_twice])
def test_interleaved(way: str, first: Make) -> None:
    """Elements between each other's are no shared memory: such calls are compiled, whichever comes first."""
    module = Edit()
    run = torch.compile(module, backend="nnvm", dynamic=True) if way == "dynamic" else compiled(way, module)
    with torch.no_grad():
        check(run, module, first, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed, make in enumerate([*INTERLEAVED, apart, *INTERLEAVED]):
                check(run, module, make, seed)
        check(run, module, columns_twice, 1)
    assert not [g.failure for g in nnvm_torch.report().graphs if g.failure and "as_strided" not in g.failure]


def places(t: torch.Tensor) -> set[int]:
    """The bytes of the storage in which the elements of `t` lie."""
    size = t.element_size()
    at = torch.arange(t.untyped_storage().nbytes())
    first = at.as_strided(t.shape, [s * size for s in t.stride()], t.storage_offset() * size)
    return set((first.unsqueeze(-1) + torch.arange(size)).flatten().tolist())


def test_overlap_is_exact() -> None:
    base, seen = torch.zeros(400), set()
    rng = random.Random(0)

    def any_view() -> torch.Tensor:
        of = base.view(rng.choice([torch.float32, torch.int8, torch.complex64]))
        shape = [rng.randint(1, 4) for _ in range(rng.randint(0, 4))]
        strides = [rng.randint(0, 15) for _ in shape]
        return of.as_strided(shape, strides, rng.randint(0, 20))

    for _ in range(300):
        a, b = any_view(), any_view()
        shared = bool(places(a) & places(b))
        assert SharedMemory([0], [1]).pairs([a, b]) == ({(0, 1)} if shared else set()), (a.stride(), b.stride())
        seen.add(shared)
    assert seen == {True, False}


def test_overlap_that_is_hard_to_decide_counts_as_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(12345)
    a, b = x.as_strided((9, 9, 9), (315, 231, 165), 0), x.as_strided((9, 9, 9), (105, 385, 495), 1)
    shared_memory._meet.cache_clear()
    assert bool(places(a) & places(b)) == overlap(a, b)
    shared_memory._meet.cache_clear()
    monkeypatch.setattr(shared_memory, "MAX_WORK", 1)
    assert overlap(a, b)
    shared_memory._meet.cache_clear()


@pytest.mark.parametrize("leaf", [True, False])
def test_copies_lie_as_the_arguments_do(leaf: bool) -> None:
    x = torch.randn(4, 9, requires_grad=True)
    y = (x if leaf else x * 2)[:, 1::2]
    given = y.detach().requires_grad_() if leaf else y
    taken = shared_memory.apart([given, given])
    assert taken[0] is given
    copy = taken[1]
    assert copy.untyped_storage().data_ptr() != given.untyped_storage().data_ptr() and not copy._is_view()
    facts = [(t.shape, t.stride(), t.storage_offset(), t.is_leaf, t.requires_grad) for t in (copy, given)]
    assert facts[0] == facts[1]
    torch.testing.assert_close(copy, given)


def test_tensors_without_memory_of_their_own() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(4)
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged)
    others = [fake, nested, torch.eye(3).to_sparse(), torch.randn(3, device="meta"), torch._efficientzerotensor(4)]
    x = torch.randn(4)
    assert SharedMemory([0, 1], range(8)).pairs([x, x[1:], *others, 3]) == {(0, 1)}
