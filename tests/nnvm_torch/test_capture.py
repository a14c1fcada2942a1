"""A module as a graph that is not compiled."""

import pytest
import torch
from torch import nn

from nnvm.testing.reference import run_graph
from nnvm_torch.capture import CaptureError, capture
from nnvm_torch.tensors import numpy_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.register_buffer("table", torch.randn(5))

    def forward(self, x, *, scale):
        return torch.relu(self.norm(self.first(x))) * self.table + scale, x.sum(1)


def test_the_graph_has_the_modules_names_and_values():
    net, x, scale = Net().eval(), torch.randn(4, 6), torch.randn(5)
    found = capture(net, [x], {"scale": scale})
    graph = found.imported.graph
    kinds = {v.name: v.attrs["kind"] for v in graph.inputs}
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    weights = ["first.weight", "first.bias", "table", *(f"norm.{n}" for n in norm)]
    assert kinds == {**dict.fromkeys(weights, "param"), "input": "input", "input1": "input"}
    got = run_graph(graph, [numpy_of(t) for t in found.tensors])
    for a, b in zip(got, net(x, scale=scale), strict=True):
        torch.testing.assert_close(torch.from_numpy(a), b)


def test_nothing_is_run_or_changed():
    net = Net()  # in training mode: batch norm writes its buffers when it runs
    before = {k: v.clone() for k, v in net.state_dict().items()}
    capture(net, [torch.randn(4, 6)], {"scale": torch.randn(5)})
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


class Branch(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def test_what_cannot_be_captured_is_named():
    with pytest.raises(CaptureError, match="Branch cannot be captured as one graph"):
        capture(Branch(), [torch.randn(3)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_a_result_that_depends_on_the_value_of_an_index_is_named(dtype):
    class Row(nn.Module):
        def forward(self, x, i):
            return x[i] * 2

    x, i = torch.randn(4, 3), torch.tensor(1, dtype=dtype)
    with pytest.raises(CaptureError, match="Row cannot be captured as one graph"):
        capture(Row(), [x, i])
    torch._dynamo.reset()
    row = torch.compile(Row(), backend="nnvm")
    for k in (i, torch.tensor(0, dtype=dtype), torch.tensor(-1 if dtype.is_signed else 0, dtype=dtype)):
        assert torch.equal(row(x, k), x[k] * 2)


def test_masks_that_choose_elements_are_named():
    class Chosen(nn.Module):
        def forward(self, x):
            return x[x > 0].sum(), x.nonzero()

    with pytest.raises(CaptureError, match="Chosen cannot be captured as one graph"):
        capture(Chosen(), [torch.randn(4, 3)])


def test_what_tracing_has_checked_is_no_call():
    """`x.to(dtype)` leaves an assertion of x's type in the trace: the graph's types say it already."""

    class Casts(nn.Module):
        def forward(self, x):
            return torch.relu(x.to(torch.float32)) * 2

    found = capture(Casts().eval(), (torch.randn(3),)).imported
    assert not found.fallbacks and len(found.graph.outputs) == 1
    assert [n.op.name for n in found.graph.nodes if not n.is_variable and not n.is_constant] == ["relu", "multiply"]
