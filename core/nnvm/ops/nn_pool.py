"""Pooling over windows, with PyTorch's rules.

With ``ceil_mode`` windows may hang over the end of the padded data; one that would start there is dropped. The
divisor of an average counts padding (with ``count_include_pad``) but never the overhang.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape, ceildiv, numel
from nnvm.dtype import I64
from nnvm.graph.layout import Layout
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, rounded
from nnvm.ops.nn_conv import SPATIAL, from_plain, layout_name, per_axis, to_plain
from nnvm.ops.pad import padded_stage
from nnvm.ops.params import boolean, dims, integer, integers, optional, pairs
from nnvm.ops.reduce import mean_stage, reduce_stage
from nnvm.ops.shape_rules import check_kind, known, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


@dataclass(frozen=True)
class _Pool:
    """The geometry of a pooling; sequences have an entry per spatial axis."""

    layout: Layout
    axes: tuple[int, ...]  # positions of the spatial axes
    extents: tuple[Dim, ...]
    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    out: tuple[Dim, ...]

    @property
    def overhang(self) -> tuple[tuple[Dim, Dim], ...]:
        """Positions before and after the data that windows touch."""
        out: list[tuple[Dim, Dim]] = []
        axes = zip(self.extents, self.size, self.strides, self.padding, self.dilation, self.out)
        for n, k, s, (low, high), d, count in axes:
            touched = (count - 1) * s + d * (k - 1) + 1 - n - low
            # with sizes unknown, what is touched at most
            out.append((low, max(touched, 0) if isinstance(touched, int) else high + s - 1))
        return tuple(out)

    def out_shape(self, shape: Shape) -> Shape:
        found = list(shape)
        for axis, d in zip(self.axes, self.out):
            found[axis] = d
        return tuple(found)


def _spatial(attrs: Attrs, shape: Shape, rank: int) -> tuple[Layout, tuple[int, ...]]:
    layout = Layout.parse(attrs["layout"])
    if sorted(layout.names) != sorted("NC" + SPATIAL[rank]) or any(layout.block(s) > 1 for s in SPATIAL[rank]):
        raise ValueError(f"layout {layout} must have the axes NC{SPATIAL[rank]}, blocks of C at most")
    layout.sizes(shape)
    return layout, tuple(layout.outer(s) for s in SPATIAL[rank])


def _geometry(attrs: Attrs, shape: Shape, rank: int) -> _Pool:
    layout, axes = _spatial(attrs, shape, rank)
    extents = tuple(shape[a] for a in axes)
    size = per_axis(attrs["pool_size"], rank, "pool_size")
    strides = per_axis(attrs["strides"] or size, rank, "strides")
    padding = per_axis(attrs["padding"], rank, "padding")
    dilation = per_axis(attrs.get("dilation", (1,)), rank, "dilation")
    out: list[Dim] = []
    for n, k, s, (low, high), d in zip(extents, size, strides, padding, dilation):
        if k < 1 or s < 1 or d < 1:
            raise ValueError(f"pool_size {size}, strides {strides} and dilation {dilation} must be positive")
        if low < 0 or high < 0 or 2 * low > d * (k - 1) + 1:
            raise ValueError(f"padding {padding} must be at most half of the window {size}")
        room = n + low + high - d * (k - 1) - 1
        if isinstance(room, int) and room < 0 and not (attrs["ceil_mode"] and room + s - 1 >= 0):
            raise ValueError(f"the window {size} is larger than the padded data {show(extents)} (padding {padding})")
        count = (ceildiv(room, s) if attrs["ceil_mode"] else room // s) + 1
        if attrs["ceil_mode"]:
            started = (count - 1) * s - n - low
            if isinstance(started, int):
                count -= started >= 0
            elif s > k:
                raise ValueError(f"ceil_mode with strides {strides} over the window {size} needs a known shape")
        out.append(count)
    return _Pool(layout, axes, extents, size, strides, padding, dilation, tuple(out))


def _windowed(t: Tensor, pool: _Pool, i: tuple[Expr, ...], taps: Sequence[Expr]) -> Expr:
    """The element of the padded tensor that tap sees in the window of output i."""
    at = list(i)
    for axis, tap, s, d in zip(pool.axes, taps, pool.strides, pool.dilation):
        at[axis] = i[axis] * s + tap * d
    return t[tuple(at)]


def _bordered(x: Tensor, pool: _Pool, value: int | float | bool) -> Tensor:
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * len(x.shape)
    for axis, w in zip(pool.axes, pool.overhang):
        widths[axis] = w
    return padded_stage(x, widths, value)


def _pool_type(rank: int, kinds: str, outputs: int = 1) -> Any:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        x = inputs[0]
        check_kind(x, kinds)
        out = TensorType(_geometry(attrs, x.shape, rank).out_shape(x.shape), x.dtype, x.device)
        return (out, out.with_dtype(I64))[:outputs]

    return infer_type


def _max_compute(rank: int, with_indices: bool) -> Any:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        pool = _geometry(attrs, x.shape, rank)
        padded = _bordered(x, pool, x.dtype.min)
        window = [te.reduce_axis(k, f"k{i}") for i, k in enumerate(pool.size)]
        taps = [w.var for w in window]
        shape, at = outputs[0].shape, x.dtype.compute
        value = over(shape, "max_pool", lambda *i: te.max(te.cast(_windowed(padded, pool, i, taps), at), window))
        out = [rounded(value, x.dtype)]
        if with_indices:
            out.append(_max_positions(padded, pool, shape))
        return out

    return compute


def _max_positions(padded: Tensor, pool: _Pool, shape: Shape) -> Tensor:
    """Where the greatest element of each window is, the first of equal ones and the last NaN (as PyTorch has it): which
    tap sees it, then where that tap looks. The number of a tap that sees NaN counts down, as the least one is taken."""
    window = [te.reduce_axis(k, f"k{i}") for i, k in enumerate(pool.size)]
    taps = [w.var for w in window]
    number: Expr = te.const(0)
    for tap, k in zip(taps, pool.size):
        number = number * k + tap
    at = padded.dtype.compute

    def tap_of(*i: Expr) -> Expr:
        value = te.cast(_windowed(padded, pool, i, taps), at)
        nth = te.select(te.unary("isnan", value), -number, number) if at.is_float else number
        return te.argmax(value, nth, window)

    best = over(shape, "best_tap", tap_of)

    def element(*i: Expr) -> Expr:
        left, found = te.maximum(best[i], -best[i]) if at.is_float else best[i], []
        for k in reversed(pool.size[1:]):
            found.append(left % k)
            left = left // k
        return _flat_position(pool, i, [left, *reversed(found)])

    return over(shape, "max_pool_index", element)


def _flat_position(pool: _Pool, i: tuple[Expr, ...], taps: Sequence[Expr]) -> Expr:
    """Row-major position in the data of what a tap sees; of padding, that of the first tap inside on each axis."""
    flat: Expr = te.const(0)
    for axis, tap, n, s, (low, _), d in zip(pool.axes, taps, pool.extents, pool.strides, pool.padding, pool.dilation):
        start = i[axis] * s - low
        first = start + te.maximum((-start + (d - 1)) // d, 0) * d
        position = te.minimum(te.maximum(start + tap * d, first), te.const(n - 1))
        flat = flat * te.const(n) + position
    return flat


def _average_compute(rank: int) -> Any:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        pool = _geometry(attrs, x.shape, rank)
        padded = _bordered(x, pool, 0)
        window = [te.reduce_axis(k, f"k{i}") for i, k in enumerate(pool.size)]
        at, to = x.dtype.compute, outputs[0].dtype
        taps = [w.var for w in window]
        sums = over(outputs[0].shape, "pool_sum",
                    lambda *i: te.sum(te.cast(_windowed(padded, pool, i, taps), at), window))  # fmt: skip

        def element(*i: Expr) -> Expr:
            return te.cast(sums[i] / te.cast(_divisor(attrs, pool, i), at), to)

        return [over(sums.shape, "avg_pool", element)]

    return compute


def _divisor(attrs: Attrs, pool: _Pool, i: tuple[Expr, ...]) -> Expr:
    """Elements that the window of output `i` averages over."""
    if attrs["divisor_override"]:
        return te.const(attrs["divisor_override"])
    out: Expr = te.const(1)
    for axis, n, k, s, (low, high), over_end in zip(
        pool.axes, pool.extents, pool.size, pool.strides, pool.padding, (w[1] for w in pool.overhang)
    ):
        counted = high if attrs["count_include_pad"] else 0
        if (attrs["count_include_pad"] or low == 0) and isinstance(over_end, int) and over_end <= counted:
            out = out * k
            continue
        start = i[axis] * s - low
        end = te.minimum(start + k, te.const(n + counted))
        out = out * (end - (start if attrs["count_include_pad"] else te.maximum(start, 0)))
    return out


def _pooled_array(attrs: Attrs, x: Array, rank: int, fill: Any) -> tuple[_Pool, Array]:
    """Windows [N, C, *out, *size] of plain data, borders filled."""
    pool = _geometry(attrs, x.shape, rank)
    plain = to_plain(x, pool.layout, "NC" + SPATIAL[rank])
    grow = [(0, 0), (0, 0), *((known(a), known(b)) for a, b in pool.overhang)]
    plain = np.pad(plain, grow, constant_values=fill)
    spans = [(k - 1) * d + 1 for k, d in zip(pool.size, pool.dilation)]
    view = np.lib.stride_tricks.sliding_window_view(plain, spans, axis=tuple(range(2, 2 + rank)))
    outer = [slice(None, (known(o) - 1) * s + 1, s) for o, s in zip(pool.out, pool.strides)]
    where = [slice(None), slice(None), *outer, *(slice(None, None, d) for d in pool.dilation)]
    return pool, view[tuple(where)]


def _least(x: Array) -> Any:
    return -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


def _max_array(rank: int, with_indices: bool) -> Any:
    def reference(attrs: Attrs, x: Array) -> tuple[Array, ...]:
        pool, view = _pooled_array(attrs, x, rank, _least(x))
        taps = tuple(range(-rank, 0))
        values = from_plain(view.max(taps), pool.layout, "NC" + SPATIAL[rank])
        if not with_indices:
            return (values,)
        flat = np.arange(known(numel(pool.extents))).reshape(1, 1, *map(known, pool.extents))
        where = {**attrs, "layout": "NC" + SPATIAL[rank]}
        _, inside = _pooled_array(where, np.zeros(flat.shape), rank, -1)
        _, positions = _pooled_array(where, flat, rank, 0)
        taken = math.prod(view.shape[-rank:])
        lines = view.reshape(*view.shape[:-rank], taken)
        valid = np.broadcast_to((inside == 0).reshape(*inside.shape[:-rank], taken), lines.shape)
        best = np.where(valid, lines, _least(x)).max(-1, keepdims=True)
        hit = valid & ((lines == best) | ((lines != lines) & (best != best)))
        last = taken - 1 - np.argmax(hit[..., ::-1], -1)[..., None]
        pick = np.where(best != best, last, np.argmax(hit, -1)[..., None])
        places = np.broadcast_to(positions.reshape(*positions.shape[:-rank], taken), lines.shape)
        found = np.take_along_axis(places, pick, -1)[..., 0]
        return values, from_plain(found, pool.layout, "NC" + SPATIAL[rank])

    return reference


def _average_array(rank: int) -> Any:
    def reference(attrs: Attrs, x: Array) -> tuple[Array]:
        pool, view = _pooled_array(attrs, x, rank, 0)
        sums = view.sum(tuple(range(-rank, 0)), dtype=np.float64)
        divisor = np.ones((1, 1, *map(known, pool.out)))
        for d, (n, k, s, (low, high), count) in enumerate(
            zip(pool.extents, pool.size, pool.strides, pool.padding, pool.out)
        ):
            start = np.arange(known(count)) * s - low
            end = np.minimum(start + k, known(n) + (high if attrs["count_include_pad"] else 0))
            start = start if attrs["count_include_pad"] else np.maximum(start, 0)
            divisor = divisor * (end - start).reshape([-1 if a == 2 + d else 1 for a in range(2 + rank)])
        return (from_plain(sums / (attrs["divisor_override"] or divisor), pool.layout, "NC" + SPATIAL[rank]),)

    return reference


def _adaptive_out(attrs: Attrs, shape: Shape, rank: int) -> tuple[tuple[int, ...], tuple[Dim, ...]]:
    _, axes = _spatial(attrs, shape, rank)
    return axes, per_axis(attrs["output_size"], rank, "output_size")


def _adaptive_type(rank: int) -> Any:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        x = inputs[0]
        check_kind(x, "f")
        axes, out = _adaptive_out(attrs, x.shape, rank)
        shape = list(x.shape)
        for axis, count in zip(axes, out):
            n = shape[axis]
            if n == 0:
                raise ValueError(f"nothing to pool: the shape {show(x.shape)} has extent 0 along axis {axis}")
            if count != 1 and not (isinstance(n, int) and isinstance(count, int)):
                raise ValueError(f"the extent {n} of {show(x.shape)} must be known to be pooled to {count}")
            shape[axis] = count
        return (TensorType(tuple(shape), x.dtype, x.device),)

    return infer_type


def _adaptive_compute(rank: int, average: bool) -> Any:
    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,) = inputs
        axes, out = _adaptive_out(attrs, x.shape, rank)
        at = x.dtype.compute
        if all(o == 1 for o in out):
            whole = mean_stage(x, axes, True, "mean") if average else reduce_stage(x, axes, True, "max", te.max)
            return [rounded(whole, x.dtype)]
        extents = [x.shape[a] for a in axes]
        widest = [_widest(n, o) for n, o in zip(extents, out)]
        window = [te.reduce_axis(k, f"k{i}") for i, k in enumerate(widest)]
        neutral = te.const(0 if average else x.dtype.min, at)

        def bounds(i: tuple[Expr, ...], d: int) -> tuple[Expr, Expr]:
            """The first position of a window and how many it has."""
            n, o, e = te.const(extents[d]), te.const(out[d]), i[axes[d]]
            start = e * n // o
            return start, ((e + 1) * n + (o - 1)) // o - start

        def element(*i: Expr) -> Expr:
            where, inside = list(i), te.const(True, "bool")
            for d, (axis, w) in enumerate(zip(axes, window)):
                start, count = bounds(i, d)
                where[axis] = start + w.var
                if extents[d] % out[d] != 0:
                    inside = inside & (w.var < count)
            value = te.select(inside, te.cast(x[tuple(where)], at), neutral)
            return te.sum(value, window) if average else te.max(value, window)

        pooled = over(outputs[0].shape, "window", element)
        if not average:
            return [rounded(pooled, x.dtype)]

        def divided(*i: Expr) -> Expr:
            count: Expr = te.const(1)
            for d, (n, o) in enumerate(zip(extents, out)):
                count = count * (te.const(n // o) if n % o == 0 else bounds(i, d)[1])
            return te.cast(pooled[i] / te.cast(count, at), x.dtype)

        return [over(pooled.shape, "adaptive_pool", divided)]

    return compute


def _widest(n: Dim, out: Dim) -> Dim:
    """Extent of the widest window of an adaptive pooling of n to `out` positions."""
    if out == 1 or n % out == 0:
        return n // out
    assert isinstance(n, int) and isinstance(out, int)
    return max((-(-(i + 1) * n // out) - i * n // out for i in range(out)), default=0)


def _adaptive_array(rank: int, average: bool) -> Any:
    def reference(attrs: Attrs, x: Array) -> tuple[Array]:
        axes, out = _adaptive_out(attrs, x.shape, rank)
        for axis, o in zip(axes, map(known, out)):
            n = x.shape[axis]
            parts = [x.take(range(i * n // o, -(-(i + 1) * n // o)), axis) for i in range(o)]
            x = np.stack([p.mean(axis, dtype=np.float64) if average else p.max(axis) for p in parts], axis)
        return (x,)

    return reference


def _to_one(fn: Any) -> Any:
    """An attribute of an adaptive pooling, for the output size 1."""
    return lambda attrs, *rest: fn({**attrs, "output_size": (1,)}, *rest)


def _pool_flops(attrs: Attrs, inputs: Types, outputs: Types) -> Dim:
    return outputs[0].numel * numel(attrs["pool_size"])


for _rank in (1, 2, 3):
    _layout = Param("layout of data and output", layout_name, "NC" + SPATIAL[_rank])
    _params = {
        "pool_size": Param("extent of the window per spatial axis", integers),
        "strides": Param("steps per spatial axis; None: the window's extent", optional(integers), None),
        "padding": Param("(low, high) per spatial axis", pairs, ((0, 0),) * _rank),
        "ceil_mode": Param("round the output's extent up", boolean, False),
        "layout": _layout,
    }
    _dilated = {**_params, "dilation": Param("distance of window elements per spatial axis", integers, (1,) * _rank)}
    register(
        f"max_pool{_rank}d", inputs=["data"], params=_dilated, doc="The greatest element of each window; NaN stays.",
        infer_type=_pool_type(_rank, "fiu"), pattern=OpPattern.OUT_FUSABLE, compute=_max_compute(_rank, False),
        reference=_max_array(_rank, False), flops=_pool_flops,
    )  # fmt: skip
    register(
        f"max_pool{_rank}d_with_indices", inputs=["data"], params=_dilated, num_outputs=2,
        doc="The greatest element of each window, and its row-major position in the spatial axes.",
        infer_type=_pool_type(_rank, "fiu", 2), pattern=OpPattern.OUT_FUSABLE, compute=_max_compute(_rank, True),
        reference=_max_array(_rank, True), flops=_pool_flops,
    )  # fmt: skip
    register(
        f"avg_pool{_rank}d", inputs=["data"], doc="The mean of each window.",
        params={**_params, "count_include_pad": Param("the divisor counts padding", boolean, True),
                "divisor_override": Param("the divisor; None: the window's elements", optional(integer), None)},
        infer_type=_pool_type(_rank, "f"), pattern=OpPattern.OUT_FUSABLE, compute=_average_compute(_rank),
        reference=_average_array(_rank), flops=_pool_flops,
    )  # fmt: skip
    for _name, _average, _doc in [("avg", True, "mean"), ("max", False, "greatest element")]:
        register(
            f"adaptive_{_name}_pool{_rank}d", inputs=["data"], infer_type=_adaptive_type(_rank),
            doc=f"The {_doc} of windows that cover d positions evenly: i of n is [i * d // n, ceil((i + 1) * d / n)).",
            params={"output_size": Param("extents of the output", dims), "layout": _layout},
            pattern=OpPattern.OUT_FUSABLE, compute=_adaptive_compute(_rank, _average),
            reference=_adaptive_array(_rank, _average), flops=lambda attrs, inputs, outputs: inputs[0].numel,
        )  # fmt: skip
        register(
            f"global_{_name}_pool{_rank}d", inputs=["data"], params={"layout": _layout},
            doc=f"The {_doc} over all spatial axes, which are kept with extent 1.",
            infer_type=_to_one(_adaptive_type(_rank)), compute=_to_one(_adaptive_compute(_rank, _average)),
            reference=_to_one(_adaptive_array(_rank, _average)),
            pattern=OpPattern.REDUCE, flops=lambda attrs, inputs, outputs: inputs[0].numel,
        )  # fmt: skip
