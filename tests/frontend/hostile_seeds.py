"""Small models of many kinds, as bytes: what the damaging of models begins with."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(3)


def info(name, *shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name, *shape):
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(nodes, inputs, outputs, weights=(), opset=17, functions=(), domains=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))


def node(op, inputs, outputs, **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def network():
    nodes = [
        node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", "a"),
        node("Flatten", "a", "f"),
        node("Gemm", "f v d", "g", transB=1),
        node("Softmax", "g", "y", axis=-1),
    ]
    weights = [weight("w", 4, 2, 3, 3), weight("b", 4), weight("v", 3, 4), weight("d", 3)]
    return model(nodes, [info("x", 1, 2, 6, 6)], [info("y", 1, 3)], weights)


def sizes():
    """A shape that is computed: Shape, Gather, Concat, Reshape, then an Expand and a Tile."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 minus", "t", axis=0),
        node("Reshape", "x t", "r"),
        node("Tile", "r reps", "e"),
        node("Expand", "e wide", "y"),
    ]
    weights = [ints("zero", 0), ints("axes", 0), ints("minus", -1), ints("reps", 1, 2), ints("wide", 2, 1, 1)]
    weights[0] = numpy_helper.from_array(np.array(0, np.int64), "zero")
    return model(nodes, [info("x", "n", 3, 4)], [info("y", 2, None, None)], weights)


def rearranged():
    nodes = [
        node("Slice", "x b e a", "s"),
        node("Pad", "s p", "q"),
        node("Transpose", "q", "t", perm=[1, 0, 2]),
        node("Split", "t", "u v", axis=0, num_outputs=2),
        node("Concat", "u v", "c", axis=2),
        node("Gather", "c i", "g", axis=1),
        node("Squeeze", "g j", "h"),
        node("Unsqueeze", "h k", "y"),
    ]
    weights = [
        ints("b", 0, 1),
        ints("e", 3, 4),
        ints("a", 0, 2),
        ints("p", 0, 1, 0, 0, 1, 0),
        ints("i", 0),
        ints("j", 1),
        ints("k", 0),
    ]
    return model(nodes, [info("x", 3, 2, 5)], [info("y", 1, 2, 6)], weights, opset=18)


def generated():
    """Sizes that constants give: ConstantOfShape, Range, EyeLike, OneHot, Resize, TopK, CumSum, ScatterND."""
    nodes = [
        node("ConstantOfShape", "shape", "z", value=helper.make_tensor("v", FLOAT, [1], [0.5])),
        node("Range", "from to step", "r"),
        node("Cast", "r", "rf", to=FLOAT),
        node("Add", "z rf", "s"),
        node("EyeLike", "s", "e"),
        node("MatMul", "s e", "m"),
        node("TopK", "m k", "top at", axis=1),
        node("OneHot", "at depth values", "h", axis=-1),
        node("ReduceSum", "h axes", "hs", keepdims=0),
        node("Resize", "x   factors", "big", mode="nearest"),
        node("ReduceMax", "big", "peak"),
        node("CumSum", "top axis", "cum"),
        node("ScatterND", "cum where upd", "sc"),
        node("Add", "sc hs", "sum"),
        node("Mul", "sum peak", "y"),
    ]
    nodes[9] = helper.make_node("Resize", ["x", "", "factors"], ["big"], mode="nearest")
    scalar = lambda n, v: numpy_helper.from_array(np.array(v, np.int64), n)  # noqa: E731
    weights = [
        ints("shape", 4, 4),
        scalar("from", 0),
        scalar("to", 4),
        scalar("step", 1),
        ints("k", 2),
        ints("depth", 2),
        weight("values", 2),
        ints("axes", 2),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "factors"),
        scalar("axis", 1),
        numpy_helper.from_array(np.array([[1], [2]], np.int64), "where"),
        weight("upd", 2, 2),
    ]
    return model(nodes, [info("x", 1, 1, 2, 2)], [info("y", None, None)], weights)


def branches():
    """An If in an If, a Loop and a Scan."""
    inner = [
        helper.make_graph([node("Relu" if k else "Neg", "x", f"i{k}")], f"b{k}", [], [info(f"i{k}", 2, 3)])
        for k in (0, 1)
    ]
    nested = node("If", "yes", "n", then_branch=inner[0], else_branch=inner[1])
    then = helper.make_graph([nested], "then", [], [info("n", 2, 3)])
    other = helper.make_graph([node("Abs", "x", "o")], "else", [], [info("o", 2, 3)])
    body = helper.make_graph(
        [node("Add", "state one", "next"), node("Identity", "going", "still"), node("Mul", "next next", "scan")],
        "body",
        [info("step", kind=INT64), info("going", kind=TensorProto.BOOL), info("state", 2, 3)],
        [info("still", kind=TensorProto.BOOL), info("next", 2, 3), info("scan", 2, 3)],
    )
    scan = helper.make_graph(
        [node("Add", "sum row", "sum2"), node("Identity", "sum2", "out")],
        "scan",
        [info("sum", 3), info("row", 3)],
        [info("sum2", 3), info("out", 3)],
    )
    nodes = [
        node("If", "yes", "c", then_branch=then, else_branch=other),
        node("Loop", "trips yes c", "l ls", body=body),
        node("Scan", "zero l", "final rows", body=scan, num_scan_inputs=1),
        node("Add", "rows l", "y"),
    ]
    yes = numpy_helper.from_array(np.array(True), "yes")
    trips = numpy_helper.from_array(np.array(3, np.int64), "trips")
    return model(
        nodes,
        [info("x", 2, 3)],
        [info("y", 2, 3), info("ls", 3, 2, 3)],
        [yes, trips, weight("one", 2, 3), weight("zero", 3)],
    )


