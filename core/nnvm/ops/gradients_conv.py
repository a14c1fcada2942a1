"""Gradients of convolutions and of transposed convolutions, each by the other; exact for every geometry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnvm.dim import numel
from nnvm.graph.passes.gradient import NotDifferentiableError
from nnvm.ops.gradient_terms import Call, Value, gradient_of
from nnvm.ops.nn_conv import SPATIAL, per_axis
from nnvm.ops.shape_rules import known

__all__: list[str] = []


def _plain(call: Call, rank: int, kernel: str) -> None:
    """NotDifferentiableError unless all layouts are the plain ones."""
    wanted = {"data_layout": "NC" + SPATIAL[rank], "kernel_layout": kernel + SPATIAL[rank], "channels": None}
    out = call.attrs["out_layout"]
    if any(call.attrs[k] != v for k, v in wanted.items()) or out not in (None, wanted["data_layout"]):
        raise NotDifferentiableError("a convolution in other layouts than NC, OI; differentiate before AlterOpLayout")


def _geometry(attrs: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Strides, padding, dilation and groups, with an entry per spatial axis."""
    spread = {k: per_axis(attrs[k], rank, k) for k in ("strides", "padding", "dilation")}
    return {**spread, "groups": attrs["groups"]}


def _by_weight(data: Value, g: Value, kernel: tuple[int, ...], geometry: Mapping[str, Any]) -> Value:
    """dw[o, i, k] = sum over n, p of g[n, o, p] * data[n, i, p * stride + k * dilation - padding].

    A convolution of `data` by `g`, in which batch and channels change places, and strides and dilation too.
    """
    rank, groups = len(kernel), geometry["groups"]
    if any(not isinstance(d, int) for d in (*data.shape, *g.shape)):
        return _by_weight_of_columns(data, g, kernel, geometry)
    batch, channels, *extents = data.shape
    spatial = tuple(range(2, rank + 2))
    rows = data.reshape(batch, groups, channels // groups, *extents)
    rows = rows.transpose(2, 1, 0, *(a + 1 for a in spatial)).reshape(channels // groups, groups * batch, *extents)
    swapped = {**geometry, "strides": geometry["dilation"], "dilation": geometry["strides"]}
    found = rows.op(f"conv{rank}d", g.transpose(1, 0, *spatial), **swapped)
    if found.shape[2:] != kernel:  # windows that the strides left out
        found = found.op("slice", begin=(0,) * found.rank, end=(*found.shape[:2], *kernel))
    return found.transpose(1, 0, *spatial)


def _by_weight_of_columns(data: Value, g: Value, kernel: tuple[int, ...], geometry: Mapping[str, Any]) -> Value:
    """The same where sizes are known only at the call, when no weight of a convolution can be: as matrix products."""
    groups, (batch, channels) = geometry["groups"], g.shape[:2]
    columns = data.op("im2col", kernel_size=kernel, **{k: v for k, v in geometry.items() if k != "groups"})
    positions = numel(g.shape[2:])
    if columns.shape[2] != positions:
        raise NotDifferentiableError("a transposed convolution with this output_padding needs known sizes")
    rows = columns.reshape(batch, groups, known(columns.shape[1]) // groups, positions)
    heads = g.reshape(batch, groups, known(channels) // groups, positions)
    products = heads.op("matmul", rows, transpose_b=True).sum((0,))
    return products.reshape(known(channels), known(data.shape[1]) // groups, *kernel)


def _bias(call: Call, g: Value) -> list[Value]:
    return [g.sum((0, *range(2, g.rank)))] if len(call.inputs) > 2 else []


def _kernel(weight: Value) -> tuple[int, ...]:
    return tuple(known(d) for d in weight.shape[2:])


def _attach(rank: int) -> None:
    @gradient_of(f"conv{rank}d")
    def convolution(call: Call, g: Value) -> list[Value]:
        data, weight = call.inputs[:2]
        _plain(call, rank, "OI")
        geometry, kernel = _geometry(call.attrs, rank), _kernel(weight)
        axes = zip(data.shape[2:], kernel, geometry["strides"], geometry["padding"], geometry["dilation"])
        # data behind the last window
        rest = [(n + low + high - d * (k - 1) - 1) % s for n, k, s, (low, high), d in axes]
        if any(not isinstance(r, int) for r in rest):
            raise NotDifferentiableError("a convolution with strides has a gradient for known sizes only")
        by_data = g.op(f"conv{rank}d_transpose", weight, output_padding=tuple(rest), **geometry)
        return [by_data, _by_weight(data, g, kernel, geometry), *_bias(call, g)]

    @gradient_of(f"conv{rank}d_transpose")
    def transposed(call: Call, g: Value) -> list[Value]:
        data, weight = call.inputs[:2]
        _plain(call, rank, "IO")
        geometry = _geometry(call.attrs, rank)
        by_data = g.op(f"conv{rank}d", weight, **geometry)
        if by_data.shape != data.shape:  # an output_padding of a stride or more
            by_data = by_data.op("slice", begin=(0,) * data.rank, end=data.shape)
        return [by_data, _by_weight(g, data, _kernel(weight), geometry), *_bias(call, g)]


for _rank in SPATIAL:
    _attach(_rank)
