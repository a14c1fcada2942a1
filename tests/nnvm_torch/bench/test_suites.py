"""``python -m benchmarks``: its suites name models that exist, and its files land where they should."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.__main__")


def test_suites_name_models_that_exist(benchmarks):
    from nnvm_torch.bench.models.sources import resolve

    for suite in benchmarks.SUITES.values():
        assert [resolve(model) for model in suite.models] == list(suite.models)
    assert len(benchmarks.SUITES["cpu"].models) == 10


@pytest.fixture
def measured(benchmarks, monkeypatch):
    """The suites, without measuring."""
    from nnvm.bench.results import BenchResult, EngineResult, ModelResult

    def run_bench(config, side, packages, tell, after_model):
        assert all(side.find(engine).name == engine for engine in config.engines) and "torch" in packages
        result = BenchResult(config, {"llvm_cpu": "znver3"})
        rows = [EngineResult(engine, rounds=[1.0], error=0.0) for engine in config.engines]
        result.models = [ModelResult(model, engines=rows) for model in config.models]
        after_model(result)
        return result

    monkeypatch.setattr(benchmarks, "run_bench", run_bench)
    return benchmarks


def test_results_are_kept(measured, tmp_path, capsys):
    assert measured.main(["quick", "--peers", "inductor", "--results", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "quick-znver3-t1-b1-float32.json").read_text())
    assert data["config"]["engines"] == ["eager", "inductor", "nnvm"]
    assert "| model | engine |" in (tmp_path / "quick-znver3-t1-b1-float32.md").read_text()
    assert "resnet18" in capsys.readouterr().out


def test_the_onnx_suite_has_both_ways_and_the_peers(measured, tmp_path):
    assert measured.main(["onnx", "--models", "mlp", "--results", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "onnx-znver3-t1-b1-float32.json").read_text())
    assert data["config"]["engines"] == ["eager", "nnvm", "nnvm-onnx", "onnxruntime", "openvino"]
    assert data["config"]["models"] == ["zoo:mlp"]


def test_an_unknown_peer(benchmarks, capsys):
    assert benchmarks.main(["quick", "--peers", "inductr"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_an_unknown_suite(benchmarks):
    with pytest.raises(SystemExit) as stop:
        benchmarks.main(["gpus"])
    assert stop.value.code == 2
