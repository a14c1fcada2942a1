"""`strict_rounding`: chains of operators equal eager bit for bit."""

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch
from nnvm_torch import Options

HALF = [torch.bfloat16, torch.float16]


def same(fn, *inputs, **options):
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="nnvm", fullgraph=True, options={"strict_rounding": True, **options})
    with torch.no_grad():
        for got, want in zip(compiled(*inputs), fn(*inputs), strict=True):
            assert torch.equal(got, want), (got - want).abs().max()


def numbers(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_arithmetic_rounds_after_each_operator(dtype):
    def fn(x, y, z):
        t = x * y + z
        u = (t - y) * (t + 0.1) / (z.abs() + 1)
        return t, u, torch.where(u > 0, u * 3 - t, t * t), F.relu(u).clamp(max=1.5) * z, u.reciprocal().nan_to_num() - x

    same(fn, *(numbers(16, 64, dtype=dtype, seed=s) for s in range(3)))


@pytest.mark.parametrize("dtype", HALF)
def test_a_formula_is_not_replaced_by_one_operator(dtype):
    """A sigmoid, a GELU's tanh form and a normalisation written out, whose values in between are of the half type."""

    def fn(x, w):
        silu = x * (1 / (1 + x.abs()))
        cube = x * 0.5 * (1 + (x + 0.044715 * x * x * x) * 0.8)
        return silu, cube, (x - w) * (w * w + 1e-3) * 2 + w

    same(fn, numbers(8, 128, dtype=dtype), numbers(128, dtype=dtype, seed=1))


@pytest.mark.parametrize("dtype", HALF)
def test_sums_take_rounded_products(dtype):
    """Each product is rounded before it is summed. Few terms of few digits: their sum is exact in any order."""
    x = torch.randint(-8, 9, (64, 16), generator=torch.Generator().manual_seed(2)).to(dtype) * 1.0625
    same(lambda x: ((x * x).sum(1), (x * 1.03125).sum(0), (x * x * x).amax(1)), x)


def test_a_product_is_rounded_before_it_is_added_to_a_sum():
    """In float32: with a fused multiply-add the two terms would leave the rounding error of the second."""
    x = torch.rand(256, generator=torch.Generator().manual_seed(3)) + 1
    pairs = torch.stack([x, x], 1)
    other = torch.stack([x, -x], 1)
    same(lambda a, b: ((a * b).sum(1),), pairs, other)


def test_batch_norm_of_evaluation_is_not_folded():
    conv, norm = torch.nn.Conv1d(4, 4, 1), torch.nn.BatchNorm1d(4).eval()
    norm.running_mean.copy_(torch.randn(4)), norm.running_var.copy_(torch.rand(4) + 0.5)
    nnvm_torch.reset()
    fn = torch.compile(torch.nn.Sequential(conv, norm).eval(), backend="nnvm", options={"strict_rounding": True})
    with torch.no_grad():
        fn(torch.randn(2, 4, 9))
    assert "batch_norm" in [op for k in nnvm_torch.report().kernels for op in k.ops]


def test_it_contradicts_fast_math():
    with pytest.raises(ValueError, match="strict_rounding and fast_math contradict"):
        Options.make({"strict_rounding": True, "fast_math": True})
