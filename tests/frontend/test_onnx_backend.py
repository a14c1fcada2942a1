"""The node cases of ONNX's own test suite for a list of operators: each passes or is refused, none is wrong."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from nnvm.frontend.onnx import Backend, UnsupportedModel  # noqa: E402

#: Operators whose cases pass, but for those that `REASONS` names.
OPS = {
    "Abs", "Add", "AffineGrid", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast", "Ceil",
    "Clip", "Compress", "Concat", "ConstantOfShape", "Conv", "ConvInteger", "ConvTranspose", "CumSum",
    "DepthToSpace", "DequantizeLinear", "Div", "Einsum", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "GRU",
    "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "Greater", "GroupNormalization",
    "HardSigmoid", "InstanceNormalization", "LSTM", "LayerNormalization", "LeakyRelu", "Less", "Log", "LogSoftmax",
    "LpPool", "MatMul", "MatMulInteger", "Max", "MaxPool", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "OneHot",
    "PRelu", "Pad", "Pow", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "RMSNormalization", "RNN", "Range",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize",
    "RotaryEmbedding", "Round", "ScatterElements", "ScatterND", "Selu", "Shape", "Sigmoid", "Sign", "Slice",
    "Softmax", "Softplus", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "TopK",
    "Transpose", "Trilu", "Unsqueeze", "Upsample", "Where",
}  # fmt: skip

#: One unit in the last place, relative to the value, at most.
UNIT = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
#: Why cases of these may be refused: the reason as the error gives it.
REASONS = (
    r"element type (float8|float4|u?int4|u?int2|string)", "training", "bfloat16", "storage_order 1", "dilations",
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


def check(case, ulps=0):
    """None where the case passes, else why it is refused; AssertionError where its numbers are wrong.

    `ulps`: units in the last place by which results of half types may differ beyond the suite's own tolerance.
    """
    try:
        for inputs, wanted in case.data_sets:
            results = Backend.run_model(case.model, [of_proto(i) for i in inputs])
            for result, want in zip(results, map(of_proto, wanted), strict=True):
                want = np.asarray(want)
                assert (result.dtype, result.shape) == (want.dtype, want.shape), case.name
                rtol = max(case.rtol, ulps * UNIT.get(want.dtype.name, 0))
                if want.dtype.name == "bfloat16":
                    result, want = result.astype(np.float32), want.astype(np.float32)
                np.testing.assert_allclose(result, want, rtol, case.atol, err_msg=case.name)
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


def test_attention_by_its_definition(cases):
    """The expected values of half types round after each step; a fused chain of steps rounds once."""
    chosen = [c for c in cases if c.name.startswith("test_attention_") and not c.name.endswith("_expanded")]
    assert len(chosen) >= 60
    assert [why for c in chosen if (why := check(c, ulps=2)) is not None] == []


def stored(kind):
    """(name, model, inputs, outputs) of the cases that lie in files."""

    def tensors(folder, what):
        paths = sorted(folder.glob(f"{what}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
        return [onnx.numpy_helper.to_array(onnx.load_tensor(str(p))) for p in paths]

    data = Path(onnx.__file__).parent / "backend" / "test" / "data" / kind
    for path in sorted(data.glob("*/model.onnx")):
        for folder in sorted(path.parent.glob("test_data_set_*")):
            yield path.parent.name, onnx.load(path), tensors(folder, "input"), tensors(folder, "output")


@pytest.mark.parametrize("kind, count", [("pytorch-converted", 79), ("pytorch-operator", 35)])
def test_models_from_pytorch(kind, count):
    passed = 0
    for name, model, inputs, wanted in stored(kind):
        try:
            results = Backend.run_model(model, inputs)
        except UnsupportedModel as e:
            assert re.search("slopes per channel", str(e)), (name, str(e))
            continue
        for result, want in zip(results, wanted, strict=True):
            assert (result.dtype, result.shape) == (want.dtype, want.shape), name
            np.testing.assert_allclose(result, want, 1e-3, 1e-6, err_msg=name)
        passed += 1
    assert passed >= count
