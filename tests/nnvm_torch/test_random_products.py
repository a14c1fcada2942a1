"""Matrix products of odd shapes and strides, static and dynamic, against eager: a fixed random sample."""

import random

import pytest
import torch

import nnvm_torch

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 33, 64]


def operand(rng, batch, rows, columns):
    """A matrix (or a batch of them) that lies in memory in one of several ways."""
    lead = (batch,) if batch else ()
    kind = rng.randrange(4)
    if kind == 0:
        return torch.randn(*lead, rows, columns)
    if kind == 1:
        return torch.randn(*lead, columns, rows).transpose(-1, -2)
    if kind == 2:
        return torch.randn(*lead, rows, columns, 2)[..., 0]
    return torch.randn(rows, *lead, columns + 3).movedim(0, -2)[..., 1 : columns + 1]


FUNCTIONS = [
    lambda a, b: a @ b,
    lambda a, b: torch.relu(a @ b) + 1,
    lambda a, b: (a @ b).transpose(-1, -2) * 2,
    lambda a, b: (a * 2) @ b + a.sum(),
]


@pytest.mark.parametrize("seed", range(24))
def test_products(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    m, k, n = (rng.choice(SIZES) for _ in range(3))
    batch = rng.choice([0, 0, 1, 2, 3])
    a, b = operand(rng, batch, m, k), operand(rng, batch, k, n)
    fn = FUNCTIONS[seed % len(FUNCTIONS)]
    torch._dynamo.reset()
    nnvm_torch.reset()
    with torch.no_grad():
        got = torch.compile(fn, backend="nnvm", dynamic=seed % 3 == 0)(a, b)
        expected = fn(a, b)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    strides = [(s, e) for s, e, n in zip(got.stride(), expected.stride(), got.shape) if n > 1]
    assert all(s == e for s, e in strides), (got.stride(), expected.stride())
    assert nnvm_torch.report().native_fraction == 1.0
