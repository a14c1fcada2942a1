"""``nnvm bench --profile``: kernels with their rates, and the machine's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnvm.cli.main import main
from nnvm.cli.page.facts import Kernel
from nnvm_torch.bench.profile import rows_of
from nnvm_torch.bench.roof import measure_roof


def kernel(name: str, code: int | None, measured: float | None) -> Kernel:
    return Kernel(name, ("dense",), ("float32[4, 4]",), 100, 64, 1.0, measured, code, (name,))


def test_kernels_of_one_code_are_one_row() -> None:
    rows = rows_of([kernel("a", 0, 2.0), kernel("b", 1, 7.0), kernel("c", 0, 3.0), kernel("host", None, None)])
    assert [(r.name, r.calls, r.nanoseconds, r.flops, r.nbytes) for r in rows] == [("b", 1, 7.0, 100, 64),
                                                                                   ("a", 2, 5.0, 200, 128)]  # fmt: skip


def test_the_machine_is_measured() -> None:
    roof = measure_roof(1)
    assert roof.threads == 1
    assert 1 < roof.flops < 2000 and 0.1 < roof.bytes < 2000  # no processor is outside of this


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert main(["bench", "--profile", "mlp", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "zoo:mlp" in out and "GFLOP/s" in out
    found = json.loads(path.read_text())["zoo:mlp"]
    assert found["roof"]["threads"] == 1
    assert found["kernels"] and all(k["nanoseconds"] > 0 and k["calls"] > 0 for k in found["kernels"])
    assert any("dense" in k["name"] and k["flops"] > 0 for k in found["kernels"])


def test_a_model_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--profile", "zoo:resnet19"]) != 0
    assert "resnet19" in capsys.readouterr().err
