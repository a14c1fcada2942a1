"""Converters of ONNX operators by family; importing this registers them."""

from nnvm.frontend.onnx.convert import (
    einsum,
    elementwise,
    indexing,
    nn,
    placing,
    pooling,
    quantize,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
    signal,
)

__all__ = [
    "einsum", "elementwise", "indexing", "nn", "placing", "pooling", "quantize", "recurrent", "reduction", "resize",
    "sampling", "shape", "signal",
]  # fmt: skip
