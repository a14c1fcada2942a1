"""What ATen's kernels refuse is refused when it is compiled too."""

from __future__ import annotations

import re

import pytest
import torch
from torch._dynamo.exc import TorchRuntimeError
from torch._dynamo.testing import CompileCounterWithBackend

import nnvm_torch

REFUSED = {
    "rsub of bool": (lambda x: 1 - x, torch.tensor([True, False])),
    "integers to the power of -1": (lambda x: x**-1, torch.arange(1, 4)),
    "logcumsumexp of a uint8": (lambda x: torch.logcumsumexp(x, 0), torch.tensor(3, dtype=torch.uint8)),
    "sum of uint16": (lambda x: x + x, torch.tensor([65535, 3], dtype=torch.uint16)),
    "greatest complex number": (lambda x: torch.maximum(x, x), torch.randn(3, dtype=torch.complex64)),
    "softmax of integers": (lambda x: torch.softmax(x, 0), torch.arange(4)),
    "bits of a float": (lambda x: torch.bitwise_and(x, 1), torch.randn(3)),
    "remainder of zero": (lambda x: x % 0, torch.arange(4)),
    "threshold of bools": (lambda x: torch.nn.functional.threshold(x, 0, 1), torch.tensor([True, False])),
    "range of bools": (lambda x: torch.arange(5, dtype=x.dtype), torch.tensor([True, False])),
}


def product_in_place(x):
    x = x.clone()
    x *= 1.5
    return x


#: Numbers that a type does not hold, and what takes no number of that kind.
X = {t: torch.tensor([1, 2, 5, 3]).to(t) for t in (torch.uint8, torch.int8, torch.float16, torch.float32, torch.bool)}
ODD_NUMBERS = [
    (torch.int8, lambda x: torch.add(x, x, alpha=1e6)),
    (torch.uint8, lambda x: torch.rsub(x, x, alpha=300)),
    (torch.float16, lambda x: torch.sub(x, x, alpha=70000)),
    (torch.float16, lambda x: torch.sub(x, x, alpha=True)),
    (torch.float16, lambda x: x - True),
    (torch.float16, lambda x: x**1e6),
    (torch.uint8, product_in_place),
    (torch.uint8, lambda x: x.clone().mul_(0.5)),
    (torch.bool, lambda x: x.clone().mul_(2)),
    (torch.uint8, lambda x: torch.lerp(x, x, 0.5)),
    (torch.float32, lambda x: torch.lerp(x, x, 1e40)),
    (torch.uint8, lambda x: torch.nn.functional.celu(x, 2)),
    (torch.float16, lambda x: torch.nn.functional.celu(x, 1e40)),
    (torch.float32, lambda x: torch.nn.functional.leaky_relu(x, 1e40)),
    (torch.float16, lambda x: torch.nn.functional.hardshrink(x, 1e6)),
    (torch.float16, lambda x: torch.nn.functional.softplus(x, 1, 1e40)),
    (torch.float32, lambda x: torch.addcmul(x, x, x, value=1e40)),
    (torch.uint8, lambda x: torch.addcmul(x, x, x, value=-1.5)),
    (torch.uint8, lambda x: torch.addmm(x, x[:, None], x[None], beta=300)),
    (torch.uint8, lambda x: x.index_add(0, torch.tensor([0, 2]), x[:2], alpha=2**40)),
    (torch.uint8, lambda x: x.masked_fill(x > 2, torch.tensor(70000))),
    (torch.float16, lambda x: x.masked_fill(x > 2, torch.tensor(-1e10))),
    (torch.float16, lambda x: x.clamp(min=1e6)),
]


@pytest.mark.parametrize("case", range(len(ODD_NUMBERS)))
def test_odd_numbers(case):
    """An error of the same kind as eager's, and the same words but where Dynamo's tracing finds it first."""
    dtype, fn = ODD_NUMBERS[case]
    with pytest.raises((RuntimeError, TypeError)) as eager:
        fn(X[dtype])
    with pytest.raises(eager.type) as ours:
        torch.compile(fn, backend="nnvm")(X[dtype])
    assert ours.type is TorchRuntimeError or str(ours.value) == str(eager.value)


