"""Graphs written as ONNX models: ONNX Runtime computes the same from them, and so does what is imported again."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from nnvm.dim import symbol  # noqa: E402
from nnvm.dtype import F32  # noqa: E402
from nnvm.dtype import dtype as as_dtype  # noqa: E402
from nnvm.frontend.onnx import UnsupportedGraph, from_onnx, to_onnx  # noqa: E402
from nnvm.frontend.onnx.export import RULES  # noqa: E402
from nnvm.frontend.onnx.export_derived import NOT_IN_ONNX  # noqa: E402
from nnvm.graph import Graph, TensorType, apply, get, variable  # noqa: E402
from nnvm.graph.evaluate import evaluate_graph  # noqa: E402
from nnvm.graph.op import known  # noqa: E402
from nnvm.testing import dcgan, mlp, mobilenet, resnet  # noqa: E402

RNG = np.random.default_rng(3)


def array(shape, dtype="float32"):
    if dtype == "bool":
        return RNG.random(shape) < 0.6
    if dtype.startswith(("int", "uint")):
        return RNG.integers(0, 4, shape).astype(dtype)
    return RNG.normal(size=shape).astype(dtype)


def build(op, arrays, attrs):
    variables = [variable(f"x{i}", TensorType(a.shape, as_dtype(a.dtype))) for i, a in enumerate(arrays)]
    node = apply(op, variables, attrs)
    return Graph(tuple(node.outputs), tuple(v.node for v in variables))


def agree(graph, params, feeds, rtol=1e-4, atol=1e-5):
    """`feeds`: arrays of the inputs that are no params, by name."""
    model = to_onnx(graph, params)
    wanted = evaluate_graph(graph, [{**feeds, **params}[v.name] for v in graph.inputs])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    again = from_onnx(model)
    imported = evaluate_graph(again.graph, [{**feeds, **again.params}[v.name] for v in again.graph.inputs])
    for a, b, c in zip(wanted, session.run(None, feeds), imported, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape) == (c.dtype, c.shape)
        np.testing.assert_allclose(b, a, rtol, atol)
        np.testing.assert_allclose(c, a, rtol, atol)


IMAGE, ROWS = (2, 4, 8, 8), (2, 3, 8)
CASES = [
    *((op, [ROWS], {}) for op in ("relu", "exp", "tanh", "sigmoid", "erf", "silu", "mish", "hardswish", "hardsigmoid",
                                  "negative", "abs", "floor", "ceil", "sign", "square", "identity", "sin", "cos")),
    *((op, [ROWS, (3, 1)], {}) for op in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "less",
                                          "greater_equal", "not_equal", "prelu")),
    ("gelu", [ROWS], {}), ("gelu", [ROWS], {"approximate": "tanh"}), ("softplus", [ROWS], {}),
    ("leaky_relu", [ROWS], {"alpha": 0.3}), ("elu", [ROWS], {"alpha": 0.7}),
    ("elu", [ROWS], {"alpha": 1.6, "scale": 1.05}), ("elu", [ROWS], {"alpha": 2.0, "input_scale": 0.5}),
    ("clip", [ROWS], {"a_min": -0.5, "a_max": 1.0}), ("clip", [ROWS], {"a_max": 0.25}),
    ("cast", [ROWS], {"dtype": "float64"}),
    *((op, [ROWS], {"axis": (1,), "keepdims": keep}) for op in ("sum", "mean", "max", "min", "prod", "logsumexp")
      for keep in (True, False)),
    ("sum", [ROWS], {}), ("variance", [ROWS], {"axis": (1, 2)}),
    ("variance", [ROWS], {"axis": (0,), "correction": 0.0}),
    ("argmax", [ROWS], {"axis": 1}), ("cumsum", [ROWS], {"axis": 1}), ("topk", [ROWS], {"k": 3}),
    ("softmax", [ROWS], {"axis": 1}), ("log_softmax", [ROWS], {}),
    ("reshape", [ROWS], {"shape": (6, 8)}), ("expand_dims", [ROWS], {"axis": 1}), ("flatten", [IMAGE], {}),
    ("squeeze", [(2, 1, 3)], {"axis": 1}), ("transpose", [ROWS], {"axes": (2, 0, 1)}), ("transpose", [ROWS], {}),
    ("broadcast_to", [(3, 1)], {"shape": (2, 3, 5)}), ("concatenate", [ROWS, ROWS], {"axis": -1}),
    ("split", [ROWS], {"indices_or_sections": 2, "axis": 2}),
    ("split", [ROWS], {"indices_or_sections": (1, 4), "axis": 2}),
    ("slice", [ROWS], {"begin": (0, 1, 2), "end": (2, 3, 8), "step": (1, 1, 3)}), ("flip", [ROWS], {"axes": (0, 2)}),
    ("pad", [IMAGE], {"pad_width": ((0, 0), (0, 0), (1, 2), (3, 0)), "value": 1.5}),
    ("pad", [IMAGE], {"pad_width": ((0, 0), (0, 0), (1, 2), (3, 0)), "mode": "reflect"}),
    ("tril", [(4, 5)], {"k": 1}), ("triu", [(4, 5)], {"k": -1}),
    ("conv2d", [IMAGE, (6, 2, 3, 3), (6,)], {"groups": 2, "padding": ((1, 0), (2, 1)), "strides": (2, 1)}),
    ("conv1d", [(2, 4, 9), (3, 4, 3)], {"dilation": (2,)}), ("conv3d", [(1, 2, 4, 5, 6), (3, 2, 2, 2, 2)], {}),
    ("conv2d_transpose", [IMAGE, (4, 3, 3, 3), (3,)],
     {"strides": (2, 2), "padding": ((1, 1), (1, 1)), "output_padding": (1, 1)}),
    ("max_pool2d", [IMAGE], {"pool_size": (3, 3), "strides": (2, 2), "padding": ((1, 1), (1, 1))}),
    ("avg_pool2d", [IMAGE], {"pool_size": (2, 3), "padding": ((1, 0), (0, 1)), "count_include_pad": False}),
    ("avg_pool2d", [IMAGE], {"pool_size": (3, 3), "padding": ((1, 1), (1, 1)), "count_include_pad": True}),
    ("global_avg_pool2d", [IMAGE], {}), ("global_max_pool2d", [IMAGE], {}),
    ("adaptive_avg_pool2d", [IMAGE], {"output_size": (1, 1)}),
    ("adaptive_avg_pool2d", [IMAGE], {"output_size": (4, 2)}),
    ("dense", [(5, 8), (3, 8), (3,)], {}), ("dense", [ROWS, (3, 8), (3,)], {}), ("dense", [ROWS, (3, 8)], {}),
    ("matmul", [ROWS, (8, 5)], {}), ("matmul", [ROWS, (2, 5, 8)], {"transpose_b": True}),
    ("layer_norm", [ROWS, (8,), (8,)], {}), ("layer_norm", [ROWS], {"axis": 1, "eps": 1e-3}),
    ("rms_norm", [ROWS, (8,)], {}), ("group_norm", [IMAGE, (4,), (4,)], {"num_groups": 2}),
    ("instance_norm", [IMAGE], {}), ("prelu_channels", [IMAGE, (4,)], {"axis": 1}), ("lrn", [IMAGE], {"size": 3}),
    ("attention", [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)], {}),
    ("attention", [(2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)], {"causal": True, "groups": 2, "scale": 0.3}),
    ("attention", [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), (3, 5)], {}),
    ("resize", [IMAGE], {"size": (16, 24), "mode": "nearest"}),
    ("resize", [IMAGE], {"size": (12, 5), "mode": "linear"}),
    ("resize", [IMAGE], {"size": (12, 5), "mode": "linear", "align_corners": True}),
    ("resize", [IMAGE], {"size": (12, 5), "mode": "nearest_exact"}),
    *((op, [ROWS], {}) for op in ("exp2", "expm1", "log_sigmoid", "trunc", "isfinite", "ones_like", "zeros_like")),
    *((op, [ROWS, (3, 1)], {}) for op in ("atan2", "copysign", "hypot", "fmax", "fmin", "remainder", "floor_divide",
                                          "fmod")),
    ("softplus", [ROWS], {"beta": 2.0}), ("full_like", [ROWS], {"fill_value": 2.5}), ("cumprod", [ROWS], {"axis": 1}),
    ("logcumsumexp", [ROWS], {"axis": 2}), ("l2_normalize", [ROWS], {"axis": (1,)}),
    ("sort", [ROWS], {"axis": 1}), ("sort", [ROWS], {"axis": -1, "descending": True}), ("argsort", [ROWS], {"axis": 0}),
    ("slice_scatter", [ROWS, (2, 2, 8)], {"axis": 1, "start": 1}),
    ("slice_scatter", [ROWS, (2, 3, 3)], {"axis": 2, "start": 1, "end": 7, "step": 2}),
    ("reshape_codes", [ROWS], {"shape": (0, -3)}), ("repeat", [ROWS], {"repeats": 3, "axis": 1}),
    ("roll", [ROWS], {"shifts": (1, -3), "axes": (1, 2)}), ("slice_like", [ROWS, (1, 2, 5)], {}),
    ("slice_like", [ROWS, (1, 2, 5)], {"axis": (2,)}), ("expand_like", [(2, 8), ROWS], {"axis": (1,)}),
    ("upscale", [IMAGE], {"scale": 2}), ("upscale", [IMAGE], {"scale": 2, "method": "BILINEAR"}),
    ("im2col", [IMAGE], {"kernel_size": (3, 2), "padding": ((1, 1), (0, 0)), "strides": (2, 1)}),
    ("col2im", [(2, 12, 49)], {"output_size": (8, 8), "kernel_size": (2, 2)}),
    ("max_pool2d_with_indices", [IMAGE], {"pool_size": (3, 3), "strides": (2, 2), "padding": ((1, 1), (1, 1))}),
    ("avg_pool2d", [IMAGE], {"pool_size": (3, 3), "padding": ((1, 1), (1, 1)), "divisor_override": 5}),
    ("device_copy", [ROWS], {"device": "cpu:0"}), ("optimization_barrier", [ROWS, ROWS], {}),
]  # fmt: skip


@pytest.mark.parametrize("op, shapes, attrs", CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_ops(op, shapes, attrs):
    arrays = [array(s) for s in shapes]
    agree(build(op, arrays, attrs), {}, {f"x{i}": a for i, a in enumerate(arrays)})


@pytest.mark.parametrize("op, arrays, attrs", [
    ("where", [array(ROWS, "bool"), array(ROWS), array((8,))], {}),
    ("logical_and", [array(ROWS, "bool"), array(ROWS, "bool")], {}), ("any", [array(ROWS, "bool")], {"axis": 1}),
    ("take", [array((4, 5)), array((2, 3), "int64")], {"axis": 0}),
    ("gather", [array((4, 5)), array((2, 5), "int64")], {"axis": 0}),
    ("one_hot", [array((2, 3), "int64")], {"depth": 4}),
    ("take", [array((4, 5)), array((2, 3), "int64") * 3 - 4], {"axis": 0, "mode": "clip"}),
    ("log1p", [np.array([1e-9, -1e-7, 0.5, 9.0, -0.999, np.inf, -1.0, 0.0], "float32")], {}),
    ("expm1", [np.array([1e-9, -1e-7, 0.5, 9.0, -20.0, np.inf, -np.inf, 80.0], "float32")], {}),
    *((op, [np.abs(array(ROWS)) + 0.1], {}) for op in ("log2", "log10")),
    ("atan2", [np.array([0, -0.0, 0, -0.0, 1, -1, np.inf, -np.inf, 2], "float32"),
               np.array([1, 1, -1, -1, 0, 0, np.inf, -np.inf, -np.inf], "float32")], {}),
    ("hypot", [np.array([3e30, 0, np.inf, 3], "float32"), np.array([4e30, 0, -np.inf, 4], "float32")], {}),
    ("fmax", [np.array([1, np.nan, np.nan], "float32"), np.array([np.nan, 2, np.nan], "float32")], {}),
    ("floor_divide", [np.array([7, -7, 7, -7], "int64"), np.array([2, 2, -2, -2], "int64")], {}),
    ("floor_divide", [np.array([1, -7, 7, 3, 0], "float32"), np.array([0.1, 2, -2, 0, 5], "float32")], {}),
    ("remainder", [np.array([7, -7, 7, -7], "int32"), np.array([3, 3, -3, -3], "int32")], {}),
    ("left_shift", [np.array([1, 5, 200, 3], "uint32"), np.array([0, 3, 31, 40], "uint32")], {}),
    ("right_shift", [np.array([1, 5, 200, 3], "uint32"), np.array([0, 1, 3, 40], "uint32")], {}),
    ("searchsorted", [np.array([1, 2, 2, 5], "float32"), np.array([[0, 2, 9], [1, 5, 3]], "float32")], {"right": True}),
    ("sort", [array((3, 7), "int32")], {"axis": 1}), ("argsort", [array((3, 9), "int64")], {"descending": True}),
    *(("scatter", [array((4, 5)), array((2, 5), "int64"), array((3, 5))], {"axis": 0, "reduce": r})
      for r in ("add", "prod", "amax", "amin")),
    ("scatter", [array((4, 5)), np.array([[3, 1, 2], [0, 4, 2]]), array((2, 3))], {"axis": 1}),
    ("index", [array((4, 5, 6)), array((2, 3), "int64"), array((3,), "int64") - 4], {"axes": (0, 1)}),
    ("index", [array((4, 5, 6)), array((2, 1), "int64"), array((3,), "int64")], {"axes": (1, 2)}),
    ("index", [array((4, 5, 6)), array((2, 1), "int64"), array((3,), "int64")], {"axes": (0, 2)}),
    ("index", [array((4, 5, 6)), array((3,), "int64")], {"axes": (1,)}),
    ("index_put", [array((4, 5, 6)), array((6,)), np.array([0, 2, 3]), np.array([1, 1, 4])], {"axes": (0, 1)}),
    ("index_put", [array((4, 5, 6)), array((4, 3)), np.array([0, 2, 3]), np.array([1, 1, 4])], {"axes": (1, 2)}),
    ("index_put", [array((4, 5, 6)), array((3, 5)), np.array([0, 2, 0]), np.array([1, 1, 1])],
     {"axes": (0, 2), "accumulate": True}),
    ("trunc_divide", [array(ROWS, "int32") * 7, array(ROWS, "int32") + 1], {}),
    ("attention", [array((2, 3, 4)), array((2, 5, 4)), array((2, 5, 4)), array((2, 3, 5), "bool")], {}),
    ("batch_norm", [array(IMAGE), array((4,)), array((4,)), array((4,)), np.abs(array((4,))) + 0.5], {"scale": False}),
])  # fmt: skip
def test_ops_of_other_types(op, arrays, attrs):
    agree(build(op, arrays, attrs), {}, {f"x{i}": a for i, a in enumerate(arrays)})


def test_sizes_stay_symbolic():
    x = variable("x", TensorType((symbol("n"), 4, 6), F32))
    folded = apply("reshape", [x], {"shape": (x.type.shape[0], 24)})
    graph = Graph((apply("relu", [folded[0]])[0],), (x.node,))
    model = graph.to_onnx()
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["n", 4, 6]
    again, _ = from_onnx(model)
    assert str(again.outputs[0].type) == "float32[n, 24]"
    data = array((3, 4, 6))
    np.testing.assert_array_equal(evaluate_graph(again, [data])[0], np.maximum(data, 0).reshape(3, 24))


def test_an_input_as_an_output():
    x = variable("x", TensorType((3,), F32))
    agree(Graph((x, x, apply("negative", [x])[0]), (x.node,)), {}, {"x": array((3,))})


def test_everything_without_a_counterpart_is_listed():
    x = variable("x", TensorType((3, 4), F32))
    odd = apply("lgamma", [x], name="a")[0]
    graph = Graph((apply("cummax", [odd], {"axis": 0}, "b")[0],), (x.node,))
    with pytest.raises(UnsupportedGraph, match="lgamma at a: ONNX has no such function") as e:
        to_onnx(graph)
    assert [n[:2] for n in e.value.nodes] == [("a", "lgamma"), ("b", "cummax")]


def test_every_op_has_a_rule_or_a_reason():
    to_onnx(build("relu", [array((2,))], {}))  # the rules are there now
    ops = {get(name).name for name in known() if "." not in name}
    without = {op for op in ops if op not in RULES}
    assert without == ops & {*NOT_IN_ONNX} and not {*NOT_IN_ONNX} & {*RULES}
    assert {"sort", "scatter", "index", "floor_divide", "conv2d", "attention"} <= {*RULES}


@pytest.mark.parametrize("kind, gates", [("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)])
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrent_layers(kind, gates, reverse):
    """With the dense layer before them; biases of a GRU's candidate too."""
    size = 6
    more = {"c": (3, size)} if kind == "lstm" else {"n": (size,)} if kind == "gru" and reverse else {}
    rows = gates * size
    shapes = {"x": (4, 3, 5), "w": (rows, 5), "b": (rows,), "r": (rows, size), "h": (3, size), **more}
    v = {name: variable(name, TensorType(shape, F32)) for name, shape in shapes.items()}
    dense = apply("dense", [v["x"], v["w"], v["b"]])[0]
    node = apply("recurrent", [dense, *list(v.values())[3:]], {"kind": kind, "reverse": reverse})
    graph = Graph(tuple(node.outputs), tuple(e.node for e in v.values()))
    arrays = {name: array(shape) for name, shape in shapes.items()}
    feeds = {name: arrays.pop(name) for name in ("x", "h")}
    agree(graph, arrays, feeds)


def test_params_that_do_not_fit_are_errors():
    graph = build("add", [array((3,)), array((3,))], {})
    with pytest.raises(ValueError, match="params has w"):
        to_onnx(graph, {"w": array((3,))})
    with pytest.raises(ValueError, match=r"params\['x1'\] is float32\[4\]"):
        to_onnx(graph, {"x1": array((4,))})


@pytest.mark.parametrize("workload, shape", [
    (lambda: mlp.get_workload(2, 10, (1, 6, 6)), (2, 1, 6, 6)),
    (lambda: resnet.get_workload(1, 10, 8, (3, 28, 28)), (1, 3, 28, 28)),
    (lambda: mobilenet.get_workload(1, 10, (3, 64, 64), alpha=0.125), (1, 3, 64, 64)),
    (lambda: dcgan.get_workload(1, 3, 2, 10), (1, 10)),
], ids=["mlp", "resnet", "mobilenet", "dcgan"])  # fmt: skip
def test_models(workload, shape):
    net, params = workload()
    agree(net.infer_type(data=TensorType(shape)), params, {"data": array(shape)}, 1e-3, 1e-4)