def functions():
    """Functions that call each other, and an operator that is defined by others."""
    square = helper.make_function(
        "mine", "Square", ["a"], ["b"], [node("Mul", "a a", "b")], [helper.make_opsetid("", 17)]
    )
    call = node("Square", "a", "c", domain="mine")
    twice = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [call, node("Add", "c c", "b")],
        [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
    )
    nodes = [
        node("Twice", "x", "t", domain="mine"),
        node("Celu", "t", "u", alpha=2.0),
        node("LayerNormalization", "u s", "y"),
    ]
    return model(
        nodes, [info("x", 2, 3)], [info("y", 2, 3)], [weight("s", 3)], functions=[square, twice], domains=["mine"]
    )


def quantised():
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("DequantizeLinear", "q scale zero", "d"),
        node("MatMulInteger", "q w zero", "i"),
        node("Cast", "i", "f", to=FLOAT),
        node("MatMul", "d v", "g"),
        node("Add", "f g", "y"),
    ]
    weights = [
        numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
        weight("v", 4, 3),
        numpy_helper.from_array(np.array(3, np.uint8), "zero"),
        numpy_helper.from_array(RNG.integers(-9, 9, (4, 3)).astype(np.int8), "w"),
    ]
    return model(nodes, [info("x", 2, 4)], [info("y", 2, 3)], weights)


def recurrent():
    nodes = [
        node("LSTM", "x w r b", "h hl cl", hidden_size=3, direction="bidirectional"),
        node("GRU", "x w2 r2", "g", hidden_size=2),
        node("ReduceMean", "g", "m"),
        node("Mul", "hl m", "y"),
    ]
    weights = [
        weight("w", 2, 12, 2),
        weight("r", 2, 12, 3),
        weight("b", 2, 24),
        weight("w2", 1, 6, 2),
        weight("r2", 1, 6, 2),
    ]
    return model(nodes, [info("x", 3, 1, 2)], [info("y", 2, 1, 3)], weights)


def products():
    nodes = [
        node("Einsum", "x w", "e", equation="bij,jk->bik"),
        node("Softmax", "e", "s"),
        node("MatMul", "s v", "m"),
        node("FusedMatMul", "m v", "f", domain="com.microsoft", transB=1, alpha=0.5),
        node("Gelu", "f", "g", domain="com.microsoft"),
        node("Where", "c g f", "y"),
    ]
    chosen = numpy_helper.from_array(np.array([[True, False, True, False]]), "c")
    return model(
        nodes,
        [info("x", 2, 3, 2)],
        [info("y", 2, 3, 4)],
        [weight("w", 2, 4), weight("v", 4, 4), chosen],
        domains=["com.microsoft"],
    )


SEEDS = (network, sizes, rearranged, generated, branches, functions, quantised, recurrent, products)
#: Operators of ONNX's own tests that are seeds too, by the beginning of a case's name.
CASES = (
    "argmax",
    "averagepool_2d",
    "batchnorm",
    "col2im",
    "compress",
    "conv_",
    "convtranspose",
    "deform",
    "depthtospace",
    "dft",
    "dropout",
    "dynamicquantize",
    "edge_pad",
    "einsum",
    "expand",
    "gather",
    "grid",
    "group",
    "gru",
    "hamming",
    "identity",
    "if",
    "instancenorm",
    "layer_norm",
    "logsoftmax",
    "loop",
    "lppool",
    "lrn",
    "lstm",
    "matmulinteger",
    "maxpool",
    "maxunpool",
    "mean",
    "melweight",
    "mod",
    "mvn",
    "nllloss",
    "nonmax",
    "nonzero",
    "onehot",
    "optional",
    "pow",
    "prelu",
    "qlinear",
    "range",
    "reduce",
    "reshape",
    "resize",
    "reversesequence",
    "rnn",
    "roialign",
    "rotary",
    "scan",
    "scatter",
    "sce",
    "sequence",
    "shape",
    "shrink",
    "slice",
    "softmax",
    "spacetodepth",
    "split",
    "stft",
    "sum",
    "tensorscatter",
    "tile",
    "topk",
    "transpose",
    "tril",
    "unique",
    "unsqueeze",
    "upsample",
    "where",
    "attention",
)


@cache
def seeds(cases=False):
    """Serialised models; with those of ONNX's tests where `cases` is set (which takes seconds)."""
    own = [s().SerializeToString() for s in SEEDS]
    for data in own:
        onnx.checker.check_model(onnx.load_from_string(data))
    if not cases:
        return own
    from nnvm.frontend.onnx.conformance import cases as suite

    out = []
    for case in suite("node"):
        if any(case.name.startswith(f"test_{c}") for c in CASES) and not case.name.endswith("_expanded"):
            data = case.model.SerializeToString()
            if len(data) < 20_000:
                out.append(data)
    return own * (len(out) // (2 * len(own)) + 1) + out