#: Calls with a number that changes: the type of the tensor, numbers that ATen takes, and one that it refuses.
CHANGING = [
    (torch.int64, lambda x, n: x**n, (3, 2, 64, 5), -2),
    (torch.uint8, lambda x, n: x**n, (3, 2, 255), 256),
    (torch.int8, lambda x, n: torch.add(x, x, alpha=n), (3, -5, -128, 127), 128),
    (torch.int8, lambda x, n: torch.sub(x, x, alpha=n), (3, -5), -129),
    (torch.int16, lambda x, n: torch.rsub(x, x, alpha=n), (300, 5), 70000),
    (torch.uint8, lambda x, n: torch.addcmul(x, x, x, value=n), (3, 200), 1 << 40),
    (torch.float16, lambda x, n: torch.add(x, x, alpha=n), (3, -2, 100), 70000),
    (torch.float16, lambda x, n: x.masked_fill(x > 2, n), (3, -2), -70000),
    (torch.int32, lambda x, n: torch.index_fill(x, 0, torch.tensor([1]), n), (3, -2), 1 << 40),
    (torch.int32, lambda x, n: torch.full_like(x, n), (3, 1 << 30), 1 << 31),
    (torch.int8, lambda x, n: x // n, (3, -2, 5), 0),
    (torch.bool, lambda x, n: torch.nn.functional.threshold(x, n, n), (), 3),
    (torch.bool, lambda x, n: torch.arange(n, dtype=x.dtype), (), 3),
]


@pytest.mark.parametrize("case", range(len(CHANGING)))
def test_a_number_that_changes_is_refused_where_eager_refuses_it(case):
    dtype, fn, taken, refused = CHANGING[case]
    torch._dynamo.reset()
    x = torch.tensor([1, 2, 5, 3]).to(dtype)
    compiled = torch.compile(fn, backend="nnvm", dynamic=True)
    for _ in range(2):
        for n in taken:
            assert torch.equal(compiled(x, n), fn(x, n)), n
        with pytest.raises((RuntimeError, TypeError)) as eager:
            fn(x, refused)
        with pytest.raises(eager.type, match=re.escape(str(eager.value))):
            compiled(x, refused)


def test_a_number_that_changes_is_compiled_once():
    """Where ATen takes all of them no guard says otherwise; else one on their range."""

    def fn(x, n):
        return x + n, x * n, x == n, x.clamp(max=n), x & n, torch.add(x, x, alpha=n), torch.where(x > 1, x, n)

    torch._dynamo.reset()
    nnvm_torch.reset()
    x, counter = torch.tensor([1, 2, 5, 3], dtype=torch.int32), CompileCounterWithBackend("nnvm")
    compiled = torch.compile(fn, backend=counter, dynamic=True)
    for n in (3, 2, 70000, 1 << 30):
        for got, want in zip(compiled(x, n), fn(x, n), strict=True):
            assert got.dtype == want.dtype and torch.equal(got, want)
    assert counter.frame_count == 1 and nnvm_torch.report().native_fraction == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", X)
def test_numbers_that_are_taken(dtype):
    """Whatever the type makes of them, as eager, and compiled."""

    def fn(x):
        return (x + (-1), x * 300, x < 1e40, x == -1, x + 1.5, torch.where(x > 2, x, 100), torch.full_like(x, 1),
                x.masked_fill(x > 2, torch.tensor(2)), x + True)  # fmt: skip

    nnvm_torch.reset()
    for got, want in zip(torch.compile(fn, backend="nnvm")(X[dtype]), fn(X[dtype]), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)
    assert nnvm_torch.report().native_fraction == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_half_types_round_as_eager_rounds_them(dtype):
    """On the right of a product or quotient they do not; elsewhere they do."""

    def fn(x):
        of = torch.tensor(0.3)
        return (x * 0.3, torch.mul(of, x), x / 0.3, x % 0.3, torch.fmod(x, 0.3), 0.3 % x, 70000 % x, torch.atan2(of, x),
                torch.div(x, 0.3, rounding_mode="floor"), 0.3 // x, x**0.3, 0.3**x, 70000**x)  # fmt: skip

    x = (torch.rand(512) * 8 + 0.5).to(dtype)
    for i, (got, want) in enumerate(zip(torch.compile(fn, backend="nnvm")(x), fn(x), strict=True)):
        differ = ~torch.isclose(got, want, rtol=0, atol=0, equal_nan=True)
        assert differ.float().mean() < 0.005, i  # the last bit of a power or an angle


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    fn, x = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError, ZeroDivisionError)) as eager:
        fn(x)
    compiled = torch.compile(fn, backend="nnvm")
    for _ in range(2):
        with pytest.raises(eager.type):
            compiled(x)


def test_integers_are_compiled():
    """What ATen takes is not left to it."""

    def fn(x, y):
        return x + 1, x * y, x // y, x == 1, x.sum(), x.cumsum(0), x << 1, x.abs(), x.clamp(0, 2), x**2, y > x, x ^ y

    x, y = torch.randint(-9, 9, (5, 4)), torch.randint(1, 9, (5, 4))
    for got, want in zip(torch.compile(fn, backend="nnvm", options={"strict": True})(x, y), fn(x, y), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)
