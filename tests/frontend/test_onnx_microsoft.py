"""The fused operators of the domain com.microsoft against ONNX Runtime, which defines them."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import Backend, UnsupportedModel  # noqa: E402

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def model(op, feeds, weights=None, outputs=1, names=None, domain="com.microsoft", **attrs):
    """A model of one node. `feeds`, `weights`: arrays by input name; `names`: the order ("" for an absent one)."""
    weights = weights or {}
    names = names or [*feeds, *weights]
    wanted = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
    code = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
    graph = helper.make_graph(
        [helper.make_node(op, names, wanted, domain=domain, **attrs)], "g",
        [helper.make_tensor_value_info(n, code[n], a.shape) for n, a in feeds.items()],
        [onnx.ValueInfoProto(name=n) for n in wanted if n],
        initializer=[numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(net, feeds, rtol=1e-4, atol=1e-5):
    session = ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    got = Backend.prepare(net).run(feeds)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol, atol)


def run(op, feeds, weights=None, tolerance=(1e-4, 1e-5), **kwargs):
    check(model(op, feeds, weights, **kwargs), feeds, *tolerance)


@pytest.mark.parametrize("op, names, attrs", [
    ("Gelu", "x", {}), ("QuickGelu", "x", {"alpha": 1.5}), ("FastGelu", "xb", {}), ("FastGelu", "x", {}),
    ("BiasGelu", "xb", {}),
])  # fmt: skip
def test_gelus(op, names, attrs):
    arrays = {"x": normal(2, 3, 8), "b": normal(8)}
    # FastGelu approximates with another polynomial of tanh
    run(op, {n: arrays[n] for n in names}, tolerance=(1e-3, 1e-4), **attrs)


@pytest.mark.parametrize("attrs", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}])
def test_fused_matmul(attrs):
    a = normal(2, 5, 3) if attrs.get("transA") else normal(2, 3, 5)
    b = normal(2, 4, 5) if attrs.get("transB") else normal(2, 5, 4)
    run("FusedMatMul", {"a": a, "b": b}, **attrs)


@pytest.mark.parametrize("activation, params", [
    ("Relu", None), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4]), ("Tanh", None),
])  # fmt: skip
def test_fused_conv(activation, params):
    attrs = {"activation": activation, "pads": [1, 1, 1, 1], **({"activation_params": params} if params else {})}
    run("FusedConv", {"x": normal(1, 3, 6, 6)}, {"w": normal(4, 3, 3, 3), "b": normal(4)}, **attrs)


def test_fused_conv_with_a_sum():
    feeds = {"x": normal(1, 3, 6, 6), "z": normal(1, 4, 6, 6)}
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4)}
    run("FusedConv", feeds, weights, names=["x", "w", "b", "z"], activation="Relu", pads=[1, 1, 1, 1])


def test_fused_gemm():
    feeds = {"a": normal(3, 5), "b": normal(4, 5), "c": normal(4)}
    run("FusedGemm", feeds, transB=1, activation="LeakyRelu", activation_alpha=0.1)


@pytest.mark.parametrize("op, names, outputs", [
    ("SkipLayerNormalization", ["x", "s", "g", "b", "c"], ["y"]),
    ("SkipLayerNormalization", ["x", "s", "g"], ["y", "", "", "sum"]),
    ("SkipSimplifiedLayerNormalization", ["x", "s", "g"], ["y"]),
    ("SkipSimplifiedLayerNormalization", ["x", "s", "g", "c"], ["y", "", "", "sum"]),
])  # fmt: skip
def test_skip_layer_norm(op, names, outputs):
    arrays = {"x": normal(2, 3, 8), "s": normal(2, 3, 8), "g": normal(8), "b": normal(8), "c": normal(8)}
    run(op, {n: arrays[n] for n in names}, names=names, outputs=outputs, epsilon=1e-3)


def test_simplified_layer_norm():
    run("SimplifiedLayerNormalization", {"x": normal(2, 3, 8), "g": normal(8)}, domain="", axis=-1, epsilon=1e-5)


def test_embed_layer_norm():
    feeds = {"ids": RNG.integers(0, 11, (2, 5), np.int32), "segments": RNG.integers(0, 2, (2, 5), np.int32),
             "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)}  # fmt: skip
    weights = {"word": normal(11, 8), "position": normal(6, 8), "segment": normal(2, 8), "g": normal(8), "b": normal(8)}
    names = ["ids", "segments", "word", "position", "segment", "g", "b", "mask"]
    run("EmbedLayerNormalization", feeds, weights, names=names, outputs=2, epsilon=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_rotary_embedding(interleaved, offset, flat):
    angles = RNG.uniform(0, 6, (10, 4)).astype(np.float32)
    feeds = {"x": normal(2, 5, 24) if flat else normal(2, 3, 5, 8),
             "at": np.array([3]) if offset else RNG.integers(0, 10, (2, 5))}  # fmt: skip
    run("RotaryEmbedding", feeds, {"cos": np.cos(angles), "sin": np.sin(angles)}, interleaved=interleaved)


def attention_mask(kind):
    return {
        "lengths": np.array([3, 5], np.int32),
        "keys": np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32),
        "none": None,
    }[kind]


@pytest.mark.parametrize("mask", ["none", "lengths", "keys"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask, causal):
    feeds = {"x": normal(2, 5, 12)}
    weights = {"w": normal(12, 24), "b": normal(24)}
    if (given := attention_mask(mask)) is not None:
        feeds["m"] = given
    run("Attention", feeds, weights, names=["x", "w", "b", *(["m"] if "m" in feeds else [])], num_heads=2,
        unidirectional=causal)  # fmt: skip


def test_attention_with_a_past():
    feeds = {"x": normal(2, 3, 12), "past": normal(2, 2, 2, 4, 4)}
    run("Attention", feeds, {"w": normal(12, 24), "b": normal(24)}, names=["x", "w", "b", "", "past"], outputs=2,
        num_heads=2, unidirectional=1)  # fmt: skip


@pytest.mark.parametrize("given", ["qkv", "bias", "padding", "scores", "past"])
def test_multi_head_attention(given):
    feeds = {"q": normal(2, 3, 8), "k": normal(2, 5, 8), "v": normal(2, 5, 8)}
    names, outputs = ["q", "k", "v"], 1
    if given == "bias":
        feeds["b"] = normal(24)
        names += ["b"]
    elif given == "padding":
        feeds["m"] = attention_mask("keys")
        names += ["", "m"]
    elif given == "scores":
        feeds["a"] = normal(1, 2, 3, 5)
        names += ["", "", "a"]
    elif given == "past":
        feeds |= {"pk": normal(2, 2, 4, 4), "pv": normal(2, 2, 4, 4)}
        names, outputs = [*names, "", "", "", "pk", "pv"], 3
    run("MultiHeadAttention", feeds, names=names, outputs=outputs, num_heads=2)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention(packed, rotary):
    steps, size = 3, 16
    feeds = {"q": normal(1, steps, 8 * size if packed else 4 * size)}
    names = ["q", "", ""]
    if not packed:
        feeds |= {"k": normal(1, steps, 2 * size), "v": normal(1, steps, 2 * size)}
        names = ["q", "k", "v"]
    feeds |= {"pk": normal(1, 2, 4, size), "pv": normal(1, 2, 4, size)}
    weights = {"len": np.array([6], np.int32), "total": np.array([7], np.int32)}
    names += ["pk", "pv", "len", "total"]
    if rotary:
        angles = RNG.uniform(0, 6, (32, size // 2)).astype(np.float32)
        weights |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        names += ["cos", "sin"]
    run("GroupQueryAttention", feeds, weights, names=names, outputs=3, num_heads=4, kv_num_heads=2, do_rotary=rotary)


@pytest.mark.parametrize("bits, zeros", [(4, True), (4, False), (8, True)])
def test_matmul_n_bits(bits, zeros):
    rows, columns, block = 5, 48, 32
    count = -(-columns // block)
    weights = {
        "b": RNG.integers(0, 256, (rows, count, block * bits // 8), np.uint8),
        "s": RNG.random((rows, count), np.float32),
    }
    if zeros:
        weights["z"] = RNG.integers(0, 256, (rows, -(-count * bits // 8)), np.uint8)
    run("MatMulNBits", {"a": normal(2, 3, columns)}, weights, N=rows, K=columns, bits=bits, block_size=block,
        tolerance=(1e-3, 1e-2 if bits == 8 else 1e-3))  # fmt: skip


SCALE, ZERO = np.float32(0.03), np.uint8(120)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_binary(op):
    feeds = {"a": RNG.integers(0, 256, (2, 7), np.uint8), "b": RNG.integers(0, 256, (2, 7), np.uint8)}
    weights = {"as": SCALE, "az": ZERO, "bs": np.float32(0.05), "bz": np.uint8(9), "cs": np.float32(0.11), "cz": ZERO}
    run(op, feeds, weights, names=["a", "as", "az", "b", "bs", "bz", "cs", "cz"])


@pytest.mark.parametrize("op, attrs", [
    ("QLinearLeakyRelu", {"alpha": 0.2}), ("QLinearSigmoid", {}),
    ("QLinearGlobalAveragePool", {"channels_last": 0}),
])  # fmt: skip
def test_qlinear_unary(op, attrs):
    feeds = {"x": RNG.integers(0, 256, (1, 3, 5, 5), np.uint8)}
    weights = {"xs": SCALE, "xz": ZERO, "ys": np.float32(0.02), "yz": np.uint8(30)}
    run(op, feeds, weights, names=["x", "xs", "xz", "ys", "yz"], **attrs)


def test_qlinear_concat():
    feeds = {"a": RNG.integers(0, 256, (2, 3), np.uint8), "b": RNG.integers(0, 256, (2, 4), np.uint8)}
    weights = {"ys": np.float32(0.06), "yz": ZERO, "as": SCALE, "az": ZERO, "bs": np.float32(0.05), "bz": np.uint8(9)}
    run("QLinearConcat", feeds, weights, names=["ys", "yz", "a", "as", "az", "b", "bs", "bz"], axis=1)


def test_matmul_integer_to_float():
    feeds = {"a": RNG.integers(0, 256, (3, 6), np.uint8)}
    # 7 bits: ONNX Runtime's product of 8 by 8 bits saturates pairs at 16 bits on processors without VNNI
    weights = {"b": RNG.integers(-64, 64, (6, 4), np.int8), "as": SCALE, "bs": RNG.random(4, np.float32),
               "az": ZERO, "bz": np.zeros(4, np.int8), "c": normal(4)}  # fmt: skip
    run("MatMulIntegerToFloat", feeds, weights, names=["a", "b", "as", "bs", "az", "bz", "c"])


def test_dynamic_quantize_matmul():
    weights = {"b": RNG.integers(-64, 64, (6, 4), np.int8), "bs": np.array([0.02], np.float32)}
    run("DynamicQuantizeMatMul", {"a": normal(3, 6)}, weights)


def test_unsupported_forms_are_refused_by_name():
    feeds = {"q": normal(2, 3, 2, 3, 4)}
    with pytest.raises(UnsupportedModel, match=r"com.microsoft.MultiHeadAttention \(opset 1\).*packed"):
        Backend.prepare(model("MultiHeadAttention", feeds, num_heads=2))
