"""`nnvm_torch.from_exported`: programs of torch.export, compared with what they do in PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import nnvm_torch
from nnvm_torch.exported_graph import exported_graph


def check(program, *calls, native=True):
    """Both run the calls, one after the other; results, changed inputs and changed buffers are the same."""
    nnvm_torch.reset()
    ours, theirs = nnvm_torch.from_exported(program), copy.deepcopy(program.module(check_guards=False))
    for args, kwargs in calls:
        mine, own = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
        with torch.no_grad():
            got, want = ours(*mine[0], **mine[1]), theirs(*own[0], **own[1])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine, own)
    changed = dict(ours.named_buffers())
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(changed[name], buffer, rtol=1e-4, atol=1e-5)
    if native:
        assert nnvm_torch.report(ours).native_fraction == 1.0, nnvm_torch.report(ours)
    return ours


class Counting(nn.Module):
    """Buffers that a call changes (one of them not saved), constants, an input that is written to, nested results."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.scale = torch.randn(4)

    def forward(self, x, tensors, k=3):
        self.calls.add_(1)
        y = self.norm(self.linear(x)) * self.scale + torch.tensor([1.0, 2, 3, 4])
        tensors["a"].add_(y.sum(0)[:3] * self.calls)
        return {"y": y.t(), "nothing": None, "size": x.shape[0], "parts": [tensors["a"][0] * k, (x, y)], "k": k}


def counting(batch=5):
    torch.manual_seed(0)
    sizes = {"x": {0: Dim("batch", min=2, max=64)}, "tensors": {"a": None}, "k": None}
    args = (torch.randn(batch, 4), {"a": torch.ones(2, 3)})
    return export(Counting(), args, {"k": 7}, dynamic_shapes=sizes, strict=False)


def call(batch):
    return (torch.randn(batch, 4), {"a": torch.randn(2, 3)}), {"k": 7}


def test_state_structures_and_sizes():
    ours = check(counting(), call(5), call(9), call(2))
    assert {*ours.state_dict()} == {*Counting().state_dict()}


def test_other_strides_and_changed_parameters():
    program = counting()
    ours, theirs = nnvm_torch.from_exported(program), copy.deepcopy(program.module(check_guards=False))
    with torch.no_grad():
        weight = torch.randn(4, 4)
        theirs.linear.weight.copy_(weight)
        ours.linear.weight = nn.Parameter(weight)
        x, a = torch.randn(4, 6).t(), torch.randn(3, 2).t()
        mine, own = a.clone(), a.clone()
        torch.testing.assert_close(ours(x, {"a": mine}, k=7), theirs(x, {"a": own}, k=7))
        torch.testing.assert_close(mine, own)
        torch.testing.assert_close(copy.deepcopy(ours)(x, {"a": mine}, k=7), theirs(x, {"a": own}, k=7))


def test_calls_that_do_not_fit():
    ours = nnvm_torch.from_exported(counting())
    (x, tensors), kwargs = call(5)
    for args, more, error, message in (
        ((x[:1], tensors), kwargs, ValueError, r"input x .*axis 0 is s\d+, from 2 to 64, got 1"),
        ((x[:, :3], tensors), kwargs, ValueError, "axis 1 is 4, got 3"),
        ((x.double(), tensors), kwargs, TypeError, r"input x is a float32\[s\d+, 4\] on cpu, got float64\[5, 4\]"),
        ((x, tensors), {"k": 8}, TypeError, "input k is 7 in this program, got 8"),
        ((x,), kwargs, TypeError, "arguments of the structure"),
    ):
        with pytest.raises(error, match=message):
            ours(*args, **more)


