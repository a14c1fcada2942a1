"""Narrow element types (float8, float4, int4, int2) against ml_dtypes, whose conversions ONNX's reference uses."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import Backend, UnsupportedModel, from_onnx  # noqa: E402

FLOATS = {
    "FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E4M3FNUZ": "float8_e4m3fnuz", "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz", "FLOAT4E2M1": "float4_e2m1fn",
}  # fmt: skip
INTS = {"INT4": "int4", "UINT4": "uint4", "INT2": "int2", "UINT2": "uint2"}


def model(nodes, inputs, outputs, initializers=(), opset=25):
    """`inputs`, `outputs`: name -> (shape, name of the element type)."""
    infos = [[helper.make_tensor_value_info(n, TensorProto.DataType.Value(t), s) for n, (s, t) in v.items()]
             for v in (inputs, outputs)]  # fmt: skip
    graph = helper.make_graph([helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes], "g", *infos,
                              initializer=list(initializers))  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def cast(source, to, count, **attrs):
    code = TensorProto.DataType.Value(to)
    return model([("Cast", ["x"], ["y"], {"to": code, **attrs})], {"x": ([count], source)}, {"y": ([count], to)})


def floats(name):
    """Values of the format, what lies between and around them, and the special ones."""
    rng = np.random.default_rng(0)
    t = np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(16 if "4" in name[:6] else 256, dtype=np.uint8).view(t).astype(np.float32)
    finite = np.sort(codes[np.isfinite(codes)])
    halves = (finite[1:] + finite[:-1]) / 2
    near = np.concatenate([np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))])
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e30, -1e30, 1e-42]
    random = rng.normal(size=500) * 2.0 ** rng.integers(-20, 18, 500)
    return np.concatenate([codes, halves, near, special, random]).astype(np.float32)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("to", FLOATS)
def test_floats_are_rounded_to_even(to, saturate):
    x = floats(FLOATS[to])
    t = np.dtype(getattr(ml_dtypes, FLOATS[to]))
    info = ml_dtypes.finfo(t)
    with np.errstate(all="ignore"):
        wanted = (np.clip(x, float(info.min), float(info.max)) if saturate else x).astype(t)
    (y,) = Backend.run_model(cast("FLOAT", to, len(x), saturate=saturate), [x])
    assert y.dtype == t
    number = ~np.isnan(x)  # the sign of NaN is free
    np.testing.assert_array_equal(y.view(np.uint8)[number], wanted.view(np.uint8)[number])
    np.testing.assert_array_equal(np.isnan(y[~number].astype(np.float32)), np.isnan(wanted[~number].astype(np.float32)))


@pytest.mark.parametrize("source", [*FLOATS, "FLOAT8E8M0"])
@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16"])
def test_every_code_is_read(source, to):
    name = {**FLOATS, "FLOAT8E8M0": "float8_e8m0fnu"}[source]
    x = np.arange(16 if source == "FLOAT4E2M1" else 256, dtype=np.uint8).view(getattr(ml_dtypes, name))
    (y,) = Backend.run_model(cast(source, to, len(x)), [x])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, x.astype(np.float32).astype(y.dtype))


@pytest.mark.parametrize("to", INTS)
def test_integers(to):
    t = np.dtype(getattr(ml_dtypes, INTS[to]))
    info = ml_dtypes.iinfo(t)
    whole = np.arange(int(info.min), int(info.max) + 1)
    x = np.concatenate([whole, whole[whole >= 0] + 0.75]).astype(np.float32)
    (y,) = Backend.run_model(cast("FLOAT", to, len(x)), [x])
    assert y.dtype == t
    np.testing.assert_array_equal(y.astype(np.int32), np.trunc(x).astype(np.int32))
    (back,) = Backend.run_model(cast(to, "FLOAT", len(y)), [y])
    np.testing.assert_array_equal(back, np.trunc(x))


def test_they_are_moved_without_being_looked_at():
    nodes = [("Transpose", ["x"], ["t"]), ("Slice", ["t", "from", "to"], ["s"]), ("Reshape", ["s", "shape"], ["y"])]
    constants = [numpy_helper.from_array(np.array(v), n) for n, v in
                 {"from": [1, 0], "to": [4, 3], "shape": [9]}.items()]  # fmt: skip
    net = model(nodes, {"x": ([3, 4], "FLOAT8E5M2")}, {"y": ([9], "FLOAT8E5M2")}, constants)
    x = np.random.default_rng(1).integers(0, 256, (3, 4), np.uint8).view(ml_dtypes.float8_e5m2)
    (y,) = Backend.run_model(net, [x])
    np.testing.assert_array_equal(y.view(np.uint8), x.T[1:4, 0:3].reshape(9).view(np.uint8))


def test_weights_in_blocks_of_int4():
    rng = np.random.default_rng(2)
    codes = rng.integers(-8, 8, (6, 4)).astype(ml_dtypes.int4)
    zeros = rng.integers(-8, 8, (2, 4)).astype(ml_dtypes.int4)
    scales = rng.random((2, 4), np.float32)
    tensors = [numpy_helper.from_array(a, n) for n, a in (("w", codes), ("s", scales), ("z", zeros))]
    nodes = [("DequantizeLinear", ["w", "s", "z"], ["d"], {"axis": 0, "block_size": 3}), ("MatMul", ["x", "d"], ["y"])]
    net = model(nodes, {"x": ([5, 6], "FLOAT")}, {"y": ([5, 4], "FLOAT")}, tensors)
    x = rng.normal(size=(5, 6)).astype(np.float32)
    (y,) = Backend.run_model(net, [x])
    blocks = [np.repeat(a.astype(np.float32), 3, axis=0) for a in (scales, zeros)]
    np.testing.assert_allclose(y, x @ ((codes.astype(np.float32) - blocks[1]) * blocks[0]), 1e-4, 1e-5)


def test_arithmetic_is_refused_by_name():
    net = model([("Add", ["x", "x"], ["y"])], {"x": ([3], "FLOAT8E5M2")}, {"y": ([3], "FLOAT8E5M2")})
    with pytest.raises(UnsupportedModel, match=r"Add .*elements of type float8e5m2"):
        from_onnx(net)
