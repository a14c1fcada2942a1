"""Tensor expressions: what is computed (`compute`, reductions) and how (`Schedule`)."""

from nnvm.te.expr import *  # noqa: F403
from nnvm.te.tensor import *  # noqa: F403
