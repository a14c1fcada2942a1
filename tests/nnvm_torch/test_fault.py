"""What `verify=` names where something is wrong: a wrong compute, schedule, pass or converter is put in, and found."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm import te
from nnvm.cli.main import main
from nnvm.graph import TensorType, apply, constant
from nnvm.graph import pass_manager as passes
from nnvm.graph.op import get
from nnvm.schedules import select
from nnvm_torch.convert import TABLE
from nnvm_torch.verifying import VerifyError


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def tanh_is_wrong() -> Iterator[None]:
    op = get("tanh")
    right = op.attr("compute")

    def wrong(attrs: Any, inputs: Any, outputs: Any) -> Any:
        (a,) = inputs
        return [te.compute(a.shape, lambda *i: te.unary("tanh", a[i]) * 1.01, "wrong")]

    op.set_attr("compute", wrong, override=True)
    yield
    op.set_attr("compute", right, override=True)


def network() -> nn.Module:
    m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 6),
                      nn.LayerNorm(6), nn.Tanh()).eval()  # fmt: skip
    m[1].running_var.uniform_(0.5, 2)
    return m


def fault(fn: Any, *args: Any) -> Any:
    """What is found to be at fault."""
    run = torch.compile(fn, backend=nnvm_torch.nnvm, options={"verify": 1})
    with torch.no_grad(), pytest.raises(VerifyError, match=r"output 0 differs from eager.*in float64") as caught:
        run(*args)
    return caught.value.fault


def test_a_right_network_is_right_and_verified_no_longer_than_asked(tanh_is_wrong: None) -> None:
    run = torch.compile(torch.tanh, backend=nnvm_torch.nnvm, options={"verify": 1})
    with pytest.raises(VerifyError):
        run(torch.ones(3))
    assert float(run(torch.ones(3))[0]) == pytest.approx(1.01 * np.tanh(1.0))


def test_a_wrong_compute_names_its_group_and_the_users_lines(tanh_is_wrong: None) -> None:
    found = fault(lambda x: torch.tanh(torch.nn.functional.layer_norm(x, (8,)) * 2), torch.randn(4, 8))
    assert found.group.ops[-1] == "tanh" and not found.group.prepares and not found.call and not found.first_pass
    assert any("test_fault.py" in s for s in found.group.sources)
    assert found.group.error == pytest.approx(0.01, rel=0.05)


def test_a_wrong_compute_of_prepared_weights(tanh_is_wrong: None) -> None:
    class Prepares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.tanh(self.w)

    found = fault(Prepares().eval(), torch.randn(4, 8))
    assert found.group.prepares and "tanh" in found.group.ops


def test_a_wrong_schedule_names_the_group() -> None:
    right = next(s for s in select.SCHEDULES if s.__name__ == "reductions")

    def off_by_a_row(inputs: Any, outputs: Any, target: Any, name: str, strides: Any) -> Any:
        scaled = [te.compute(t.shape, lambda *i, t=t: t[i] * 1.5, "scaled") for t in outputs]
        return right(inputs, scaled, target, name, {}) if not strides else None

    with select.using(off_by_a_row, before="reductions"):
        found = fault(lambda x: torch.softmax(x, -1), torch.randn(4, 9))
    assert "softmax" in found.group.ops and found.group.error == pytest.approx(0.5, rel=0.01)


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    p = passes.PASSES["FoldScaleAxis"]

    def wrong(graph: Any, context: Any) -> Any:
        graph, factor = p.run(graph, context), constant(np.float32(1.01).reshape(()), TensorType(()))
        return graph.with_outputs([apply("multiply", [e, factor])[0] for e in graph.outputs])

    monkeypatch.setitem(passes.PASSES, "FoldScaleAxis", replace(p, run=wrong))
    found = fault(network(), torch.randn(2, 3, 4, 4))
    assert found.first_pass == "FoldScaleAxis" and found.group is None and not found.call
    assert "disabled_passes" in str(found)


def test_a_wrong_converter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, torch.ops.aten.tanh.default, lambda c, x: c.op("sigmoid", x))
    found = fault(lambda x: torch.tanh(x.relu() + 1), torch.randn(4, 8))
    assert found.call.startswith("aten.tanh.default") and "test_fault.py" in found.call
    assert not found.first_pass and found.group is None


def test_symbolic_sizes_and_calls_that_aten_runs(tanh_is_wrong: None) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.linalg.matrix_exp(x * 0.1) + 1)

    run = torch.compile(fn, backend=nnvm_torch.nnvm, dynamic=True, options={"verify": 1})
    with pytest.raises(VerifyError) as caught:
        run(torch.randn(3, 4, 4))
    assert caught.value.fault.group.ops[-1] == "tanh"


SCRIPT = """
import sys
import torch
from nnvm import te
from nnvm.graph.op import get

op = get("tanh")
right = op.attr("compute")
if "--wrong" in sys.argv:
    op.set_attr("compute", lambda attrs, inputs, outputs: [
        te.compute(inputs[0].shape, lambda *i: te.unary("tanh", inputs[0][i]) * 1.01, "t")], override=True)
try:
    f = torch.compile(lambda x, w: torch.tanh(x @ w + torch.tensor([1.0, 2.0])[0]), backend="nnvm")
    f(torch.randn(4, 8), torch.randn(8, 16))
finally:
    op.set_attr("compute", right, override=True)
"""


def test_bisect_runs_a_script_and_writes_a_reproduction(tmp_path: Path, capsys: Any, request: Any) -> None:
    script, out = tmp_path / "script.py", tmp_path / "found"
    script.write_text(SCRIPT)
    assert main(["bisect", "--out", str(out), str(script)]) == 0
    assert "gave eager's results" in capsys.readouterr().out and not out.exists()
    assert main(["bisect", "--out", str(out), str(script), "--wrong"]) == 1
    printed = capsys.readouterr().out
    assert "first fused group that differs" in printed and "tanh" in printed and f"python {out}/repro.py" in printed
    torch._dynamo.reset()
    runpy.run_path(str(out / "repro.py"))  # nothing is wrong by now
    assert "no difference" in capsys.readouterr().out
    torch._dynamo.reset()
    request.getfixturevalue("tanh_is_wrong")
    with pytest.raises(VerifyError):
        runpy.run_path(str(out / "repro.py"))


def test_bisect_of_what_is_no_script(tmp_path: Path, capsys: Any) -> None:
    assert main(["bisect", str(tmp_path / "none.py")]) == 2
    failing = tmp_path / "failing.py"
    failing.write_text("raise KeyError('mine')")
    assert main(["bisect", str(failing)]) == 1
    assert "KeyError: 'mine'" in capsys.readouterr().err
