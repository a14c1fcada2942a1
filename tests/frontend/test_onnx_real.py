"""Models that PyPI packages ship, against ONNX Runtime: silero-vad and rapidocr-onnxruntime, where they are installed.

``pip install --no-deps silero-vad rapidocr-onnxruntime`` brings the files; nothing of the packages is imported.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from nnvm.frontend.onnx import Backend  # noqa: E402

pytestmark = pytest.mark.slow


def folder(package, inside):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0]) / inside


def speech(samples, seed=0):
    """Voiced sound: harmonics of a gliding pitch under an envelope of syllables, with a little noise."""
    rng, t = np.random.default_rng(seed), np.arange(samples) / 16000
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * t)) / 16000
    voice = sum(np.sin(k * phase) / k for k in range(1, 20)) * np.clip(np.sin(2 * np.pi * 3 * t), 0, 1)
    return (0.2 * voice + 0.005 * rng.normal(size=samples)).astype(np.float32)


def page(height, width, seed=0):
    """An image of dark strokes in rows on light paper, as the packages normalise it: [1, 3, H, W] in -1 .. 1."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width), 0.9, np.float32)
    for top in range(height // 8, height - 8, max(12, height // 4)):
        for left in range(6, width - 10, 9):
            if rng.random() < 0.8:
                image[top : top + rng.integers(4, 12), left : left + rng.integers(1, 6)] = 0.1
    image += 0.02 * rng.normal(size=image.shape).astype(np.float32)
    return np.broadcast_to((image - 0.5) / 0.5, (1, 3, height, width)).astype(np.float32).copy()


def compare(path, feeds, rtol=1e-3, atol=1e-4):
    """Each of `feeds` through both."""
    prepared = Backend.prepare(onnx.load(path))
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for feed in feeds:
        wanted = session.run(None, feed)
        for ours, theirs in zip(prepared.run(feed), wanted, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol, atol)


@pytest.mark.parametrize("name", [
    "silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx", "silero_vad_half.onnx",
])  # fmt: skip
def test_silero_vad(name):
    """Windows of 512 samples with 64 of context, the state handed on, as the package's own loop does."""
    path = folder("silero_vad", "data") / name
    model = onnx.load(path)
    inputs = [i.name for i in model.graph.input]
    sound, context = speech(512 * 4), np.zeros((1, 64), np.float32)
    state = np.zeros((2, 1, 128), np.float32)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    prepared, spoken = Backend.prepare(model), []
    for window in sound.reshape(4, 1, 512):
        x = np.concatenate([context, window], axis=1)
        feed = {n: {"input": x, "state": state, "sr": np.array(16000)}[n] for n in inputs}
        ours, theirs = prepared.run(feed), session.run(None, feed)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, 1e-3, 1e-5)
        state, context = theirs[1], x[:, -64:]
        spoken.append(float(ours[0][0, 0]))
    assert len(set(spoken)) == len(spoken)


@pytest.mark.parametrize("name, sizes", [
    ("ch_PP-OCRv4_det_infer.onnx", [(96, 160), (128, 96)]),
    ("ch_PP-OCRv4_rec_infer.onnx", [(48, 160), (48, 320)]),
    ("ch_ppocr_mobile_v2.0_cls_infer.onnx", [(48, 192), (48, 96)]),
])  # fmt: skip
def test_rapidocr(name, sizes):
    path = folder("rapidocr_onnxruntime", "models") / name
    compare(path, [{"x": page(h, w, seed)} for seed, (h, w) in enumerate(sizes)])
