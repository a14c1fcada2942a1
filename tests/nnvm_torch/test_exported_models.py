"""Networks of the zoo, of torch.nn and of transformers as programs of torch.export, compared with eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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


TOKENS = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48, "max_position_embeddings": 64}  # fmt: skip
DECODER = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}
#: A type of model of transformers -> what makes it small.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "bert": TOKENS, "distilbert": {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "roberta": {**TOKENS, "pad_token_id": 1}, "albert": {**TOKENS, "embedding_size": 16}, "mpnet": TOKENS,
    "electra": {**TOKENS, "embedding_size": 16}, "deberta-v2": {**TOKENS, "relative_attention": True,
                                                              "pos_att_type": ["p2c", "c2p"]},
    "gpt2": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": TOKENS, "opt": {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48,
                                "num_attention_heads": 4, "word_embed_proj_dim": 32},
    "llama": {**TOKENS, "num_key_value_heads": 2, **DECODER}, "qwen2": {**TOKENS, "num_key_value_heads": 2, **DECODER},
    "qwen3": {**TOKENS, "num_key_value_heads": 2, "head_dim": 8, **DECODER},
    "mistral": {**TOKENS, "num_key_value_heads": 2, "sliding_window": 4, **DECODER},
    "gemma2": {**TOKENS, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, **DECODER},
    "phi": {**TOKENS, **DECODER}, "mamba": {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2,
                                            "state_size": 4},
    "t5": {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "bart": {"vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
             "max_position_embeddings": 64},
    "vit": {**TOKENS, **IMAGE}, "deit": {**TOKENS, **IMAGE}, "beit": {**TOKENS, **IMAGE}, "dinov2": {**TOKENS, **IMAGE},
    "clip_vision_model": {**TOKENS, **IMAGE}, "siglip_vision_model": {**TOKENS, **IMAGE},
    "swin": {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 2],
             "window_size": 4},
    "segformer": {**STAGES, "decoder_hidden_size": 16}, "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1],
                                                                     "num_stages": 2},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "mobilevit": {"image_size": 32, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 32]},
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(TRANSFORMERS))
def test_transformers(name):
    transformers = pytest.importorskip("transformers")
    from nnvm_torch.bench.models.hf import TensorOutputs

    config = transformers.AutoConfig.for_model(name, **TRANSFORMERS[name])
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    if model.main_input_name == "pixel_values":
        check(TensorOutputs(model, ("pixel_values",), {}), (torch.randn(2, 3, 32, 32),))
        return
    names = ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)
    options = {"use_cache": False} if hasattr(config, "use_cache") else {}
    draw = lambda *shape: tuple(torch.randint(3, 60, shape) for _ in names)  # noqa: E731
    batch = Dim("batch", min=1, max=16)
    sizes = ((*({0: batch} for _ in names),),) if name != "mamba" else None
    others = () if sizes is None else (draw(3, 8), draw(1, 8))
    check(TensorOutputs(model, names, options), draw(2, 8), sizes=sizes, others=others)


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
