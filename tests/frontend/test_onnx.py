"""ONNX models: inputs, weights, sizes, refusals."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import Backend, Session, UnsupportedModel, from_onnx  # noqa: E402


def model(nodes, inputs, outputs, initializers=(), opset=18):
    """`inputs` and `outputs`: name -> (shape, element type)."""
    infos = [[helper.make_tensor_value_info(n, t, s) for n, (s, t) in v.items()] for v in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(initializers).items()]
    graph = helper.make_graph([helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes], "g", *infos,
                              initializer=tensors)  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


F = TensorProto.FLOAT


def small_net():
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "b": np.ones(4, np.float32)}
    nodes = [("Conv", ["x", "w", "b"], ["c"], {"pads": [1, 1, 1, 1]}), ("Relu", ["c"], ["r"])]
    return model(nodes, {"x": (["n", 3, 8, 8], F)}, {"r": (["n", 4, 8, 8], F)}, weights), weights


def test_weights_are_params_and_sizes_symbols():
    net, weights = small_net()
    graph, params = from_onnx(net)
    assert {n: a.shape for n, a in params.items()} == {"w": (4, 3, 3, 3), "b": (4,)}
    assert [(v.name, v.attrs["kind"]) for v in graph.inputs] == [("x", "input"), ("w", "param"), ("b", "param")]
    assert str(graph.outputs[0].type) == "float32[n, 4, 8, 8]"
    session = Session(graph, params)
    for n in (1, 3):
        x = np.ones((n, 3, 8, 8), np.float32)
        (y,) = session.run([x])
        assert y.shape == (n, 4, 8, 8)
        np.testing.assert_allclose(y[0, :, 4, 4], np.maximum(weights["w"].sum((1, 2, 3)) + 1, 0), 1e-5)


def test_shapes_override_the_models():
    net, _ = small_net()
    graph, _ = from_onnx(net, shapes={"x": (2, 3, 8, "h")})
    assert str(graph.outputs[0].type) == "float32[2, 4, 8, h]"


def test_a_file_with_external_data(tmp_path):
    net, _ = small_net()
    x = np.ones((1, 3, 8, 8), np.float32)
    (wanted,) = Backend.run_model(net, [x])
    onnx.save(net, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    graph, params = from_onnx(tmp_path / "m.onnx")
    np.testing.assert_array_equal(Session(graph, params).run([x])[0], wanted)


def test_shape_arithmetic_leaves_no_node():
    nodes = [
        ("Shape", ["x"], ["s"]), ("Gather", ["s", "zero"], ["n"]), ("Unsqueeze", ["n", "axes"], ["n1"]),
        ("Concat", ["n1", "rest"], ["to"], {"axis": 0}), ("Reshape", ["x", "to"], ["y"]),
    ]  # fmt: skip
    constants = {"zero": np.int64(0), "axes": np.array([0]), "rest": np.array([-1])}
    graph, params = from_onnx(model(nodes, {"x": (["n", 3, 4], F)}, {"y": (["n", 12], F)}, constants))
    assert [n.op.name for n in graph.nodes] == ["variable", "reshape"]
    assert str(graph.outputs[0].type) == "float32[n, 12]"
    assert params == {}


def test_sizes_as_an_output():
    shape = [("Shape", ["x"], ["s"])]
    graph, params = from_onnx(model(shape, {"x": ([5, 3], F)}, {"s": ([2], TensorProto.INT64)}))
    assert Session(graph, params).run([np.zeros((5, 3), np.float32)])[0].tolist() == [5, 3]
    with pytest.raises(UnsupportedModel, match="the symbolic sizes"):
        from_onnx(model(shape, {"x": (["n", 3], F)}, {"s": ([2], TensorProto.INT64)}))


def test_everything_unsupported_is_listed():
    nodes = [("NonZero", ["x"], ["a"]), ("Unique", ["x"], ["b"]), ("Neg", ["a"], ["c"])]
    net = model(nodes, {"x": ([3], F)}, {"c": ([1, 3], TensorProto.INT64), "b": ([3], F)})
    with pytest.raises(UnsupportedModel) as e:
        from_onnx(net)
    assert [(n.op, n.opset) for n in e.value.nodes] == [("NonZero", 18), ("Unique", 18)]
    assert "NonZero (opset 18) at node 0 (a)" in str(e.value)
    assert "Unique (opset 18) at node 1 (b)" in str(e.value)


def test_old_opsets_are_converted():
    nodes = [("Add", ["x", "b"], ["y"], {"broadcast": 1})]
    net = model(nodes, {"x": ([2, 3, 4], F), "b": ([4], F)}, {"y": ([2, 3, 4], F)}, opset=6)
    x, b = normal(2, 3, 4), normal(4)
    np.testing.assert_array_equal(Backend.run_model(net, [x, b])[0], x + b)


def test_old_slopes_are_per_channel():
    slopes, x = normal(3), normal(2, 3, 3, seed=1)
    inputs = {"x": ([2, 3, 3], F)}
    net = model([("PRelu", ["x", "s"], ["y"])], inputs, {"y": ([2, 3, 3], F)}, {"s": slopes}, opset=6)
    (y,) = Backend.run_model(net, [x])
    np.testing.assert_array_equal(y, np.where(x > 0, x, x * slopes[:, None]))
    computed = model([("Abs", ["s"], ["a"]), ("PRelu", ["x", "a"], ["y"])], inputs, {"y": ([2, 3, 3], F)},
                     {"s": slopes}, opset=6)  # fmt: skip
    with pytest.raises(UnsupportedModel, match="slopes per channel"):
        from_onnx(computed)


def test_a_value_that_decides_a_shape():
    net = model([("Reshape", ["x", "s"], ["y"])], {"x": ([2, 3], F), "s": ([1], TensorProto.INT64)}, {"y": (None, F)})
    with pytest.raises(UnsupportedModel, match="shape must be known when the model is imported; it depends on s") as e:
        from_onnx(net)
    assert e.value.needs == {"s"}
    prepared = Backend.prepare(net)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert prepared.run([x, np.array([6])])[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert prepared.run([x, np.array([-1])])[0].shape == (6,)


def test_wrong_arrays_are_errors():
    net, _ = small_net()
    with pytest.raises(ValueError, match="input x is float32"):
        Backend.run_model(net, [np.zeros((1, 3, 8, 8))])


def test_a_type_that_the_model_contradicts_is_refused():
    net = model([("Neg", ["x"], ["y"])], {"x": ([3], F)}, {"y": ([3], TensorProto.DOUBLE)})
    with pytest.raises(UnsupportedModel, match="the model says float64"):
        from_onnx(net)


def reference(net, *arrays):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(net).run(None, dict(zip([i.name for i in net.graph.input], arrays)))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("equation, shapes", [
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("...i,ij->...j", [(2, 3, 4), (4, 5)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("ij->ji", [(2, 3)]),
    ("ijk->j", [(2, 3, 4)]), ("i,j", [(2,), (3,)]),
])  # fmt: skip
def test_einsum(equation, shapes):
    names = [f"x{i}" for i in range(len(shapes))]
    net = model([("Einsum", names, ["y"], {"equation": equation})], {n: (s, F) for n, s in zip(names, shapes)},
                {"y": (None, F)})  # fmt: skip
    arrays = [normal(*s, seed=i) for i, s in enumerate(shapes)]
    (y,) = Backend.run_model(net, arrays)
    np.testing.assert_allclose(y, np.einsum(equation, *arrays), 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("size", [(8, 10), (3, 7), (1, 5)])
def test_resize(mode, coordinates, size):
    if coordinates == "pytorch_half_pixel" and size[0] == 1:
        size = (2, 5)  # for one output the specification has 0, the reference implementation -0.5
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    net = model([("Resize", ["x", "", "", "s"], ["y"], attrs)], {"x": ([1, 2, 4, 5], F)}, {"y": (None, F)},
                {"s": np.array([1, 2, *size])})  # fmt: skip
    x = normal(1, 2, 4, 5)
    (y,) = Backend.run_model(net, [x])
    np.testing.assert_allclose(y, reference(net, x)[0], 1e-4, 1e-5)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_directions(direction):
    d = 2 if direction == "bidirectional" else 1
    weights = {"w": normal(d, 12, 4), "r": normal(d, 12, 3, seed=1), "b": normal(d, 24, seed=2)}
    attrs = {"hidden_size": 3, "direction": direction}
    net = model([("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], attrs)], {"x": ([5, 2, 4], F)},
                {"y": (None, F), "h": (None, F), "c": (None, F)}, weights)  # fmt: skip
    x = normal(5, 2, 4, seed=3)
    y, h, _ = Backend.run_model(net, [x])

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    for k in range(d):
        backwards = direction == "reverse" or k == 1
        hidden = memory = np.zeros((2, 3), np.float32)
        for t in range(5)[:: -1 if backwards else 1]:
            gates = x[t] @ weights["w"][k].T + hidden @ weights["r"][k].T + weights["b"][k].reshape(2, 12).sum(0)
            i, o, f, g = np.split(gates, 4, 1)
            memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
            hidden = sigmoid(o) * np.tanh(memory)
            np.testing.assert_allclose(y[t, k], hidden, 1e-4, 1e-5)
        np.testing.assert_allclose(h[k], hidden, 1e-4, 1e-5)


def test_if_takes_the_branch_that_is_known():
    value = helper.make_tensor_value_info
    branches = [helper.make_graph([helper.make_node(op, ["x"], [f"{op}_y"])], op, [], [value(f"{op}_y", F, None)])
                for op in ("Neg", "Abs")]  # fmt: skip
    nodes = [("Shape", ["x"], ["s"]), ("Size", ["s"], ["rank"]), ("Equal", ["rank", "two"], ["is2"]),
             ("If", ["is2"], ["y"], {"then_branch": branches[0], "else_branch": branches[1]})]  # fmt: skip
    for rank in (2, 3):
        x = normal(*range(2, 2 + rank))
        net = model(nodes, {"x": (x.shape, F)}, {"y": (None, F)}, {"two": np.int64(2)})
        np.testing.assert_array_equal(Backend.run_model(net, [x])[0], -x if rank == 2 else np.abs(x))
    known = model([("If", ["c"], ["y"], {"then_branch": branches[0], "else_branch": branches[1]})],
                  {"x": ([3], F), "c": ([], TensorProto.BOOL)}, {"y": ([3], F)})  # fmt: skip
    with pytest.raises(UnsupportedModel, match="the condition must be known"):
        from_onnx(known)
