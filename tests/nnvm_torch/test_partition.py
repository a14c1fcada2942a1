"""Calls that ATen runs between native segments: which are random, and how their arguments are laid out."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import nnvm_torch
from nnvm_torch.partition import is_effect, needs_strides
from nnvm_torch.tensors import laid_out

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default


def call(target, *args, **kwargs):
    graph = fx.Graph()
    return graph.call_function(target, tuple(graph.placeholder(f"x{i}") for i in range(3)) + args, kwargs)


@pytest.mark.parametrize(
    ("node", "random"),
    [
        (call(FLASH), False),
        (call(FLASH, 0.0, True), False),
        (call(FLASH, 0.1), True),
        (call(FLASH, dropout_p=0.25), True),
        (call(aten._efficient_attention_forward.default), True),  # not said how much
        (call(aten.native_dropout.default), True),
        (call(aten.bernoulli.p), True),
        (call(aten.mm.default), False),
    ],
)
def test_attention_is_random_where_it_drops(node, random):
    assert is_effect(node) == needs_strides(node) == random


@pytest.mark.parametrize("strides", [(384, 32, 1), (1, 7, 100), (64, 1, 8), (3, 1, 1), (1, 0, 4), (0, 0, 0)])
def test_laid_out_in_any_strides(strides):
    """Gaps, other orders, and elements that share memory where they are equal."""
    shape = (4, 6, 5)
    x = torch.empty_strided(shape, strides)
    flat = x.as_strided((1 + sum((n - 1) * s for n, s in zip(shape, strides)),), (1,))
    flat.copy_(torch.randn(flat.shape))
    made = laid_out(x.contiguous(), strides)
    assert made.stride() == strides
    assert torch.equal(made, x)


def test_training_attention_of_a_shared_projection():
    """Queries, keys and values are parts of one product, with gaps between their rows."""
    torch.manual_seed(0)
    x = torch.randn(2, 9, 24, requires_grad=True)
    w = (torch.randn(72, 24) / 5).requires_grad_()

    def f(x, w):
        q, k, v = (t.view(2, 9, 3, 8).transpose(1, 2) for t in F.linear(x, w).split(24, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    weights = torch.randn(2, 9, 3, 8)
    nnvm_torch.reset()
    got, want = torch.compile(f, backend="nnvm")(x, w), f(x, w)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.stride() == want.stride()
    mine, theirs = (torch.autograd.grad((y * weights).sum(), (x, w)) for y in (got, want))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
