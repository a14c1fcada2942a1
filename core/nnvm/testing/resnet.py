"""Residual networks with the activation before the convolution.

He, Zhang, Ren, Sun: Identity Mappings in Deep Residual Networks, arXiv:1603.05027. For images up to 32 pixels the stem
is one 3x3 convolution; up to 28 pixels the networks have three stages.
"""

from __future__ import annotations

import nnvm.symbol as sym
from nnvm.testing.workload import Params, create_workload

__all__ = ["get_symbol", "get_workload"]

_UNITS = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 101: [3, 4, 23, 3], 152: [3, 8, 36, 3],
          200: [3, 24, 36, 3], 269: [3, 30, 48, 8]}  # fmt: skip


def get_symbol(
    num_classes: int = 1000, num_layers: int = 18, image_shape: tuple[int, ...] = (3, 224, 224)
) -> sym.Symbol:
    """Probabilities of the classes, from ``data``. ValueError where there is no network of `num_layers` layers."""
    small = image_shape[1] <= 28
    units, filters, bottle_neck = _of_small_images(num_layers) if small else _of_images(num_layers)
    x = _stem(sym.Variable("data"), filters[0], image_shape[1])
    for i, count in enumerate(units):
        stride = (1, 1) if i == 0 else (2, 2)
        x = _unit(x, filters[i + 1], stride, False, f"stage{i + 1}_unit1", bottle_neck)
        for j in range(1, count):
            x = _unit(x, filters[i + 1], (1, 1), True, f"stage{i + 1}_unit{j + 1}", bottle_neck)
    x = sym.relu(sym.batch_norm(x, epsilon=2e-5, name="bn1"), name="relu1")
    x = sym.flatten(sym.global_avg_pool2d(x, name="pool1"))
    return sym.softmax(sym.dense(x, units=num_classes, name="fc1"), name="softmax")


def get_workload(
    batch_size: int = 1, num_classes: int = 1000, num_layers: int = 18, image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32", seed: int = 0,
) -> tuple[sym.Symbol, Params]:  # fmt: skip
    """(network, parameters)."""
    return create_workload(get_symbol(num_classes, num_layers, image_shape), batch_size, image_shape, dtype, seed=seed)


def _of_small_images(num_layers: int) -> tuple[list[int], list[int], bool]:
    """(units of each stage, channels of stem and stages, whether units have a bottle neck)."""
    if (num_layers - 2) % 9 == 0 and num_layers >= 164:
        return [(num_layers - 2) // 9] * 3, [16, 64, 128, 256], True
    if (num_layers - 2) % 6 == 0 and num_layers < 164:
        return [(num_layers - 2) // 6] * 3, [16, 16, 32, 64], False
    raise ValueError(f"for small images there is no network of {num_layers} layers: 6 n + 2, or 9 n + 2 from 164 on")


def _of_images(num_layers: int) -> tuple[list[int], list[int], bool]:
    if num_layers not in _UNITS:
        raise ValueError(f"there is no network of {num_layers} layers; there are {', '.join(map(str, _UNITS))}")
    deep = num_layers >= 50
    return _UNITS[num_layers], [64, 256, 512, 1024, 2048] if deep else [64, 64, 128, 256, 512], deep


def _stem(x: sym.Symbol, channels: int, height: int) -> sym.Symbol:
    x = sym.batch_norm(x, epsilon=2e-5, name="bn_data")
    if height <= 32:
        return _conv(x, channels, 3, (1, 1), "conv0")
    x = _conv(x, channels, 7, (2, 2), "conv0")
    x = sym.relu(sym.batch_norm(x, epsilon=2e-5, name="bn0"), name="relu0")
    return sym.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1))


def _unit(
    data: sym.Symbol, channels: int, stride: tuple[int, int], dim_match: bool, name: str, bottle_neck: bool
) -> sym.Symbol:
    """Two convolutions, or three with a bottle neck, beside a shortcut."""
    act1 = sym.relu(sym.batch_norm(data, epsilon=2e-5, name=f"{name}_bn1"), name=f"{name}_relu1")
    narrow = channels // 4 if bottle_neck else channels
    kernels = [(narrow, 1), (narrow, 3), (channels, 1)] if bottle_neck else [(narrow, 3), (channels, 3)]
    x = act1
    for i, (width, kernel) in enumerate(kernels, 1):
        if i > 1:
            x = sym.relu(sym.batch_norm(x, epsilon=2e-5, name=f"{name}_bn{i}"), name=f"{name}_relu{i}")
        x = _conv(x, width, kernel, stride if i == 1 else (1, 1), f"{name}_conv{i}")
    shortcut = data if dim_match else _conv(act1, channels, 1, stride, f"{name}_sc")
    return sym.elemwise_add(x, shortcut)


def _conv(x: sym.Symbol, channels: int, kernel: int, strides: tuple[int, int], name: str) -> sym.Symbol:
    return sym.conv2d(x, channels=channels, kernel_size=(kernel, kernel), strides=strides,
                      padding=(kernel // 2, kernel // 2), use_bias=False, name=name)  # fmt: skip
