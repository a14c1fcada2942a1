"""ConvTranspose against ONNX Runtime: groups, dilation, paddings that differ, sizes with names."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import Backend  # noqa: E402

RNG = np.random.default_rng(0)


def model(rank, weights, sizes, **attrs):
    names = ["x", *weights]
    node = helper.make_node("ConvTranspose", names, ["y"], **attrs)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, sizes)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * (rank + 2))
    stored = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    made = helper.make_model(helper.make_graph([node], "g", [x], [y], stored),
                             opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    made.ir_version = 8
    return made


@pytest.mark.parametrize("rank, channels, kernel, attrs", [
    (1, (4, 6), (5,), {"strides": [3], "pads": [2, 0], "output_padding": [1]}),
    (2, (16, 16), (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    (2, (16, 8), (3, 4), {"strides": [2, 3], "pads": [0, 1, 2, 0], "group": 4}),
    (2, (16, 1), (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 16}),
    (2, (8, 8), (3, 3), {"strides": [2, 2], "dilations": [2, 3], "auto_pad": "SAME_UPPER"}),
    (2, (8, 8), (3, 3), {"strides": [2, 2], "output_shape": [11, 12]}),
    (2, (8, 3), (8, 8), {"strides": [8, 8]}), (3, (4, 4), (3, 2, 2), {"strides": [2, 2, 1]}),
])  # fmt: skip
@pytest.mark.parametrize("named", [False, True])
def test_values(rank, channels, kernel, attrs, named):
    if named and {"output_shape", "auto_pad"} & set(attrs):
        pytest.skip("needs the sizes")
    inputs, outputs = channels
    weights = {
        "w": RNG.standard_normal((inputs, outputs, *kernel)).astype(np.float32),
        "b": RNG.standard_normal(outputs * attrs.get("group", 1)).astype(np.float32),
    }
    extents = (5, 6, 4)[:rank]
    made = model(rank, weights, [2, inputs, *("abc"[:rank] if named else extents)], **attrs)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    prepared = Backend.prepare(made)
    for more in (0, 3) if named else (0,):
        x = RNG.standard_normal((2, inputs, *(n + more for n in extents))).astype(np.float32)
        np.testing.assert_allclose(prepared.run([x])[0], session.run(None, {"x": x})[0], 1e-4, 1e-4)
