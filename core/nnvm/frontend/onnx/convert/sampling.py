"""Reading between positions: grid sampling, regions of interest, deformable convolution.

A coordinate becomes a few taps: positions on an axis and what each of them weighs. Data is read channels last, one
gather for each combination of taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from nnvm.dim import Dim, is_static
from nnvm.dtype import F32, I64
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__: list[str] = []

#: (position as int64, weight or None for 1)
Tap = tuple[NodeEntry, NodeEntry | None]


def _f(number: float) -> NodeEntry:
    return scalar(number, F32)


def _affine(x: NodeEntry, scale: float, shift: float) -> NodeEntry:
    x = emit("multiply", x, _f(scale)) if scale != 1 else x
    return emit("add", x, _f(shift)) if shift != 0 else x


def _static(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    if not is_static(tuple(shape)):
        raise Unsupported(f"{what} of symbolic shape")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]


def _reflected(x: NodeEntry, low: float, high: float) -> NodeEntry:
    """Folded back into [low, high] as often as needed."""
    span = high - low
    if span <= 0:
        return emit("multiply", x, _f(0.0))
    away = emit("remainder", emit("abs", _affine(x, 1, -low)), _f(2 * span))
    back = emit("subtract", _f(2 * span), away)
    return _affine(emit("minimum", away, back), 1, low)


def _inside(x: NodeEntry, size: int, padding: str, low: float, high: float) -> NodeEntry:
    """A coordinate, moved into the data by the padding mode (`zeros` leaves it)."""
    if padding == "border":
        return emit("clip", x, a_min=0.0, a_max=float(size - 1))
    return _reflected(x, low, high) if padding == "reflection" else x


def _cubic(x: NodeEntry, k: int) -> NodeEntry:
    """Keys' kernel with a = -0.75: the weight of tap `k` (-1 .. 2) for the fraction `x`."""
    a, d = -0.75, _affine(x, 1, 1) if k == -1 else x if k == 0 else _affine(x, -1, 1) if k == 1 else _affine(x, -1, 2)
    square = emit("multiply", d, d)
    if k in (0, 1):
        return _affine(emit("multiply", _affine(d, a + 2, -(a + 3)), square), 1, 1)
    return _affine(emit("multiply", _affine(emit("multiply", _affine(d, a, -5 * a), d), 1, 8 * a), d), 1, -4 * a)


def _tap(position: NodeEntry, weight: NodeEntry | None, size: int, padding: str, low: float, high: float) -> Tap:
    """`position` is a whole number in float32. Where it is outside, `zeros` gives it no weight."""
    if padding == "zeros":
        inside = emit("logical_and", emit("greater_equal", position, _f(0)), emit("less", position, _f(size)))
        mask = cast(inside, F32)
        weight = mask if weight is None else emit("where", inside, weight, _f(0))
    else:
        position = _inside(position, size, padding, low, high)
    return _index(emit("floor", position), size), weight


def _index(position: NodeEntry, size: int) -> NodeEntry:
    """A position of an axis: the nearest one, and 0 for NaN."""
    position = emit("where", emit("isnan", position), _f(0), position)
    return cast(emit("clip", position, a_min=0.0, a_max=float(size - 1)), I64)


def _taps(x: NodeEntry, size: int, mode: str, padding: str, low: float, high: float) -> list[Tap]:
    """The taps of coordinates on an axis of `size`."""
    x = emit("round", x) if mode == "nearest" else x
    outside = emit("logical_or", emit("less", x, _f(low)), emit("greater", x, _f(high)))
    if padding != "zeros" and mode != "cubic":  # cubic taps are moved one by one, as PyTorch and ONNX Runtime do
        x = emit("where", outside, _inside(x, size, padding, low, high), x)
    if mode == "nearest":
        return [_tap(x, None, size, padding, low, high)]
    base = emit("floor", x)
    part = emit("subtract", x, base)
    if mode == "linear":
        weights = [(0, _affine(part, -1, 1)), (1, part)]
    else:
        weights = [(k, _cubic(part, k)) for k in range(-1, 3)]
    return [_tap(_affine(base, 1, k), w, size, padding, low, high) for k, w in weights]


