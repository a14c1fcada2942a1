"""``hf:NAME``: transformers models built from a configuration, with random weights. Nothing is downloaded."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnvm.bench.errors import BenchError, require

from .case import ModelCase

__all__ = ["PUBLISHED", "load_hf"]

TEXT_TOKENS = 128
DECODER_TOKENS = 16
DECODER_ONLY = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

#: Published checkpoints as (model type, what differs from that type's default configuration).
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base-uncased": ("bert", {}),
    "all-minilm-l6-v2": (
        "bert",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "distilbert-base-uncased": ("distilbert", {}),
    "roberta-base": ("roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "albert-base-v2": (
        "albert",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "electra-small": ("electra", {}),
    "gpt2": ("gpt2", {}),
    "opt-125m": ("opt", {}),
    "t5-small": ("t5", {}),
    "whisper-tiny": ("whisper", {}),
    "vit-base-patch16-224": ("vit", {}),
    "clip-vit-base-patch32": ("clip_vision_model", {}),
    "wav2vec2-base": ("wav2vec2", {}),
    "smollm2-135m": (
        "llama",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
            **DECODER_ONLY,
        },
    ),
    "qwen2.5-0.5b": (
        "qwen2",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            **DECODER_ONLY,
        },
    ),
}


class TensorOutputs(nn.Module):
    """Calls a transformers model with keywords and returns the tensors of its answer, without caches."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], options: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer = self.model(**dict(zip(self.names, args, strict=True)), **self.options)
        return tuple(x for x in answer.to_tuple() if isinstance(x, torch.Tensor))


def configuration(name: str) -> Any:
    """The transformers configuration that ``name`` stands for: a file, a published model, or a model type."""
    from transformers import CONFIG_MAPPING, AutoConfig

    path = Path(name)
    if path.name == "config.json" or path.is_dir():
        return AutoConfig.from_pretrained(path, local_files_only=True)
    if name.lower() in PUBLISHED:
        model_type, changes = PUBLISHED[name.lower()]
        return AutoConfig.for_model(model_type, **changes)
    known = list(CONFIG_MAPPING.keys())
    if name not in known:
        near = difflib.get_close_matches(name, [*PUBLISHED, *known])
        hint = f"did you mean {' or '.join(near)}?" if near else f"for example {', '.join(list(PUBLISHED)[:5])}"
        raise BenchError(f"hf: no published model or model type {name!r}; {hint}")
    return AutoConfig.for_model(name)


def from_config(config: Any) -> Any:
    """The model without a task's head, with random weights."""
    from transformers import AutoModel

    return AutoModel.from_config(config)  # type: ignore[no-untyped-call]


def load_hf(name: str, batch: int) -> ModelCase:
    """The model of ``name`` with inputs of its main kind: tokens, images, spectrograms or sound."""
    require("transformers", otherwise="use zoo:minilm, zoo:bert_base or zoo:gpt2_prefill")
    config = configuration(name)
    refuse_huge(name, config)
    model = from_config(config).eval()
    inputs = example_inputs(model, config, batch)
    text = getattr(config, "is_encoder_decoder", False) or "input_ids" in inputs
    options = {"use_cache": False} if text and hasattr(config, "use_cache") else {}
    return ModelCase(TensorOutputs(model, tuple(inputs), options), tuple(inputs.values()))


def refuse_huge(name: str, config: Any) -> None:
    """A model type's default configuration can be the largest of its family. Counted without allocating anything."""
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in from_config(config).parameters())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 16 << 30
    if parameters * 8 * 2 > memory:  # the float64 reference, and an engine with its own copy of the weights
        raise BenchError(
            f"hf:{name} has {parameters / 1e9:.1f} billion parameters, too many for this machine's memory; "
            "give a smaller one as hf:/path/to/config.json"
        )


def example_inputs(model: Any, config: Any, batch: int) -> dict[str, torch.Tensor]:
    main = str(model.main_input_name)
    inputs: dict[str, torch.Tensor] = {}
    if main == "pixel_values":
        inputs[main] = images(config, batch)
    elif main == "input_features":
        inputs[main] = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    elif main == "input_values":
        inputs[main] = torch.randn(batch, 16_000)
    elif main == "input_ids":
        inputs[main] = token_ids(config, batch, TEXT_TOKENS)
    else:
        raise BenchError(f"hf: no inputs are known for {main!r}; write a factory and use FILE.py:FACTORY")
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = token_ids(config, batch, DECODER_TOKENS)
    return inputs


def token_ids(config: Any, batch: int, length: int) -> torch.Tensor:
    """Ids from all of the vocabulary but its special first few, some of which (padding, end) have a meaning."""
    vocabulary = int(config.get_text_config().vocab_size)
    ids = torch.randint(3, vocabulary, (batch, length))
    ids[0, :2] = torch.tensor([3, vocabulary - 1])
    return ids


def images(config: Any, batch: int) -> torch.Tensor:
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(batch, getattr(config, "num_channels", 3), height, width)
