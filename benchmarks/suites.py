"""Which models make up a suite."""

from __future__ import annotations

from dataclasses import dataclass

from nnvm_torch.bench.zoo import ZOO

__all__ = ["SUITES", "Suite"]


@dataclass(frozen=True)
class Suite:
    """Models that are measured together, and what their table is good for."""

    models: tuple[str, ...]
    summary: str
    #: Engines that it compares beside eager and nnvm, where none are named.
    peers: tuple[str, ...] = ()


def zoo(*names: str) -> tuple[str, ...]:
    return tuple(f"zoo:{name}" for name in names)


#: Ten networks that people deploy, of every kind the compiler has a schedule for.
CPU = zoo(
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "efficientnet_b0",
    "vit_b_16",
    "bert_base",
    "minilm",
    "gpt2_prefill",
    "lstm_classifier",
    "unet_small",
)

SUITES: dict[str, Suite] = {
    "quick": Suite(zoo("mlp", "resnet18", "mobilenet_v2", "minilm"), "a few minutes: is it still faster than eager?"),
    "cpu": Suite(CPU, "ten real networks: the figures to quote"),
    "onnx": Suite(CPU, "ONNX exports without PyTorch: as fast as with it?", ("nnvm-onnx", "onnxruntime", "openvino")),
    "wide": Suite(zoo(*ZOO), "every network of the zoo: nothing slower than eager?"),
}
