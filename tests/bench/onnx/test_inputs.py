"""What ONNX models are fed with."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto as T  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

from nnvm.bench.errors import BenchError  # noqa: E402
from nnvm.bench.onnx.inputs import draw, index_bounds, input_specs, load_files  # noqa: E402


def model(inputs, nodes=(), weights=()):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    out = helper.make_tensor_value_info("y", T.FLOAT, None)
    return helper.make_model(helper.make_graph(list(nodes), "g", values, [out], list(weights)))


def test_sizes_that_are_open():
    m = model([("x", T.FLOAT, ["n", 3, "h"]), ("z", T.FLOAT16, ["n", "h"]), ("s", T.FLOAT, [])])
    with pytest.raises(BenchError, match=r"input x has the shape \[n, 3, h\]: --shape x=SIZE,... says which"):
        input_specs(m, 1, {})
    found = input_specs(m, 1, {"x": (4, 3, 7)})
    assert [(s.name, s.shape, s.dtype) for s in found] == [
        ("x", (4, 3, 7), np.float32), ("z", (4, 7), np.float16), ("s", (), np.float32)]  # fmt: skip
    assert input_specs(model([("x", T.FLOAT, ["n", 3])]), 5, {})[0].shape == (5, 3)
    assert str(input_specs(model([("x", T.FLOAT, [None, 3])]), 6, {})[0]) == "x: float32[6, 3]"
    vague = model([("x", T.FLOAT, [-1, 3, "?", "?"]), ("z", T.FLOAT, ["m", "?"])])
    assert input_specs(vague, 1, {"x": (1, 3, 48, 192), "z": (2, 7)})[0].shape == (1, 3, 48, 192)
    with pytest.raises(BenchError, match="the input z has the shape"):
        input_specs(vague, 1, {"x": (1, 3, 48, 192)})


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"q": (1,)}, "no input 'q'; the inputs are x, z"),
        ({"x": (4, 2, 7)}, r"x=4,2,7 does not fit its declared shape \[n, 3, h\]"),
        ({"x": (4, 3)}, "does not fit"),
    ],
)
def test_shapes_that_do_not_fit(shapes, says):
    with pytest.raises(BenchError, match=says):
        input_specs(model([("x", T.FLOAT, ["n", 3, "h"]), ("z", T.FLOAT, ["n", "h"])]), 1, shapes)


def test_what_no_values_are_drawn_for():
    with pytest.raises(BenchError, match="input s is of object"):
        input_specs(model([("s", T.STRING, [2])]), 1, {})
    sequence = helper.make_tensor_sequence_value_info("q", T.FLOAT, [2])
    with pytest.raises(BenchError, match="input q is no tensor"):
        input_specs(helper.make_model(helper.make_graph([], "g", [sequence], [])), 1, {})


def test_indices_stay_in_their_table():
    """Through casts and reshapes, for the smallest of several tables, and not where the indices are computed."""
    tables = [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in (("a", (9, 2)), ("b", (3, 5)))]
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=T.INT64), helper.make_node("Unsqueeze", ["wide"], ["more"]),
        helper.make_node("Gather", ["a", "more"], ["r"]), helper.make_node("Gather", ["b", "wide"], ["q"], axis=1),
        helper.make_node("Add", ["other", "other"], ["sum"]), helper.make_node("Gather", ["a", "sum"], ["p"]),
    ]  # fmt: skip
    m = model([("ids", T.INT32, [40]), ("other", T.INT64, [40])], nodes, tables)
    assert index_bounds(m) == {"ids": 5}
    drawn = draw(input_specs(m, 1, {}), {}, 0, 0)
    assert set(drawn["ids"]) == {0, 1, 2, 3, 4} and set(drawn["other"]) == {0, 1}


def test_every_sample_is_another_and_the_same_in_every_process():
    kinds = [("f", T.FLOAT), ("d", T.DOUBLE), ("h", T.FLOAT16), ("b", T.BOOL), ("i8", T.INT8), ("u8", T.UINT8)]
    specs = input_specs(model([(n, k, [300]) for n, k in kinds]), 1, {})
    one, again, other = (draw(specs, {}, 7, index) for index in (3, 3, 4))
    for s in specs:
        np.testing.assert_array_equal(one[s.name], again[s.name])
        assert (one[s.name] != other[s.name]).any() and one[s.name].dtype == s.dtype
    assert one["i8"].min() < -100 and one["u8"].max() > 200 and abs(one["f"].mean()) < 0.3 and one["f"].std() > 0.8


def test_files(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    (tmp_path / "text.npy").write_text("no array")
    files = load_files({"x": str(tmp_path / "x.npy")})
    specs = input_specs(model([("x", T.FLOAT, [2, 3]), ("z", T.FLOAT, [2])]), 1, {})
    drawn = draw(specs, files, 0, 0)
    np.testing.assert_array_equal(drawn["x"], x)
    for wrong in ("x.npz", "text.npy", "nowhere.npy"):
        with pytest.raises(BenchError, match=rf"--input x=.*{wrong}: "):
            load_files({"x": str(tmp_path / wrong)})
