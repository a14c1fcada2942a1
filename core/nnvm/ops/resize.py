"""Resampling of spatial axes, with the coordinates of PyTorch's interpolate.

Coordinates are computed in float32 (in float64 for float64 data), as there: at exact halves the rounding decides which
pixel is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape
from nnvm.dtype import F32, F64, I64, DType
from nnvm.graph.layout import Layout
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over
from nnvm.ops.nn_conv import layout_name
from nnvm.ops.params import boolean, choice, dims, number, optional
from nnvm.ops.shape_rules import check_kind, known, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]
_CUBIC = -0.75  # Keys' coefficient, as in PyTorch


@dataclass(frozen=True)
class _Axis:
    """One resampled axis: its position, its extents before and after, and the given scale factor."""

    position: int
    size: Dim
    out: Dim
    factor: float | None


def _axes(attrs: Attrs, shape: Shape) -> list[_Axis]:
    layout = Layout.parse(attrs["layout"] or {3: "NCW", 4: "NCHW", 5: "NCDHW"}.get(len(shape), "NCHW"))
    layout.sizes(shape)
    spatial = [n for n in layout.names if n not in "NC"]
    size, scales = attrs["size"], attrs["scales"] or (None,) * len(spatial)
    if len(size) != len(spatial) or len(scales) != len(spatial):
        raise ValueError(f"size {size} and scales {scales} must have an entry for each of the axes {''.join(spatial)}")
    at = [layout.outer(n) for n in spatial]
    return [_Axis(a, shape[a], o, f) for a, o, f in zip(at, size, scales)]


def _type(attrs: Attrs, inputs: Types) -> Types:
    x = inputs[0]
    check_kind(x, "fiu" if attrs["mode"].startswith("nearest") else "f")
    shape = list(x.shape)
    for axis in _axes(attrs, x.shape):
        if axis.size == 0 or axis.out == 0:
            raise ValueError(f"cannot resize {show(x.shape)} to {show(attrs['size'])}: an extent is 0")
        shape[axis.position] = axis.out
    return (TensorType(tuple(shape), x.dtype, x.device),)


def _ratio(axis: _Axis, align_corners: bool, t: DType) -> Expr:
    """Input positions per output position."""
    if align_corners:
        if isinstance(axis.size, int) and isinstance(axis.out, int):
            ratio = (axis.size - 1) / (axis.out - 1) if axis.out > 1 else 0.0
            return te.const(_as(ratio, t) if axis.out <= 1 else _quotient(axis.size - 1, axis.out - 1, t), t)
        steps = te.maximum(te.const(axis.out - 1), 1)
        ratio_at = te.cast(te.const(axis.size - 1), t) / te.cast(steps, t)
        return te.select(te.const(axis.out) > 1, ratio_at, te.const(0, t))
    if axis.factor is not None and axis.factor > 0:
        return te.const(_as(1 / axis.factor, t), t)
    if isinstance(axis.size, int) and isinstance(axis.out, int):
        return te.const(_quotient(axis.size, axis.out, t), t)
    return te.cast(te.const(axis.size), t) / te.cast(te.const(axis.out), t)


def _as(value: float, t: DType) -> float:
    return float(t.numpy.type(value))


def _quotient(a: int, b: int, t: DType) -> float:
    return float(t.numpy.type(a) / t.numpy.type(b))


def _nearest(e: Expr, axis: _Axis, exact: bool) -> Expr:
    if axis.size == axis.out:
        return e
    # eager takes a float32 coordinate here for every dtype
    x = te.cast(e, F32)
    x = (x + 0.5 if exact else x) * _ratio(axis, False, F32)
    return te.minimum(te.cast(te.unary("floor", x), I64), te.const(axis.size - 1))


def _source(e: Expr, axis: _Axis, align_corners: bool, t: DType) -> Expr:
    """The coordinate in the input of output position `e`."""
    ratio = _ratio(axis, align_corners, t)
    if align_corners:
        return te.cast(e, t) * ratio
    return ratio * (te.cast(e, t) + 0.5) - 0.5


Taps = list[tuple[Expr, Expr]]


def _linear_taps(e: Expr, axis: _Axis, align_corners: bool, t: DType) -> Taps:
    if axis.size == axis.out:
        return [(e, te.const(1, t))]
    last = te.const(axis.size - 1)
    x = _source(e, axis, align_corners, t)
    x = x if align_corners else te.maximum(x, te.const(0, t))
    low = te.minimum(te.cast(x, I64), last)
    weight = te.minimum(te.maximum(x - te.cast(low, t), te.const(0, t)), te.const(1, t))
    return [(low, te.const(1, t) - weight), (te.minimum(low + 1, last), weight)]


def _cubic_taps(e: Expr, axis: _Axis, align_corners: bool, t: DType) -> Taps:
    x = _source(e, axis, align_corners, t)
    floor = te.unary("floor", x)
    f, low, last = x - floor, te.cast(floor, I64), te.const(axis.size - 1)

    def near(d: Expr) -> Expr:
        return ((d * (_CUBIC + 2) - (_CUBIC + 3)) * d) * d + 1.0

    def far(d: Expr) -> Expr:
        return ((d * _CUBIC - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    weights = [far(f + 1.0), near(f), near(te.const(1, t) - f), far(te.const(2, t) - f)]
    return [(te.minimum(te.maximum(low + (k - 1), 0), last), w) for k, w in enumerate(weights)]


def _compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,), mode = inputs, attrs["mode"]
    axes, at = _axes(attrs, x.shape), x.dtype.compute
    if mode.startswith("nearest"):

        def nearest(*i: Expr) -> Expr:
            where = list(i)
            for axis in axes:
                where[axis.position] = _nearest(i[axis.position], axis, mode == "nearest_exact")
            return x[tuple(where)]

        return [over(outputs[0].shape, "resize", nearest)]
    taps_of: Callable[[Expr, _Axis, bool, DType], Taps] = _linear_taps if mode == "linear" else _cubic_taps
    t = F64 if x.dtype == F64 else F32

    def weighted(*i: Expr) -> Expr:
        taps = [taps_of(i[a.position], a, attrs["align_corners"], t) for a in axes]

        def blend(d: int, where: tuple[Expr, ...]) -> Expr:
            """The weighted sum over axes d, d + 1, ...: the last axis innermost, as in eager."""
            if d == len(axes):
                return te.cast(x[where], at)
            p = axes[d].position
            parts = [(blend(d + 1, (*where[:p], j, *where[p + 1 :])), w) for j, w in taps[d]]
            if len(parts) == 1:
                return parts[0][0]
            total = parts[0][0] * parts[0][1]
            for value, w in parts[1:]:
                total = total + value * w
            return total

        return te.cast(blend(0, i), x.dtype)

    return [over(outputs[0].shape, "resize", weighted)]


def _ratio_array(axis: _Axis, align_corners: bool, t: Any) -> Any:
    if align_corners:
        return t(known(axis.size) - 1) / t(known(axis.out) - 1) if known(axis.out) > 1 else t(0)
    return (
        t(1 / axis.factor) if axis.factor is not None and axis.factor > 0 else t(known(axis.size)) / t(known(axis.out))
    )


def _taps_array(attrs: Attrs, axis: _Axis, t: Any) -> list[tuple[Array, Array]]:
    """(indices, weights) of each tap along the output axis."""
    n, out, mode = known(axis.size), known(axis.out), attrs["mode"]
    e = np.arange(out)
    if mode.startswith("nearest"):
        x = (e.astype(np.float32) + np.float32(0.5 if mode == "nearest_exact" else 0)) * _ratio_array(
            axis, False, np.float32
        )
        found = e if n == out else np.minimum(np.floor(x).astype(np.int64), n - 1)
        return [(found, np.ones(out))]
    ratio = _ratio_array(axis, attrs["align_corners"], t)
    x = e.astype(t) * ratio if attrs["align_corners"] else ratio * (e.astype(t) + t(0.5)) - t(0.5)
    if mode == "linear":
        x = np.maximum(x, t(0)) if n != out else e.astype(t)
        low = np.minimum(x.astype(np.int64), n - 1)
        weight = np.clip(x - low, 0, 1)
        return [(low, 1 - weight), (np.minimum(low + 1, n - 1), weight)]
    low = np.floor(x).astype(np.int64)
    f = (x - np.floor(x)).astype(np.float64)
    a = _CUBIC
    weights = [a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if k in (0, 3) else (a + 2) * d**3 - (a + 3) * d**2 + 1
               for k, d in enumerate((f + 1, f, 1 - f, 2 - f))]  # fmt: skip
    return [(np.clip(low + k - 1, 0, n - 1), w) for k, w in enumerate(weights)]


def _array(attrs: Attrs, x: Array) -> tuple[Any]:
    t = np.float64 if x.dtype == np.float64 else np.float32
    for axis in _axes(attrs, x.shape):
        taps = _taps_array(attrs, axis, t)
        if attrs["mode"].startswith("nearest"):
            x = x.take(taps[0][0], axis.position)
            continue
        shape = [-1 if d == axis.position else 1 for d in range(x.ndim)]
        x = sum(x.take(j, axis.position) * w.reshape(shape) for j, w in taps)  # type: ignore[assignment]
    return (x,)


register(
    "resize", inputs=["data"], aliases=["upsampling"],
    doc="Spatial axes resampled to `size`, as torch.nn.functional.interpolate does it.",
    params={"size": Param("new extents of the spatial axes", dims),
            "mode": Param("nearest, nearest_exact, linear or cubic",
                          choice("nearest", "nearest_exact", "linear", "cubic"), "nearest"),
            "align_corners": Param("the corner pixels keep their values", boolean, False),
            "scales": Param("given scale factors per axis, or None where the extents say it",
                            optional(lambda v: tuple(optional(number)(s) for s in v)), None),
            "layout": Param("layout of data and output; None: plain", optional(layout_name), None)},
    infer_type=_type, pattern=OpPattern.INJECTIVE, compute=_compute, reference=_array,
)  # fmt: skip
