"""``nnvm compile`` and ``nnvm run``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.cli.arguments import shape
from nnvm.cli.main import main
from nnvm.compiler.build_module import typed_graph
from nnvm.dtype import BF16, bf16_to_f32, f32_to_bf16
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.runtime import openmp
from nnvm.runtime.artifact.tensors import write_tensors

RNG = np.random.default_rng(41)
WEIGHT, BIAS = (RNG.standard_normal(s).astype(np.float32) for s in ((5, 12), (5,)))


def relu_dense(x):
    return np.maximum(x.astype(np.float64) @ WEIGHT.T + BIAS, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """net.json with net.npz, and model.onnx: the same layer."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    path = tmp_path_factory.mktemp("compile")
    net = sym.relu(sym.dense(sym.Variable("x"), units=5, name="fc"))
    graph = typed_graph(net, {"x": (2, 12)}, params={"fc_weight": WEIGHT, "fc_bias": BIAS})
    (path / "net.json").write_text(graph.json())
    np.savez(path / "net.npz", fc_weight=WEIGHT, fc_bias=BIAS)
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1), helper.make_node("Relu", ["h"], ["y.1"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 12), ("y.1", 5))]
    weights = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")]
    model = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], weights),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)  # fmt: skip
    onnx.save(model, path / "model.onnx")
    return path


@pytest.fixture(scope="module")
def artifact(folder):
    file = folder / "model.nnvm"
    assert main(["compile", str(folder / "model.onnx"), "-o", str(file), "--target", "host"]) == 0
    return file


