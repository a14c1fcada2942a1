"""Losses with arguments of several element types, and outside of what they are defined for: as eager has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch

Loss = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    nnvm_torch.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def outcome(loss: Loss, x: torch.Tensor, *others: torch.Tensor) -> Any:
    """The loss and its gradient, or where and with what it is refused."""
    x = x.clone().requires_grad_()
    where = "forward"
    try:
        value = loss(x, *others)
        where = "backward"
        value.sum().backward()
    except RuntimeError as e:
        return where, str(e).partition("\n")[0]
    return value.detach(), x.grad


def check(loss: Loss, *args: torch.Tensor) -> Any:
    """Compares the two; gives eager's outcome."""
    expected = outcome(loss, *args)
    found = outcome(torch.compile(loss, backend="nnvm"), *args)
    if isinstance(expected[0], str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)
    return expected


def of_type(dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(4, 5) * 2).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64])
@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.soft_margin_loss])
def test_targets_of_another_type(loss: Loss, dtype: torch.dtype) -> None:
    warnings.filterwarnings("ignore", message="PyTorch's AOTAutograd could not trace")
    torch.manual_seed(0)
    check(loss, torch.rand(4, 5), of_type(dtype).clamp(max=1) if dtype is not torch.bool else of_type(dtype))


def test_what_eager_refuses_in_backward_alone() -> None:
    torch.manual_seed(0)
    where, what = check(F.huber_loss, torch.rand(4), torch.rand(4) > 0.5)
    assert where == "backward" and "Bool" in what
    where, what = check(F.huber_loss, torch.rand(4).bfloat16(), torch.rand(4))
    assert where == "backward" and "Float" in what


@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss, F.soft_margin_loss])
def test_losses_of_one_type_are_compiled(loss: Loss) -> None:
    torch.manual_seed(0)
    value, grad = check(loss, torch.rand(4, 5), torch.rand(4, 5))
    assert isinstance(value, torch.Tensor) and isinstance(grad, torch.Tensor)
    assert nnvm_torch.report().native_fraction == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("loss", [F.nll_loss, F.cross_entropy])
def test_weights_of_another_type(loss: Loss, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _, what = check(loss, torch.rand(4, 5), torch.tensor([1, 0, 4, 2]), torch.arange(5).to(dtype))
    assert "expected scalar type Float" in what


def test_margins_of_another_type() -> None:
    warnings.filterwarnings("ignore", message="PyTorch's AOTAutograd could not trace")  # eager is to refuse them
    torch.manual_seed(0)
    x, target = torch.rand(4, 5), torch.tensor([1, 0, 4, 2])
    _, what = check(lambda a, t, w: F.multi_margin_loss(a, t, weight=w), x, target, torch.rand(5).double())
    assert "expected scalar type Float" in what
    _, what = check(F.multilabel_margin_loss, x, torch.tensor([[1, 2, -1, 0, 0]] * 4).bool())
    assert "expected scalar type Long" in what


def test_numbers_beyond_what_a_loss_takes() -> None:
    torch.manual_seed(0)
    good, bad = torch.rand(4), torch.tensor([0.5, 1.5, 0.2, 0.1])
    assert "all elements of input" in check(F.binary_cross_entropy, bad, good)[1]
    assert "all elements of target" in check(F.binary_cross_entropy, good, bad)[1]
    assert "negative" in check(lambda a, b: F.smooth_l1_loss(a, b, beta=-1.0), good, bad)[1]
    value, _ = check(F.binary_cross_entropy, good, good)
    torch.testing.assert_close(value, -(good * good.log() + (1 - good) * (1 - good).log()).mean())


@pytest.mark.parametrize(("threshold", "value"), [(300, 1), (4, 1e9), (4, float("nan")), (-1.5, 1), (4, -1), (4, 7)])
def test_thresholds_that_a_type_does_not_hold(threshold: float, value: float) -> None:
    x, found = torch.arange(9, dtype=torch.uint8), list[Any]()
    fn = lambda x: F.threshold(x, threshold, value)  # noqa: E731
    for run in (fn, torch.compile(fn, backend="nnvm")):
        try:
            found.append(run(x).tolist())
        except RuntimeError as e:
            found.append(str(e).partition("\n")[0])
    assert found[0] == found[1] and isinstance(found[0], list) == (threshold == 4 and value in (-1, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, 1])
def test_sums_of_bags_in_training(dtype: torch.dtype, padding: int | None) -> None:
    """ATen's kernel for bfloat16 gives the backward pass less than its trace says."""
    torch.manual_seed(0)
    index, offsets, scale = torch.randint(0, 10, (12,)), torch.tensor([0, 3, 3, 9]), torch.rand(12).to(dtype)

    def bags(table: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        kwargs = {"mode": "sum", "padding_idx": padding}
        return F.embedding_bag(index, table, offsets, **kwargs, per_sample_weights=scale).relu()

    found = []
    for fn in (bags, torch.compile(bags, backend="nnvm")):
        table, by = torch.arange(80).view(10, 8).to(dtype).requires_grad_(), scale.clone().requires_grad_()
        out = fn(table, by)
        out.sum().backward()
        found.append((out.detach(), table.grad, by.grad))
    torch.testing.assert_close(found[1], found[0])
    assert not [f for f in nnvm_torch.report().fallbacks if "_embedding_bag.default" in f.op]
