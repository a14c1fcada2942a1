"""Python numbers that a trace leaves open may be negative, where a size may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import nnvm_torch

Fn = Callable[[torch.Tensor, int], torch.Tensor]

#: By name, what is computed of a 9x11 matrix and a number from -7 to 7.
FUNCTIONS: dict[str, Fn] = {
    "add": lambda x, n: x + n,
    "multiply": lambda x, n: x * n - n * n,
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "floordiv": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "of_integers": lambda x, n: torch.arange(20) // n + torch.arange(20) % n,
    "python_floordiv": lambda x, n: x + 100 // n + n // 3 + (n - 10) // 4,
    "python_remainder": lambda x, n: x + 100 % n + n % 4,
    "large": lambda x, n: x.double() + (n * 10**9 + 7) // 4,
    "constant": lambda x, n: torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])[n] + x,
    "compare": lambda x, n: x > n,
    "where": lambda x, n: torch.where(x > 0, n, x),
    "full": lambda x, n: torch.full((3, 4), n),
    "scalar_tensor": lambda x, n: torch.scalar_tensor(n) + 1,
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "clamp": lambda x, n: x.clamp(min=n),
    "power": lambda x, n: x.abs().add(1).pow(n),
    "select": lambda x, n: x.select(0, n),
    "subscript": lambda x, n: x[:, n] + x[n, 0],
    "slice_from": lambda x, n: x[:, n:] * 2,
    "slice_to": lambda x, n: x[:, :n] * 2,
    "beyond": lambda x, n: x[:, 5 * n :].sum() + x[:, : 5 * n].sum(),
    "select_scatter": lambda x, n: torch.select_scatter(x, x[:, 1], 1, n),
    "slice_scatter": lambda x, n: torch.slice_scatter(x, x[:1] + 1, 0, n, n + 1 or None).roll(n),
    "set": lambda x, n: x.clone().index_fill_(0, torch.tensor([1, 2]), n),
    "roll": lambda x, n: x.roll(n, 1),
    "triangle": lambda x, n: x.tril(n) + x.triu(n),
    "diagonal": lambda x, n: x.diagonal(n) * 2,
    "arange": lambda x, n: torch.arange(n, 8),
    "arange_down": lambda x, n: torch.arange(8, n, -1) * 2,
    "pad": lambda x, n: F.pad(x, (n, 1, 1, n)),
    "pad_value": lambda x, n: F.pad(x, (2, 1), value=n),
    "index_add": lambda x, n: x.index_add(0, torch.tensor([2, 2, 4]), x[:3], alpha=n),
    "addmm": lambda x, n: torch.addmm(x[:, :9], x, x.t(), beta=n, alpha=n + 1),
    "correction": lambda x, n: x.var(1, correction=n),
    "view": lambda x, n: x[:8].reshape(8 + 0 * n, -1) + n,
    "as_strided": lambda x, n: x.as_strided((3, 4), (11, 1), 10 + n) * 2,
    "leaky": lambda x, n: F.leaky_relu(x, n),
    "threshold": lambda x, n: F.threshold(x, n, -n),
    "result": lambda x, n: (x.sum(), n, -n, n * 2),  # type: ignore[dict-item,return-value]
}


#: Those of which Dynamo compiles for some values, besides for each sign.
BY_VALUE = {"subscript", "beyond", "diagonal", "arange", "arange_down", "pad_value", "correction", "threshold"}


@pytest.mark.filterwarnings("error:nnvm could not")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_either_sign(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    fn, counter = FUNCTIONS[name], CompileCounterWithBackend("nnvm")
    compiled = torch.compile(fn, backend=counter, dynamic=True)
    for n in (3, -3, 7, -7, 5, -2):
        x = torch.randn(9, 11)
        torch.testing.assert_close(compiled(x, n), fn(x, n), msg=lambda m, n=n: f"{name} of {n}: {m}")
    assert counter.frame_count == 2 or name in BY_VALUE


#: Operators with parameters that are floats, of a 9x11 matrix and a whole number.
PARAMETERS: dict[str, Fn] = {
    "elu": lambda x, n: F.elu(x, n),
    "celu": lambda x, n: F.celu(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "softplus": lambda x, n: F.softplus(x, n, abs(n) - 2),
    "threshold": lambda x, n: F.threshold(x, n, -n),
    "hardtanh": lambda x, n: F.hardtanh(x, -abs(n), abs(n)),
    "hardshrink": lambda x, n: F.hardshrink(x, n),
    "softshrink": lambda x, n: F.softshrink(x, abs(n)),
    "clamp": lambda x, n: x.clamp(n - 5, n),
    "power": lambda x, n: x.abs().add(1).pow(n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x.flip(0), x, value=n),
    "add": lambda x, n: torch.add(x, x.flip(0), alpha=n),
    "rsub": lambda x, n: torch.rsub(x, x.flip(1), alpha=n),
    "full": lambda x, n: torch.full_like(x, n) + x,
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "arange": lambda x, n: torch.arange(n, n + 100 * abs(n), abs(n), dtype=x.dtype) * x[0, 0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_whole_number_for_a_float_parameter(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(1)
    fn, counter = PARAMETERS[name], CompileCounterWithBackend("nnvm")
    compiled = torch.compile(fn, backend=counter, dynamic=True)
    for n in (3, 2, 5, -3, -7, 4):
        x = (torch.randn(9, 11) * 3).to(dtype)
        near = {"atol": 1e-2, "rtol": 4e-3} if dtype == torch.float16 else {}  # eager rounds more often
        torch.testing.assert_close(compiled(x, n), fn(x, n), msg=lambda m, n=n: f"{name} of {n}: {m}", **near)
    assert nnvm_torch.report().native_fraction == 1.0 and not nnvm_torch.report().fallbacks
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["elu", "leaky_relu", "softplus", "threshold", "hardtanh"])
def test_a_gradient_with_a_whole_number_for_a_float_parameter(name: str) -> None:
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(1)
    fn = PARAMETERS[name]
    compiled = torch.compile(fn, backend="nnvm", dynamic=True)
    for n in (3, 2, 5):
        x, y = (t.requires_grad_() for t in (torch.randn(5, 6) * 3).expand(2, 5, 6).clone())
        compiled(x, n).sin().sum().backward()
        fn(y, n).sin().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert nnvm_torch.report().native_fraction == 1.0


@pytest.mark.parametrize("dtype, large", [(torch.int8, 128), (torch.uint8, 256), (torch.int16, -(1 << 15) - 1),
                                          (torch.float16, 65505), (torch.float16, -70000)])  # fmt: skip
def test_a_number_that_a_tensor_does_not_hold(dtype: torch.dtype, large: int) -> None:
    torch._dynamo.reset()

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.masked_fill(x > 2, n)

    x, counter = torch.arange(6).to(dtype), CompileCounterWithBackend("nnvm")
    compiled = torch.compile(fn, backend=counter, dynamic=True)
    for n in (3, 100, 2, 5):
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    assert counter.frame_count == 1
    for call in (fn, compiled):
        with pytest.raises(RuntimeError, match="without overflow"):
            call(x, large)
    torch.testing.assert_close(compiled(x, 7), fn(x, 7))


@pytest.mark.parametrize("name, good, bad", [("select_scatter", (3, 2, 8, -9), 9), ("slice_scatter", (3, 2, 7), 8)])
def test_a_place_outside_is_refused(name: str, good: tuple[int, ...], bad: int) -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        if name == "select_scatter":
            return torch.select_scatter(x, x[0] * 0, 0, n)
        return torch.slice_scatter(x, x[:2] * 0, 0, n, n + 2)

    torch._dynamo.reset()
    compiled, x = torch.compile(fn, backend="nnvm", dynamic=True), torch.randn(9, 8)
    for n in good:
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    for call in (fn, compiled):
        with pytest.raises((RuntimeError, IndexError)):
            call(x, bad)


def test_a_gradient_with_a_number_of_either_sign() -> None:
    torch._dynamo.reset()

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return (x[:, n:] * n).exp().sum()

    compiled = torch.compile(fn, backend="nnvm", dynamic=True)
    for n in (3, -3, 2, -2):
        x, y = (t.requires_grad_() for t in torch.randn(5, 6).expand(2, 5, 6).clone())
        compiled(x, n).backward()
        fn(y, n).backward()
        torch.testing.assert_close(x.grad, y.grad)
