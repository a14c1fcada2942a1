"""The gradient of attention, against float64 and no less accurate than eager's."""

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch
from tests.nnvm_torch.accuracy import assert_as_accurate


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    nnvm_torch.reset()


def mask_of(kind, rows, keys):
    if kind in ("none", "causal"):
        return None
    g = torch.Generator().manual_seed(rows + keys)
    seen = torch.rand(2, 1, rows, keys, generator=g) < 0.7
    seen[..., 0] = True
    if kind == "bool":
        return seen
    mask = torch.randn(seen.shape, generator=g).masked_fill(~seen, -torch.inf)
    mask[0, :, rows // 2] = -torch.inf  # a row that may attend to nothing
    return mask


def gradients(attend, tensors, mask, causal, weights):
    q, k, v = (t.detach().requires_grad_() for t in tensors)
    out = attend(q, k, v, None if mask is None or mask.dtype == torch.bool else mask.to(q.dtype), mask, causal)
    return out, torch.autograd.grad((out * weights.to(out.dtype)).sum(), (q, k, v))


def attend(q, k, v, added, mask, causal):
    return F.scaled_dot_product_attention(q, k, v, added if added is not None else mask, is_causal=causal)


def exact(q, k, v, added, mask, causal):
    """Attention written out, zero for rows that see nothing."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if added is not None:
        scores = scores + added
    elif mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0) @ v


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize("rows, keys, depth", [(5, 5, 8), (33, 33, 16), (64, 64, 32), (7, 19, 5), (1, 12, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients(dtype, rows, keys, depth, kind):
    torch.manual_seed(rows * keys)
    shapes = ((2, 3, rows, depth), (2, 3, keys, depth), (2, 3, keys, depth))
    tensors = [torch.randn(s).to(dtype) for s in shapes]
    mask, weights, causal = mask_of(kind, rows, keys), torch.randn(shapes[0]), kind == "causal"
    got_out, got = gradients(torch.compile(attend, backend="nnvm"), tensors, mask, causal, weights)
    want_out, want = gradients(attend, tensors, mask, causal, weights)
    _, right = gradients(exact, [t.double() for t in tensors], mask, causal, weights)
    assert got_out.stride() == want_out.stride()
    assert_as_accurate(got, want, right)
    backward = nnvm_torch.report().graphs[-1]
    assert backward.kind == "backward" and not backward.fallbacks, backward


def test_long_sequences_are_left_to_aten():
    """Their scores would be written down."""
    q, k, v = (torch.randn(1, 4, 1100, 8, requires_grad=True) for _ in range(3))
    out = torch.compile(F.scaled_dot_product_attention, backend="nnvm")(q, k, v)
    got = torch.autograd.grad(out.square().sum(), (q, k, v))
    want = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v).square().sum(), (q, k, v))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert [f.reason for g in nnvm_torch.report().graphs[-1:] for f in g.fallbacks] == [
        "the gradient of attention over long sequences, whose scores would fill the memory"
    ]
