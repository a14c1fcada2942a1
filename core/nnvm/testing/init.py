"""Values for the parameters of a network.

An initializer fills by the end of a parameter's name: weights by its own rule, biases and shifts with 0, scales with 1,
running means with 0, running variances with 1. A parameter with the attribute ``init`` (`nnvm.symbol.Variable`) is
filled by that: the name of an initializer, a number, or an array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm.dtype import f32_to_bf16
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node
from nnvm.graph.types import TensorType

__all__ = ["INITIALIZERS", "Constant", "Initializer", "Normal", "Uniform", "Xavier", "initialize"]

Array = np.ndarray[Any, Any]

_CONSTANTS = {"bias": 0, "beta": 0, "gamma": 1, "moving_mean": 0, "moving_var": 1}


class Initializer:
    """Fills a parameter by its name; a subclass says how weights are filled."""

    def __call__(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Values for the parameter `name`, as float64."""
        for ending, value in _CONSTANTS.items():
            if name.endswith(ending):
                return np.full(shape, float(value))
        return self.weight(name, shape, rng)

    def weight(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not say how weights are filled")


class Constant(Initializer):
    """Every weight is one value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def weight(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return np.full(shape, float(self.value))


class Uniform(Initializer):
    """Uniform in [-scale, scale]."""

    def __init__(self, scale: float = 0.07) -> None:
        self.scale = scale

    def weight(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return rng.uniform(-self.scale, self.scale, shape)


class Normal(Initializer):
    """Normal around 0 with deviation sigma."""

    def __init__(self, sigma: float = 0.01) -> None:
        self.sigma = sigma

    def weight(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return rng.normal(0, self.sigma, shape)


class Xavier(Initializer):
    """Keeps the variance of activations and gradients through layers.

    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010. The weights are
    uniform or normal with scale sqrt(magnitude / n), n the number of inputs of an output, the other way round, or the
    mean of both.
    """

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        if rnd_type not in ("uniform", "gaussian") or factor_type not in ("avg", "in", "out"):
            raise ValueError(f"Xavier({rnd_type!r}, {factor_type!r}): uniform or gaussian, by avg, in or out")
        self.rnd_type, self.factor_type, self.magnitude = rnd_type, factor_type, magnitude

    def weight(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        if len(shape) < 2:
            raise ValueError(f"Xavier is for weights of two axes and more; {name} has the shape {shape}")
        window = math.prod(shape[2:])
        fan_in, fan_out = shape[1] * window, shape[0] * window
        factor = {"avg": (fan_in + fan_out) / 2, "in": fan_in, "out": fan_out}[self.factor_type]
        scale = math.sqrt(self.magnitude / factor)
        return rng.uniform(-scale, scale, shape) if self.rnd_type == "uniform" else rng.normal(0, scale, shape)


INITIALIZERS: Mapping[str, Initializer] = {
    "zeros": Constant(0), "ones": Constant(1), "uniform": Uniform(), "normal": Normal(), "xavier": Xavier(),
}  # fmt: skip


def initialize(
    graph: Graph, initializer: Initializer | None = None, seed: int = 0, without: tuple[str, ...] = ("data",)
) -> dict[str, Array]:
    """Values for all inputs of a typed graph but those called in `without`, by name; the same for the same seed."""
    rng = np.random.default_rng(seed)
    chosen = initializer or Xavier()
    return {v.name: _as_type(_values(v, chosen, rng), v[0].type) for v in graph.inputs if v.name not in without}


def _values(v: Node, initializer: Initializer, rng: np.random.Generator) -> Array:
    shape = tuple(d for d in v[0].type.shape if isinstance(d, int))
    wish = v.attrs.get("__init__")
    if wish is None:
        return initializer(v.name, shape, rng)
    if isinstance(wish, str):
        if wish not in INITIALIZERS:
            raise ValueError(f"{v.name}: no initializer {wish!r}; there are {', '.join(INITIALIZERS)}")
        return INITIALIZERS[wish].weight(v.name, shape, rng)
    return np.broadcast_to(np.asarray(wish), shape)


def _as_type(values: Array, t: TensorType) -> Array:
    if not t.is_static:
        raise ValueError(f"a parameter of type {t} has sizes that are not known")
    if t.dtype.name == "bfloat16":
        return f32_to_bf16(values.astype(np.float32))
    return np.array(values, t.dtype.numpy, order="C")