def test_what_is_no_program(tmp_path):
    with pytest.raises(TypeError, match="ExportedProgram or a path, got Linear"):
        nnvm_torch.from_exported(nn.Linear(2, 2))
    with pytest.raises(FileNotFoundError, match="no file"):
        nnvm_torch.from_exported(tmp_path / "none.pt2")
    file = tmp_path / "broken.pt2"
    torch.export.save(counting(), file)
    whole = file.read_bytes()
    for part in (b"", b"PK\x03\x04", whole[: len(whole) // 2], whole[:-60]):
        file.write_bytes(part)
        with pytest.raises(nnvm_torch.CaptureError, match="holds no program that this PyTorch"):
            nnvm_torch.from_exported(file)


def test_a_saved_program(tmp_path):
    program = counting()
    torch.export.save(program, tmp_path / "m.pt2")
    (x, tensors), _ = call(6)
    again = nnvm_torch.from_exported(tmp_path / "m.pt2")(x, copy.deepcopy(tensors), k=7)
    torch.testing.assert_close(again, program.module(check_guards=False)(x, tensors, k=7), rtol=1e-4, atol=1e-5)


class Windows(nn.Module):
    """Windows of a signal that overlap, by `as_strided`."""

    def forward(self, x):
        y = x.relu()
        return y.as_strided((x.shape[0], 5, 4), (x.shape[1], 2, 1)).softmax(-1)


class Chosen(nn.Module):
    """A branch that data decide, which PyTorch runs; the rest is compiled."""

    def forward(self, x):
        y = x.sin() + 1
        return torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t - 1, (y,)) + x


class DataSizes(nn.Module):
    def forward(self, x):
        return x[x > 0].exp().sum() + x.nonzero().shape[0]


class Doubled(nn.Module):
    """A size that is an expression of another input's, and one that is a number."""

    def forward(self, x, y, n):
        return torch.cat([x, x]) * y + n, y.reshape(2, -1)


def test_windows():
    program = export(Windows(), (torch.randn(3, 12),), dynamic_shapes=({0: Dim("n", min=2, max=99)},))
    check(program, *(((torch.randn(n, 12),), {}) for n in (3, 8, 2)))


def test_what_only_pytorch_runs():
    torch.manual_seed(1)
    program = export(Chosen(), (torch.randn(3, 4),))
    ours = check(program, ((torch.randn(3, 4),), {}), ((torch.randn(3, 4) - 5,), {}), native=False)
    assert 0 < nnvm_torch.report(ours).native_fraction < 1
    check(export(DataSizes(), (torch.randn(9),)), ((torch.randn(9),), {}), native=False)
    with pytest.raises(nnvm_torch.StrictError):
        nnvm_torch.from_exported(program, strict=True)


def test_related_sizes():
    n = Dim("n", min=1, max=50)
    sizes = ({0: n}, {0: 2 * n}, Dim.DYNAMIC)
    program = export(Doubled(), (torch.randn(3, 4), torch.randn(6, 4), 5), dynamic_shapes=sizes, strict=False)
    calls = [((torch.randn(n, 4), torch.randn(2 * n, 4), 2 * n - 1), {}) for n in (3, 5)]
    ours = check(program, *calls)
    with pytest.raises(ValueError, match=r"input y .*axis 0 is 2\*s\d+, 6 here, got 7"):
        ours(torch.randn(3, 4), torch.randn(7, 4), 5)
    with pytest.raises(nnvm_torch.CaptureError, match="takes n as a number"):
        exported_graph(program)


def test_the_graph_of_a_program():
    sizes = {"x": {0: Dim("batch", min=2, max=64)}, "tensors": {"a": None}}

    class Tensors(Counting):
        def forward(self, x, tensors, k=3):
            results = super().forward(x, tensors, k)
            return {name: r for name, r in results.items() if name != "size"}

    program = export(Tensors(), (torch.randn(5, 4), {"a": torch.ones(2, 3)}), dynamic_shapes=sizes, strict=False)
    found = exported_graph(program)
    inputs = {v.name: v.attrs["kind"] for v in found.graph.inputs}
    assert inputs["calls"] == inputs["norm.running_mean"] == inputs["x"] == "input"
    assert inputs["linear.weight"] == "param" and {n for n, k in inputs.items() if k == "param"} == {*found.params}
    assert found.outputs[:4] == ("y", "parts_0", "parts_1_0", "parts_1_1")
    assert {"calls_next", "norm_running_mean_next", "tensors_a_next"} <= {*found.outputs}
    assert found.graph.outputs[0].type.shape[0] == 4 and not found.fallbacks
    with pytest.raises(nnvm_torch.CaptureError, match="result size is a size"):
        exported_graph(counting())
