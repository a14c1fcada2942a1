"""Converters of ONNX operators by family; importing this registers them."""

from nnvm.frontend.onnx.convert import elementwise, indexing, nn, reduction, shape

__all__ = ["elementwise", "indexing", "nn", "reduction", "shape"]
