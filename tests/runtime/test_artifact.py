"""Artifacts at run time: values, sizes, inputs of any kind, threads, processors, and what a load needs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.artifact import as_level, compile_artifact, default_levels
from nnvm.compiler.build_module import typed_graph
from nnvm.dim import symbol
from nnvm.graph import Graph, TensorType, apply, constant, variable
from nnvm.kernel_error import KernelIndexError
from nnvm.runtime.artifact import module as artifact_module
from nnvm.runtime.artifact.module import ArtifactError
from nnvm.target import Target
from nnvm.testing.reference import run_graph

RNG = np.random.default_rng(7)
WEIGHTS = {"a_weight": (24, 12), "a_bias": (24,), "b_weight": (10, 24), "b_bias": (10,)}
PARAMS = {name: RNG.standard_normal(shape).astype(np.float32) / 3 for name, shape in WEIGHTS.items()}


def perceptron(batch):
    net = sym.dense(sym.relu(sym.dense(sym.Variable("x"), units=24, name="a")), units=10, name="b")
    return typed_graph(sym.softmax(net), {"x": (batch, 12)}, params=PARAMS)


def expected(x):
    wide = {k: v.astype(np.float64) for k, v in PARAMS.items()}
    hidden = np.maximum(x @ wide["a_weight"].T + wide["a_bias"], 0)
    logits = hidden @ wide["b_weight"].T + wide["b_bias"]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def fresh(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def built(tmp_path, outputs, inputs, params=None, **how):
    path = tmp_path / "model.nnvm"
    compile_artifact(Graph(tuple(outputs), tuple(v.node for v in inputs)), params or {}, path, **how)
    return nnvm.runtime.load(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("artifact") / "perceptron.nnvm"
    compile_artifact(perceptron(symbol("n")), PARAMS, file, output_names=["y"])
    return file


@pytest.fixture(scope="module")
def model(path):
    return nnvm.runtime.load(path)


@pytest.mark.parametrize("batch", [1, 3, 16, 37])
def test_any_size_of_a_named_dimension(model, batch):
    x = fresh(batch, 12)
    np.testing.assert_allclose(model.run(x=x)["y"], expected(x), rtol=2e-5, atol=1e-7)


def test_names_types_and_shapes(model):
    assert [(t.name, str(t)) for t in model.inputs] == [("x", "float32[n, 12]")]
    assert [(t.name, str(t)) for t in model.outputs] == [("y", "float32[n, 10]")]
    assert repr(model) == f"Module(perceptron, {model.level}: x: float32[n, 12] -> y: float32[n, 10])"


def test_every_level_that_this_machine_runs(path):
    x, tried = fresh(5, 12), 0
    for level in default_levels():
        if set(level.features) <= set(Target.host().features):
            module = nnvm.runtime.load(path, level=level.name)
            assert module.level == level.name
            np.testing.assert_allclose(module.run(x=x)["y"], expected(x), rtol=2e-5, atol=1e-7)
            tried += 1
    assert tried >= 1
    assert nnvm.runtime.load(path).level == default_levels()[tried - 1].name


def test_a_level_needs_all_its_features(path, monkeypatch):
    less = Target("llvm", "old", ("sse2",), Target.host().triple)
    monkeypatch.setattr(artifact_module.Target, "host", staticmethod(lambda: less))
    with pytest.raises(ArtifactError, match=r"no code for this machine \(old"):
        nnvm.runtime.load(path)
    name = default_levels()[-1].name
    with pytest.raises(ArtifactError, match=f"cannot run its code for {name}: it lacks"):
        nnvm.runtime.load(path, level=name)


def test_an_unknown_level_lists_those_that_there_are(path):
    with pytest.raises(ArtifactError, match=rf"no code for 'z80', only for {default_levels()[0].name}"):
        nnvm.runtime.load(path, level="z80")


def test_code_for_another_architecture_is_refused(tmp_path):
    file = tmp_path / "other.nnvm"
    foreign = "aarch64" if Target.host().triple.startswith("x86") else "x86-64-v2"
    compile_artifact(perceptron(4), PARAMS, file, [as_level(foreign)])
    with pytest.raises(ArtifactError, match="has no code for this machine"):
        nnvm.runtime.load(file)


def test_numpy_and_llvmlite_are_all_it_takes(path, tmp_path):
    x = fresh(3, 12)
    np.save(tmp_path / "x.npy", x)
    code = f"""
        import sys

        class Only:
            def find_spec(self, name, path=None, target=None):
                top = name.partition(".")[0]
                if top in sys.stdlib_module_names or top in ("nnvm", "numpy", "llvmlite") or top[0] == "_":
                    return None
                raise ModuleNotFoundError("only numpy and llvmlite: " + name, name=name)

        sys.meta_path.insert(0, Only())
        import numpy as np, nnvm.runtime
        y = nnvm.runtime.load({str(path)!r}).run(x=np.load({str(tmp_path / "x.npy")!r}))["y"]
        np.save({str(tmp_path / "y.npy")!r}, y)
        heavy = [m for m in sys.modules if m.split(".")[0] in ("torch", "onnx") or m.startswith(("nnvm.graph",
                 "nnvm.compiler", "nnvm.ops", "nnvm.schedules", "nnvm.te", "nnvm.tir", "nnvm.codegen.llvm.module"))]
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(x), rtol=2e-5, atol=1e-7)


