"""Converters of ONNX operators by family; importing this registers them."""

from nnvm.frontend.onnx.convert import einsum, elementwise, indexing, nn, quantize, recurrent, reduction, resize, shape

__all__ = ["einsum", "elementwise", "indexing", "nn", "quantize", "recurrent", "reduction", "resize", "shape"]
