"""Operator definitions by family. Importing this package registers all of them."""

from nnvm.ops import broadcast, create, elemwise, nn_dense, reduce, transform

__all__ = ["broadcast", "create", "elemwise", "nn_dense", "reduce", "transform"]
