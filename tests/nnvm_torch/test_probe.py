"""What ATen's kernels refuse is refused when it is compiled too."""

from __future__ import annotations

import pytest
import torch

REFUSED = {
    "rsub of bool": (lambda x: 1 - x, torch.tensor([True, False])),
    "integers to the power of -1": (lambda x: x**-1, torch.arange(1, 4)),
    "logcumsumexp of a uint8": (lambda x: torch.logcumsumexp(x, 0), torch.tensor(3, dtype=torch.uint8)),
    "sum of uint16": (lambda x: x + x, torch.tensor([65535, 3], dtype=torch.uint16)),
    "greatest complex number": (lambda x: torch.maximum(x, x), torch.randn(3, dtype=torch.complex64)),
    "softmax of integers": (lambda x: torch.softmax(x, 0), torch.arange(4)),
    "bits of a float": (lambda x: torch.bitwise_and(x, 1), torch.randn(3)),
    "remainder of zero": (lambda x: x % 0, torch.arange(4)),
}


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
