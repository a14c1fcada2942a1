"""The deep Q network: the value of each action, from the last four frames of a game.

Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015.
"""

from __future__ import annotations

import nnvm.symbol as sym
from nnvm.testing.init import Xavier
from nnvm.testing.workload import Params, create_workload

__all__ = ["get_symbol", "get_workload"]


def get_symbol(num_actions: int = 18) -> sym.Symbol:
    """Values of the actions, from ``data``."""
    x = sym.Variable("data")
    for i, (channels, kernel, stride) in enumerate([(32, 8, 4), (64, 4, 2), (64, 3, 1)], 1):
        x = sym.conv2d(x, channels=channels, kernel_size=(kernel, kernel), strides=(stride, stride), name=f"conv{i}")
        x = sym.relu(x, name=f"relu{i}")
    x = sym.relu(sym.dense(sym.flatten(x), units=512, name="fc1"), name="relu4")
    return sym.dense(x, units=num_actions, name="fc2")


def get_workload(
    batch_size: int = 1, num_actions: int = 18, image_shape: tuple[int, ...] = (4, 84, 84), dtype: str = "float32",
    seed: int = 0,
) -> tuple[sym.Symbol, Params]:  # fmt: skip
    """(network, parameters)."""
    initializer = Xavier(factor_type="in", magnitude=2.34)
    return create_workload(get_symbol(num_actions), batch_size, image_shape, dtype, initializer, seed)
