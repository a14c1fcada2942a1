"""Windows as columns and back: torch.nn.functional.unfold and fold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape, numel
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, read, rounded
from nnvm.ops.nn_conv import per_axis, windows
from nnvm.ops.params import dims, integers, pairs
from nnvm.ops.shape_rules import known, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]
_Axis = tuple[int, int, int, int]  # kernel, stride, dilation, low padding


def _axes(attrs: Attrs, extents: Shape) -> tuple[list[_Axis], tuple[Dim, ...]]:
    """Each spatial axis, and the number of window positions along it."""
    rank = len(extents)
    kernel, strides = per_axis(attrs["kernel_size"], rank, "kernel_size"), per_axis(attrs["strides"], rank, "strides")
    dilation, padding = per_axis(attrs["dilation"], rank, "dilation"), per_axis(attrs["padding"], rank, "padding")
    counts: list[Dim] = []
    for n, k, s, d, (low, high) in zip(extents, kernel, strides, dilation, padding):
        room = n + low + high - d * (k - 1) - 1
        if min(k, s, d) < 1 or (isinstance(room, int) and room < 0):
            raise ValueError(f"windows {show(kernel)} (strides {strides}, dilation {dilation}, padding {padding}) do "
                             f"not fit data {show(extents)}")  # fmt: skip
        counts.append(room // s + 1)
    return [(k, s, d, low) for k, s, d, (low, _) in zip(kernel, strides, dilation, padding)], tuple(counts)


def _im2col_type(attrs: Attrs, inputs: Types) -> Types:
    x = inputs[0]
    if x.rank < 3:
        raise ValueError(f"data {show(x.shape)} must be [N, C, ...]")
    axes, counts = _axes(attrs, x.shape[2:])
    taps = numel(tuple(a[0] for a in axes))
    return (x.with_shape((x.shape[0], x.shape[1] * taps, numel(counts))),)


def _digits(linear: Expr, sizes: tuple[Dim, ...]) -> list[Expr]:
    """Row-major indices of a position."""
    out: list[Expr] = []
    for size in reversed(sizes[1:]):
        out.append(linear % te.const(size))
        linear = linear // te.const(size)
    return [linear, *reversed(out)]


def _im2col_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axes, counts = _axes(attrs, x.shape[2:])
    kernel = tuple(a[0] for a in axes)

    def element(n: Expr, column: Expr, place: Expr) -> Expr:
        c, *taps = _digits(column, (x.shape[1], *kernel))
        at = [p * s + t * d - low for p, t, (_, s, d, low) in zip(_digits(place, counts), taps, axes)]
        inside: Expr = te.const(True, "bool")
        if any(low or high for low, high in attrs["padding"]):
            for i, size in zip(at, x.shape[2:]):
                inside = inside & (i >= 0) & (i < te.const(size))
        return te.select(inside, read(x, n, c, *at), te.const(0, x.dtype))

    return [te.compute(outputs[0].shape, element, "im2col")]


def _padded_view(attrs: Attrs, x: Array) -> Array:
    axes, _ = _axes(attrs, x.shape[2:])
    padding = per_axis(attrs["padding"], x.ndim - 2, "padding")
    padded = np.pad(x, [(0, 0), (0, 0), *padding])
    return windows(padded, [a[0] for a in axes], [a[1] for a in axes], [a[2] for a in axes])


def _im2col_array(attrs: Attrs, x: Array) -> tuple[Array]:
    view, rank = _padded_view(attrs, x), x.ndim - 2
    taps_first = np.moveaxis(view, range(2 + rank, 2 + 2 * rank), range(2, 2 + rank))
    columns = x.shape[1] * int(np.prod(view.shape[2 + rank :]))
    return (taps_first.reshape(x.shape[0], columns, int(np.prod(view.shape[2 : 2 + rank]))),)


_PARAMS = {
    "kernel_size": Param("extent of the window per spatial axis", integers),
    "strides": Param("steps per spatial axis", integers, (1,)),
    "padding": Param("(low, high) zeros per spatial axis", pairs, ((0, 0),)),
    "dilation": Param("distance of window elements per spatial axis", integers, (1,)),
}
register(
    "im2col", inputs=["data"], params=_PARAMS, infer_type=_im2col_type, pattern=OpPattern.INJECTIVE,
    doc="data [N, C, ...] as columns [N, C * window, positions]: unfold.", compute=_im2col_compute,
    reference=_im2col_array,
)  # fmt: skip


def _col2im_type(attrs: Attrs, inputs: Types) -> Types:
    x, out = inputs[0], attrs["output_size"]
    axes, counts = _axes(attrs, out)
    taps = known(numel(tuple(a[0] for a in axes)))
    if x.rank != 3 or x.shape[1] % taps != 0 or x.shape[2] != numel(counts):
        raise ValueError(f"columns {show(x.shape)} do not fit windows of {taps} at {show(counts)} positions")
    return (x.with_shape((x.shape[0], x.shape[1] // taps, *out)),)


def _col2im_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axes, counts = _axes(attrs, attrs["output_size"])
    taps = [te.reduce_axis(a[0], f"k{i}") for i, a in enumerate(axes)]

    def element(*i: Expr) -> Expr:
        column, place = i[1], te.const(0)
        inside: Expr = te.const(True, "bool")
        for e, tap, (k, s, d, low), count in zip(i[2:], taps, axes, counts):
            start = e + low - tap.var * d
            position = start // s
            inside = inside & (start % s).equal(0) & (position >= 0) & (position < te.const(count))
            column = column * k + tap.var
            place = place * te.const(count) + position
        value = te.cast(x[i[0], column, place], x.dtype.compute)
        return te.sum(te.select(inside, value, te.const(0, value.dtype)), taps)

    return [rounded(over(outputs[0].shape, "col2im", element), x.dtype)]


def _col2im_array(attrs: Attrs, x: Array) -> tuple[Array]:
    axes, counts = _axes(attrs, attrs["output_size"])
    padding = per_axis(attrs["padding"], len(axes), "padding")
    sizes = [known(n) + low + high for n, (low, high) in zip(attrs["output_size"], padding)]
    kernel = tuple(a[0] for a in axes)
    parts = x.reshape(x.shape[0], x.shape[1] // math.prod(kernel), *kernel, *map(known, counts))
    out = np.zeros((x.shape[0], parts.shape[1], *sizes), x.dtype)
    for tap in np.ndindex(*kernel):
        where = [slice(t * d, t * d + (known(c) - 1) * s + 1, s) for t, (_, s, d, _), c in zip(tap, axes, counts)]
        target = [slice(None), slice(None), *where]
        out[tuple(target)] += parts[(slice(None),) * 2 + tap]
    kept = [slice(None), slice(None), *(slice(low, size - high) for (low, high), size in zip(padding, sizes))]
    return (out[tuple(kept)],)


register(
    "col2im", inputs=["data"], params={"output_size": Param("spatial extents of the result", dims), **_PARAMS},
    doc="Columns [N, C * window, positions] summed where they come from: fold.", infer_type=_col2im_type,
    pattern=OpPattern.OUT_FUSABLE, compute=_col2im_compute, reference=_col2im_array,
)  # fmt: skip
