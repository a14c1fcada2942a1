"""Floats that are computed of sizes and of whole numbers that change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import nnvm_torch

Fn = Callable[[torch.Tensor, int], torch.Tensor]

#: Of a matrix and a whole number.
FUNCTIONS: dict[str, Fn] = {
    "mean": lambda x, n: x.sum(0) * (1 / x.size(0)) + x.size(1) / x.size(0),
    "multiply": lambda x, n: x * (n / 7),
    "chain": lambda x, n: (x - n / 3) / (n / 5) + (2 - n / 3) - -(n / 9),
    "alpha": lambda x, n: torch.add(x, x.flip(0), alpha=n / 3),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n * 0.37),
    "elu": lambda x, n: F.elu(x, 1 / n),
    "celu": lambda x, n: F.celu(x, n / 3),
    "softplus": lambda x, n: F.softplus(x, n / 4, n * 1.5),
}

#: What is left to ATen, as a whole.
IN_ATEN: dict[str, Fn] = {
    "result": lambda x, n: (x * (n / 7), n / 7),  # type: ignore[dict-item,return-value]
    "no_conversion": lambda x, n: torch.special.zeta(x.abs() + 2, n / 7 + 1) * (n / 7),
    "of_integers": lambda x, n: x.long() * (n / 7),
}


def check(fn: Fn, dtype: torch.dtype) -> int:
    """Compares with eager; how often it was compiled."""
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(1)
    counter = CompileCounterWithBackend("nnvm")
    compiled = torch.compile(fn, backend=counter, dynamic=True)
    for n in (3, 5, 2, 7, -2, -5):
        x = torch.randn(4 + abs(n), 6).to(dtype)
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    return counter.frame_count


@pytest.mark.filterwarnings("error:nnvm could not")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats_of_sizes_are_compiled(name: str, dtype: torch.dtype) -> None:
    assert check(FUNCTIONS[name], dtype) <= 2
    assert nnvm_torch.report().native_fraction == 1.0


@pytest.mark.filterwarnings("error:nnvm could not")
@pytest.mark.parametrize("name", IN_ATEN)
def test_what_takes_no_such_float_is_left_to_aten(name: str) -> None:
    check(IN_ATEN[name], torch.float32)
    assert nnvm_torch.report().native_fraction == 0.0


def test_a_float_that_the_type_does_not_hold_is_refused() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.add(x, x, alpha=n * 1000.5)

    torch._dynamo.reset()
    x = torch.randn(4, 3).half()
    compiled = torch.compile(fn, backend="nnvm", dynamic=True)
    for n in (3, 2, -5):
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    for call in (fn, compiled):
        with pytest.raises(RuntimeError, match="without overflow"):
            call(x, 70)


def test_division_by_a_number_that_becomes_zero() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * (1 / (n - 4))

    torch._dynamo.reset()
    x = torch.randn(4, 3)
    compiled = torch.compile(fn, backend="nnvm", dynamic=True)
    for n in (3, 2, 7):
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    with pytest.raises(ZeroDivisionError):
        fn(x, 4)
    with pytest.raises((ZeroDivisionError, RuntimeError), match="division by zero"):
        compiled(x, 4)
