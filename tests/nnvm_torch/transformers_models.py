"""Small models of many architectures, built from transformers' configurations with random weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["MODELS", "Model", "build"]

#: Sizes of most text models.
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
DECODER = {**TEXT, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**DECODER, "num_key_value_heads": 2}
SPEECH = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "conv_dim": (32, 32, 32),
    "conv_stride": (4, 4, 4),
    "conv_kernel": (8, 8, 8),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 32,
}
#: Sizes of encoders with decoders.
PAIR = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
}
IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
TINY_TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 32,
    "projection_dim": 16,
}


@dataclass(frozen=True)
class Model:
    """An architecture.

    Attributes:
        kind: transformers' name of it.
        config: what differs from its default configuration.
        inputs: what it is called with: ``text``, ``pair`` (encoder and decoder), ``image``, ``sound``, ``spectrum``,
            ``both`` (text and image), ``chat`` (text with places for an image).
        head: the class of transformers that adds a task's head; AutoModel where it is "".
        generates: has `generate()`.
        options: further arguments of a call.
    """

    kind: str
    config: dict[str, Any]
    inputs: str = "text"
    head: str = ""
    generates: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def causal(kind: str, config: dict[str, Any], head: str = "AutoModelForCausalLM") -> Model:
    return Model(kind, config, "text", head, True)


MODELS: dict[str, Model] = {
    # encoders
    "bert": Model("bert", TEXT),
    "bert_classifier": Model("bert", TEXT, head="AutoModelForSequenceClassification"),
    "roberta": Model("roberta", {**TEXT, "pad_token_id": 1}),
    "distilbert": Model(
        "distilbert",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37, "max_position_embeddings": 64},
    ),
    "albert": Model("albert", {**TEXT, "embedding_size": 16, "num_hidden_groups": 1}),
    "electra": Model("electra", {**TEXT, "embedding_size": 16}),
    "deberta_v2": Model(
        "deberta-v2",
        {
            **TEXT,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
    ),
    "mpnet": Model("mpnet", {**TEXT, "pad_token_id": 1}),
    "xlm_roberta": Model("xlm-roberta", {**TEXT, "pad_token_id": 1}),
    "modernbert": Model(
        "modernbert",
        {**TEXT, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
    ),
    # decoders
    "gpt2": causal(
        "gpt2",
        {
            "vocab_size": 99,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    "gpt_neo": causal(
        "gpt_neo",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "max_position_embeddings": 64,
        },
    ),
    "gpt_neox": causal("gpt_neox", DECODER),
    "llama": causal("llama", GROUPED),
    "mistral": causal("mistral", {**GROUPED, "sliding_window": 6, "head_dim": 8}),
    "qwen2": causal("qwen2", GROUPED),
    "qwen3": causal("qwen3", {**GROUPED, "head_dim": 8}),
    "gemma": causal("gemma", {**GROUPED, "head_dim": 8}),
    "gemma2": causal("gemma2", {**GROUPED, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}),
    "phi": causal("phi", DECODER),
    "falcon": causal(
        "falcon",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "opt": causal("opt", {**DECODER, "ffn_dim": 37, "word_embed_proj_dim": 32}),
    "bloom": causal(
        "bloom",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    "olmo": causal("olmo", GROUPED),
    "mixtral": causal(
        "mixtral", {**GROUPED, "intermediate_size": 40, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    ),
    "mamba": causal(
        "mamba",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "time_step_rank": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    # encoder-decoders
    "t5": Model(
        "t5",
        {
            "vocab_size": 99,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 37,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "pair",
        "AutoModelForSeq2SeqLM",
        True,
    ),
    "bart": Model(
        "bart",
        {
            **PAIR,
            "max_position_embeddings": 64,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "forced_eos_token_id": None,
        },
        "pair",
        "AutoModelForSeq2SeqLM",
        True,
    ),
    "marian": Model(
        "marian",
        {
            **PAIR,
            "max_position_embeddings": 64,
            "pad_token_id": 1,
            "eos_token_id": 0,
            "decoder_start_token_id": 1,
            "forced_eos_token_id": None,
        },
        "pair",
        "AutoModelForSeq2SeqLM",
        True,
    ),
    "pegasus": Model(
        "pegasus",
        {
            **PAIR,
            "max_position_embeddings": 64,
            "forced_eos_token_id": None,
        },
        "pair",
        "AutoModelForSeq2SeqLM",
        True,
    ),
    # vision
    "vit": Model("vit", IMAGE, "image", "AutoModelForImageClassification"),
    "deit": Model("deit", IMAGE, "image"),
    "swin": Model(
        "swin",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4},
        "image",
    ),
    "convnext": Model(
        "convnext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32}, "image"
    ),
    "resnet": Model(
        "resnet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "image",
        "AutoModelForImageClassification",
    ),
    "mobilenet_v2": Model("mobilenet_v2", {"image_size": 32, "depth_multiplier": 0.25}, "image"),
    "segformer": Model(
        "segformer",
        {
            "image_size": 32,
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        "image",
        "SegformerForSemanticSegmentation",
    ),
    "dinov2": Model("dinov2", IMAGE, "image"),
    "detr": Model(
        "detr",
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "num_queries": 5,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 37,
            "decoder_ffn_dim": 37,
            "backbone_config": "resnet",
        },
        "image",
        "DetrForObjectDetection",
    ),
    # audio
    "wav2vec2": Model("wav2vec2", SPEECH, "sound"),
    "hubert": Model("hubert", SPEECH, "sound"),
    "ast": Model(
        "audio-spectrogram-transformer",
        {**IMAGE, "max_length": 32, "num_mel_bins": 16, "patch_size": 4, "frequency_stride": 4, "time_stride": 4},
        "spectrum",
    ),
    "whisper": Model(
        "whisper",
        {
            **PAIR,
            "max_source_positions": 20,
            "max_target_positions": 32,
            "num_mel_bins": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
            "begin_suppress_tokens": None,
        },
        "features",
        "WhisperForConditionalGeneration",
        True,
    ),
    # several kinds of input
    "clip": Model(
        "clip",
        {"text_config": TINY_TEXT, "vision_config": {**IMAGE, "projection_dim": 16}, "projection_dim": 16},
        "both",
    ),
    "siglip": Model("siglip", {"text_config": TINY_TEXT, "vision_config": IMAGE}, "both"),
    "blip": Model(
        "blip",
        {
            "text_config": {
                **TINY_TEXT,
                "encoder_hidden_size": 32,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "sep_token_id": 2,
                "pad_token_id": 0,
            },
            "vision_config": IMAGE,
            "projection_dim": 16,
        },
        "both",
    ),
    "llava": Model(
        "llava",
        {
            "text_config": {**GROUPED, "model_type": "llama"},
            "vision_config": {**IMAGE, "model_type": "clip_vision_model"},
            "image_token_index": 98,
            "image_token_id": 98,
            "vision_feature_layer": -1,
        },
        "chat",
        "LlavaForConditionalGeneration",
    ),
}


def build(model: Model) -> tuple[torch.nn.Module, Callable[[int], dict[str, Any]]]:
    """The module, in eval mode with random weights, and what makes the arguments of a call from a seed."""
    import transformers

    config = dict(model.config)
    if config.get("backbone_config") == "resnet":
        config["backbone_config"] = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
        )
    made = transformers.AutoConfig.for_model(model.kind, **config)
    torch.manual_seed(0)
    cls = getattr(transformers, model.head or "AutoModel")
    module = cls.from_config(made) if model.head.startswith("Auto") or not model.head else cls(made)
    with torch.no_grad():  # ones and zeros hide what is not applied
        for p in module.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return module.eval(), lambda seed: {**_INPUTS[model.inputs](made, seed), **model.options}


def _ids(g: torch.Generator, rows: int, length: int, high: int = 97) -> torch.Tensor:
    return torch.randint(3, high, (rows, length), generator=g)


def _text(config: Any, seed: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    return {"input_ids": _ids(g, 2, 7), "attention_mask": mask}


def _pair(config: Any, seed: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed + 1000)
    return {**_text(config, seed), "decoder_input_ids": _ids(g, 2, 5)}


def _image(config: Any, seed: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))}


def _sound(config: Any, seed: int) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 1024, generator=torch.Generator().manual_seed(seed))}


def _spectrum(config: Any, seed: int) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 32, 16, generator=torch.Generator().manual_seed(seed))}


def _features(config: Any, seed: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    return {"input_features": torch.randn(2, 16, 40, generator=g), "decoder_input_ids": _ids(g, 2, 5)}


def _both(config: Any, seed: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed + 1000)
    return {"input_ids": _ids(g, 2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64), **_image(config, seed)}


def _chat(config: Any, seed: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed + 1000)
    ids = _ids(g, 2, 22)
    ids[:, 2:18] = 98  # 16 patches and, by this model's choice of features, no class token
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **_image(config, seed)}


_INPUTS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "text": _text,
    "pair": _pair,
    "image": _image,
    "sound": _sound,
    "spectrum": _spectrum,
    "features": _features,
    "both": _both,
    "chat": _chat,
}
