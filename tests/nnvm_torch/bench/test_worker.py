"""One engine's process: its commands, called here in this process, and its messages."""

import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nnvm.bench import session as sessions
from nnvm.bench.channel import Channel
from nnvm.bench.config import REFERENCE, Job
from nnvm.bench.engine import missing_package
from nnvm.bench.errors import BenchError, one_line
from nnvm.bench.memory import peak_bytes, resident_bytes
from nnvm.bench.session import answer
from nnvm_torch.bench.engines import ENGINES, find_engine, nnvm_engines, torch_engines
from nnvm_torch.bench.engines.base import tensors_of
from nnvm_torch.bench.worker import TorchSession


def session(tmp_path, engine="eager", model="zoo:mlp", dtype="float32"):
    return TorchSession(Job(model, engine, torch.get_num_threads(), (), 2, dtype, 0, str(tmp_path)))


@torch.no_grad()
def test_the_steps_of_a_measurement(tmp_path):
    path = str(tmp_path / "reference.npz")
    reference = session(tmp_path, REFERENCE)
    reference.load()
    facts = reference.reference(path)
    assert facts["parameters"] == 85_002 and facts["inputs"] == ["float32[2, 64]"] and facts["outputs"] == [[2, 10]]
    assert facts["flops"] == 2 * 2 * (64 * 256 + 256 * 256 + 256 * 10)
    eager = session(tmp_path)
    assert eager.load()["resident_bytes"] != 0
    assert eager.compile()["compile_seconds"] > 0
    assert eager.calibrate()["seconds_per_call"] > 0
    assert 0 < eager.check(path)["error"] < 1e-5
    measured = eager.round(0, 0.01)
    assert measured["calls"] >= 2 and measured["latency"] > 0 and 0 < measured["core_share"] < 1.2


@torch.no_grad()
def test_a_wrong_engine_is_seen(tmp_path, monkeypatch):
    def wrong(setup):
        return torch_engines.torch_runner(lambda x: setup.module(x) * 1.01)

    monkeypatch.setitem(ENGINES, "wrong", torch_engines.Engine("wrong", "", wrong))
    path = str(tmp_path / "reference.npz")
    for name in (REFERENCE, "wrong"):
        run = session(tmp_path, name)
        run.load()
        if name == REFERENCE:
            run.reference(path)
        else:
            run.compile()
            assert run.check(path)["error"] > 1e-3


@torch.no_grad()
def test_half_types_are_compared_with_float64_of_the_same_weights(tmp_path):
    path = str(tmp_path / "reference.npz")
    reference, eager = session(tmp_path, REFERENCE, dtype="bfloat16"), session(tmp_path, dtype="bfloat16")
    reference.load()
    reference.reference(path)
    eager.load()
    eager.compile()
    assert 1e-4 < eager.check(path)["error"] < 0.1


def test_a_failure_is_an_answer(tmp_path):
    run = session(tmp_path, model="zoo:nothing")
    reply = answer(run, {"do": "load"})
    assert "no model 'nothing'" in reply["failed"] and "Traceback" in reply["traceback"]


@torch.no_grad()
def test_other_backends_of_torch_compile(tmp_path):
    run = session(tmp_path, "backend:eager")
    run.load()
    run.compile()
    assert run.round(0, 0.0)["calls"] >= 2
    torch._dynamo.reset()
    with pytest.raises(BenchError, match="no backend 'nothing'"):
        session_of_unknown = session(tmp_path, "backend:nothing")
        session_of_unknown.load()
        session_of_unknown.compile()


def test_engine_names():
    assert find_engine("eager") is ENGINES["eager"]
    assert find_engine("backend:aot_eager").name == "backend:aot_eager"
    with pytest.raises(BenchError, match="did you mean inductor"):
        find_engine("inductr")
    with pytest.raises(BenchError, match="known: eager"):
        find_engine("backend:")


def test_missing_packages_come_with_the_command():
    engine = torch_engines.Engine("x", "", torch_engines.eager, packages=("torch", "no_such_package", "nor_this"))
    assert missing_package(engine) == (
        "no_such_package and nor_this are not installed: pip install no_such_package nor_this"
    )
    assert missing_package(ENGINES["eager"]) is None


def test_details_of_a_report_are_plain_data(monkeypatch):
    import nnvm_torch

    class Report:
        graphs = (SimpleNamespace(failure=""), SimpleNamespace(failure="no such dtype"))
        native_fraction = 0.75
        fallbacks = ("aten.x: no conversion",)
        kernels = (1, 2, 3)
        compile_seconds = {"llvm": 1, "lower": 2.5}
        graph_breaks = {"print": 2}
        recompiles = ()
        prepared_bytes = 64

    monkeypatch.setattr(nnvm_torch, "report", Report)
    details = nnvm_engines.details()
    assert json.loads(json.dumps(details)) == details
    assert details["fallbacks"] == ["of a whole graph: no such dtype", "aten.x: no conversion"]
    assert details["kernels"] == 3 and details["compile_phases"] == {"llvm": 1.0, "lower": 2.5}


def test_details_of_the_real_report():
    assert nnvm_engines.details()["graphs"] >= 0


def test_tensors_of_nested_answers():
    a, b = torch.ones(1), torch.ones(2)
    assert [x.numel() for x in tensors_of({"x": (a, 3, [b]), "y": None})] == [1, 2]


def test_durations_leave_the_garbage_collector_on():
    import gc

    with pytest.raises(ZeroDivisionError):
        sessions.timed_calls(lambda feed: 1 // 0, None, 0.0)
    assert gc.isenabled()
    assert len(sessions.timed_calls(lambda feed: None, None, 0.0, calls=3)) == 3


def test_errors_in_one_line():
    error = RuntimeError("first\n\nsecond\nSet TORCHDYNAMO_VERBOSE=1 for more")
    assert one_line(error) == "RuntimeError: first second"
    assert one_line(BenchError("as it is")) == "as it is"
    assert len(one_line(RuntimeError("x" * 1000))) == 300
    assert one_line(KeyError()) == "KeyError"


def test_messages():
    buffer = io.BytesIO()
    Channel(io.BytesIO(), buffer).send({"text": "a\nb — ü", "number": 1.5})
    assert buffer.getvalue().count(b"\n") == 1
    channel = Channel(io.BytesIO(buffer.getvalue() + b'{"cut": '), io.BytesIO())
    assert channel.receive() == {"text": "a\nb — ü", "number": 1.5}
    assert channel.receive() is None


def test_prints_do_not_disturb_messages():
    code = (
        "import os, sys; from nnvm.bench.channel import claim_standard_streams;"
        "channel = claim_standard_streams(); print('noise', flush=True); os.system('echo more noise');"
        "channel.send(channel.receive()); sys.stdin.read()"
    )
    # Not through a file of the package's own start-up: only the module itself is needed.
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=b'{"x": 1}\n',
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout == b'{"x": 1}\n'
    assert done.stderr.count(b"noise") == 2


def test_memory_is_measured():
    assert resident_bytes() is None or 0 < resident_bytes() <= peak_bytes()
