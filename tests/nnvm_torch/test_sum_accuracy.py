"""Float sums of all shapes, orders in memory and sizes: the error against float64 is at most twice eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

Fn = Callable[[torch.Tensor], torch.Tensor]


def values(shape: Sequence[int], order: Sequence[int], seed: int) -> torch.Tensor:
    """Normal values around 1 (sums of values around 0 hide errors); `order`: of the axes in memory, outermost first."""
    x = torch.randn([shape[a] for a in order], generator=torch.Generator().manual_seed(seed)) + 1
    return x.permute([list(order).index(a) for a in range(len(shape))])


def error(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return (got.double() - exact).square().sum()


def assert_sums_as_well_as_eager(
    fn: Fn, shape: Sequence[int], order: Sequence[int] | None = None, dynamic: bool = False
) -> None:
    """Over so many sums that none is right by chance."""
    compiled = torch.compile(fn, backend="nnvm", dynamic=dynamic)
    mine = theirs = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        sums = 0
        for seed in range(64):
            x = values(shape, order or range(len(shape)), seed)
            exact, got, eager = fn(x.double()), compiled(x), fn(x)
            mine, theirs, sums = mine + error(got, exact), theirs + error(eager, exact), sums + eager.numel()
            if sums > 200 and seed > 2:
                break
    assert mine.sqrt() <= 2 * theirs.sqrt(), f"{(mine / sums).sqrt()}, eager {(theirs / sums).sqrt()}"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(24, 17), (48, 64), (128, 64), (4000, 17), (60000, 4)])
def test_sums_over_the_outer_axis(shape: tuple[int, int], dynamic: bool) -> None:
    assert_sums_as_well_as_eager(lambda x: x.sum(0), shape, dynamic=dynamic)


@pytest.mark.parametrize("shape", [(2000, 3), (211, 700), (20000, 10)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_means_of_everything_in_either_order(shape: tuple[int, int], order: tuple[int, int]) -> None:
    assert_sums_as_well_as_eager(lambda x: x.mean(), shape, order)
    assert_sums_as_well_as_eager(lambda x: (x / 4).exp().mean(), shape, order, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2), (1,), (0, 1, 2)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_sums_over_some_axes(axes: tuple[int, ...], order: tuple[int, ...], dynamic: bool) -> None:
    assert_sums_as_well_as_eager(lambda x: (x * x + x).sum(axes), (300, 20, 7), order, dynamic)


def test_a_sum_of_millions() -> None:
    assert_sums_as_well_as_eager(lambda x: x.expand(40, -1).sum(1), (2_000_000,))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape,axis", [((3000, 4), 0), ((4, 30000), 1)])
def test_infinities_in_long_sums(shape: tuple[int, int], axis: int, dynamic: bool) -> None:
    """Infinite values, NaN, both infinities, and finite values whose total overflows."""
    x = torch.ones(shape)
    lines = x.movedim(axis, 0)
    at = lines.shape[0] // 2
    lines[at, 0] = torch.inf
    lines[at, 1] = torch.nan
    lines[at, 2], lines[at + 700, 2] = torch.inf, -torch.inf
    lines[:, 3] = -torch.finfo(torch.float32).max / 100

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum(axis)

    torch.testing.assert_close(torch.compile(fn, backend="nnvm", dynamic=dynamic)(x), fn(x), equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(64, 300), (64, 1000), (40, 5000)])
def test_products_of_a_matrix_and_a_vector(shape: tuple[int, int], dynamic: bool) -> None:
    assert_sums_as_well_as_eager(lambda x: x @ x[0], shape, dynamic=dynamic)
