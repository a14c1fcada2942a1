"""Models that PyTorch exports to ONNX (``dynamo=True``), imported again and compared with eager."""

import pytest
import torch
from small_transformers import TRANSFORMERS, draw, small_transformer
from small_zoo import SMALL, small
from torch import nn

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

import nnvm_torch

#: Run by default; `pytest -m slow` runs all.
FEW = ("mlp", "resnet18", "lstm_classifier", "gpt2")


def sampled(names):
    return [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in names]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, activation="gelu")

    def forward(self, x):
        return self.layer(x).mean(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Pyramid(nn.Module):
    """Convolutions of different strides whose results are resampled and joined."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish())
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, groups=8), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(24, 4, 2, 2)

    def forward(self, x):
        a = self.stem(x)
        b = self.down(a)
        wide = nn.functional.interpolate(b, scale_factor=2.0, mode="bilinear")
        return self.up(torch.cat([a, wide], 1)).softmax(1)


@pytest.mark.parametrize("make, shape", [
    (Attention, (2, 7, 32)), (Recurrent, (2, 5, 12)), (Pyramid, (2, 3, 32, 32)),
    (lambda: nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 4), nn.LayerNorm(4), nn.Tanh()), (2, 5)),
], ids=["attention", "lstm", "pyramid", "embedding"])  # fmt: skip
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_exported_models(make, shape, dynamic):
    torch.manual_seed(0)
    model = make().eval()
    integers = isinstance(model, nn.Sequential)

    def data(batch):
        size = (batch, *shape[1:])
        return torch.randint(0, 11, size) if integers else torch.randn(size)

    sizes = ({0: torch.export.Dim("batch", min=1, max=64)},) if dynamic else None
    program = torch.onnx.export(model, (data(shape[0]),), dynamo=True, dynamic_shapes=sizes, verbose=False)
    module = nnvm_torch.from_onnx(program.model_proto)
    for batch in (shape[0], 3) if dynamic else (shape[0],):
        x = data(batch)
        with torch.no_grad():
            torch.testing.assert_close(module(x), model(x), rtol=1e-3, atol=1e-4)


def check(model, *calls, dynamic=None, atol=1e-4):
    """The model as PyTorch exports it for the first call, on all calls."""
    try:
        program = torch.onnx.export(model, calls[0], dynamo=True, dynamic_shapes=dynamic, verbose=False)
    except torch.onnx.OnnxExporterError as e:
        pytest.skip(f"PyTorch cannot export it: {str(e).splitlines()[0]}")
    module = nnvm_torch.from_onnx(program.model_proto)
    for args in calls:
        with torch.no_grad():
            got, want = module(*args), model(*args)
        got, want = ([v] if isinstance(v, torch.Tensor) else [*v] for v in (got, want))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("name", sampled(SMALL))
def test_the_zoo(name):
    module, args = small(name)
    check(module, args)


@pytest.mark.parametrize("name", sampled(TRANSFORMERS))
def test_transformers(name):
    module, names = small_transformer(name)
    sizes = (tuple({0: torch.export.Dim("batch", min=1, max=16)} for _ in names),) if name != "mamba" else None
    check(module, draw(names, 2), *([] if sizes is None else [draw(names, 3)]), dynamic=sizes)
