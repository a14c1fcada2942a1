"""Models of transformers in small: their types, what makes them small, and how they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

__all__ = ["TRANSFORMERS", "draw", "small_transformer"]

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


def small_transformer(name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """The model with random weights, and the names of its inputs; skips where the package is missing."""
    transformers = pytest.importorskip("transformers")
    from nnvm_torch.bench.models.hf import TensorOutputs

    config = transformers.AutoConfig.for_model(name, **TRANSFORMERS[name])
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    if model.main_input_name == "pixel_values":
        return TensorOutputs(model, ("pixel_values",), {}), ("pixel_values",)
    names = ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)
    options = {"use_cache": False} if hasattr(config, "use_cache") else {}
    return TensorOutputs(model, names, options), names


def draw(names: tuple[str, ...], batch: int) -> tuple[torch.Tensor, ...]:
    """Inputs of these names."""
    if names == ("pixel_values",):
        return (torch.randn(batch, 3, 32, 32),)
    return tuple(torch.randint(3, 60, (batch, 8)) for _ in names)
