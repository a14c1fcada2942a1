"""A network of depthwise and pointwise convolutions.

Howard et al., MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications, arXiv:1704.04861.
"""

from __future__ import annotations

import nnvm.symbol as sym
from nnvm.testing.workload import Params, create_workload

__all__ = ["get_symbol", "get_workload"]

#: (channels, stride of the depthwise convolution) of each block.
_BLOCKS = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]


def get_symbol(num_classes: int = 1000, alpha: float = 1.0) -> sym.Symbol:
    """Probabilities of the classes, from ``data``; `alpha` is a factor of all channel counts."""
    width = int(32 * alpha)
    x = _block(sym.Variable("data"), "conv_block_1", width, 3, (2, 2))
    for i, (channels, stride) in enumerate(_BLOCKS, 1):
        name = f"separable_conv_block_{i}"
        x = _block(x, f"{name}_depthwise", width, 3, (stride, stride), groups=width)
        width = int(channels * alpha)
        x = _block(x, f"{name}_pointwise", width, 1, (1, 1))
    x = sym.flatten(sym.global_avg_pool2d(x, name="pool"), name="flatten")
    return sym.softmax(sym.dense(x, units=num_classes, use_bias=False, name="fc"), name="softmax")


def get_workload(
    batch_size: int = 1, num_classes: int = 1000, image_shape: tuple[int, ...] = (3, 224, 224), dtype: str = "float32",
    alpha: float = 1.0, seed: int = 0,
) -> tuple[sym.Symbol, Params]:  # fmt: skip
    """(network, parameters)."""
    return create_workload(get_symbol(num_classes, alpha), batch_size, image_shape, dtype, seed=seed)


def _block(
    x: sym.Symbol, name: str, channels: int, kernel: int, strides: tuple[int, int], groups: int = 1
) -> sym.Symbol:
    x = sym.conv2d(x, channels=channels, kernel_size=(kernel, kernel), strides=strides, groups=groups, use_bias=False,
                   padding=(kernel // 2, kernel // 2), name=f"{name}_conv")  # fmt: skip
    return sym.relu(sym.batch_norm(x, epsilon=1e-5, name=f"{name}_bn"), name=f"{name}_relu")
