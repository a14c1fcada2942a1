"""A network with parameters, ready to be built."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnvm.dtype import dtype as as_dtype
from nnvm.graph.types import TensorType
from nnvm.symbol import Symbol
from nnvm.testing.init import Initializer, initialize

__all__ = ["Params", "create_workload"]

Params = dict[str, np.ndarray[Any, Any]]


def create_workload(
    net: Symbol, batch_size: int, image_shape: tuple[int, ...] = (3, 224, 224), dtype: str = "float32",
    initializer: Initializer | None = None, seed: int = 0,
) -> tuple[Symbol, Params]:  # fmt: skip
    """(net, parameters) for the input ``data`` of shape (batch_size, *image_shape); Xavier by default."""
    data = TensorType((batch_size, *image_shape), as_dtype(dtype))
    return net, initialize(net.infer_type(data=data), initializer, seed)
