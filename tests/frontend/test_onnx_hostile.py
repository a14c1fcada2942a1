"""Damaged ONNX models end in an error of ours or in a right answer; `hostile_onnx.py` as a command tries more."""

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from nnvm.frontend.onnx import InvalidModel, UnsupportedModel, from_onnx  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture
def hostile():
    sys.path.insert(0, str(HERE))
    spec = importlib.util.spec_from_file_location("hostile_onnx", HERE / "hostile_onnx.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(HERE))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="damaged models are tried in forked processes")
def test_random_damage(hostile):
    outcomes, faults = hostile.sweep(0, 200, cases=False)
    assert not faults
    assert outcomes["ran"] > 20 and outcomes["refused"] > 60, outcomes


def saved(tmp_path, tensors=(), nodes=None, functions=(), name="x"):
    nodes = nodes or [helper.make_node("Relu", [name], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [2])],
                              [helper.make_tensor_value_info("y", 1, [2])], list(tensors))  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("location, offset, length", [
    ("../secret.bin", "0", "8"), ("/etc/passwd", "0", "8"), ("none.bin", "0", "8"), ("data.bin", "-8", "8"),
    ("data.bin", str(1 << 62), "8"), ("data.bin", "0", str(1 << 62)), ("data.bin", "many", "8"), (".", "0", "8"),
    ("/dev/zero", "0", "8"),
])  # fmt: skip
def test_external_data(tmp_path, location, offset, length):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "data.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    t = TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "data.bin"), ("offset", "8"), ("length", "8")):
        t.external_data.add(key=key, value=value)
    _, params = from_onnx(saved(folder, [t], name="w"))
    np.testing.assert_array_equal(params["w"], [2, 3])
    for entry, value in zip(t.external_data, (location, offset, length)):
        entry.value = value
    with pytest.raises((InvalidModel, UnsupportedModel), match=r"external data|initializer"):
        from_onnx(saved(folder, [t], name="w"))


def test_files_that_are_no_models(tmp_path):
    whole = saved(tmp_path).read_bytes()
    for data in (b"", b"no protobuf at all", whole[: len(whole) // 2], b"\x08\x09", bytes(100)):
        (tmp_path / "m.onnx").write_bytes(data)
        with pytest.raises(InvalidModel, match="no ONNX model"):
            from_onnx(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        from_onnx(tmp_path / "none.onnx")


def test_functions_that_never_end(tmp_path):
    def function(name, *calls):
        nodes = [
            helper.make_node(c, ["a" if i == 0 else f"t{i}"], [f"t{i + 1}"], domain="own") for i, c in enumerate(calls)
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        return helper.make_function("own", name, ["a"], [f"t{len(calls)}"], nodes, opsets)

    call = [helper.make_node("F0", ["x"], ["y"], domain="own")]
    with pytest.raises(InvalidModel, match=r"the function F[01] calls itself"):
        from_onnx(saved(tmp_path, nodes=call, functions=[function("F0", "F1"), function("F1", "F0")]))
    # each calls the next one twice: 2^40 nodes
    many = [function(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(40)]
    last = helper.make_function("own", "F40", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])],
                                [helper.make_opsetid("", 17)])  # fmt: skip
    with pytest.raises(InvalidModel, match="more than 1000000 nodes"):
        from_onnx(saved(tmp_path, nodes=call, functions=[*many, last]))


@pytest.mark.parametrize("nodes, message", [
    ([helper.make_node("Relu", ["z"], ["y"]), helper.make_node("Relu", ["y"], ["z"])], "nothing gives its input z"),
    ([helper.make_node("Cast", ["x"], ["y"])], "attribute to is missing"),
    ([helper.make_node("Concat", ["x", "x"], ["y"], axis=1 << 40)], "axis 1099511627776"),
    ([helper.make_node("Transpose", ["x"], ["y"], perm=[5, -9])], "Transpose"),
    ([helper.make_node("Constant", [], ["n"], value_ints=[1 << 40, 1 << 40]),
      helper.make_node("Expand", ["x", "n"], ["y"])], "Expand"),
    ([helper.make_node("Constant", [], ["n"], value_ints=[1 << 50]), helper.make_node("ConstantOfShape", ["n"], ["y"])],
     "a tensor of 1125899906842624 elements"),
    ([helper.make_node("Constant", [], ["a"], value_int=0), helper.make_node("Constant", [], ["b"], value_int=1 << 50),
      helper.make_node("Constant", [], ["c"], value_int=1), helper.make_node("Range", ["a", "b", "c"], ["y"])],
     "a tensor of 1125899906842624 elements"),
    ([helper.make_node("LRN", ["x"], ["y"], size=(3, 4))], "attribute size is of kind INTS, not INT"),
    ([helper.make_node("Gather", ["x"], ["y"])], "Gather.*: (1 inputs; Gather takes 2|input 1 is missing)"),
    ([helper.make_node("Reshape", [], ["y"])], "Reshape"),
    ([helper.make_node("Nonsense", ["x"], ["z"]), helper.make_node("Relu", ["z"], ["y"])], "no converter"),
], ids=["cycle", "attribute", "axis", "order", "expand", "fill", "range", "kind", "count", "none", "op"])  # fmt: skip
def test_what_contradicts_itself_names_its_node(tmp_path, nodes, message):
    with pytest.raises(UnsupportedModel, match=message):
        from_onnx(saved(tmp_path, nodes=nodes))
