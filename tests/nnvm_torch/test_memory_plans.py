"""Memory plans of every network of the zoo, in small: near the lower bound, and no two live values overlap."""

import pytest
import torch
from small_zoo import SMALL, small

from nnvm.compiler.pipeline import pipeline
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm_torch.capture import capture
from tests.graph.lifetimes import assert_no_overlap


@pytest.mark.filterwarnings("ignore:The tensor attributes self.cells:UserWarning")
@pytest.mark.parametrize("name", SMALL)
def test_the_peak_is_near_the_lower_bound(name):
    module, inputs = small(name)
    graph = apply_passes(capture(module, inputs).imported.graph, pipeline(), PassContext())
    for planned in (graph, graph.attrs["prepare"]):
        plan = planned.attrs["memory_plan"]
        assert_no_overlap(planned, plan)
        report = plan.report()
        assert report.lower_bound <= report.planned <= 1.05 * report.lower_bound, str(report)
        assert report.planned <= report.unplanned and len(report.timeline) == len(report.steps)


@pytest.mark.parametrize("name", ["resnet50", "resnet101"])
def test_residual_networks_take_less_than_half(name):
    module, inputs = small(name)
    graph = apply_passes(capture(module, inputs).imported.graph, pipeline(), PassContext())
    report = graph.attrs["memory_plan"].report()
    assert report.planned <= 0.5 * report.unplanned, str(report)


@pytest.mark.parametrize("shape,order", [
    ((3, 2, 9, 2), (1, 0, 2, 3)), ((4, 3, 16), (1, 0, 2)), ((2, 6, 5, 32), (0, 2, 1, 3)), ((5, 1, 7, 64), (2, 1, 0, 3)),
])  # fmt: skip
@pytest.mark.parametrize("training", [False, True])
def test_a_sum_is_not_written_over_what_it_reads_in_another_order(shape, order, training):
    """The product lies as it was made and is read through strides: the sum would overwrite what it has yet to read."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    *lead, width = shape
    w, v = (torch.randn(width, width, generator=generator) for _ in range(2))
    moved = tuple(shape[i] for i in order)

    def f(x, y):
        across = (x @ w).reshape(*shape, 1).permute(*order, len(shape)).reshape(moved)
        return (across + 2 * y) @ v

    x = torch.randn(torch.Size(lead).numel(), width, generator=generator, requires_grad=training)
    y = torch.randn(moved, generator=generator, requires_grad=training)
    got, want = torch.compile(f, backend="nnvm")(x, y), f(x, y)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    if training:
        grads = [torch.autograd.grad((out * out).mean(), (x, y)) for out in (got, want)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_product_over_an_inner_axis_and_of_a_factor():
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator) for s in ((2, 6, 11, 2), (3, 6, 3, 1), (3, 2, 2))]

    def f(x, w, v):
        y = torch.nn.functional.conv2d(x, w)
        return (y * 2).sum() + torch.einsum("...bik,bkj->...bij", y, v).sum()

    grads = []
    for call in (torch.compile(f, backend="nnvm"), f):
        leaves = [t.clone().requires_grad_() for t in given]
        grads.append(torch.autograd.grad(call(*leaves), leaves))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
