"""Deep networks of 3x3 convolutions.

Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, arXiv:1409.1556.
"""

from __future__ import annotations

import nnvm.symbol as sym
from nnvm.testing.workload import Params, create_workload

__all__ = ["get_symbol", "get_workload"]

_LAYERS = {11: [1, 1, 2, 2, 2], 13: [2, 2, 2, 2, 2], 16: [2, 2, 3, 3, 3], 19: [2, 2, 4, 4, 4]}
_CHANNELS = [64, 128, 256, 512, 512]


def get_symbol(num_classes: int = 1000, num_layers: int = 11, batch_norm: bool = False) -> sym.Symbol:
    """Probabilities of the classes, from ``data``. ValueError where there is no network of `num_layers` layers."""
    if num_layers not in _LAYERS:
        raise ValueError(f"there is no network of {num_layers} layers; there are {', '.join(map(str, _LAYERS))}")
    x = sym.Variable("data")
    for i, (count, channels) in enumerate(zip(_LAYERS[num_layers], _CHANNELS), 1):
        for j in range(1, count + 1):
            x = sym.conv2d(x, channels=channels, kernel_size=(3, 3), padding=(1, 1), name=f"conv{i}_{j}")
            if batch_norm:
                x = sym.batch_norm(x, name=f"bn{i}_{j}")
            x = sym.relu(x, name=f"relu{i}_{j}")
        x = sym.max_pool2d(x, pool_size=(2, 2), strides=(2, 2), name=f"pool{i}")
    x = sym.flatten(x)
    for i in (6, 7):
        x = sym.relu(sym.dense(x, units=4096, name=f"fc{i}"), name=f"relu{i}")
        x = sym.dropout(x, rate=0.5, name=f"drop{i}")
    return sym.softmax(sym.dense(x, units=num_classes, name="fc8"), name="softmax")


def get_workload(
    batch_size: int = 1, num_classes: int = 1000, image_shape: tuple[int, ...] = (3, 224, 224), dtype: str = "float32",
    num_layers: int = 11, batch_norm: bool = False, seed: int = 0,
) -> tuple[sym.Symbol, Params]:  # fmt: skip
    """(network, parameters)."""
    return create_workload(get_symbol(num_classes, num_layers, batch_norm), batch_size, image_shape, dtype, seed=seed)
