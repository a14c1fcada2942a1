"""Real workers, on tiny models."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from nnvm.bench import driver
from nnvm.bench.config import BenchConfig
from nnvm.bench.pinning import choose_cores
from nnvm.bench.process import Worker, WorkerFailed
from nnvm.bench.results import EngineResult, ModelResult
from nnvm.cli.main import main
from nnvm_torch.bench.engines import TORCH

MODELS = """
import os, time
import torch

class Faulty(torch.nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault, self.scale = fault, torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        if x.dtype == torch.float32:
            self.fault()
        return x * self.scale

def tiny():
    return torch.nn.Linear(4, 3), torch.zeros(2, 4)

def dies():
    return Faulty(lambda: os.kill(os.getpid(), 11)), torch.zeros(4)

def hangs():
    return Faulty(lambda: time.sleep(60)), torch.zeros(4)
"""


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "tiny_models.py"
    path.write_text(MODELS)
    return path


def config(**changes):
    settings = {"models": (), "engines": ("eager",), "cores": choose_cores(1), "rounds": 3, "seconds": 0.02}
    return BenchConfig(**{**settings, **changes})


def test_the_command(models, tmp_path, capsys, monkeypatch):
    """A model that works, one that does not, an engine that is not there: rows, JSON, and status 1."""
    line = "openvino is not installed: pip install openvino"
    monkeypatch.setattr(driver, "missing_package", lambda engine: line if engine.name == "openvino" else None)
    monkeypatch.setattr("nnvm.bench.run.WIDTH_WITHOUT_TERMINAL", 400)  # however long the path is
    path = tmp_path / "out.json"
    argv = ["bench", f"{models}:tiny", f"{models}:nothing", "--against", "openvino"]
    status = main([*argv, "--rounds", "3", "--seconds", "0.02", "--json", str(path)])
    out = capsys.readouterr().out
    assert status == 1
    assert f"FAILED: {line}" in out and "has no function 'nothing'" in out
    data = json.loads(path.read_text())
    good, bad = data["models"]
    assert bad["reason"] and "Traceback" in bad["trace"] and not bad["engines"]
    eager, subject, missing = good["engines"]
    assert eager["engine"] == "eager" and len(eager["rounds"]) == 3 and eager["ratio"]["median"] == 1.0
    assert subject["engine"] == "nnvm" and subject["status"] == "ok" and subject["ratio"]["median"] > 0
    assert subject["details"]["native_fraction"] == 1.0 and "100% native" in out
    assert 0 <= subject["error"] < 1e-6 and subject["memory"]["peak"] > 0
    assert missing["status"] == "failed" and missing["rounds"] == []
    assert data["geometric_mean"]["nnvm"]["models"] == 1


def test_a_crash_has_a_name(models):
    with Worker(f"{models}:dies", "eager", config(), TORCH) as worker:
        worker.request("load")
        with pytest.raises(WorkerFailed, match=r"^died during compile: SIGSEGV$") as failure:
            worker.request("compile")
    assert "Fatal Python error" in failure.value.detail
    assert not os.path.exists(worker.folder.name)


class Scripted:
    """A worker that answers from a script; an exception in it is raised."""

    def __init__(self, log, name, script):
        self.log, self.name, self.script, self.closed = log, name, script, False

    def request(self, command, **arguments):
        self.log.append(self.name)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return {"latency": step, "calls": 1, "core_share": 1.0}

    def close(self):
        self.closed = True


def scripted(monkeypatch, scripts, rounds):
    monkeypatch.setattr(driver, "SETTLE_SECONDS", 0)
    log = []
    workers = {name: Scripted(log, name, script) for name, script in scripts.items()}
    result = ModelResult("m", engines=[EngineResult(name, details={"seconds_per_call": 0.01}) for name in scripts])
    driver.run_rounds(dict(workers), result, config(rounds=rounds), lambda text, part: None)
    driver.judge(result)
    return result, workers, log


def test_rounds_are_interleaved_and_rotate(monkeypatch):
    result, _, log = scripted(monkeypatch, {"eager": [4.0, 8.0, 6.0], "a": [2.0, 2.0, 2.0], "b": [4.0, 4.0, 4.0]}, 3)
    assert log == ["eager", "a", "b", "a", "b", "eager", "b", "eager", "a"]
    assert [row.ratio.median for row in result.engines] == [1.0, 3.0, 1.5]


def test_an_engine_that_fails_in_a_round_leaves_the_others_alone(monkeypatch):
    scripts = {"eager": [4.0, 4.0, 4.0], "a": [2.0, WorkerFailed("died")], "b": [1.0, 1.0, 1.0]}
    result, workers, _ = scripted(monkeypatch, scripts, 3)
    assert [row.status for row in result.engines] == ["ok", "failed", "ok"]
    assert workers["a"].closed and not workers["b"].closed
    assert result.engines[2].ratio.median == 4.0 and len(result.engines[2].rounds) == 3


def test_a_hang_is_a_row_and_the_process_is_gone(models):
    with Worker(f"{models}:hangs", "eager", config(timeout=120), TORCH) as worker:
        worker.request("load")
        worker.timeout = 0.3
        with pytest.raises(WorkerFailed, match=r"compile took longer than 0\.3 s"):
            worker.request("compile")
        assert worker.process.poll() is not None
        assert not os.path.exists(worker.folder.name)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_workers_die_with_the_driver(models):
    code = (
        "from nnvm.bench.config import BenchConfig; from nnvm.bench.process import Worker\n"
        "from nnvm_torch.bench.engines import TORCH\n"
        f"worker = Worker({f'{models}:hangs'!r}, 'eager', BenchConfig(models=(), engines=('eager',)), TORCH)\n"
        "worker.request('load'); print(worker.process.pid, flush=True); worker.request('compile')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as driver:
        pid = int(driver.stdout.readline())
        driver.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--against", "inductr"], "did you mean inductor"),
        (["zoo:resnt18"], "did you mean resnet18"),
        (["mlp", "--threads", "4096"], "cores are usable"),
        (["mlp", "--json", "/nowhere/at/all.json"], "no such folder"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(argv, message, capsys):
    assert main(["bench", *argv]) == 2
    assert message in capsys.readouterr().err


def test_list(capsys, monkeypatch):
    from nnvm_torch.bench.models import sources

    monkeypatch.setitem(sources.NAMES, "timm", lambda: [f"model{i}" for i in range(1000)])
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert "nnvm-direct" in out and "resnet18" in out and "1000 models" in out
