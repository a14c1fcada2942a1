"""Triton source from the tiles of the Tensor IR: one readable function for each launch."""

from nnvm.codegen.triton.source import TritonSource, triton_source

__all__ = ["TritonSource", "triton_source"]
