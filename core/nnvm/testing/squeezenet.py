"""A small network of squeeze and expand convolutions, whose outputs are concatenated.

Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size, arXiv:1602.07360;
version 1.1 of its authors.
"""

from __future__ import annotations

import nnvm.symbol as sym
from nnvm.testing.workload import Params, create_workload

__all__ = ["get_symbol", "get_workload"]

#: Channels after the squeeze and of each of the two expanding convolutions; None: a pooling.
_FIRES = [(16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256)]


def get_symbol(num_classes: int = 1000) -> sym.Symbol:
    """Probabilities of the classes, from ``data``."""
    x = _conv(sym.Variable("data"), 64, 3, "conv1", strides=(2, 2))
    x = sym.max_pool2d(x, pool_size=(3, 3), strides=(2, 2))
    for i, widths in enumerate(_FIRES, 2):
        if widths is None:
            x = sym.max_pool2d(x, pool_size=(3, 3), strides=(2, 2))
            continue
        x = _conv(x, widths[0], 1, f"fire{i}_squeeze")
        both = (_conv(x, widths[1], k, f"fire{i}_expand{k}x{k}", padding=(k // 2, k // 2)) for k in (1, 3))
        x = sym.concatenate(*both, axis=1, name=f"fire{i}_concat")
    x = _conv(sym.dropout(x, rate=0.5), num_classes, 1, "conv_last")
    return sym.softmax(sym.flatten(sym.global_avg_pool2d(x)), name="softmax")


def get_workload(
    batch_size: int = 1, num_classes: int = 1000, image_shape: tuple[int, ...] = (3, 224, 224), dtype: str = "float32",
    seed: int = 0,
) -> tuple[sym.Symbol, Params]:  # fmt: skip
    """(network, parameters)."""
    return create_workload(get_symbol(num_classes), batch_size, image_shape, dtype, seed=seed)


def _conv(
    x: sym.Symbol, channels: int, kernel: int, name: str, strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
) -> sym.Symbol:  # fmt: skip
    x = sym.conv2d(x, channels=channels, kernel_size=(kernel, kernel), strides=strides, padding=padding, name=name)
    return sym.relu(x, name=f"{name}_relu")