def test_dlpack_in_and_out(model):
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 12)
    y = torch.from_dlpack(model.run(x=x)["y"])
    assert isinstance(y, torch.Tensor)
    np.testing.assert_allclose(y.numpy(), expected(x.numpy()), rtol=2e-5, atol=1e-7)
    turned = torch.randn(12, 6).T
    np.testing.assert_allclose(model.run(x=turned)["y"], expected(turned.numpy()), rtol=2e-5, atol=1e-7)
    with pytest.raises(TypeError, match="cannot take this Tensor by DLPack"):
        model.run(x=torch.randn(6, 12, requires_grad=True))


def test_strided_read_only_and_unaligned_arrays(model):
    x = fresh(8, 24)[::-2, ::2]
    np.testing.assert_allclose(model.run(x=x)["y"], expected(x), rtol=2e-5, atol=1e-7)
    x = fresh(4, 12)
    x.flags.writeable = False
    np.testing.assert_allclose(model.run(x=x)["y"], expected(x), rtol=2e-5, atol=1e-7)
    raw = np.empty(1 + x.nbytes, np.uint8)
    raw[1:] = x.reshape(-1).view(np.uint8)
    odd = np.ndarray((4, 12), np.float32, buffer=raw, offset=1)
    np.testing.assert_allclose(model.run(x=odd)["y"], expected(x), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("inputs", "error", "says"),
    [
        ({"X": fresh(2, 12)}, KeyError, r"has no input 'X'; its inputs are x: float32\[n, 12\]"),
        ({}, KeyError, "the input x of perceptron is not given"),
        ({"x": fresh(12)}, ValueError, r"got float32\[12\]: 1 dimensions, not 2"),
        ({"x": fresh(2, 13)}, ValueError, r"got float32\[2, 13\]: axis 1 must be 12"),
        ({"x": fresh(2, 12).astype("f8")}, TypeError, r"got float64\[2, 12\]; astype\('float32'\)"),
        ({"x": fresh(2, 12).astype(">f4")}, TypeError, "got >f4"),
        ({"x": [[1.0] * 12]}, TypeError, "give an array of float32, not list"),
    ],
)
def test_what_does_not_fit_is_said(model, inputs, error, says):
    with pytest.raises(error, match=says):
        model.run(inputs)


def test_sizes_of_one_name_must_agree(tmp_path):
    a, b = (variable(name, TensorType((symbol("n"), 4))) for name in "ab")
    module = built(tmp_path, [apply("add", [a, b])[0]], [a, b], levels=[as_level("host")])
    x, y = fresh(3, 4), fresh(3, 4)
    np.testing.assert_array_equal(module.run(a=x, b=y)["output0"], x + y)
    with pytest.raises(ValueError, match=r"input b .* axis 0 must be 3 with n = 3"):
        module.run(a=x, b=fresh(2, 4))


def test_eight_threads_at_once(model):
    batches = [fresh(1 + i % 5, 12) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda x: model.run(x=x)["y"], batches))
    for x, y in zip(batches, results):
        np.testing.assert_allclose(y, expected(x), rtol=2e-5, atol=1e-7)


def test_outputs_are_the_callers(model):
    x = fresh(4, 12)
    first = model.run(x=x)["y"]
    kept = first.copy()
    model.run(x=fresh(4, 12))
    np.testing.assert_array_equal(first, kept)
    model.release()
    np.testing.assert_array_equal(model.run(x=x)["y"], kept)


