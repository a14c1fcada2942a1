"""Gradients of pooling and resizing, on plain layouts.

An average is a linear map of each axis: its gradient is the transposed map. A maximum sends the gradient back to where
it was found (to the first of equal elements, as PyTorch does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dim import Dim, numel
from nnvm.graph.node import apply
from nnvm.graph.passes.gradient import NotDifferentiableError
from nnvm.ops.gradient_terms import Call, Value, array, gradient_of, zeros
from nnvm.ops.nn_conv import SPATIAL, per_axis
from nnvm.ops.shape_rules import known

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _plain(call: Call, rank: int) -> None:
    if call.attrs["layout"] not in (None, "NC" + SPATIAL[rank]):
        raise NotDifferentiableError(f"pooling in layout {call.attrs['layout']}; differentiate before AlterOpLayout")


def _sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    if any(not isinstance(d, int) for d in shape):
        raise NotDifferentiableError("pooling and resizing have gradients for known spatial sizes only")
    return tuple(known(d) for d in shape)


def _along_axes(g: Value, maps: Sequence[Array]) -> Value:
    """`g` [N, C, *out] with the map [out, in] of each spatial axis applied from the right: [N, C, *in]."""
    for axis, weights in enumerate(maps, 2):
        order = (*(a for a in range(g.rank) if a != axis), axis)
        moved = g.transpose(*order).op("matmul", array(weights, g.dtype))
        g = moved.transpose(*(order.index(a) for a in range(g.rank)))
    return g


# Averages


def _average_map(n: int, out: int, window: Callable[[int], tuple[int, int]]) -> Array:
    """[out, n]: 1 where window(i) = (first, end) of output i covers a position."""
    weights = np.zeros((out, n))
    for i in range(out):
        first, end = window(i)
        weights[i, max(first, 0) : end] = 1
    return weights


def _divisors(attrs: Mapping[str, Any], axis: tuple[int, int, int, int, int, int]) -> Array:
    """How many elements each window of an axis counts."""
    n, k, s, low, high, out = axis
    first = np.arange(out) * s - low
    if attrs["count_include_pad"]:
        return np.minimum(first + k, n + high) - first
    return np.minimum(first + k, n) - np.maximum(first, 0)


def _avg_pool(rank: int) -> Callable[[Call, Value], Value]:
    def rule(call: Call, g: Value) -> Value:
        _plain(call, rank)
        a, sizes, outs = call.attrs, _sizes(call.inputs[0].shape[2:]), _sizes(g.shape[2:])
        kernel = per_axis(a["pool_size"], rank, "pool_size")
        strides = per_axis(a["strides"] or kernel, rank, "strides")
        padding = per_axis(a["padding"], rank, "padding")
        maps = []
        for n, out, k, s, (low, high) in zip(sizes, outs, kernel, strides, padding):
            weights = _average_map(n, out, lambda i: (i * s - low, i * s - low + k))  # noqa: B023
            if a["divisor_override"] is None:
                weights /= _divisors(a, (n, k, s, low, high, out))[:, None]
            maps.append(weights)
        if a["divisor_override"] is not None:
            maps[0] /= a["divisor_override"]
        return _along_axes(g, maps)

    return rule


def _adaptive_avg(rank: int) -> Callable[[Call, Value], Value]:
    def rule(call: Call, g: Value) -> Value:
        _plain(call, rank)
        maps = []
        for n, out in zip(_sizes(call.inputs[0].shape[2:]), _sizes(g.shape[2:])):
            weights = _average_map(n, out, lambda i: (i * n // out, -(-(i + 1) * n // out)))  # noqa: B023
            maps.append(weights / weights.sum(1, keepdims=True))
        return _along_axes(g, maps)

    return rule


def _global_avg(rank: int) -> Callable[[Call, Value], Value]:
    def rule(call: Call, g: Value) -> Value:
        _plain(call, rank)
        (x,) = call.inputs
        return (g / math.prod(_sizes(x.shape[2:]))).broadcast_to(x.shape)

    return rule


# Maxima


def _to_positions(x: Value, g: Value, positions: Value) -> Value:
    """Zeros like `x` with `g` added at row-major positions of the spatial axes."""
    batch, channels, *spatial = x.shape
    flat = zeros(x).reshape(batch, channels, numel(tuple(spatial)))
    rows = (batch, channels, numel(g.shape[2:]))
    return flat.op("scatter", positions.reshape(*rows), g.reshape(*rows), axis=2, reduce="add").reshape(*x.shape)


def _max_pool(rank: int) -> Callable[[Call, Value], Value]:
    def rule(call: Call, g: Value) -> Value:
        _plain(call, rank)
        (x,) = call.inputs
        found = apply(f"max_pool{rank}d_with_indices", [x.entry], call.attrs)
        return _to_positions(x, g, Value(found[1]))

    return rule


def _max_pool_with_indices(rank: int) -> Callable[[Call, Value], Value]:
    def rule(call: Call, g: Value) -> Value:
        _plain(call, rank)
        return _to_positions(call.inputs[0], g, Value(call.node[1]))

    return rule


def _adaptive_max(rank: int) -> Callable[[Call, Value], Value]:
    """Where the windows divide the data evenly it is an ordinary pooling."""

    def rule(call: Call, g: Value) -> Value:
        _plain(call, rank)
        (x,) = call.inputs
        sizes, outs = _sizes(x.shape[2:]), _sizes(g.shape[2:])
        if any(n % out for n, out in zip(sizes, outs)):
            raise NotDifferentiableError(f"adaptive maximum from {sizes} to {outs}, which does not divide it")
        window = tuple(n // out for n, out in zip(sizes, outs))
        found = apply(f"max_pool{rank}d_with_indices", [x.entry], {"pool_size": window, "strides": window})
        return _to_positions(x, g, Value(found[1]))

    return rule


for _rank in SPATIAL:
    gradient_of(f"avg_pool{_rank}d")(_avg_pool(_rank))
    gradient_of(f"adaptive_avg_pool{_rank}d")(_adaptive_avg(_rank))
    gradient_of(f"global_avg_pool{_rank}d")(_global_avg(_rank))
    gradient_of(f"max_pool{_rank}d")(_max_pool(_rank))
    gradient_of(f"max_pool{_rank}d_with_indices")(_max_pool_with_indices(_rank))
    gradient_of(f"adaptive_max_pool{_rank}d", f"global_max_pool{_rank}d")(_adaptive_max(_rank))


@gradient_of("resize")
def _resize(call: Call, g: Value) -> Value:
    """The map of an axis is what the op makes of unit vectors along it."""
    (x,) = call.inputs
    rank = x.rank - 2
    _plain(call, rank)
    scales = call.attrs["scales"]
    maps = []
    for axis, n in enumerate(_sizes(x.shape[2:])):
        attrs = {**call.attrs, "size": (call.attrs["size"][axis],), "scales": scales and (scales[axis],)}
        units = np.eye(n)[:, None, :]  # a batch of vectors
        (weights,) = call.node.op.attr("reference")({**attrs, "layout": None}, units)
        maps.append(np.asarray(weights)[:, 0, :].T)
    return _along_axes(g, maps)
