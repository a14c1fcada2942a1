"""If, Loop and Scan: bodies in the place of their nodes."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import Backend, UnsupportedModel, from_onnx  # noqa: E402

F, N, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def graph(nodes, inputs, outputs, weights=None):
    """`inputs`, `outputs`: name -> (shape, element type)."""
    infos = [[helper.make_tensor_value_info(n, t, s) for n, (s, t) in v.items()] for v in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    return helper.make_graph([helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes], "g", *infos,
                             initializer=tensors)  # fmt: skip


def model(*args, opset=18):
    return helper.make_model(graph(*args), opset_imports=[helper.make_opsetid("", opset)])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


#: state' = state * 1.5 + x, which is read from outside; the step counts into the output
STEP = graph(
    [("Mul", ["state", "factor"], ["m"]), ("Add", ["m", "x"], ["next"]), ("Cast", ["i"], ["fi"], {"to": F}),
     ("Add", ["next", "fi"], ["row"]), ("Less", ["i", "last"], ["go"])],
    {"i": ([], N), "c": ([], B), "state": ([3], F)}, {"go": ([], B), "next": ([3], F), "row": ([3], F)},
    {"factor": np.float32(1.5), "last": np.int64(2)},
)  # fmt: skip


def unrolled(x, state, steps):
    rows = []
    for i in range(steps):
        state = state * np.float32(1.5) + x
        rows.append(state + i)
    return state, np.stack(rows) if rows else np.zeros((0, 3), np.float32)


@pytest.mark.parametrize("trips, condition, steps", [
    (2, None, 2), (9, None, 3), (None, True, 3), (3, True, 3), (5, False, 0), (0, True, 0),
])  # fmt: skip
def test_loop(trips, condition, steps):
    weights = {}
    if trips is not None:
        weights["n"] = np.int64(trips)
    if condition is not None:
        weights["c0"] = np.bool_(condition)
    names = ["n" if trips is not None else "", "c0" if condition is not None else "", "s0"]
    net = model([("Loop", names, ["s", "rows"], {"body": STEP})], {"x": ([3], F), "s0": ([3], F)},
                {"s": ([3], F), "rows": ([None, 3], F)}, weights)  # fmt: skip
    x, s0 = normal(3), normal(3, seed=1)
    for ours, wanted in zip(Backend.run_model(net, [x, s0]), unrolled(x, s0, steps), strict=True):
        np.testing.assert_allclose(ours, wanted, 1e-5)


def test_a_trip_count_that_is_an_input_pins_it():
    net = model([("Loop", ["n", "", "s0"], ["s", "rows"], {"body": STEP})],
                {"n": ([], N), "x": ([3], F), "s0": ([3], F)}, {"s": ([3], F), "rows": ([None, 3], F)})  # fmt: skip
    with pytest.raises(UnsupportedModel, match="the trip count must be known") as e:
        from_onnx(net)
    assert e.value.needs == {"n"}
    prepared, x, s0 = Backend.prepare(net), normal(3), normal(3, seed=1)
    for n in (1, 3):
        for ours, wanted in zip(prepared.run([np.array(n), x, s0]), unrolled(x, s0, n), strict=True):
            np.testing.assert_allclose(ours, wanted, 1e-5)


def test_a_condition_that_is_computed_is_refused():
    body = graph([("Identity", ["state"], ["next"]), ("ReduceSum", ["state"], ["t"], {"keepdims": 0}),
                  ("Less", ["t", "limit"], ["go"])], {"i": ([], N), "c": ([], B), "state": ([3], F)},
                 {"go": ([], B), "next": ([3], F)}, {"limit": np.float32(9)})  # fmt: skip
    net = model([("Loop", ["n", "", "x"], ["y"], {"body": body})], {"x": ([3], F)}, {"y": ([3], F)},
                {"n": np.int64(4)})  # fmt: skip
    with pytest.raises(UnsupportedModel, match=r"Loop .*the condition after a step must be known"):
        from_onnx(net)


def test_endless_loops_are_refused():
    body = graph([("Identity", ["c"], ["go"]), ("Neg", ["state"], ["next"])],
                 {"i": ([], N), "c": ([], B), "state": ([3], F)}, {"go": ([], B), "next": ([3], F)})  # fmt: skip
    net = model([("Loop", ["", "c0", "x"], ["y"], {"body": body})], {"x": ([3], F)}, {"y": ([3], F)},
                {"c0": np.bool_(True)})  # fmt: skip
    with pytest.raises(UnsupportedModel, match="more than 1024 steps"):
        from_onnx(net)


def test_loops_in_loops_are_bounded():
    inner = graph([("Neg", ["b"], ["b1"]), ("Identity", ["c"], ["go"])], {"i": ([], N), "c": ([], B), "b": ([3], F)},
                  {"go": ([], B), "b1": ([3], F)})  # fmt: skip
    outer = graph([("Loop", ["n", "yes", "a"], ["a1"], {"body": inner}), ("Identity", ["d"], ["going"])],
                  {"j": ([], N), "d": ([], B), "a": ([3], F)}, {"going": ([], B), "a1": ([3], F)})  # fmt: skip
    net = model([("Loop", ["n", "yes", "x"], ["y"], {"body": outer})], {"x": ([3], F)}, {"y": ([3], F)},
                {"n": np.int64(1000), "yes": np.bool_(True)})  # fmt: skip
    with pytest.raises(UnsupportedModel, match="more than 20000 nodes"):
        from_onnx(net)


SCAN = graph([("Add", ["s", "a"], ["t"]), ("Mul", ["t", "b"], ["out"])], {"s": ([2], F), "a": ([2], F), "b": ([2], F)},
             {"t": ([2], F), "out": ([2], F)})  # fmt: skip


@pytest.mark.parametrize("backwards", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("reversed_output", [0, 1])
def test_scan(backwards, reversed_output):
    attrs = {"body": SCAN, "num_scan_inputs": 2, "scan_input_axes": [0, 1], "scan_input_directions": list(backwards),
             "scan_output_axes": [1], "scan_output_directions": [reversed_output]}  # fmt: skip
    net = model([("Scan", ["s0", "a", "b"], ["s", "rows"], attrs)],
                {"s0": ([2], F), "a": ([4, 2], F), "b": ([2, 4], F)}, {"s": ([2], F), "rows": ([2, 4], F)})  # fmt: skip
    s, a, b = normal(2), normal(4, 2, seed=1), normal(2, 4, seed=2)
    got = Backend.run_model(net, [s, a, b])
    a, b = a[:: -1 if backwards[0] else 1], b.T[:: -1 if backwards[1] else 1]
    rows = []
    for i in range(4):
        s = s + a[i]
        rows.append(s * b[i])
    np.testing.assert_allclose(got[0], s, 1e-5)
    np.testing.assert_allclose(got[1], np.stack(rows[:: -1 if reversed_output else 1], 1), 1e-5)


def test_both_branches_may_have_weights_of_one_name():
    def branch(name, w):
        return graph([("Mul", ["x", "w"], [name])], {}, {name: ([3], F)}, {"w": w})

    weights = [normal(3, seed=k) for k in (1, 2)]
    nodes = [("If", [f"c{k}"], [f"y{k}"], {"then_branch": branch(f"p{k}", weights[0]),
                                          "else_branch": branch(f"q{k}", weights[1])}) for k in range(2)]  # fmt: skip
    net = model(nodes, {"x": ([3], F)}, {"y0": ([3], F), "y1": ([3], F)},
                {"c0": np.bool_(True), "c1": np.bool_(False)})  # fmt: skip
    x = normal(3)
    for ours, w in zip(Backend.run_model(net, [x]), weights, strict=True):
        np.testing.assert_allclose(ours, x * w, 1e-6)


def test_what_is_unsupported_in_a_body_is_listed_once():
    body = graph([("Sort", ["state"], ["next"]), ("Neg", ["next"], ["row"]), ("Identity", ["c"], ["go"])],
                 {"i": ([], N), "c": ([], B), "state": ([3], F)},
                 {"go": ([], B), "next": ([3], F), "row": ([3], F)})  # fmt: skip
    net = model([("Loop", ["n", "c0", "x"], ["y", "rows"], {"body": body}), ("Abs", ["y"], ["z"])], {"x": ([3], F)},
                {"z": ([3], F), "rows": ([None, 3], F)}, {"n": np.int64(4), "c0": np.bool_(True)})  # fmt: skip
    with pytest.raises(UnsupportedModel) as e:
        from_onnx(net)
    assert [n.op for n in e.value.nodes] == ["Sort"]


def test_definitions_in_bodies():
    """DynamicQuantizeLinear has no converter of its own; ONNX defines it by others."""
    branches = {k: graph([("DynamicQuantizeLinear", ["x"], [f"{k}q", f"{k}s", f"{k}z"]),
                          ("DequantizeLinear", [f"{k}q", f"{k}s", f"{k}z"], [k])], {}, {k: ([3], F)})
                for k in ("a", "b")}  # fmt: skip
    net = model([("If", ["c"], ["y"], {"then_branch": branches["a"], "else_branch": branches["b"]})],
                {"x": ([3], F)}, {"y": ([3], F)}, {"c": np.bool_(True)})  # fmt: skip
    x = normal(3)
    (y,) = Backend.run_model(net, [x])
    np.testing.assert_allclose(y, x, atol=(max(x.max(), 0) - min(x.min(), 0)) / 255)


@pytest.mark.parametrize("opset", [11, 13, 18, 23])
def test_definitions_of_older_opsets(opset):
    """The definition of DynamicQuantizeLinear is written for opset 11."""
    net = model([("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])], {"x": ([7], F)},
                {"q": ([7], TensorProto.UINT8), "s": ([], F), "z": ([], TensorProto.UINT8)}, opset=opset)  # fmt: skip
    x = normal(7)
    q, s, z = Backend.run_model(net, [x])
    assert s == pytest.approx((max(x.max(), 0) - min(x.min(), 0)) / 255, rel=1e-5)
    np.testing.assert_allclose((q.astype(np.float32) - z) * s, x, atol=float(s) * 0.51)