def _combined(x: NodeEntry, before: Sequence[NodeEntry], taps: Sequence[Sequence[Tap]]) -> NodeEntry:
    """The sum over combinations of taps of the weighted entries of `x` (float32, channels last)."""
    axes = tuple(range(len(before) + len(taps)))
    total: NodeEntry | None = None
    for chosen in product(*taps):
        value = emit("index", x, *before, *(t[0] for t in chosen), axes=axes)
        weight = _weight(chosen)
        if weight is not None:
            value = emit("multiply", value, emit("expand_dims", weight, axis=weight.type.rank))
        total = value if total is None else emit("add", total, value)
    assert total is not None
    return total


def _weight(chosen: Sequence[Tap]) -> NodeEntry | None:
    weight: NodeEntry | None = None
    for _, w in chosen:
        if w is not None:
            weight = w if weight is None else emit("multiply", weight, w)
    return weight


def _counter(n: int, rank: int, axis: int) -> NodeEntry:
    """0 .. n - 1 along an axis of `rank`."""
    return of_array(np.arange(n).reshape([-1 if i == axis else 1 for i in range(rank)]), I64)


def _channels_last(x: NodeEntry) -> NodeEntry:
    order = (0, *range(2, x.type.rank), 1)
    return emit("transpose", cast(x, F32), axes=order)


@converts("GridSample", since=16)
def grid_sample(c: Context) -> NodeEntry:
    x, grid = c[0], cast(c[1], F32)
    shape, rank = _static(x.type.shape, "data"), x.type.rank - 2
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(c.attrs.get("mode", "linear"), c.attrs.get("mode", "linear"))
    padding, aligned = c.attrs.get("padding_mode", "zeros"), bool(c.attrs.get("align_corners", 0))
    if mode == "cubic" and rank != 2:
        raise Unsupported(f"mode cubic over {rank} axes")
    places = _static(grid.type.shape, "a grid")[:-1]
    taps = []
    for k, size in enumerate(shape[2:]):
        part = emit("reshape", cut(grid, rank + 1, rank - 1 - k, rank - k), shape=places)
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        from_edge = _affine(part, 1, 1)
        at = _affine(from_edge, (size - 1) / 2, 0) if aligned else _affine(from_edge, size / 2, -0.5)
        taps.append(_taps(at, size, mode, padding, low, high))
    sampled = _combined(_channels_last(x), [_counter(shape[0], rank + 1, 0)], taps)
    return cast(emit("transpose", sampled, axes=(0, rank + 1, *range(1, rank + 1))), x.type.dtype)


@converts("RoiAlign")
def roi_align(c: Context) -> NodeEntry:
    x, rois, batch = c[0], cast(c[1], F32), cast(c[2], I64)
    _, _, height, width = _static(x.type.shape, "data")
    ratio = c.attrs.get("sampling_ratio", 0)
    if ratio <= 0:
        raise Unsupported("sampling_ratio 0: the number of samples depends on the regions' sizes")
    # before opset 16 there was no shift by half a pixel
    shifted = c.attrs.get("coordinate_transformation_mode", "half_pixel" if c.opset >= 16 else "") == "half_pixel"
    scale, n = c.attrs.get("spatial_scale", 1.0), rois.type.shape[0]
    pooled = (c.attrs.get("output_height", 1), c.attrs.get("output_width", 1))
    taps = []
    for k, (size, count) in enumerate(zip((height, width), pooled)):
        start, end = (
            emit("reshape", _affine(cut(rois, 1, i, i + 1), scale, -0.5 if shifted else 0.0), shape=(n, 1, 1))
            for i in (1 - k, 3 - k)
        )
        extent = emit("subtract", end, start)
        extent = extent if shifted else emit("maximum", extent, _f(1))
        share = (np.arange(count)[:, None] + (np.arange(ratio) + 0.5) / ratio) / count
        at = emit("add", start, emit("multiply", extent, of_array(share[None].astype(np.float32), F32)))
        shape = (n, count, 1, ratio, 1) if k == 0 else (n, 1, count, 1, ratio)
        taps.append(_region_taps(emit("reshape", at, shape=shape), size))
    data, where = _channels_last(x), emit("reshape", batch, shape=(n, 1, 1, 1, 1))
    if c.attrs.get("mode", "avg") == "avg":
        out = emit("mean", _combined(data, [where], taps), axis=(3, 4), keepdims=False)
    else:  # of the weighted neighbours, as the specification's reference has it
        parts = [_combined(data, [where], [[y], [x_]]) for y, x_ in product(*taps)]
        best = parts[0]
        for part in parts[1:]:
            best = emit("maximum", best, part)
        out = emit("max", best, axis=(3, 4), keepdims=False)
    return cast(emit("transpose", out, axes=(0, 3, 1, 2)), x.type.dtype)


