"""Converters of ONNX operators by family; importing this registers them."""

from nnvm.frontend.onnx.convert import (
    einsum,
    elementwise,
    indexing,
    microsoft,
    microsoft_attention,
    microsoft_quantized,
    nn,
    placing,
    pooling,
    quantize,
    recurrent,
    reduction,
    resize,
    sampling,
    sequences,
    shape,
    signal,
)

__all__ = [
    "einsum", "elementwise", "indexing", "microsoft", "microsoft_attention", "microsoft_quantized", "nn", "placing",
    "pooling", "quantize", "recurrent", "reduction", "resize", "sampling", "sequences", "shape", "signal",
]  # fmt: skip
