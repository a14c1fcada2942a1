"""The generator of a deep convolutional adversarial network: images of 64 pixels from random vectors.

Radford, Metz, Chintala: Unsupervised Representation Learning with Deep Convolutional Generative Adversarial Networks,
arXiv:1511.06434.
"""

from __future__ import annotations

import nnvm.symbol as sym
from nnvm.testing.workload import Params, create_workload

__all__ = ["get_symbol", "get_workload"]


def get_symbol(channels: int = 3, ngf: int = 128) -> sym.Symbol:
    """Images (batch, channels, 64, 64) in -1 to 1, from vectors ``data``; `ngf`: width of the last hidden layer."""
    x = sym.dense(sym.Variable("data"), units=4 * 4 * ngf * 8, name="g1")
    x = sym.reshape(sym.relu(x), shape=(-1, ngf * 8, 4, 4))
    for i, width in enumerate((ngf * 4, ngf * 2, ngf), 2):
        x = sym.relu(sym.batch_norm(_double(x, width, f"g{i}"), name=f"gbn{i}"))
    return sym.tanh(_double(x, channels, "g5"))


def get_workload(
    batch_size: int = 1, channels: int = 3, ngf: int = 128, random_len: int = 100, dtype: str = "float32",
    seed: int = 0,
) -> tuple[sym.Symbol, Params]:  # fmt: skip
    """(network, parameters)."""
    return create_workload(get_symbol(channels, ngf), batch_size, (random_len,), dtype, seed=seed)


def _double(x: sym.Symbol, channels: int, name: str) -> sym.Symbol:
    """A transposed convolution to twice the height and width."""
    return sym.conv2d_transpose(x, channels=channels, kernel_size=(4, 4), strides=(2, 2), padding=(1, 1),
                                use_bias=False, name=name)  # fmt: skip