def _region_taps(at: NodeEntry, size: int) -> list[Tap]:
    """Linear taps; up to one position outside counts for the edge, and what is further away for nothing."""
    inside = emit("logical_and", emit("greater_equal", at, _f(-1)), emit("less_equal", at, _f(size)))
    at = emit("clip", at, a_min=0.0, a_max=float(size - 1))
    base = emit("floor", at)
    part = emit("subtract", at, base)
    out: list[Tap] = []
    for k, weight in ((0, _affine(part, -1, 1)), (1, part)):
        out.append((_index(_affine(base, 1, k), size), emit("where", inside, weight, _f(0))))
    return out


@converts("DeformConv", since=19)
def deform_conv(c: Context) -> NodeEntry:
    x, w, offset = c[0], c[1], cast(c[2], F32)
    n, channels, height, width = _static(x.type.shape, "data")
    filters, per_group, kh, kw = _static(w.type.shape, "a weight")
    _, _, oh, ow = _static(offset.type.shape, "offsets")
    groups, parts = c.attrs.get("group", 1), c.attrs.get("offset_group", 1)
    strides, dilation = c.attrs.get("strides", (1, 1)), c.attrs.get("dilations", (1, 1))
    pads = c.attrs.get("pads", (0,) * 4)
    offset = emit("reshape", offset, shape=(n, parts, kh, kw, 2, oh, ow))
    taps = []
    for k, (size, taken, out) in enumerate(((height, kh, oh), (width, kw, ow))):
        base = (np.arange(taken)[:, None] * dilation[k] + np.arange(out) * strides[k] - pads[k]).astype(np.float32)
        shape = (1, 1, taken, 1, out, 1) if k == 0 else (1, 1, 1, taken, 1, out)
        moved = emit("reshape", cut(offset, 4, k, k + 1), shape=(n, parts, kh, kw, oh, ow))
        at = emit("add", moved, of_array(base.reshape(shape), F32))
        taps.append(_taps(at, size, "linear", "zeros", 0.0, size - 1.0))
    split = emit("reshape", cast(x, F32), shape=(n, parts, channels // parts, height, width))
    data = emit("transpose", split, axes=(0, 1, 3, 4, 2))
    columns = _combined(data, [_counter(n, 6, 0), _counter(parts, 6, 1)], taps)
    if c.has(4):
        mask = emit("reshape", cast(c[4], F32), shape=(n, parts, kh, kw, oh, ow, 1))
        columns = emit("multiply", columns, mask)
    columns = emit("transpose", columns, axes=(0, 1, 6, 2, 3, 4, 5))
    columns = emit("reshape", columns, shape=(n, groups, per_group * kh * kw, oh * ow))
    weight = emit("reshape", cast(w, F32), shape=(1, groups, filters // groups, per_group * kh * kw))
    weight = emit("broadcast_to", weight, shape=(n, *weight.type.shape[1:]))
    result = emit("reshape", emit("matmul", weight, columns), shape=(n, filters, oh, ow))
    if c.has(3):
        result = emit("add", result, emit("reshape", cast(c[3], F32), shape=(filters, 1, 1)))
    return cast(result, x.type.dtype)
