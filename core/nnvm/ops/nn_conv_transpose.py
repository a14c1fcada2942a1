"""Transposed convolutions, as gathers: each output element sums the inputs that reach it.

Along one axis, output o gets input i through kernel element k where ``i * stride + k * dilation == o + low padding``.
This is what they mean; Decompose makes convolutions of them (`conv_phases`), but for what is rare: odd layouts, phases
that are very many or have no outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim
from nnvm.graph.layout import Layout
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, rounded
from nnvm.ops.channels import Coordinate, coordinates, read_at
from nnvm.ops.nn_conv import SPATIAL, Conv, add_bias, check_bias, conv_params, from_plain, per_axis, to_plain
from nnvm.ops.params import integers
from nnvm.ops.shape_rules import check_kind, known, same_dtype, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import IterVar, Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _geometry(attrs: Attrs, data: tuple[Dim, ...], weight: tuple[Dim, ...], rank: int) -> tuple[Conv, tuple[Dim, ...]]:
    """The convolution whose roles of O and I are swapped in the weight, and the extents of the output."""
    spatial = SPATIAL[rank]
    layouts = [Layout.parse(attrs[k] or attrs["data_layout"]) for k in ("data_layout", "kernel_layout", "out_layout")]
    for layout, names, what in zip(layouts, ("NC", "IO", "NC"), ("data", "kernel", "out")):
        if sorted(layout.names) != sorted(names + spatial):
            raise ValueError(f"{what}_layout {layout} must have the axes {names}{spatial}")
    sizes, kernel, groups = layouts[0].sizes(data), layouts[1].sizes(weight), attrs["groups"]
    if not all(isinstance(d, int) for d in weight):
        raise ValueError(f"the weight's shape {show(weight)} must be known")
    if sizes["C"] != kernel["I"] or groups < 1 or kernel["I"] % groups:
        raise ValueError(f"data {show(data)} has {sizes['C']} channels, weight {show(weight)} takes {kernel['I']} in "
                         f"{groups} groups")  # fmt: skip
    channels = kernel["O"] * groups if attrs["channels"] is None else attrs["channels"]
    conv = Conv(
        spatial, layouts[0], layouts[1], layouts[2], groups, per_axis(attrs["strides"], rank, "strides"),
        per_axis(attrs["padding"], rank, "padding"), per_axis(attrs["dilation"], rank, "dilation"),
        tuple(sizes[s] for s in spatial), tuple(known(kernel[s]) for s in spatial), sizes["N"],
        known(kernel["I"]) // groups, known(kernel["O"]), channels,
    )  # fmt: skip
    more = per_axis(attrs["output_padding"], rank, "output_padding")
    out: list[Dim] = []
    for n, k, s, (low, high), d, extra in zip(
        conv.extents, conv.kernel_size, conv.strides, conv.padding, conv.dilation, more
    ):
        size = (n - 1) * s - low - high + d * (k - 1) + extra + 1
        if s < 1 or d < 1 or extra < 0 or (extra >= s and extra >= d):
            raise ValueError(f"output_padding {more} must be smaller than strides {conv.strides} or dilation "
                             f"{conv.dilation}, which must be positive")  # fmt: skip
        if isinstance(size, int) and size < 1:
            raise ValueError(f"data {show(conv.extents)} is too small: the output would have extent {size}")
        out.append(size)
    return conv, tuple(out)


def _compute(rank: int) -> Any:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        data, weight = inputs[:2]
        conv, extents = _geometry(attrs, data.shape, weight.shape, rank)
        out = _gathered(data, weight, conv, extents)
        if len(inputs) > 2:
            out = add_bias(out, inputs[2], conv.out, conv.channels)
        return [rounded(out, data.dtype)]

    return compute


def _gathered(data: Tensor, weight: Tensor, conv: Conv, extents: tuple[Dim, ...]) -> Tensor:
    """Each output sums the products of the inputs that reach it; what does not reach it is in no product."""
    at = data.dtype.compute
    channels, inner = conv.reduce_channels()
    window = [te.reduce_axis(k, f"k{s.lower()}") for s, k in zip(conv.spatial, conv.kernel_size)]
    reduced: list[IterVar] = [*channels[:-1], *window, *channels[-1:]] if inner.block > 1 else [*channels, *window]

    def element(*i: Expr) -> Expr:
        out = coordinates(conv.out, i)
        source = {"N": out["N"], "C": conv.input_channel(out["C"], inner)}
        filters = {"O": out["C"] if conv.groups == 1 else _in_group(conv, out["C"]), "I": source["C"]}
        reached: Expr = te.const(True, "bool")
        axes = zip(conv.spatial, window, conv.strides, conv.dilation, conv.padding, conv.extents)
        for name, tap, step, dilation, (low, _), n in axes:
            u = out[name].outer + low - tap.var * dilation
            reached = reached & (u >= 0) & (u % step).equal(0) & (u // step < te.const(n))
            source[name], filters[name] = Coordinate.of(u // step), Coordinate.of(tap.var)
        x, w = te.cast(read_at(data, conv.data, source), at), te.cast(read_at(weight, conv.kernel, filters), at)
        return te.sum(te.select(reached, x * w, te.const(0, at)), reduced)

    return over(conv.out_shape(extents), "conv", element)


def _in_group(conv: Conv, out: Coordinate) -> Coordinate:
    if conv.group_outputs == 1:
        return Coordinate.of(te.const(0))
    if conv.group_outputs % out.block == 0:
        return Coordinate(out.outer % (conv.group_outputs // out.block), out.inner, out.block)
    return Coordinate.of(out.linear % conv.group_outputs)


def _type(rank: int) -> Any:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        data, weight, *bias = inputs
        same_dtype(data, weight)
        check_kind(data, "fiu", "data")
        conv, extents = _geometry(attrs, data.shape, weight.shape, rank)
        if bias:
            check_bias(bias[0], conv.out, conv.channels)
        return (TensorType(conv.out_shape(extents), data.dtype, data.device),)

    return infer_type


def _array(rank: int) -> Any:
    def reference(attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> tuple[Array]:
        conv, extents = _geometry(attrs, data.shape, weight.shape, rank)
        x = to_plain(data, conv.data, "NC" + conv.spatial)
        w = to_plain(weight, conv.kernel, "IO" + conv.spatial)
        g, inputs, outputs = conv.groups, conv.group_inputs, conv.group_outputs
        x = x.reshape(x.shape[0], g, inputs, math.prod(x.shape[2:]))
        w = w.reshape(g, inputs, outputs, *conv.kernel_size)
        spans = [
            (n - 1) * s + d * (k - 1) + 1
            for n, s, d, k in zip(conv.extents, conv.strides, conv.dilation, conv.kernel_size)
        ]
        room = [max(known(e) + low, known(n)) for e, (low, _), n in zip(extents, conv.padding, spans)]
        out = np.zeros((x.shape[0], g * outputs, *room), data.dtype)
        for tap in np.ndindex(*conv.kernel_size):
            part = np.einsum("ngip,gio->ngop", x, w[(slice(None),) * 3 + tap]).reshape(
                x.shape[0], g * outputs, *conv.extents
            )
            where = (slice(t * d, t * d + (known(n) - 1) * s + 1, s)
                     for t, d, n, s in zip(tap, conv.dilation, conv.extents, conv.strides))  # fmt: skip
            target = [slice(None), slice(None), *where]
            out[tuple(target)] += part
        cropped = [slice(low, low + known(e)) for (low, _), e in zip(conv.padding, extents)]
        kept = [slice(None), slice(None), *cropped]
        out = out[tuple(kept)]
        out = out[:, : known(conv.channels)]
        if bias is not None:
            out = out + bias.reshape(-1)[: known(conv.channels)].reshape(1, -1, *[1] * rank)
        return (from_plain(out, conv.out, "NC" + conv.spatial),)

    return reference


def _flops(attrs: Attrs, inputs: Types, outputs: Types) -> Dim:
    kernel = Layout.parse(attrs["kernel_layout"])
    sizes = kernel.sizes(inputs[1].shape)
    return 0 if sizes["I"] == 0 else inputs[0].numel * inputs[1].numel * 2 // sizes["I"]


for _rank in (1, 2, 3):
    register(
        f"conv{_rank}d_transpose", inputs=["data", "weight", "bias?"],
        params={**conv_params(_rank, "IO" + SPATIAL[_rank]),
                "output_padding": Param("more outputs at the high end, per spatial axis", integers, (0,) * _rank)},
        doc="The gradient of a convolution by its data: data [N, I, ...], weight [I, O/groups, ...], plus a bias.",
        infer_type=_type(_rank), pattern=OpPattern.OUT_FUSABLE, compute=_compute(_rank), reference=_array(_rank),
        flops=_flops, linear_in=0,
    )  # fmt: skip
