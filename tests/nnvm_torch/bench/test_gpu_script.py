"""The script that measures on a GPU, as far as it runs without one: every part of it in Triton's interpreter."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_parts

TARGET = {"target": "cuda -arch=sm_90"}
SMALL = """import torch
def make(batch):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    return model, (torch.randn(batch, 8),)
"""


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, without CUDA graphs, events and Inductor."""

    def milliseconds(call: Any, repeats: int) -> float:
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)

    monkeypatch.setattr(gpu_parts, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_parts, "NNVM", TARGET)
    monkeypatch.setattr(gpu_parts, "graphed", lambda call: call)
    monkeypatch.setattr(gpu_parts, "_milliseconds", milliseconds)
    monkeypatch.setattr(gpu_parts, "ROUNDS", 1)
    monkeypatch.setattr(gpu_parts, "PEERS", {p: {"backend": "aot_eager"} for p in gpu_parts.PEERS})


@pytest.mark.triton
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
def test_kernels_are_as_accurate_as_eager(dtype: str, interpreted: None) -> None:
    found = {name: gpu_parts.kernel(name, dtype) for name in gpu_parts.KERNELS}
    unit = 1e-5 if dtype == "float32" else 2e-3
    wrong = {name: e for name, e in found.items() if not e[0] <= 4 * e[1] + unit}
    assert not wrong


@pytest.mark.triton
def test_a_whole_run(interpreted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """A step of each part; one that fails is told, and its time limit stops one that takes too long."""
    monkeypatch.setattr(gpu, "gpu_name", lambda: "a double")
    monkeypatch.setattr(gpu, "_forget", torch._dynamo.reset)
    monkeypatch.setattr(gpu, "LONGEST", 60.0)
    monkeypatch.setattr(gpu, "STREAMS", {"softmax": gpu_parts.STREAMS["softmax"]})
    monkeypatch.setattr(gpu, "PRODUCTS", ((8, 16, 32),))
    monkeypatch.setattr(gpu, "KERNELS", {"variance": gpu_parts.KERNELS["variance"], "none": None})
    bandwidth = gpu_parts.bandwidth
    monkeypatch.setattr(gpu_parts, "bandwidth", lambda name, dtype: bandwidth(name, dtype, 16, 64))
    path, model = tmp_path / "gpu.json", tmp_path / "small.py"
    model.write_text(SMALL, encoding="utf-8")
    name = f"{model}:make"
    argv = ["--models", name, "--batches", "2", "--dtypes", "float32", "--json", str(path), "--minutes", "5"]
    assert gpu.main(argv) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert [f.split(": ")[1] for f in report["failed"]] == ["none float32"]
    assert not report["left_out"]
    assert [len(report[p]) for p in ("bandwidth", "products", "kernels", "cuda_graphs", "models")] == [1, 1, 1, 1, 2]
    for row in report["models"].values():
        assert row["errors"]["nnvm"] <= 4 * row["errors"]["eager"] + 1e-5
        assert set(row["milliseconds"]) > {"eager", "nnvm"}
    same, stays, *_ = report["cuda_graphs"][f"{name} float32"]
    assert same and stays
    printed = capsys.readouterr().out
    assert "geometric mean" in printed and "failed (1)" in printed


def test_steps_that_hang_time_that_is_over_and_a_lost_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LONGEST", 0.05)
    forgotten = []

    def forget() -> None:
        forgotten.append(1)
        if len(forgotten) == 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(gpu, "_forget", forget)
    report: dict[str, Any] = {"p": {}, "failed": [], "left_out": [], "done": []}
    todo = [("p", "hangs", lambda: time.sleep(5)), ("p", "breaks", lambda: 1), ("p", "more", lambda: 2)]
    assert not gpu.run(iter(todo), report, time.time() + 60, lambda: None)
    assert report["failed"] == ["p: hangs: TimeUpError: longer than 0 s"]
    assert report["p"] == {"breaks": 1}
    # the process after it goes on behind what was begun
    assert gpu.run(iter(todo), report, time.time() + 60, lambda: None)
    assert report["p"] == {"breaks": 1, "more": 2}
    late: dict[str, Any] = {"p": {}, "failed": [], "left_out": [], "done": []}
    assert gpu.run(iter(todo), late, time.time(), lambda: None)
    assert late["left_out"] == ["p: hangs", "p: breaks", "p: more"]


def test_what_tells_most_comes_first() -> None:
    args = gpu.parse_arguments([])
    labels = [label for part, label, _ in gpu.steps(args) if part == "models"]
    n = len(gpu.MODELS)
    assert labels[0] == "resnet50 1 float16 inductor"
    assert labels[n] == "resnet50 1 float16 inductor-max-autotune"
    assert {tuple(s.split()[1:3]) for s in labels[2 * n : 6 * n]} == {("8", "float16"), ("1", "bfloat16")}
    assert len(labels) == len(set(labels)) == n * 2 * 12


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpu_name", lambda: None)
    assert gpu.main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--dtypes", "float8"], ["--batches", "0"], ["--peers", "tvm"], ["--resume"]):
        with pytest.raises(SystemExit):
            gpu.parse_arguments(argv)
    assert "there are" in capsys.readouterr().err
