"""Products in our kernel or in the vendor's library: how it is decided, and that both ways give the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nnvm_torch
from nnvm.compiler.choose_library import Choice, ProductCase
from nnvm.target import Target
from nnvm.tuning.records import Records
from nnvm_torch import options as options_module
from nnvm_torch.gpu_choice import LibraryChoice

pytestmark = pytest.mark.triton
TARGET = Target.parse("cuda -arch=sm_90")
GPU = {"target": str(TARGET)}


def compiled(model: Any, choose: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`model` for a GPU, where `choose` decides."""
    plain = options_module.Options.build_options

    def build_options(self: Any, *device: torch.device, **more: Any) -> Any:
        made = plain(self, *device, **more)
        made.options["library"] = choose  # type: ignore[index]
        return made

    monkeypatch.setattr(options_module.Options, "build_options", build_options)
    torch._dynamo.reset()
    nnvm_torch.reset()
    return torch.compile(model, backend="nnvm", options=GPU)


def always(library: bool) -> Any:
    seen: list[ProductCase] = []

    def choose(case: ProductCase) -> Choice:
        seen.append(case)
        return Choice(2.0, 1.0, False) if library else Choice(1.0, 2.0, False)

    choose.seen = seen  # type: ignore[attr-defined]
    return choose


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.same = nn.Conv2d(16, 16, 4, padding="same", groups=2)
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.relu(self.same(F.relu(self.conv(x)))).flatten(2).mT  # [2, 64, 16]
        hidden = F.gelu(self.first(y))
        out = self.last(hidden) + y
        scores = torch.matmul(out, out.transpose(1, 2)) * 0.1
        return out, scores.softmax(-1), hidden


@pytest.mark.parametrize("library", [True, False])
def test_both_ways_give_what_eager_gives(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Layers().eval(), torch.randn(2, 3, 16, 16)
    choose = always(library)
    fast = compiled(model, choose, monkeypatch)
    with torch.no_grad():
        for got, expected in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=3e-5, atol=3e-5)
            assert got.stride() == expected.stride()
    names = [op for case in choose.seen for op in case.ops]
    assert {"conv2d", "dense", "matmul"} <= set(names)
    (graph,) = nnvm_torch.report().graphs
    assert graph.library and all(c.takes_library == library for _, _, c in graph.library)
    kernels = [op for k in graph.kernels for op in k.ops]
    assert ("dense" in kernels) != library
    assert ("in the vendor's library (by rule" in str(nnvm_torch.report())) == library


def test_what_is_written_in_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ w, x @ v], 0)

    choose = always(True)
    fast = compiled(model, choose, monkeypatch)
    x, w, v = torch.randn(16, 32), torch.randn(32, 24), torch.randn(32, 24)
    torch.testing.assert_close(fast(x, w, v), model(x, w, v), rtol=3e-5, atol=3e-5)
    assert not choose.seen


def test_sizes_known_at_the_call_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = always(True)
    fast = compiled(lambda x, w: (x @ w).relu(), choose, monkeypatch)
    for n in (16, 24, 40):
        x, w = torch.randn(n, 32), torch.randn(32, 16)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(fast(x, w), (x @ w).relu(), rtol=3e-5, atol=3e-5)
    assert not choose.seen


def test_no_product_leaves_its_group_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = compiled(lambda x, w: (x @ w).relu(), None, monkeypatch)
    x, w = torch.randn(16, 32), torch.randn(32, 16)
    torch.testing.assert_close(fast(x, w), (x @ w).relu(), rtol=3e-5, atol=3e-5)
    assert nnvm_torch.report().graphs[0].library == ()


def case_of(model: Any, args: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> ProductCase:
    choose = always(False)
    compiled(model, choose, monkeypatch)(*args)
    (case,) = choose.seen
    return case


def test_it_is_measured_once_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways run on the same inputs; the file has what else a record depends on."""
    x, w, b = torch.randn(16, 32), torch.randn(24, 32), torch.randn(24)
    case = case_of(lambda x, w, b: F.relu(F.linear(x, w, b)), (x, w, b), monkeypatch)
    results: list[list[torch.Tensor]] = []

    def timer(runs: Any) -> list[float]:
        results.extend(run() for run in runs)
        return [5e-6, 3e-6]

    path = tmp_path / "tuning.jsonl"
    choice = LibraryChoice(TARGET, torch.device("cpu"), Records(path), timer)(case)
    assert choice == Choice(5e-6, 3e-6, True) and choice.takes_library
    (ours,), (library,) = results
    torch.testing.assert_close(ours, library, rtol=2e-5, atol=2e-5)
    assert LibraryChoice(TARGET, torch.device("cpu"), Records(path), timer)(case) == choice
    assert len(results) == 2  # not again
    (line,) = path.read_text().splitlines()
    key = json.loads(line)["key"]
    assert key["torch"] == torch.__version__ and key["ops"] == ["dense", "relu"]
    assert key["inputs"] == ["float32[16, 32]", "float32[24, 32]", "float32[24]"] and "triton" in key and "gpu" in key
    other = LibraryChoice(Target.parse("cuda -arch=sm_80"), torch.device("cpu"), Records(path), timer)(case)
    assert other.measured and len(results) == 4


def test_the_rule_decides_where_it_is_sure_or_nothing_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(16, 32), torch.randn(32, 24)
    case = case_of(lambda x, w: (x @ w).relu(), (x, w), monkeypatch)

    def never(runs: Any) -> list[float]:
        raise AssertionError("it was measured")

    sure = ProductCase(case.name, case.ops, case.size, case.whole, case.apart, Choice(1e-6, 9e-6, False))
    assert LibraryChoice(TARGET, torch.device("cpu"), Records(None), never)(sure) is sure.estimate

    def fails(runs: Any) -> list[float]:
        raise RuntimeError("no GPU here")

    with pytest.warns(UserWarning, match="a rule decides: RuntimeError: no GPU here"):
        assert LibraryChoice(TARGET, torch.device("cpu"), Records(None), fails)(case) is case.estimate
