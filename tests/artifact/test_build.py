"""What is in an artifact: the same bytes each time, one copy of equal weights, code for any processor."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.artifact import NotCompilable, as_level, compile_artifact
from nnvm.artifact.weights import WeightTable
from nnvm.compiler.build_module import typed_graph
from nnvm.dtype import F32, I32
from nnvm.graph import Graph, OpPattern, TensorType, apply, constant, register, variable
from nnvm.graph.json import load_json
from nnvm.runtime.artifact.container import Container
from nnvm.runtime.artifact.module import read_spec
from nnvm.runtime.artifact.tensors import read_tensors, write_tensors

RNG = np.random.default_rng(23)
PARAMS = {"c_weight": (16, 3, 3, 3), "c_bias": (16,), "fc_weight": (6, 16), "fc_bias": (6,)}
PARAMS = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in PARAMS.items()}
V2, V3 = (f"llvm -mcpu=x86-64-v{n} -mtriple=x86_64-unknown-linux-gnu" for n in (2, 3))

register(
    "artifact_test_host_node", inputs=["x"], infer_type=lambda attrs, inputs: inputs, pattern=OpPattern.OPAQUE,
    host_call=lambda attrs: lambda env, x: [x], doc="A node that the host runs.",
)  # fmt: skip


def network():
    """Made anew at each call, so that automatic names go on counting."""
    pooled = sym.global_avg_pool2d(sym.relu(sym.conv2d(sym.Variable("x"), channels=16, kernel_size=(3, 3), name="c")))
    net = sym.dense(sym.flatten(pooled), units=6, name="fc")
    return typed_graph(net, {"x": (1, 3, 10, 10)}, params=PARAMS)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("build") / "net.nnvm"
    compile_artifact(network(), PARAMS, file, [as_level(V2), as_level(V3)], name="net")
    return file


def test_equal_models_give_equal_bytes(path, tmp_path, monkeypatch):
    monkeypatch.setenv("NNVM_CACHE", "0")
    compile_artifact(network(), PARAMS, tmp_path / "again.nnvm", [as_level(V2), as_level(V3)], name="net")
    assert (tmp_path / "again.nnvm").read_bytes() == path.read_bytes()


def test_other_weights_give_other_bytes(path, tmp_path):
    other = {**PARAMS, "fc_bias": PARAMS["fc_bias"] + 1}
    compile_artifact(network(), other, tmp_path / "other.nnvm", [as_level(V2), as_level(V3)], name="net")
    assert (tmp_path / "other.nnvm").read_bytes() != path.read_bytes()


def test_what_is_told_is_what_lies_there(tmp_path):
    info = compile_artifact(network(), PARAMS, tmp_path / "m.nnvm", [as_level(V3)])
    assert info.nbytes == (tmp_path / "m.nnvm").stat().st_size
    container = Container(tmp_path / "m.nnvm")
    (level,) = read_spec(container).levels
    assert info.code_bytes == {"x86-64-v3": container.size_of(level.main.code)}
    assert info.kernels == {"x86-64-v3": len(level.main.kernels)}
    assert [t.name for t in info.inputs] == ["x"] and [t.name for t in info.outputs] == ["output0"]
    assert [p.name for p in tmp_path.iterdir()] == ["m.nnvm"]


def test_large_constants_are_stored_once(tmp_path):
    """The graph in the file, which is there to look at, has a parameter in their place."""
    x, value = variable("x", TensorType((100, 90))), RNG.standard_normal((100, 90)).astype(np.float32)
    table = constant(value, TensorType((100, 90)))
    small = constant(np.float32(2.5), TensorType(()))
    graph = Graph((apply("multiply", [apply("add", [x, table])[0], small])[0],), (x.node,))
    info = compile_artifact(graph, {}, tmp_path / "m.nnvm", [as_level("host")])
    assert info.nbytes < 1.5 * value.nbytes
    shown = load_json(bytes(Container(tmp_path / "m.nnvm").read("graph")).decode())
    assert [(v.name, v.attrs["kind"]) for v in shown.inputs] == [("x", "input"), ("const_0", "param")]
    data = RNG.standard_normal((100, 90)).astype(np.float32)
    found = nnvm.runtime.load(tmp_path / "m.nnvm").run(x=data)["output0"]
    np.testing.assert_allclose(found, (data + value) * 2.5, rtol=1e-6)


def test_levels_share_what_they_read_alike(tmp_path):
    """Biases are the same for both; packed weights differ with the vector width."""
    path = tmp_path / "packed.nnvm"
    compile_artifact(network(), PARAMS, path, [as_level(V2), as_level(V3)], weights="packed")
    container = Container(path)
    spec = read_spec(container)
    narrow, wide = (set(level.weights) for level in spec.levels)
    assert narrow & wide
    tensors = read_tensors(container.read("weights"))
    assert set(tensors) == narrow | wide
    contents = [(a.dtype.str, a.shape, a.tobytes()) for a in tensors.values()]
    assert len(set(contents)) == len(contents)


def test_several_levels_keep_the_weights_as_they_are(path):
    """Once, under their names; each level has the code that packs them."""
    container = Container(path)
    spec = read_spec(container)
    for level in spec.levels:
        assert level.prepare is not None and level.prepared and set(level.weights) >= set(PARAMS)
    tensors = read_tensors(container.read("weights"))
    for name, array in PARAMS.items():
        np.testing.assert_array_equal(tensors[name], array)
    assert sum(a.nbytes for a in tensors.values()) < 1.1 * sum(a.nbytes for a in PARAMS.values())


@pytest.mark.parametrize(("weights", "count", "prepares"), [
    ("auto", 1, False), ("auto", 2, True), ("packed", 2, False), ("original", 1, True)])  # fmt: skip
def test_how_weights_are_kept(tmp_path, weights, count, prepares):
    compile_artifact(network(), PARAMS, tmp_path / "m.nnvm", [as_level(V2), as_level(V3)][:count], weights=weights)
    levels = read_spec(Container(tmp_path / "m.nnvm")).levels
    assert [level.prepare is not None for level in levels] == [prepares] * count


def test_weights_are_kept_in_no_other_way(tmp_path):
    with pytest.raises(ValueError, match="auto, packed, original, not 'zip'"):
        compile_artifact(network(), PARAMS, tmp_path / "m.nnvm", weights="zip")


def test_the_weights_are_a_safetensors_file(path, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    data = bytes(Container(path).read("weights"))
    ours = read_tensors(memoryview(data))
    theirs = {k: v for k, v in safetensors.load(data).items() if not k.startswith(".align")}
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])


def test_weights_lie_on_cache_lines():
    arrays = {f"w{n}": (RNG.standard_normal(n).astype(np.float32), F32) for n in (1, 3, 16, 17)}
    arrays["empty"] = (np.empty((0, 3), np.int32), I32)
    arrays["scalar"] = (np.array(5, np.int32), I32)
    data = np.empty(4096, np.uint8)
    start = -data.ctypes.data % 64
    raw = b"".join(map(bytes, write_tensors(arrays)))
    data[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    found = read_tensors(memoryview(data[start : start + len(raw)]))
    for name, (array, _) in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == array.shape
        assert array.size == 0 or found[name].ctypes.data % 64 == 0


def test_equal_tensors_are_kept_once():
    table, a = WeightTable(), RNG.standard_normal((3, 4)).astype(np.float32)
    assert table.add("a", a, F32) == "a"
    assert table.add("b", a.copy(), F32) == "a"
    assert table.add("a", a.reshape(4, 3), F32) == "a#2"
    assert table.add("a", a + 1, F32) == "a#3"
    assert table.nbytes == 3 * a.nbytes


@pytest.mark.parametrize(("target", "machine"), [("aarch64", 183), ("x86-64-v4", 62)])
def test_code_is_made_for_machines_that_this_one_is_not(tmp_path, target, machine):
    """Each kernel is an ELF object whose header names the machine."""
    compile_artifact(network(), PARAMS, tmp_path / "m.nnvm", [as_level(target)])
    container = Container(tmp_path / "m.nnvm")
    (level,) = read_spec(container).levels
    code = bytes(container.read(level.main.code))
    assert level.main.kernels
    for k in level.main.kernels:
        made = code[k.start : k.start + k.size]
        assert made[:4] == b"\x7fELF" and struct.unpack_from("<H", made, 18) == (machine,)
        assert k.name.encode() in made


def test_all_that_has_no_code_is_listed(tmp_path):
    x = variable("x", TensorType((4,)))
    first = apply("artifact_test_host_node", [x], name="first", source="model.py:3")[0]
    second = apply("artifact_test_host_node", [apply("relu", [first])[0]], name="second")[0]
    with pytest.raises(NotCompilable, match=r"\(first, model.py:3\); artifact_test_host_node \(second\)"):
        compile_artifact(Graph((second,), (x.node,)), {}, tmp_path / "m.nnvm", [as_level("host")])
    assert not list(tmp_path.iterdir())


def test_parameters_must_have_values_of_their_type(tmp_path):
    x, w = variable("x", TensorType((4,))), variable("w", TensorType((4,)), "param")
    graph = Graph((apply("add", [x, w])[0],), (x.node, w.node))
    with pytest.raises(NotCompilable, match=r"no values: w: float32\[4\]"):
        compile_artifact(graph, {}, tmp_path / "m.nnvm")
    with pytest.raises(ValueError, match=r"parameter w is float32\[4\], got float64\[4\]"):
        compile_artifact(graph, {"w": RNG.standard_normal(4)}, tmp_path / "m.nnvm")


def test_names_of_outputs_and_levels_are_unique(tmp_path):
    x = variable("x", TensorType((4,)))
    graph = Graph((apply("relu", [x])[0], apply("exp", [x])[0]), (x.node,))
    with pytest.raises(ValueError, match="2 outputs need as many names"):
        compile_artifact(graph, {}, tmp_path / "m.nnvm", [as_level("host")], output_names=["y", "y"])
    with pytest.raises(ValueError, match="two levels of one name"):
        compile_artifact(graph, {}, tmp_path / "m.nnvm", [as_level(V2), as_level(V2)])