def test_outputs_that_no_kernel_writes(tmp_path):
    """An input, a parameter, a constant, a view, and one value twice: each is a fresh array."""
    x, w = variable("x", TensorType((2, 6))), variable("w", TensorType((3,)), "param")
    fixed, weight, data = fresh(2, 2), fresh(3), fresh(2, 6)
    doubled = apply("add", [x, x])[0]
    outputs = [x, w, constant(fixed, TensorType((2, 2))), apply("reshape", [x], {"shape": (3, 4)})[0], doubled, doubled]
    found = built(tmp_path, outputs, [x, w], {"w": weight}, levels=[as_level("host")]).run(x=data)
    wanted = [data, weight, fixed, data.reshape(3, 4), data + data, data + data]
    for got, want in zip(found.values(), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    arrays = [*found.values(), data]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_a_failed_check_of_a_kernel(tmp_path):
    table, ids = variable("table", TensorType((5, 3)), "param"), variable("ids", TensorType((4,), nnvm.dtype.I64))
    values = fresh(5, 3)
    module = built(tmp_path, [apply("take", [table, ids], {"axis": 0})[0]], [ids, table], {"table": values},
                   levels=[as_level("host")])  # fmt: skip
    np.testing.assert_array_equal(module.run(ids=np.array([4, 0, 2, 2]))["output0"], values[[4, 0, 2, 2]])
    with pytest.raises(KernelIndexError):
        module.run(ids=np.array([0, 1, 5, 0]))


def test_bfloat16_as_its_bits(tmp_path):
    from nnvm.dtype import BF16, bf16_to_f32, f32_to_bf16

    x = variable("x", TensorType((2, 9), BF16))
    module = built(tmp_path, [apply("add", [x, x])[0]], [x], levels=[as_level("host")])
    bits = f32_to_bf16(fresh(2, 9))
    np.testing.assert_array_equal(bf16_to_f32(module.run(x=bits)["output0"]), 2 * bf16_to_f32(bits))


def test_a_size_of_zero(model):
    assert model.run(x=np.empty((0, 12), np.float32))["y"].shape == (0, 10)


@pytest.fixture(scope="module")
def convolution(tmp_path_factory):
    """(artifact with weights as they are, input, right answer): a network whose weights are packed in several ways."""
    folder = tmp_path_factory.mktemp("original")
    shapes = {"c_weight": (32, 16, 3, 3), "c_bias": (32,), "d_weight": (12, 32)}
    params = {n: RNG.standard_normal(s).astype(np.float32) / 8 for n, s in shapes.items()}
    conv = sym.conv2d(sym.Variable("x"), channels=32, kernel_size=(3, 3), padding=(1, 1), name="c")
    net = sym.dense(sym.flatten(sym.global_avg_pool2d(sym.relu(conv))), units=12, use_bias=False, name="d")
    graph = typed_graph(net, {"x": (1, 16, 24, 24)}, params=params)
    compile_artifact(graph, params, folder / "m.nnvm", [as_level("host")], weights="original")
    compile_artifact(graph, params, folder / "packed.nnvm", [as_level("host")], weights="packed")
    x = fresh(1, 16, 24, 24)
    (wanted,) = run_graph(graph, {**params, "x": x})
    return folder / "m.nnvm", x, wanted


def test_weights_that_are_packed_before_the_first_call(convolution):
    path, x, wanted = convolution
    module = nnvm.runtime.load(path)
    for _ in range(2):
        np.testing.assert_allclose(module.run(x=x)["output0"], wanted, rtol=2e-4, atol=1e-5)
    np.testing.assert_array_equal(module.run(x=x)["output0"], nnvm.runtime.load(path).run(x=x)["output0"])
    packed = nnvm.runtime.load(path.with_name("packed.nnvm")).run(x=x)["output0"]
    np.testing.assert_allclose(module.run(x=x)["output0"], packed, rtol=2e-4, atol=1e-5)


def test_eight_first_calls_at_once(convolution):
    path, x, wanted = convolution
    module, start = nnvm.runtime.load(path), threading.Barrier(8)

    def call(_):
        start.wait()
        return module.run(x=x)["output0"]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(call, range(8)):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-5)
