"""Training through normalisations of rows: results and gradients against float64, all of it compiled."""

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch
from tests.nnvm_torch.accuracy import assert_as_accurate


def run(fn, tensors, weights):
    tensors = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    out = fn(*tensors)
    grads = torch.autograd.grad((out * weights.to(out.dtype)).sum(), [t for t in tensors if t.requires_grad])
    return out.detach(), *grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("affine", ["both", "weight", "none", "frozen"])
@pytest.mark.parametrize("shape, rows", [((6, 5, 48), 1), ((3, 4, 9), 2), ((2, 257), 1)])
def test_layer_norm(dtype, affine, shape, rows):
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(len(shape) * rows)
    own = shape[len(shape) - rows :]
    x = (torch.randn(shape) * 2 + 3).to(dtype).requires_grad_()
    params = [(1 + torch.randn(own) / 4).to(dtype), torch.randn(own).to(dtype)]
    params = {"both": params, "weight": params[:1], "none": [], "frozen": params}[affine]
    for p in params:
        p.requires_grad_(affine != "frozen")
    weights = torch.randn(shape)

    def fn(x, *affine):
        return F.layer_norm(x, own, *affine)

    got, eager = run(torch.compile(fn, backend="nnvm"), [x, *params], weights), run(fn, [x, *params], weights)
    wide = [t.double().detach().requires_grad_(t.requires_grad) for t in (x, *params)]
    right = run(fn, wide, weights)
    assert_as_accurate(got, eager, right)
    report = nnvm_torch.report()
    assert report.native_fraction == 1.0, report


def test_rows_of_any_number():
    """One compilation of forward and backward for every batch."""
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(5)
    w, b = torch.randn(33, requires_grad=True), torch.randn(33, requires_grad=True)
    fn = torch.compile(lambda x: F.layer_norm(x, (33,), w, b), backend="nnvm", dynamic=True)
    for rows in (2, 7, 64, 3):
        x, weights = torch.randn(rows, 33, requires_grad=True), torch.randn(rows, 33)
        got = torch.autograd.grad((fn(x) * weights).sum(), (x, w, b))
        want = torch.autograd.grad((F.layer_norm(x, (33,), w, b) * weights).sum(), (x, w, b))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert len(nnvm_torch.report().graphs) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("affine", ["both", "weight", "none", "frozen"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (6, 5), (2, 17, 9)])
def test_batch_norm(shape, train, affine, dtype):
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(len(shape))
    own, x = shape[1], (torch.randn(shape) * 2 + 3).to(dtype).requires_grad_()
    params = [(1 + torch.randn(own) / 4).to(dtype), torch.randn(own).to(dtype)]
    params = {"both": params, "weight": params[:1], "none": [], "frozen": params}[affine]
    for p in params:
        p.requires_grad_(affine != "frozen")
    weights, statistics = torch.randn(shape), (torch.randn(own), torch.rand(own) + 0.5)

    def fn(x, *affine):
        kept = [s.to(x.dtype).clone() for s in statistics]
        return F.batch_norm(x, *kept, *affine, training=train).relu()

    got, eager = run(torch.compile(fn, backend="nnvm"), [x, *params], weights), run(fn, [x, *params], weights)
    right = run(fn, [t.double().detach().requires_grad_(t.requires_grad) for t in (x, *params)], weights)
    assert_as_accurate(got, eager, right, roundings=8)
    report = nnvm_torch.report()
    assert report.native_fraction == 1.0, report