def test_an_onnx_model_from_end_to_end(artifact, tmp_path, capsys):
    x = RNG.standard_normal((3, 12)).astype(np.float32)
    np.save(tmp_path / "image.npy", x)
    out = tmp_path / "out.npz"
    assert main(["run", str(artifact), "--input", str(tmp_path / "image.npy"), "-o", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    with np.load(out) as found:
        np.testing.assert_allclose(found["y.1"], relu_dense(x), rtol=1e-5, atol=1e-6)
    assert facts["model"] == "model" and facts["outputs"]["y.1"]["shape"] == [3, 5]
    assert facts["outputs"]["y.1"]["max"] == pytest.approx(relu_dense(x).max(), rel=1e-5)


def test_what_is_written_is_said(folder, tmp_path, capsys):
    file = tmp_path / "m.nnvm"
    argv = ["compile", str(folder / "model.onnx"), "-o", str(file), "--target", "host", "--shape", "x=4,12", "--json"]
    assert main(argv) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert facts["bytes"] == file.stat().st_size and facts["inputs"] == {"x": "float32[4, 12]"}
    assert not said.err  # where that is no terminal
    assert main(argv[:-1]) == 0
    assert f"wrote {file}" in capsys.readouterr().out


def test_json_with_weights_and_another_shape(folder, tmp_path, capsys):
    file = tmp_path / "net.nnvm"
    argv = ["compile", str(folder / "net.json"), "-o", str(file), "--target", "host"]
    assert main(argv) == 1
    assert "parameters have no values: fc_weight: float32[5, 12]" in capsys.readouterr().err
    assert main([*argv, "--params", str(folder / "net.npz"), "--shape", "x=n,12"]) == 0
    module = nnvm.runtime.load(file)
    for n in (1, 6):
        x = RNG.standard_normal((n, 12)).astype(np.float32)
        np.testing.assert_allclose(module.run(x=x)["output0"], relu_dense(x), rtol=1e-5, atol=1e-6)


def test_bfloat16_weights_from_safetensors(tmp_path, capsys):
    """safetensors has bfloat16, which comes as its bits; the graph says what they are."""
    x, w = variable("x", TensorType((3, 8), BF16)), variable("w", TensorType((8,), BF16), "param")
    graph = Graph((apply("multiply", [x, w])[0],), (x.node, w.node))
    (tmp_path / "m.json").write_text(graph.json())
    bits, data = (f32_to_bf16(RNG.standard_normal(s).astype(np.float32)) for s in ((8,), (2, 8)))
    (tmp_path / "m.safetensors").write_bytes(b"".join(write_tensors({"w": (bits, BF16)})))
    argv = ["compile", str(tmp_path / "m.json"), "-o", str(tmp_path / "m.nnvm"), "--target", "host"]
    assert main([*argv, "--params", str(tmp_path / "m.safetensors"), "--shape", "x=2,8"]) == 0
    found = nnvm.runtime.load(tmp_path / "m.nnvm").run(x=data)["output0"]
    np.testing.assert_array_equal(found, f32_to_bf16(bf16_to_f32(data) * bf16_to_f32(bits)))


def test_a_model_without_arrays_is_described(artifact, capsys):
    assert main(["run", str(artifact)]) == 0
    said = capsys.readouterr().out
    assert "input  x: float32[n, 12]" in said and "output y.1: float32[n, 5]" in said
    assert main(["run", str(artifact), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == {"x": "float32[n, 12]"}


def test_arrays_by_name(artifact, tmp_path, capsys):
    x = RNG.standard_normal((2, 12)).astype(np.float32)
    np.savez(tmp_path / "all.npz", x=x)
    np.save(tmp_path / "a=b.npy", x)
    for text in (str(tmp_path / "all.npz"), f"x={tmp_path / 'all.npz'}", f"x={tmp_path / 'a=b.npy'}",
                 str(tmp_path / "a=b.npy")):  # fmt: skip
        assert main(["run", str(artifact), "--input", text, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)["outputs"]["y.1"]
        assert facts["mean"] == pytest.approx(relu_dense(x).mean(), rel=1e-5)


def test_threads_of_the_systems_openmp(artifact, tmp_path):
    x = RNG.standard_normal((64, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    argv = [sys.executable, "-m", "nnvm.cli", "run", str(artifact), "--input", str(tmp_path / "x.npy"), "--json", "-o",
            str(tmp_path / "y.npz"), "--threads", "2"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "there is no OpenMP runtime here" in done.stderr:
        pytest.skip("there is no OpenMP runtime outside of PyTorch here")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["threads"] == min(2, openmp.cores())
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_allclose(found["y.1"], relu_dense(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["run", "nowhere.nnvm"], 1, "no file nowhere.nnvm"),
        (["run", "{folder}/net.json"], 1, "it is no artifact"),
        (["run", "{artifact}", "--input", "nowhere.npy"], 1, "no file nowhere.npy"),
        (["run", "{artifact}", "--input", "{folder}/net.json"], 1, "no .npy or .npz file"),
        (["run", "{artifact}", "--input", "{folder}/net.npz"], 1, "has no input 'fc_weight'"),
        (["run", "{artifact}", "--level", "z80"], 1, "no code for 'z80'"),
        (["run", "{artifact}", "-o", "out.txt"], 2, "an .npz file"),
        (["compile", "{folder}/model.onnx", "-o", "m.nnvm", "--target", "z80"], 2, "target 'z80' must begin with"),
        (["compile", "{folder}/model.onnx", "-o", "m.nnvm", "--shape", "z=1,2"], 2, "no input 'z'; the inputs are x"),
        (["compile", "{folder}/model.onnx", "-o", "no/such/m.nnvm"], 2, "no folder no/such"),
        (
            ["compile", "{folder}/net.json", "-o", "m.nnvm", "--params", "{folder}/net.json"],
            1,
            "no .npz, .safetensors or .params",
        ),
        (["compile", "nowhere.onnx", "-o", "m.nnvm"], 1, "no file nowhere.onnx"),
    ],
)
def test_errors_are_one_line(artifact, folder, capsys, argv, status, says):
    given = [a.format(folder=folder, artifact=artifact) for a in argv]
    assert main(given) == status
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and error.startswith(f"nnvm {argv[0]}: ")


def test_debug_shows_where(capsys):
    assert main(["run", "nowhere.nnvm", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "=1,2", "x=1,-2", "x=1;2", "x=1,2.5"])
def test_shapes_that_are_none(folder, text):
    with pytest.raises(SystemExit) as stop:
        main(["compile", str(folder / "model.onnx"), "-o", "m.nnvm", "--shape", text])
    assert stop.value.code == 2


def test_shapes():
    assert shape("x=1,3,224") == ("x", (1, 3, 224))
    assert shape("a=b:0=batch, 8") == ("a=b:0", ("batch", 8))
    assert shape("scalar=") == ("scalar", ())


def test_bytes_do_not_depend_on_the_process(folder, tmp_path):
    """Compiled in processes of their own, with other hash seeds and without the object cache."""
    made = []
    for seed in ("1", "2024"):
        file = tmp_path / f"{seed}.nnvm"
        argv = [sys.executable, "-m", "nnvm.cli", "compile", str(folder / "model.onnx"), "-o", str(file), "--target",
                "x86-64-v3"]  # fmt: skip
        env = {**os.environ, "PYTHONHASHSEED": seed, "NNVM_CACHE": "0"}
        subprocess.run(argv, check=True, capture_output=True, env=env)
        made.append(file.read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_a_model_that_pytorch_builds(tmp_path, dtype, tolerance):
    torch = pytest.importorskip("torch")
    from nnvm_torch.bench.models.sources import load_model, resolve

    file = tmp_path / "mlp.nnvm"
    assert main(["compile", "zoo:mlp", "-o", str(file), "--target", "host", "--batch", "3", "--dtype", dtype]) == 0
    module = nnvm.runtime.load(file)
    case = load_model(resolve("zoo:mlp"), 3, getattr(torch, dtype), 0)
    (x,) = case.inputs
    bits = x.view(torch.uint16) if dtype == "bfloat16" else x
    (found,) = module.run({module.inputs[0].name: bits}).values()
    values = bf16_to_f32(found) if dtype == "bfloat16" else found
    with torch.no_grad():
        wanted = case.module.double()(x.double()).numpy()
    np.testing.assert_allclose(values, wanted, atol=tolerance * np.abs(wanted).max())


def test_the_graph_in_an_artifact_is_shown(artifact, folder, tmp_path, capsys):
    assert main(["show", str(artifact), "--stage", "before"]) == 0
    shown = capsys.readouterr().out
    assert main(["show", str(folder / "model.onnx"), "--stage", "before"]) == 0
    ops = [line.split("=")[1].split("(")[0] for line in capsys.readouterr().out.splitlines() if " = " in line]
    assert ops and [line.split("=")[1].split("(")[0] for line in shown.splitlines() if " = " in line] == ops
    (tmp_path / "cut.nnvm").write_bytes(artifact.read_bytes()[:-1])
    assert main(["show", str(tmp_path / "cut.nnvm")]) == 1
    assert "it was cut off" in capsys.readouterr().err


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    """Its Python block, on a model whose input is called and shaped as there."""
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```python artifact\n(.*?)```", text, re.DOTALL)
    net = sym.global_avg_pool2d(sym.relu(sym.Variable("x")))
    (tmp_path / "net.json").write_text(typed_graph(net, {"x": (1, 3, 224, 224)}).json())
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "net.json", "-o", "model.nnvm", "--target", "host"]) == 0
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["outputs"]["output0"].shape == (1, 3, 1, 1)


@pytest.mark.triton
def test_a_gpu_that_is_not_there(folder, tmp_path):
    """The file is made; a run says what is missing; as C there is nothing of it."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""
    file = str(tmp_path / "gpu.nnvm")

    def nnvm_command(*words):
        return subprocess.run([sys.executable, "-m", "nnvm.cli", *words], env=env, capture_output=True, text=True)

    made = nnvm_command("compile", str(folder / "model.onnx"), "-o", file, "--target", "cuda -arch=sm_90", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["levels"]["cuda-sm_90"]["kernels"] == 1
    run = nnvm_command("run", file)
    assert run.returncode == 1
    assert re.search(r"no code for this machine .*: cuda-sm_90 needs (an NVIDIA driver|a GPU that runs)", run.stderr)
    exported = nnvm_command("export-c", file, "-o", str(tmp_path / "c"))
    assert exported.returncode != 0 and "for a GPU (cuda-sm_90), of which there is no C" in exported.stderr


@pytest.mark.triton
def test_a_process_in_which_triton_interprets_compiles_nothing(folder, tmp_path, capsys):
    argv = ["compile", str(folder / "model.onnx"), "-o", str(tmp_path / "m.nnvm"), "--target", "cuda"]
    assert main(argv) == 1
    assert "TRITON_INTERPRET=1" in capsys.readouterr().err
