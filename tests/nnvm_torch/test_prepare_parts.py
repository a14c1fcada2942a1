"""One changed weight runs its own part of the prepare graph again, and nothing else: kernels counted."""

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch import weights


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3)
        self.dense = nn.Linear(32, 10)
        self.free = nn.Parameter(torch.rand(10) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        return torch.sigmoid(self.dense(x.mean((2, 3)))) * self.free.exp()


@pytest.fixture
def counted(monkeypatch):
    """Names of the kernels of each run of a prepare graph."""
    runs = []

    class Counting(weights.Executor):
        def run(self, inputs, env=None):
            runs.append([s.node.name for s in self.plan.steps])
            return super().run(inputs, env)

    monkeypatch.setattr(weights, "Executor", Counting)
    weights.drop_prepared()
    return runs


@torch.no_grad()
def test_one_changed_weight_runs_its_part_again(counted) -> None:
    torch.manual_seed(0)
    m = Network().eval()
    m.norm.running_var.uniform_(0.5, 2.0)
    m.norm.running_mean.normal_()
    x = torch.randn(1, 3, 12, 12)
    compiled = nnvm_torch.compile(m, (x,))
    torch.testing.assert_close(compiled(x), m(x), rtol=1e-4, atol=1e-4)
    (whole,) = counted
    parts = {}
    changes = {"first": m.first.weight, "gamma": m.norm.weight, "mean": m.norm.running_mean, "second": m.second.weight,
               "second bias": m.second.bias, "dense": m.dense.weight, "free": m.free}  # fmt: skip
    for name, p in changes.items():
        counted.clear()
        p.mul_(1.5)
        torch.testing.assert_close(compiled(x), m(x), rtol=1e-4, atol=1e-4)
        assert len(counted) <= 1, "in one go"
        parts[name] = set(counted[0]) if counted else set()
        assert parts[name] < set(whole), name
        compiled(x)
        assert len(counted) <= 1, "nothing changed"
    apart = [parts[n] for n in ("first", "second", "dense", "free")]
    assert all(apart) and sum(map(len, apart)) == len(set.union(*apart)), "they have no kernel in common"
    assert parts["mean"] < parts["gamma"] == parts["first"] | parts["mean"], "it shifts, and does not scale the weight"
    assert not parts["second bias"] & parts["second"], "it is not scaled, only laid out"
    assert set.union(*parts.values()) == set(whole)


@torch.no_grad()
def test_what_did_not_change_stays_the_same_tensor(counted) -> None:
    torch.manual_seed(0)
    m = Network().eval()
    x = torch.randn(1, 3, 12, 12)
    compiled = nnvm_torch.compile(m, (x,))
    compiled(x)
    before = {key: p.tensor.data_ptr() for key, p in weights._shared.items()}
    m.second.weight.mul_(2)
    compiled(x)
    after = {key: p.tensor.data_ptr() for key, p in weights._shared.items()}
    assert before.keys() == after.keys()
    assert [key for key in after if id(m.second.weight) in key[1]] == [k for k in after if before[k] != after[k]]
