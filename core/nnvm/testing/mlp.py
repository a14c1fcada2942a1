"""A perceptron with two hidden layers."""

from __future__ import annotations

import nnvm.symbol as sym
from nnvm.testing.workload import Params, create_workload

__all__ = ["get_symbol", "get_workload"]


def get_symbol(num_classes: int = 1000) -> sym.Symbol:
    """Probabilities of the classes, from ``data``."""
    x = sym.flatten(sym.Variable("data"))
    x = sym.relu(sym.dense(x, units=128, name="fc1"), name="relu1")
    x = sym.relu(sym.dense(x, units=64, name="fc2"), name="relu2")
    return sym.softmax(sym.dense(x, units=num_classes, name="fc3"), name="softmax")


def get_workload(
    batch_size: int = 1, num_classes: int = 1000, image_shape: tuple[int, ...] = (3, 224, 224), dtype: str = "float32",
    seed: int = 0,
) -> tuple[sym.Symbol, Params]:  # fmt: skip
    """(network, parameters)."""
    return create_workload(get_symbol(num_classes), batch_size, image_shape, dtype, seed=seed)
