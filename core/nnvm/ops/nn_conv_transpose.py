"""Transposed convolutions, as gathers: each output element sums the inputs that reach it.

Along one axis, output o gets input i through kernel element k where ``i * stride + k * dilation == o + low padding``.

- Stride 1: a convolution with the kernel turned round.
- Stride s, dilation 1: by phases. With u = o + padding, k = u % s + s * t and i = u // s - t: for each of the s phases
  u % s an ordinary convolution with every s-th kernel element (sub-pixel decomposition; no multiplication by inserted
  zeros). Stage `phases` holds [N, C, (extent, phase) per axis], stage `interleave` puts them in order.
- Otherwise: zeros are inserted between the inputs, then as for stride 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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
from nnvm.ops.pad import padded_stage
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


@dataclass(frozen=True)
class _AxisPlan:
    """How one spatial axis is computed.

    Attributes:
        phases: s where it is computed by phases, 1 otherwise.
        spacing: distance of inputs after zeros are inserted.
        border: zeros before and after the data.
        extent: positions computed, of each phase.
        taps: kernel elements that one output sums.
        step: distance in the bordered data of inputs of neighbouring taps.
        first: number of the first position, `(o + low) // s` of output 0.
        kernel_extent: elements of the kernel, padded so that every phase has `taps`.
    """

    phases: int
    spacing: int
    border: tuple[Dim, Dim]
    extent: Dim
    taps: int
    step: int
    first: int
    kernel_extent: int


def _plan(n: Dim, k: int, s: int, d: int, low: int, out: Dim) -> _AxisPlan:
    if s > 1 and d == 1:
        taps = -(-k // s)
        first = low // s
        last = (out - 1 + low) // s
        return _AxisPlan(s, 1, (taps - 1 - first, last - n + 1), last - first + 1, taps, 1, first, taps * s)
    spread = n if s == 1 else (n - 1) * s + 1
    start = low - d * (k - 1)
    return _AxisPlan(1, s, (-start, out + low - spread), out, k, d, 0, k)


def _compute(rank: int) -> Any:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        data, weight = inputs[:2]
        conv, extents = _geometry(attrs, data.shape, weight.shape, rank)
        axes = zip(conv.extents, conv.kernel_size, conv.strides, conv.dilation, conv.padding, extents)
        plans = dict(zip(conv.spatial, (_plan(n, k, s, d, low, out) for n, k, s, d, (low, _), out in axes)))
        padded = _bordered(data, conv, plans)
        kernel = _filled(weight, conv, plans)
        out = _phases(padded, kernel, conv, plans)
        if any(p.phases > 1 for p in plans.values()):
            out = _interleaved(out, conv, plans, outputs[0].shape)
        if len(inputs) > 2:
            out = add_bias(out, inputs[2], conv.out, conv.channels)
        return [rounded(out, data.dtype)]

    return compute


def _bordered(data: Tensor, conv: Conv, plans: Mapping[str, _AxisPlan]) -> Tensor:
    widths: list[tuple[Dim, Dim]] = []
    spacing: list[int] = []
    for a in conv.data.axes:
        plan = plans.get(a.name) if a.block is None else None
        widths.append(plan.border if plan else (0, 0))
        spacing.append(plan.spacing if plan else 1)
    return padded_stage(data, widths, 0, spacing=spacing)


def _filled(weight: Tensor, conv: Conv, plans: Mapping[str, _AxisPlan]) -> Tensor:
    """The weight with its kernel axes padded so that each phase has the same number of elements."""
    widths: list[tuple[Dim, Dim]] = [
        (0, plans[a.name].kernel_extent - d) if a.name in plans and isinstance(d, int) else (0, 0)
        for a, d in zip(conv.kernel.axes, weight.shape)
    ]
    return padded_stage(weight, widths, 0, "kernel")


def _phases(padded: Tensor, kernel: Tensor, conv: Conv, plans: Mapping[str, _AxisPlan]) -> Tensor:
    """The contraction: axes of the output's layout, each axis with phases followed by its phase."""
    at = padded.dtype.compute
    channels, inner = conv.reduce_channels()
    window = [te.reduce_axis(p.taps, f"k{s.lower()}") for s, p in plans.items()]
    taps = {s: te.const(0) if w.extent == 1 else w.var for s, w in zip(plans, window)}
    tapped = [w for w in window if w.extent != 1]
    reduced: list[IterVar] = [*channels[:-1], *tapped, *channels[-1:]] if inner.block > 1 else [*channels, *tapped]
    plain = conv.out_shape([p.extent for p in plans.values()])
    shape: list[Dim] = []
    for a, d in zip(conv.out.axes, plain):
        shape.append(d)
        if a.block is None and a.name in plans and plans[a.name].phases > 1:
            shape.append(plans[a.name].phases)

    def element(*i: Expr) -> Expr:
        rest = iter(i)
        position: list[Expr] = []
        phase = dict.fromkeys(plans, te.const(0))
        for a in conv.out.axes:
            position.append(next(rest))
            if a.block is None and a.name in plans and plans[a.name].phases > 1:
                phase[a.name] = next(rest)
        out = coordinates(conv.out, tuple(position))
        source = {"N": out["N"], "C": conv.input_channel(out["C"], inner)}
        own = out["C"] if conv.groups == 1 else _in_group(conv, out["C"])
        filters = {"O": own, "I": source["C"]}
        for s, plan in plans.items():
            source[s] = Coordinate.of(out[s].outer + taps[s] * plan.step)
            # taps run backwards through the kernel, so that the data is read forwards
            filters[s] = Coordinate.of((plan.taps - 1 - taps[s]) * plan.phases + phase[s])
        x, w = te.cast(read_at(padded, conv.data, source), at), te.cast(read_at(kernel, conv.kernel, filters), at)
        for s, k in zip(conv.spatial, conv.kernel_size):
            if plans[s].kernel_extent != k:  # zeros of the kernel are no taps: 0 * inf
                x = te.select(te.binary("lt", filters[s].outer, k), x, 0)
        return te.sum(x * w, reduced) if reduced else x * w

    return over(tuple(shape), "phases" if len(shape) > len(plain) else "conv", element)


def _in_group(conv: Conv, out: Coordinate) -> Coordinate:
    if conv.group_outputs == 1:
        return Coordinate.of(te.const(0))
    if conv.group_outputs % out.block == 0:
        return Coordinate(out.outer % (conv.group_outputs // out.block), out.inner, out.block)
    return Coordinate.of(out.linear % conv.group_outputs)


def _interleaved(phases: Tensor, conv: Conv, plans: Mapping[str, _AxisPlan], shape: tuple[Dim, ...]) -> Tensor:
    low = dict(zip(conv.spatial, (p[0] for p in conv.padding)))

    def element(*i: Expr) -> Expr:
        index: list[Expr] = []
        for a, e in zip(conv.out.axes, i):
            plan = plans.get(a.name) if a.block is None else None
            if plan is None or plan.phases == 1:
                index.append(e)
            else:
                u = e + (low[a.name] - plan.first * plan.phases)
                index += [u // plan.phases, u % plan.phases]
        return phases[tuple(index)]

    return over(shape, "interleave", element)


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
