"""`nnvm_torch.compile(m, dynamic=..., axes=...)`: named sizes, buckets, and what is said where they do not fit."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm_torch.dynamic import DynamicAxes

close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(0)


def graphs(compiled: Any) -> int:
    return len(nnvm_torch.report(compiled).graphs)


@torch.no_grad()
def test_one_graph_for_a_range_and_one_for_a_single_row() -> None:
    m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    compiled = nnvm_torch.compile(m, torch.randn(4, 8), dynamic={"batch": (1, 64)})
    for rows in (4, 7, 64, 2, 30, 7):
        x = torch.randn(rows, 8)
        close(compiled(x), m(x))
    assert graphs(compiled) == 1
    close(compiled(x[:1]), m(x[:1]))
    assert graphs(compiled) == 2
    with pytest.raises(ValueError, match=r"'batch' is 65 at axis 0 of 'input', and declared to be 1, 2 to 64"):
        compiled(torch.randn(65, 8))
    with pytest.raises(ValueError, match="is 0 at axis 0"):
        compiled(torch.randn(0, 8))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *, more: Any = ()) -> dict[str, torch.Tensor]:
        x = self.tokens(ids)
        for m in more:
            x = x + m
        weights = (x @ x.transpose(1, 2)).masked_fill(~mask[:, None], float("-inf")).softmax(-1)
        return {"y": self.out(weights @ x)}


def arguments(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    mask = torch.rand(batch, length) < 0.7
    mask[:, 0] = True
    return torch.randint(0, 50, (batch, length)), mask, [torch.randn(batch, length, 16) for _ in range(2)]


@torch.no_grad()
def test_several_names_buckets_and_arguments_with_tensors_inside() -> None:
    m = Attends().eval()
    sizes = {"batch": (2, 64), "length": [(2, 16), (17, 512)]}
    axes = {"ids": ("batch", "length"), "mask": {0: "batch", -1: "length"}, "more": ("batch", "length", None)}
    compiled = nnvm_torch.compile(m, dynamic=sizes, axes=axes)
    for batch, length, count in ((2, 5, 1), (3, 16, 1), (4, 100, 2), (8, 17, 2), (64, 2, 2)):
        ids, mask, more = arguments(batch, length)
        close(compiled(ids, mask=mask, more=more)["y"], m(ids, mask, more=more)["y"], atol=1e-5, rtol=1e-4)
        assert graphs(compiled) == count
    with pytest.raises(ValueError, match=r"'length' is 2 at axis 1 of 'ids', and 5 at axis 1 of 'mask'"):
        compiled(ids, torch.ones(64, 5, dtype=torch.bool))
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        close(other(ids, mask)["y"], m(ids, mask)["y"], atol=1e-5, rtol=1e-4)
        with pytest.raises(ValueError, match="'batch' is 65"):
            other(*arguments(65, 3)[:2])


def test_training_with_a_range() -> None:
    m = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    compiled = nnvm_torch.compile(m, dynamic={"batch": (1, 32)})
    for rows in (4, 9):
        x = torch.randn(rows, 6)
        m.zero_grad()
        compiled(x).square().sum().backward()
        got = [p.grad.clone() for p in m.parameters()]
        m.zero_grad()
        m(x).square().sum().backward()
        close(got, [p.grad for p in m.parameters()], atol=1e-5, rtol=1e-4)
    assert graphs(compiled) == 2  # forward and backward


@torch.no_grad()
def test_sizes_that_the_compiled_code_does_not_hold_for_get_code_of_their_own() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:4] * 2 if x.shape[0] > 10 else x + 1

    compiled = nnvm_torch.compile(Halves(), dynamic={"batch": (2, 64)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (20, 8, 40, 10):
            x = torch.randn(rows, 3)
            close(compiled(x), Halves()(x))
    messages = [str(w.message) for w in caught if "each size is compiled for itself" in str(w.message)]
    assert len(messages) == 1 and "Halves cannot be traced with batch of any size" in messages[0]


@torch.no_grad()
def test_inputs_that_are_not_contiguous() -> None:
    m = nn.Linear(8, 4).eval()
    compiled = nnvm_torch.compile(m, dynamic={"batch": (1, 32)})
    for rows in (5, 9):
        x = torch.randn(8, rows).t()
        close(compiled(x), m(x))


def test_what_is_written_wrongly_is_told() -> None:
    m = Attends()
    for wrong, axes, kind, says in [
        (3, None, TypeError, "maps names of sizes to ranges"),
        ({"batch": (4, 2)}, None, ValueError, r"\(4, 2\) is neither a size nor"),
        ({"batch": [(1, 8), (8, 9)]}, None, ValueError, "2 to 8 and 8 to 9 overlap"),
        ({"batch": (1, 4), "length": (1, 4)}, None, ValueError, "with more than one name"),
        ({"batch": (1, 4)}, {"idz": ("batch",)}, ValueError, "no argument 'idz'; it has ids, mask, more"),
        ({"batch": (1, 4)}, {"ids": ("bach",)}, ValueError, "'bach' is no axis"),
        ({"batch": (1, 4), "n": (1, 2)}, {"ids": ("batch",)}, ValueError, "no axis has the size 'n'"),
        ({"batch": (1, 4)}, {"ids": "batch"}, TypeError, "a tuple of names"),
    ]:
        with pytest.raises(kind, match=says):
            nnvm_torch.compile(m, dynamic=wrong, axes=axes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="axes says which axes have the sizes of dynamic"):
        nnvm_torch.compile(m, axes={"ids": ("batch",)})
    with pytest.raises(ValueError, match="'ids' has 2 axes, no axis 2"):
        DynamicAxes(m, {"n": (1, 4)}, {"ids": {2: "n"}}).sizes(arguments(2, 3)[:2], {})


def test_dims_of_torch_export_and_single_sizes_are_ranges_too() -> None:
    m = nn.Linear(3, 2)
    dims = DynamicAxes(m, {"batch": torch.export.Dim("b", min=2, max=8)})
    assert [str(b) for b in dims.buckets["batch"]] == ["2 to 8"]
    dims = DynamicAxes(m, {"batch": [4, 1, (6, 9)]})
    assert [str(b) for b in dims.buckets["batch"]] == ["1", "4", "6 to 9"]
    assert dims.sizes((torch.ones(4, 3),), {}).open == {} != dims.sizes((torch.ones(7, 3),), {}).open
