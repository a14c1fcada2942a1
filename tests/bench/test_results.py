"""Ratios, means, and the JSON."""

import json
import math

import pytest

from nnvm.bench.config import BenchConfig
from nnvm.bench.driver import judge, rounds_to_run
from nnvm.bench.report import duration, markdown, notes, print_result, rows
from nnvm.bench.results import BenchResult, EngineResult, ModelResult, Ratio, geometric_mean, ratio_of_rounds


def example():
    config = BenchConfig(models=("zoo:a", "zoo:b", "zoo:c"), engines=("eager", "nnvm", "openvino"), cores=(1,))
    environment = {"cpu": "A Processor", "llvm_cpu": "znver3", "vector_bits": 256, "packages": {"torch": "2.13.0"}}
    result = BenchResult(config, environment)
    for name, speed in (("zoo:a", 2.0), ("zoo:b", 8.0)):
        base = [0.1, 0.2, 0.3]
        details = {"native_fraction": 0.5, "fallbacks": ["aten.x: no conversion"], "compile_phases": {"llvm": 0.5}}
        model = ModelResult(name, facts={"parameters": 2_500_000, "flops": 3_000_000_000})
        model.engines = [
            EngineResult("eager", rounds=base, error=1e-7, memory={"peak": 400 << 20}, compile_seconds=0.1),
            EngineResult("nnvm", rounds=[x / speed for x in base], error=1.5e-7, details=details, compile_seconds=3.0),
            EngineResult("openvino", status="failed", reason="openvino is not installed: pip install openvino"),
        ]
        judge(model)
        result.models.append(model)
    result.models.append(ModelResult("zoo:c", reason="no such thing | at all"))
    return result


def test_ratio_is_the_median_of_ratios_not_the_ratio_of_medians():
    ratio = ratio_of_rounds([1.0, 10.0, 100.0], [1.0, 5.0, 200.0])
    assert ratio == Ratio(1.0, 0.75, 1.5)
    assert ratio_of_rounds([2.0], [1.0]) == Ratio(2.0, 2.0, 2.0)
    assert ratio_of_rounds([], [1.0]) is None


def test_geometric_mean():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
    assert example().mean_ratio("nnvm") == (pytest.approx(4.0), 2)
    assert example().mean_ratio("openvino") is None


def test_a_wrong_answer_is_not_part_of_the_mean():
    result = example()
    row = result.models[0].engines[1]
    row.error = 1e-3
    judge(result.models[0])
    assert row.status == "wrong" and "1.0e-03" in row.reason
    assert result.mean_ratio("nnvm") == (pytest.approx(8.0), 1)


def test_infinite_error():
    model = ModelResult("m", engines=[EngineResult("eager", error=0.0), EngineResult("nnvm", error=math.inf)])
    judge(model)
    assert model.engines[1].status == "wrong" and "NaN" in model.engines[1].reason
    assert model.engines[1].to_json()["error"] == "inf"


def test_good():
    result = example()
    assert not result.good
    result.models.pop()
    for model in result.models:
        model.engines.pop()
    assert result.good


def test_json_is_strict_json():
    data = json.loads(json.dumps(example().to_json(), allow_nan=False))
    assert data["geometric_mean"]["nnvm"]["models"] == 2
    row = data["models"][0]["engines"][1]
    assert row["ratio"]["median"] == pytest.approx(2.0) and len(row["rounds"]) == 3
    assert row["latency"] == pytest.approx(0.1)


def test_rows():
    shown = rows(example())
    assert [row.cells[1] for row in shown] == ["eager", "nnvm", "openvino"] * 2 + ["", "nnvm"]
    assert shown[1].cells[0].strip() == "2.5 M parameters"
    assert shown[1].cells[3] == "2.00×" and shown[1].cells[-1] == "50% native, 1 fallback"
    assert shown[2].cells[-1].startswith("FAILED: openvino is not installed")
    assert shown[-1].cells[0] == "geometric mean" and shown[-1].cells[3] == "4.00×"


def test_the_table_fits_and_says_everything(capsys):
    from rich.console import Console

    print_result(example(), Console(width=100, force_terminal=False))
    out = capsys.readouterr().out
    assert "quartiles" in out
    assert "1 thread on core 1 · float32 · batch 1 · torch 2.13.0" in out
    assert "pip install openvino" in out
    assert "zoo:a, nnvm: fallback aten.x: no conversion" in out
    assert "compile: llvm 500 ms · Dynamo, AOTAutograd and the first call 2.50 s" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_narrow_terminal_loses_columns_not_lines(capsys):
    from rich.console import Console

    print_result(example(), Console(width=80, force_terminal=False))
    out = capsys.readouterr().out
    header, numbers = out.splitlines()[3], out.splitlines()[6]
    assert header.split() == ["model", "engine", "latency", "vs", "eager", "error", "compile", "memory"]
    assert numbers.split()[:4] == ["2.5", "M", "parameters", "nnvm"] and numbers.endswith("–")
    assert out.splitlines()[7].strip() == "50% native, 1 fallback"
    assert "pip install openvino" in " ".join(out.split())


def test_files_are_shown_without_their_folders():
    model = ModelResult("/some/where/mine.py:factory", reason="x")
    assert rows(BenchResult(example().config, {}, [model]))[0].cells[0] == "mine.py:factory"


def test_a_busy_machine_is_said():
    result = example()
    result.models[0].engines[0].core_shares = [0.2, 0.5, 1.0]
    result.models[1].engines[0].core_shares = [0.99]
    assert [line for line in notes(result) if "busy" in line] == [
        "zoo:a: the machine was busy: eager got 50% of its core; do not quote this"
    ]


def test_markdown_is_a_table():
    text = markdown(example())
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "FAILED: no such thing / at all" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (12.34, "12.3 s"), (0.1234, "123 ms"), (0.00123, "1.23 ms"), (8e-7, "0.80 µs")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_slow_models_get_fewer_rounds():
    config = BenchConfig(models=(), engines=(), rounds=21, seconds=4.0)
    assert rounds_to_run(config, 0.01) == 21
    assert rounds_to_run(config, 0.2) == 13
    assert rounds_to_run(config, 10.0) == 5
