"""The node cases of ONNX's own test suite for a list of operators: each passes or is refused, none is wrong."""

import re
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from nnvm.frontend.onnx import Backend, UnsupportedModel  # noqa: E402

#: Operators whose cases pass, but for those that `REASONS` names.
OPS = {
    "Abs", "Add", "AffineGrid", "And", "ArgMax", "ArgMin", "BatchNormalization", "Cast", "Ceil", "Clip", "Concat",
    "ConstantOfShape", "Conv", "ConvInteger", "ConvTranspose", "CumSum", "DepthToSpace", "DequantizeLinear", "Div",
    "Einsum", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "GRU", "Gather", "GatherElements", "GatherND",
    "Gelu", "Gemm", "GlobalAveragePool", "Greater", "GroupNormalization", "HardSigmoid", "InstanceNormalization",
    "LSTM", "LayerNormalization", "LeakyRelu", "Less", "Log", "LogSoftmax", "MatMul", "MatMulInteger", "Max",
    "MaxPool", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "OneHot", "PRelu", "Pad", "Pow", "QLinearConv",
    "QLinearMatMul", "QuantizeLinear", "RMSNormalization", "RNN", "Range", "Reciprocal", "ReduceMax", "ReduceMean",
    "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize", "RotaryEmbedding", "Round", "ScatterElements",
    "ScatterND", "Selu", "Shape", "Sigmoid", "Sign", "Slice", "Softmax", "Softplus", "SpaceToDepth", "Split",
    "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Upsample", "Where",
}  # fmt: skip

#: Why cases of these may be refused: the reason as the error gives it.
REASONS = (
    r"element type (float8|float4|u?int4|u?int2|string)", "opset before 7", "training", "bfloat16", "storage_order 1",
    "at most half of the window", "an output_shape larger", "elements of type uint8", "reduction (mul|max|min)",
    "the whole graph", "blocks of scales", "lengths of sequences", "the diagonal",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return load_model_tests(kind="node")


def of_proto(value):
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def check(case):
    """None where the case passes, else why it is refused; AssertionError where its numbers are wrong."""
    try:
        for inputs, wanted in case.data_sets:
            results = Backend.run_model(case.model, [of_proto(i) for i in inputs])
            for result, want in zip(results, map(of_proto, wanted), strict=True):
                want = np.asarray(want)
                assert (result.dtype, result.shape) == (want.dtype, want.shape), case.name
                if want.dtype.name == "bfloat16":
                    result, want = result.astype(np.float32), want.astype(np.float32)
                np.testing.assert_allclose(result, want, case.rtol, case.atol, err_msg=case.name)
    except UnsupportedModel as e:
        return str(e)
    return None


def is_chosen(case):
    nodes = case.model.graph.node
    return len(nodes) == 1 and nodes[0].op_type in OPS and not case.name.endswith("_expanded")


def test_node_cases(cases):
    chosen = [c for c in cases if is_chosen(c)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused = {c.name: why for c in chosen if (why := check(c)) is not None}
    assert {n: why for n, why in refused.items() if not re.search("|".join(REASONS), why)} == {}
    assert len(chosen) - len(refused) >= 560
    assert len(refused) <= 100
