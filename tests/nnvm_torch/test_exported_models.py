"""Networks of the zoo, of torch.nn and of transformers as programs of torch.export, compared with eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_transformers import TRANSFORMERS, draw, small_transformer
from small_zoo import SMALL, small
from torch import nn
from torch.export import Dim, export

import nnvm_torch

#: Run by default; `pytest -m slow` runs all.
FEW = ("convnext_tiny", "gru_classifier", "gpt2_prefill", "bert", "llama", "t5", "encoder", "lstm")


def sampled(names: Any) -> list[Any]:
    return [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in names]


def check(module: nn.Module, args: tuple[Any, ...], *, sizes: Any = None, others: Any = (), atol: float = 1e-4) -> None:
    """`sizes`: dynamic dimensions; `others`: further arguments, of other sizes. Nothing is left to PyTorch."""
    module.eval()
    with torch.no_grad():
        program = export(module, args, dynamic_shapes=sizes, strict=False)
    ours = nnvm_torch.from_exported(program, strict=True)
    for given in (args, *others):
        with torch.no_grad():
            torch.testing.assert_close(ours(*given), module(*given), rtol=1e-3, atol=atol)


@pytest.mark.parametrize("name", sampled(SMALL))
def test_the_zoo(name):
    module, args = small(name)
    check(module, args)


@pytest.mark.parametrize("name", sampled(TRANSFORMERS))
def test_transformers(name):
    module, names = small_transformer(name)
    batch = Dim("batch", min=1, max=16)
    sizes = ((*({0: batch} for _ in names),),) if name != "mamba" and "pixel_values" not in names else None
    check(module, draw(names, 2), sizes=sizes, others=() if sizes is None else (draw(names, 3), draw(names, 1)))


class Encoder(nn.Module):
    """Attention with a mask, as torch.nn has it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=padding)


def padded(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.arange(length, length - batch, -1).clamp(min=1)
    return torch.randn(batch, length, 16), torch.arange(length) >= lengths[:, None]


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(x, y, tgt_mask=self.mask, tgt_is_causal=True)


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.bilinear = nn.Embedding(20, 8), nn.Bilinear(8, 8, 5)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.embedding(i).cumsum(1).mean(1)
        return nn.functional.cosine_similarity(x, x.flip(0)), self.bilinear(x, x.roll(1, 0)).log_softmax(-1)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.net = kind(6, 8, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


BATCH = Dim("batch", min=1, max=32)
#: What torch.nn has -> (module, arguments, dynamic dimensions, further arguments).
MODULES: dict[str, Any] = {
    "encoder": (Encoder, lambda b: padded(b, 6), ({0: BATCH}, {0: BATCH})),
    "seq2seq": (Seq2Seq, lambda b: (torch.randn(b, 5, 16), torch.randn(b, 4, 16)), ({0: BATCH}, {0: BATCH})),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), lambda b: (torch.randn(b, 5, 6),), None),
    "gru": (lambda: Recurrent(nn.GRU), lambda b: (torch.randn(b, 5, 6),), None),
    "rnn": (lambda: Recurrent(nn.RNN), lambda b: (torch.randn(b, 5, 6),), None),
    "pairs": (Pairs, lambda b: (torch.randint(0, 20, (b + 2, 4)),), None),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 8, 3, 2, 1, 1), nn.GroupNorm(2, 8), nn.PReLU(8),
                                         nn.InstanceNorm2d(8, affine=True), nn.PixelShuffle(2), nn.LPPool2d(2, 2)),
                   lambda b: (torch.randn(b, 3, 9, 8),), ({0: BATCH},)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.MaxPool3d(2), nn.SELU(),
                                      nn.AdaptiveAvgPool3d((1, 2, 1)), nn.Flatten()),
                lambda b: (torch.randn(b, 2, 6, 6, 4),), ({0: BATCH},)),
    "signals": (lambda: nn.Sequential(nn.Conv1d(3, 8, 5, padding=2, padding_mode="circular"), nn.GLU(1), nn.Mish(),
                                      nn.AdaptiveMaxPool1d(3), nn.LocalResponseNorm(2), nn.Upsample(scale_factor=2)),
                lambda b: (torch.randn(b, 3, 11),), None),
    "resized": (lambda: nn.Sequential(nn.ReflectionPad2d(2), nn.Upsample(scale_factor=1.5, mode="bilinear"),
                                      nn.ZeroPad2d(1), nn.Unfold(3, stride=2), nn.Hardtanh()),
                lambda b: (torch.randn(b, 2, 6, 7),), None),
    "images of any size": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Softplus(),
                                                 nn.AvgPool2d(3, 2, 1), nn.Softmax2d()),
                           lambda b: (torch.randn(1, 3, 16 + b, 20 + 2 * b),),
                           ({2: Dim("height", min=8, max=64), 3: Dim("width", min=8, max=64)},)),
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(MODULES))
def test_modules_of_torch(name):
    make, inputs, sizes = MODULES[name]
    torch.manual_seed(0)
    check(make(), inputs(3), sizes=sizes, others=(inputs(5), inputs(1)) if sizes else ())
