"""``nnvm bench FILE.onnx``, with real workers, in processes that cannot import PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnvm.bench.config import REFERENCE, Job  # noqa: E402
from nnvm.bench.onnx.worker import OnnxSession  # noqa: E402
from nnvm.bench.session import answer  # noqa: E402
from nnvm.cli.main import main  # noqa: E402

RNG = np.random.default_rng(31)
WEIGHT = RNG.standard_normal((12, 5)).astype(np.float32)
PEER = next((n for n in ("onnxruntime", "openvino") if importlib.util.find_spec(n)), None)
needs_peer = pytest.mark.skipif(PEER is None, reason="neither onnxruntime nor openvino is installed")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "mlp.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 12), ("y", 5))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(WEIGHT, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@needs_peer
def test_the_command_without_torch(file, tmp_path):
    """A module called torch that cannot be imported stands before any other."""
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch here')")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    out = tmp_path / "out.json"
    argv = [sys.executable, "-m", "nnvm.cli", "bench", str(file), "--against", PEER, "--batch", "3", "--rounds", "3",
            "--seconds", "0.05", "--json", str(out)]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(out.read_text())
    (model,) = data["models"]
    assert data["baseline"] == PEER and [row["engine"] for row in model["engines"]] == [PEER, "nnvm"]
    assert model["inputs"] == ["x: float32[3, 12]"] and model["parameters"] == 60
    for row in model["engines"]:
        assert row["status"] == "ok" and len(row["rounds"]) == 3 and row["ratio"]["median"] > 0
        assert row["error"] < 1e-5
    assert f"vs {PEER}" in done.stdout and "x: float32[3, 12]" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nowhere.onnx"], "no file nowhere.onnx"),
        (["{file}", "--against", "eager"], "eager runs models that PyTorch builds"),
        (["{file}", "--against", "opnvino"], "did you mean openvino"),
        (["{file}", "mlp"], "to commands of their own"),
        (["{file}", "--profile"], "--profile is for models that PyTorch builds"),
        (["{file}", "--shape", "x=n,12"], "a benchmark needs numbers"),
        (["{file}", "--input", "x=nowhere.npy"], "no file nowhere.npy"),
        (["{file}", "--json", "/nowhere/at/all.json"], "no such folder"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(file, argv, says, capsys):
    assert main(["bench", *(a.format(file=file) for a in argv)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def session(model, folder, engine="nnvm", **more):
    return OnnxSession(Job(str(model), engine, 1, (), 2, "", 0, str(folder), **more))


def test_the_steps_of_a_measurement(file, tmp_path):
    path = str(tmp_path / "reference.npz")
    reference = session(file, tmp_path, REFERENCE)
    assert reference.load()["resident_bytes"] != 0
    facts = reference.reference(path)
    assert facts["outputs"] == [[2, 5]]
    subject = session(file, tmp_path)
    subject.load()
    assert subject.compile()["compile_seconds"] > 0 and subject.calibrate()["seconds_per_call"] > 0
    assert subject.check(path)["error"] < 1e-5
    measured = subject.round(0, 0.01)
    assert measured["calls"] >= 2 and measured["latency"] > 0


def test_both_references_are_right(file, tmp_path):
    one = session(file, tmp_path)
    one.load()
    feed = one.fresh(0)
    runs = [one._by_definition] + ([one._by_onnxruntime] if PEER == "onnxruntime" else [])
    for run in runs:
        np.testing.assert_allclose(run(feed)[0], np.maximum(feed["x"] @ WEIGHT, 0), rtol=1e-5, atol=1e-5)


def test_files_that_are_no_models(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("bad.onnx", "empty.onnx"):
        assert "is no ONNX model" in answer(session(tmp_path / name, tmp_path), {"do": "load"})["failed"]
    assert "cannot be read" in answer(session(tmp_path, tmp_path), {"do": "load"})["failed"]


def test_an_array_of_another_type(file, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 12)))
    reply = answer(session(file, tmp_path, inputs={"x": str(tmp_path / "x.npy")}), {"do": "load"})
    assert reply["failed"] == "the input x: float32[4, 12] got an array of float64"
