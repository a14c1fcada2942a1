"""Sampling and signal ops beyond the suite's cases: against ONNX Runtime and numpy."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402

from nnvm.frontend.onnx import Backend, UnsupportedModel  # noqa: E402


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def model(op, feeds, weights=None, opset=20, **attrs):
    weights = weights or {}
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in feeds.items()]  # fmt: skip
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    node = helper.make_node(op, [*feeds, *weights], ["y"], **attrs)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")], initializer=tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check(net, feeds, rtol=1e-4, atol=1e-5):
    session = ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    (y,) = Backend.prepare(net).run(feeds)
    assert (y.dtype, y.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(y, wanted, rtol, atol)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_grid_sample_far_outside(mode, padding, aligned):
    grid = np.random.default_rng(1).uniform(-3.2, 3.2, (2, 4, 5, 2)).astype(np.float32)
    feeds = {"x": normal(2, 3, 6, 7), "grid": grid}
    check(model("GridSample", feeds, mode=mode, padding_mode=padding, align_corners=aligned), feeds, 1e-3, 1e-4)


def test_grid_sample_of_volumes():
    feeds = {"x": normal(1, 2, 3, 4, 5), "grid": np.random.default_rng(1).uniform(-1.2, 1.2, (1, 2, 3, 2, 3))
             .astype(np.float32)}  # fmt: skip
    check(model("GridSample", feeds, mode="linear"), feeds)


def test_positions_that_are_no_numbers_read_nothing():
    grid = np.zeros((1, 1, 3, 2), np.float32)
    grid[0, 0, 0], grid[0, 0, 1] = np.nan, np.inf
    x = normal(1, 1, 3, 3)
    (y,) = Backend.run_model(model("GridSample", {"x": x, "g": grid}), [x, grid])
    assert y[0, 0, 0, 1] == 0
    np.testing.assert_allclose(y[0, 0, 0, 2], x[0, 0, 1, 1], 1e-6)


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [1, 3])
def test_roi_align(mode, ratio):
    rois = np.array([[1, 1, 6, 7], [-3, 2, 20, 5], [4, 4, 4.2, 4.1]], np.float32)
    feeds = {"x": normal(2, 3, 8, 9), "rois": rois, "batch": np.array([0, 1, 1])}
    net = model("RoiAlign", feeds, coordinate_transformation_mode=mode, output_height=2, output_width=3,
                sampling_ratio=ratio, spatial_scale=0.9)  # fmt: skip
    check(net, feeds)


def test_roi_align_of_unknown_sample_counts_is_refused():
    feeds = {"x": normal(1, 1, 8, 8), "rois": normal(1, 4), "batch": np.array([0])}
    with pytest.raises(UnsupportedModel, match="sampling_ratio 0"):
        Backend.prepare(model("RoiAlign", feeds))


@pytest.mark.parametrize("length", [None, 6, 12, 9])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(length, parts):
    x = normal(3, 9, parts)
    weights = {} if length is None else {"n": np.int64(length)}
    (y,) = Backend.run_model(model("DFT", {"x": x}, weights), [x])
    signal = x[..., 0] if parts == 1 else x[..., 0] + 1j * x[..., 1]
    wanted = np.fft.fft(signal, length, axis=1)
    np.testing.assert_allclose(y, np.stack([wanted.real, wanted.imag], -1), 1e-4, 1e-4)


@pytest.mark.parametrize("length", [8, 9])
def test_dft_onesided_and_back(length):
    x = normal(2, length, 1)
    bins = length // 2 + 1
    (spectrum,) = Backend.run_model(model("DFT", {"x": x}, onesided=1), [x])
    wanted = np.fft.rfft(x[..., 0], axis=1)
    assert spectrum.shape == (2, bins, 2)
    np.testing.assert_allclose(spectrum, np.stack([wanted.real, wanted.imag], -1), 1e-4, 1e-4)
    net = model("DFT", {"x": spectrum}, {"n": np.int64(length)}, onesided=1, inverse=1)
    (back,) = Backend.run_model(net, [spectrum])
    np.testing.assert_allclose(back, x, 1e-4, 1e-5)
