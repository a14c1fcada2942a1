"""Convolutions of 1 to 3 dimensions in any layout, plain or blocked.

Stages: `pad` (where there is padding), `conv` (the contraction, in the compute type), `bias`, and the rounding to a
half type. Reduce axes are, in order: outer input channel, kernel positions, inner input channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape
from nnvm.graph.layout import Layout
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, rounded
from nnvm.ops.channels import Coordinate, coordinates, read_at
from nnvm.ops.pad import padded_stage
from nnvm.ops.params import integer, integers, optional, pairs
from nnvm.ops.shape_rules import check_kind, known, same_dtype, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import IterVar, Tensor

__all__ = ["SPATIAL", "Conv", "add_bias", "from_plain", "per_axis", "to_plain"]

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]

#: Letters of the spatial axes by their number.
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def layout_name(value: Any) -> str:
    return Layout.parse(str(value)).text


def per_axis(value: Sequence[Any], rank: int, what: str) -> tuple[Any, ...]:
    """One entry per spatial axis; a single one stands for all."""
    if len(value) not in (1, rank):
        raise ValueError(f"{what} {tuple(value)} has {len(value)} entries for {rank} spatial axes")
    return tuple(value) * rank if len(value) == 1 else tuple(value)


@dataclass(frozen=True)
class Conv:
    """The geometry of a convolution, all checks done. Sequences have an entry per spatial axis."""

    spatial: str
    data: Layout
    kernel: Layout
    out: Layout
    groups: int
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    extents: tuple[Dim, ...]  # of the data
    kernel_size: tuple[int, ...]
    batch: Dim
    group_inputs: int  # input channels of one group
    group_outputs: int
    channels: Dim  # output channels, without those that pad the kernel

    @staticmethod
    def of(attrs: Attrs, data: Shape, weight: Shape, rank: int) -> Conv:
        """The geometry for these shapes; ValueError says what does not fit."""
        spatial = SPATIAL[rank]
        layouts = [
            Layout.parse(attrs[k] or attrs["data_layout"]) for k in ("data_layout", "kernel_layout", "out_layout")
        ]
        for layout, names, what in zip(layouts, ("NC", "OI", "NC"), ("data", "kernel", "out")):
            if sorted(layout.names) != sorted(names + spatial):
                raise ValueError(f"{what}_layout {layout} must have the axes {names}{spatial}")
        sizes, kernel = layouts[0].sizes(data), layouts[1].sizes(weight)
        if not all(isinstance(d, int) for d in weight):
            raise ValueError(f"the weight's shape {show(weight)} must be known")
        groups = attrs["groups"]
        if groups < 1 or kernel["O"] % groups != 0:
            raise ValueError(f"weight {show(weight)} has {kernel['O']} output channels for {groups} groups")
        if sizes["C"] != kernel["I"] * groups:
            raise ValueError(f"data {show(data)} has {sizes['C']} channels, weight {show(weight)} takes {kernel['I']} "
                             f"in each of {groups} groups")  # fmt: skip
        channels = attrs["channels"]
        if channels is not None and layouts[1].shape({**kernel, "O": channels}) != weight:
            raise ValueError(f"channels={channels} do not fit weight {show(weight)}")
        return Conv(
            spatial, layouts[0], layouts[1], layouts[2], groups, per_axis(attrs["strides"], rank, "strides"),
            per_axis(attrs["padding"], rank, "padding"), per_axis(attrs["dilation"], rank, "dilation"),
            tuple(sizes[s] for s in spatial), tuple(known(kernel[s]) for s in spatial), sizes["N"],
            known(kernel["I"]), known(kernel["O"]) // groups, kernel["O"] if channels is None else channels,
        )  # fmt: skip

    @property
    def out_extents(self) -> tuple[Dim, ...]:
        out: list[Dim] = []
        for n, k, s, (low, high), d in zip(self.extents, self.kernel_size, self.strides, self.padding, self.dilation):
            room = n + low + high - d * (k - 1) - 1
            if s < 1 or d < 1:
                raise ValueError(f"strides {self.strides} and dilation {self.dilation} must be positive")
            if isinstance(room, int) and room < 0:
                raise ValueError(f"the kernel {show(self.kernel_size)} (dilation {self.dilation}) is larger than the "
                                 f"padded data {show(self.extents)} (padding {self.padding})")  # fmt: skip
            out.append(room // s + 1)
        return tuple(out)

    def out_shape(self, extents: Sequence[Dim]) -> Shape:
        return self.out.shape({"N": self.batch, "C": self.channels, **dict(zip(self.spatial, extents))})

    def reduce_channels(self) -> tuple[list[IterVar], Coordinate]:
        """Reduce axes over the input channels of a group, and the coordinate of one in it."""
        block = self.kernel.block("I")
        if block == 1 and self.group_inputs % self.data.block("C") == 0:
            block = self.data.block("C")
        if self.groups > 1 and self.group_inputs % block:
            block = 1
        axes = [te.reduce_axis(self.group_inputs // block, "ci"), te.reduce_axis(block, "cb")]
        at = [te.const(0) if a.extent == 1 else a.var for a in axes]
        return [a for a in axes if a.extent != 1], Coordinate(at[0], at[1], block)

    def input_channel(self, out: Coordinate, inner: Coordinate) -> Coordinate:
        """The input channel that is channel `inner` of the group that output channel `out` belongs to."""
        if self.groups == 1:
            return inner
        if self.group_inputs == 1 and self.group_outputs == 1:
            return out
        group = self.group_of(out)
        return Coordinate(group * (self.group_inputs // inner.block) + inner.outer, inner.inner, inner.block)

    def group_of(self, out: Coordinate) -> Expr:
        """The group of an output channel: where blocks do not cross groups, of its block."""
        if self.group_outputs % out.block == 0:
            return out.outer // (self.group_outputs // out.block)
        return out.linear // self.group_outputs


def add_bias(out: Tensor, bias: Tensor, layout: Layout, channels: Dim) -> Tensor:
    """`out` plus a bias per channel: plain [C], or in the blocks of the output. Padded channels get none."""
    block, outer, inner = layout.block("C"), layout.outer("C"), layout.inner("C")

    def element(*i: Expr) -> Expr:
        if inner is None:
            return out[i] + te.cast(bias[i[outer]], out.dtype)
        if len(bias.shape) == 2:
            return out[i] + te.cast(bias[i[outer], i[inner]], out.dtype)
        c = i[outer] * block + i[inner]
        b = te.cast(bias[c], out.dtype)
        if not isinstance(channels, int) or channels % block:
            b = te.select(c < te.const(channels), b, te.const(0, out.dtype))
        return out[i] + b

    return over(out.shape, "bias", element)


def check_bias(bias: TensorType, layout: Layout, channels: Dim) -> None:
    block = layout.block("C")
    if bias.shape == (channels,) or (block > 1 and bias.shape == (-(-channels // block), block)):
        return
    raise ValueError(f"bias {show(bias.shape)} must have one element for each of {channels} channels")


def to_plain(x: Array, layout: Layout, order: str) -> Array:
    """An array of any layout as a plain one with axes in `order`; padding stays."""
    names = layout.names
    letters = [a.name if a.block is None else a.name.lower() for a in layout.axes]
    split = [letter for name in order for letter in (name, name.lower()) if letter in letters]
    moved = np.transpose(x, [letters.index(s) for s in split])
    sizes = layout.sizes(x.shape)
    assert sorted(names) == sorted(order)
    return moved.reshape([known(sizes[name]) for name in order])


def from_plain(x: Array, layout: Layout, order: str) -> Array:
    """A plain array with axes in `order` in another layout, padded with zeros."""
    sizes: dict[str, Dim] = dict(zip(order, x.shape))
    padded = [-(-known(sizes[n]) // layout.block(n)) * layout.block(n) for n in order]
    x = np.pad(x, [(0, p - d) for p, d in zip(padded, x.shape)])
    split = [(n, b) for n in order for b in ("outer", "inner") if b == "outer" or layout.inner(n) is not None]
    x = x.reshape([p for n, d in zip(order, padded) for p in _split_size(d, layout, n)])
    wanted = [(a.name, "outer" if a.block is None else "inner") for a in layout.axes]
    return np.ascontiguousarray(np.transpose(x, [split.index(w) for w in wanted]))


def _split_size(size: int, layout: Layout, name: str) -> tuple[int, ...]:
    block = layout.block(name)
    return (size,) if layout.inner(name) is None else (size // block, block)


def _conv_type(rank: int) -> Any:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        data, weight, *bias = inputs
        same_dtype(data, weight)
        check_kind(data, "fiu", "data")
        conv = Conv.of(attrs, data.shape, weight.shape, rank)
        if bias:
            check_bias(bias[0], conv.out, conv.channels)
        return (TensorType(conv.out_shape(conv.out_extents), data.dtype, data.device),)

    return infer_type


def _conv_compute(rank: int) -> Any:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        data, weight = inputs[:2]
        conv = Conv.of(attrs, data.shape, weight.shape, rank)
        at = data.dtype.compute
        border = dict(zip(conv.spatial, conv.padding))
        padded = padded_stage(
            data, [border.get(a.name, (0, 0)) if a.block is None else (0, 0) for a in conv.data.axes], 0
        )
        channels, inner = conv.reduce_channels()
        window = [te.reduce_axis(k, f"k{s.lower()}") for s, k in zip(conv.spatial, conv.kernel_size)]
        taps = [te.const(0) if w.extent == 1 else w.var for w in window]
        reduced = [*channels[:-1], *(w for w in window if w.extent != 1), *channels[-1:]]
        if inner.block == 1:
            reduced = [*channels, *(w for w in window if w.extent != 1)]

        def element(*i: Expr) -> Expr:
            out = coordinates(conv.out, i)
            source = {"N": out["N"], "C": conv.input_channel(out["C"], inner)}
            filters = {"O": out["C"], "I": inner}
            for s, tap, stride, dilation in zip(conv.spatial, taps, conv.strides, conv.dilation):
                source[s] = Coordinate.of(out[s].outer * stride + tap * dilation)
                filters[s] = Coordinate.of(tap)
            x, w = te.cast(read_at(padded, conv.data, source), at), te.cast(read_at(weight, conv.kernel, filters), at)
            return te.sum(x * w, reduced) if reduced else x * w

        out = over(outputs[0].shape, "conv", element)
        if len(inputs) > 2:
            out = add_bias(out, inputs[2], conv.out, conv.channels)
        return [rounded(out, data.dtype)]

    return compute


def windows(x: Array, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """A view [N, C, *out, *kernel] of all windows of x [N, C, *extents]."""
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, x.ndim)))
    steps = [slice(None, None, s) for s in strides]
    taps = [slice(None, None, d) for d in dilation]
    where = [slice(None), slice(None), *steps, *taps]
    found: Array = view[tuple(where)]
    return found


def _conv_array(rank: int) -> Any:
    def reference(attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> tuple[Array]:
        conv = Conv.of(attrs, data.shape, weight.shape, rank)
        x = to_plain(data, conv.data, "NC" + conv.spatial)
        w = to_plain(weight, conv.kernel, "OI" + conv.spatial)
        x = np.pad(x, [(0, 0), (0, 0), *((max(0, a), max(0, b)) for a, b in conv.padding)])
        inner = [slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape[2:], conv.padding)]
        kept = [slice(None), slice(None), *inner]
        x = x[tuple(kept)]
        view = windows(x, conv.kernel_size, conv.strides, conv.dilation)
        parts = []
        inputs, outputs = conv.group_inputs, conv.group_outputs
        for g in range(conv.groups):
            part = view[:, g * inputs : (g + 1) * inputs]
            kernel = w[g * outputs : (g + 1) * outputs]
            taps = list(range(2 + rank, 2 + 2 * rank))
            parts.append(np.tensordot(part, kernel, ([1, *taps], list(range(1, 2 + rank)))))
        out = np.moveaxis(np.concatenate(parts, -1), -1, 1)[:, : known(conv.channels)]
        if bias is not None:
            out = out + bias.reshape(-1)[: known(conv.channels)].reshape(1, -1, *[1] * rank)
        return (from_plain(out, conv.out, "NC" + conv.spatial),)

    return reference


def _conv_flops(attrs: Attrs, inputs: Types, outputs: Types) -> Dim:
    kernel = Layout.parse(attrs["kernel_layout"])
    sizes = kernel.sizes(inputs[1].shape)
    taps: Dim = 1
    for name in kernel.names:
        taps = taps * (1 if name == "O" else sizes[name])
    return outputs[0].numel * taps * 2


def conv_params(rank: int, kernel: str) -> dict[str, Param]:
    plain = "NC" + SPATIAL[rank]
    return {
        "strides": Param("steps per spatial axis", integers, (1,) * rank),
        "padding": Param("(low, high) zeros per spatial axis", pairs, ((0, 0),) * rank),
        "dilation": Param("distance of kernel elements per spatial axis", integers, (1,) * rank),
        "groups": Param("groups of channels that do not mix", integer, 1),
        "channels": Param("output channels, where the kernel is padded; None: all of it", optional(integer), None),
        "data_layout": Param("layout of the data", layout_name, plain),
        "kernel_layout": Param("layout of the weight; I counts the channels of one group", layout_name, kernel),
        "out_layout": Param("layout of the output; None: the data's", optional(layout_name), None),
    }


for _rank in (1, 2, 3):
    register(
        f"conv{_rank}d", inputs=["data", "weight", "bias?"], params=conv_params(_rank, "OI" + SPATIAL[_rank]),
        doc="Cross-correlation of data [N, C, ...] with weight [O, C/groups, ...], plus a bias per channel.",
        infer_type=_conv_type(_rank), pattern=OpPattern.OUT_FUSABLE, compute=_conv_compute(_rank),
        reference=_conv_array(_rank), flops=_conv_flops, linear_in=0,
    )  # fmt: skip
