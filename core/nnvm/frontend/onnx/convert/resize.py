"""Resampling, with ONNX's coordinates.

Where the op ``resize`` means the same it is used; else each axis is a gather (nearest) or a product with the matrix of
its interpolation weights, built here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import Dim
from nnvm.dtype import BOOL, I64
from nnvm.frontend.onnx.table import Context, Unsupported, axis_of, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Axis:
    """One axis: extents before and after, how much larger it gets, and the part of it that is looked at."""

    position: int
    size: Dim
    out: Dim
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@converts("Upsample", "Resize", until=10)
def upsample(c: Context) -> NodeEntry:
    x = c[0]
    scales = c.attrs["scales"] if "scales" in c.attrs else c.value(1, "scales").ravel().tolist()
    axes = [a for i, (n, s) in enumerate(zip(x.type.shape, scales)) if (a := _scaled(i, n, s)).scale != 1]
    return _resample(x, axes, c.attrs.get("mode", "nearest"), {**c.attrs, "nearest_mode": "floor"}, "asymmetric")


@converts("Resize", since=11)
def resize(c: Context) -> NodeEntry:
    x = c[0]
    rank = x.type.rank
    which = [axis_of(a, rank) for a in c.attrs.get("axes", range(rank))]
    if c.has(3) and c.value(3, "sizes").size:
        axes = _sized(c, x, which)
    else:
        scales = c.value(2, "scales").ravel().tolist()
        axes = [_scaled(a, x.type.shape[a], s) for a, s in zip(which, scales)]
    mode = c.attrs.get("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        roi = c.value(1, "roi").astype(float).ravel()
        axes = [Axis(a.position, a.size, a.out, a.scale, (roi[i], roi[i + len(axes)])) for i, a in enumerate(axes)]
    else:
        axes = [a for a in axes if a.scale != 1]
    return _resample(x, axes, c.attrs.get("mode", "nearest"), c.attrs, mode)


def _scaled(position: int, size: Dim, scale: float) -> Axis:
    if isinstance(size, int):
        return Axis(position, size, math.floor(size * scale), scale)
    if scale != int(scale):
        raise Unsupported(f"a symbolic axis resized by {scale}")
    return Axis(position, size, size * int(scale), scale)


def _sized(c: Context, x: NodeEntry, which: list[int]) -> list[Axis]:
    sizes = c.ints(3, "sizes")
    extents = [x.type.shape[a] for a in which]
    if not all(isinstance(n, int) for n in extents):
        raise Unsupported("sizes for symbolic axes")
    scales = [m / n for m, n in zip(sizes, extents)]  # type: ignore[operator]
    policy = c.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(scales) if policy == "not_larger" else max(scales)
        scales = [scale] * len(scales)
        sizes = tuple(math.floor(scale * n + 0.5) for n in extents)  # type: ignore[operator]
    return [Axis(a, n, m, s) for a, n, m, s in zip(which, extents, sizes, scales)]


def _resample(x: NodeEntry, axes: list[Axis], mode: str, attrs: Any, coordinates: str) -> NodeEntry:
    fast = _native(x, axes, mode, attrs, coordinates)
    if fast is not None:
        return emit("resize", x, size=tuple(_out(x, axes, i) for i in range(2, x.type.rank)), **fast)
    if mode != "nearest" and not x.type.dtype.is_float:
        raise Unsupported(f"mode {mode} of elements of type {x.type.dtype}")
    for axis in axes:
        if not isinstance(axis.size, int) or not isinstance(axis.out, int):
            raise Unsupported(f"mode {mode} with {coordinates} coordinates on a symbolic axis")
        at = _coordinates(axis, axis.size, axis.out, coordinates)
        if mode == "nearest":
            index = np.clip(_nearest(at, attrs.get("nearest_mode", "round_prefer_floor")), 0, axis.size - 1)
            resized = emit("take", x, of_array(index.astype(np.int64), I64), axis=axis.position)
        else:
            resized = _product(x, axis, _weights(at, axis, axis.size, mode.removesuffix("ic"), attrs))
        if coordinates == "tf_crop_and_resize":
            outside = (at < 0) | (at > axis.size - 1)
            if outside.any():
                resized = _where_outside(resized, axis, outside, attrs.get("extrapolation_value", 0.0))
        x = resized
    return x


def _out(x: NodeEntry, axes: list[Axis], position: int) -> Dim:
    return next((a.out for a in axes if a.position == position), x.type.shape[position])


def _native(x: NodeEntry, axes: list[Axis], mode: str, attrs: Any, coordinates: str) -> dict[str, Any] | None:
    """Attributes of the op ``resize`` that mean the same; None where there are none."""
    if not axes or not 3 <= x.type.rank <= 5 or any(a.position < 2 for a in axes) or attrs.get("antialias", 0):
        return None
    factors = {a.position: float(a.scale) for a in axes}
    scales = tuple(factors.get(i, 1.0) for i in range(2, x.type.rank))
    if mode == "nearest":
        whole = all(s == int(s) for s in scales)
        floor = coordinates == "asymmetric" and attrs.get("nearest_mode") == "floor"
        usual = coordinates == "half_pixel" and attrs.get("nearest_mode", "round_prefer_floor").startswith("round")
        return {"mode": "nearest", "scales": scales} if whole and (floor or usual) else None
    if coordinates == "align_corners" and any(a.size * a.scale != a.out for a in axes):  # type: ignore[operator]
        return None
    if coordinates not in ("half_pixel", "align_corners") or not x.type.dtype.is_float:
        return None
    cubic = mode == "cubic" and attrs.get("cubic_coeff_a", -0.75) == -0.75 and not attrs.get("exclude_outside", 0)
    if not (mode == "linear" or (cubic and x.type.rank == 4)):
        return None
    return {"mode": mode, "align_corners": coordinates == "align_corners", "scales": scales}


def _coordinates(axis: Axis, n: int, m: int, mode: str) -> Array:
    """Where each output position lies in the input."""
    i, s = np.arange(m, dtype=np.float64), axis.scale
    length = s * n  # not rounded down
    if mode == "asymmetric":
        return i / s
    if mode == "align_corners":
        return i * ((n - 1) / (length - 1)) if m > 1 else np.zeros(m)
    if mode == "tf_crop_and_resize":
        start, end = axis.roi
        if m == 1:
            return np.full(1, 0.5 * (start + end) * (n - 1))
        return start * (n - 1) + i * ((end - start) * (n - 1) / (m - 1))
    if mode == "pytorch_half_pixel" and m == 1:
        return np.zeros(1)
    shift = n / 2 * (1 - m / length) if mode == "half_pixel_symmetric" else 0.0
    if mode not in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        raise Unsupported(f"coordinate_transformation_mode {mode}")
    return shift + (i + 0.5) / s - 0.5


def _nearest(at: Array, mode: str) -> Array:
    if mode in ("floor", "ceil"):
        return np.floor(at) if mode == "floor" else np.ceil(at)
    return np.ceil(at - 0.5) if mode == "round_prefer_floor" else np.floor(at + 0.5)


def _weights(at: Array, axis: Axis, n: int, mode: str, attrs: Any) -> Array:
    """[outputs, inputs]: how much of each input an output takes; what lies outside counts for the edge."""
    stretch = min(axis.scale, 1.0) if attrs.get("antialias", 0) else 1.0
    reach = (2 if mode == "cub" else 1) / stretch
    base = np.floor(at)
    taps = base[:, None] + np.arange(math.floor(-reach) + 1, math.ceil(reach) + 1)
    away = np.abs(taps - at[:, None]) * stretch
    share = _cubic(away, attrs.get("cubic_coeff_a", -0.75)) if mode == "cub" else np.clip(1 - away, 0, 1)
    if attrs.get("exclude_outside", 0):
        share = np.where((taps < 0) | (taps >= n), 0, share)
    if attrs.get("exclude_outside", 0) or stretch != 1:
        share = share / share.sum(1, keepdims=True)
    matrix = np.zeros((len(at), n))
    np.add.at(matrix, (np.arange(len(at))[:, None], np.clip(taps, 0, n - 1).astype(int)), share)
    return matrix


def _cubic(d: Array, a: float) -> Array:
    """Keys' kernel."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _product(x: NodeEntry, axis: Axis, matrix: Array) -> NodeEntry:
    dtype = x.type.dtype
    if dtype.is_half:
        raise Unsupported(f"elements of type {dtype}")
    order = [i for i in range(x.type.rank) if i != axis.position] + [axis.position]
    moved = emit("dense", emit("transpose", x, axes=tuple(order)), of_array(matrix.astype(dtype.numpy), dtype))
    return emit("transpose", moved, axes=tuple(int(i) for i in np.argsort(order)))


def _where_outside(x: NodeEntry, axis: Axis, outside: Array, value: float) -> NodeEntry:
    shape = [1] * x.type.rank
    shape[axis.position] = -1
    return emit("where", of_array(outside.reshape(shape), BOOL), scalar(value, x.type.dtype), x)
