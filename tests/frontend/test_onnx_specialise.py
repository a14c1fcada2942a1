"""When a model is built again: never, for values, or for sizes."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import UnsupportedModel, specialise  # noqa: E402
from nnvm.frontend.onnx.specialise import Specialised  # noqa: E402

F, N = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, weights=None):
    infos = [helper.make_tensor_value_info(n, t, s) for n, (s, t) in inputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph([helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes], "g", infos,
                              [onnx.ValueInfoProto(name="y")], initializer=tensors)  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.fixture
def built():
    """A `build` that notes the types of the outputs, and the list of its notes."""
    notes = []

    def build(imported):
        notes.append(str(imported.graph.outputs[0].type))
        return notes[-1]

    return build, notes


def of(specialised, /, **arrays):
    return specialised.of({n: a.shape for n, a in arrays.items()}, arrays.__getitem__)


def test_once_for_all_sizes(built):
    s = Specialised(model([("Relu", ["x"], ["y"])], {"x": (["n", 3], F)}), built[0])
    assert [of(s, x=np.zeros((n, 3))) for n in (1, 2)] == ["float32[n, 3]"] * 2
    assert built[1] == ["float32[n, 3]"] and not s.fixed and not s.by_sizes


def test_for_values(built):
    s = Specialised(model([("Reshape", ["x", "s"], ["y"])], {"x": ([2, 3], F), "s": ([1], N)}), built[0])
    for size in (6, -1, 6):
        assert of(s, x=np.zeros((2, 3)), s=np.array([size])) == "float32[6]"
    assert len(built[1]) == 2 and s.fixed == {"s"} and not s.by_sizes


def test_for_sizes(built):
    net = model([("Resize", ["x", "", "f"], ["y"])], {"x": ([1, 1, "h", 4], F)},
                {"f": np.array([1, 1, 1.5, 1], np.float32)})  # fmt: skip
    s = Specialised(net, built[0])
    sizes = (2, 4, 2)
    assert [of(s, x=np.zeros((1, 1, h, 4))) for h in sizes] == [f"float32[1, 1, {h * 3 // 2}, 4]" for h in sizes]
    assert len(built[1]) == 2 and s.by_sizes and not s.fixed


def test_the_one_used_longest_ago_makes_room(built, monkeypatch):
    monkeypatch.setattr(specialise, "KEPT", 2)
    s = Specialised(model([("Reshape", ["x", "s"], ["y"])], {"x": ([2, 3], F), "s": ([2], N)}), built[0])
    shapes = [(6, 1), (1, 6), (6, 1), (2, 3), (6, 1), (1, 6)]
    for shape in shapes:
        of(s, x=np.zeros((2, 3)), s=np.array(shape))
    assert built[1] == [f"float32[{a}, {b}]" for a, b in ((6, 1), (1, 6), (2, 3), (1, 6))]


def test_what_no_call_can_help_is_refused_at_once(built):
    with pytest.raises(UnsupportedModel, match=r"Sort \(opset 18\).*no converter"):
        Specialised(model([("Sort", ["x"], ["y"])], {"x": (["n"], F)}), built[0])
    with pytest.raises(UnsupportedModel, match="Squeeze"):
        Specialised(model([("Squeeze", ["x", "a"], ["y"])], {"x": ([2, 3], F)}, {"a": np.array([0])}), built[0])


def test_sizes_that_exporters_leave_open(built):
    """-1, no name, and a name without a letter are sizes of their own."""
    net = model([("Relu", ["x"], ["y"])], {"x": ([None, "?", "?"], F)})
    net.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    s = Specialised(net, built[0])
    of(s, x=np.zeros((1, 2, 3)))
    assert built[1] == ["float32[x_0, x_1, x_2]"]
