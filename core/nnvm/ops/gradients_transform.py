"""Gradients of ops that move elements: shapes, slices, padding, and reading and writing by index."""

from __future__ import annotations

import numpy as np

from nnvm.dim import Dim
from nnvm.dtype import I64
from nnvm.graph.passes.gradient import NotDifferentiableError
from nnvm.ops.gradient_terms import Call, Value, array, gradient_of, unbroadcast, zeros
from nnvm.ops.shape_rules import resolve_axis
from nnvm.ops.transform import slice_ranges

__all__: list[str] = []


@gradient_of("reshape", "flatten", "squeeze", "expand_dims")
def _reshape(call: Call, g: Value) -> Value:
    return g.reshape(*call.inputs[0].shape)


@gradient_of("transpose")
def _transpose(call: Call, g: Value) -> Value:
    axes = call.attrs["axes"]
    order = list(range(g.rank))[::-1] if axes is None else [a % g.rank for a in axes]
    return g.transpose(*(order.index(a) for a in range(g.rank)))


@gradient_of("broadcast_to")
def _broadcast(call: Call, g: Value) -> Value:
    return unbroadcast(g, call.inputs[0])


@gradient_of("concatenate")
def _concatenate(call: Call, g: Value) -> list[Value]:
    axis = resolve_axis(call.attrs["axis"], g.rank)
    out: list[Value] = []
    start: Dim = 0
    for x in call.inputs:
        end = start + x.shape[axis]
        out.append(_part(g, axis, start, end))
        start = end
    return out


@gradient_of("interleave")
def _interleave(call: Call, g: Value) -> list[Value]:
    out: list[Value] = []
    for turn in np.ndindex(*call.attrs["steps"]):
        part = g
        for axis, q, step in zip(call.attrs["axes"], turn, call.attrs["steps"]):
            part = _part(part, axis, q, None, step)
        out.append(part)
    return out


def _part(x: Value, axis: int, begin: Dim | None, end: Dim | None, step: int = 1) -> Value:
    none = (None,) * axis
    return x.op("slice", begin=(*none, begin), end=(*none, end), step=(1,) * axis + (step,))


@gradient_of("slice")
def _slice(call: Call, g: Value) -> Value:
    (x,) = call.inputs
    widths: list[tuple[Dim, Dim]] = []
    for axis, (begin, extent, step) in enumerate(slice_ranges(call.attrs, x.shape)):
        g = _spaced(g, axis, step)
        widths.append((begin, x.shape[axis] - begin - extent * step))
    return g.op("pad", pad_width=tuple(widths))


def _spaced(x: Value, axis: int, step: int) -> Value:
    """step - 1 zeros after each element of an axis."""
    if step == 1:
        return x
    shape = x.shape
    columns = x.reshape(*shape[: axis + 1], 1, *shape[axis + 1 :])
    widths = [(0, 0)] * columns.rank
    widths[axis + 1] = (0, step - 1)
    return columns.op("pad", pad_width=tuple(widths)).reshape(*shape[:axis], shape[axis] * step, *shape[axis + 1 :])


@gradient_of("pad")
def _pad(call: Call, g: Value) -> Value:
    (x,), widths = call.inputs, call.attrs["pad_width"]
    if call.attrs["mode"] == "constant":
        return g.op("pad", pad_width=tuple((-low, -high) for low, high in widths))
    for axis, (low, high) in enumerate(widths):
        n = x.shape[axis]
        if (low, high) == (0, 0):
            continue
        if not (isinstance(n, int) and isinstance(low, int) and isinstance(high, int)):
            raise NotDifferentiableError(f"padding by {call.attrs['mode']} has a gradient for known sizes only")
        source = np.pad(np.arange(n), (max(low, 0), max(high, 0)), mode=call.attrs["mode"])
        source = source[max(-low, 0) : len(source) - max(-high, 0)]
        g = _put(g, (*g.shape[:axis], n, *g.shape[axis + 1 :]), (array(source, I64),), (axis,))
    return g


def _put(g: Value, shape: tuple[Dim, ...], indices: tuple[Value, ...], axes: tuple[int, ...]) -> Value:
    """Zeros of `shape` with `g` added where the indices point."""
    nothing = array(np.zeros(()), g.dtype).broadcast_to(shape)
    return nothing.op("index_put", g, *indices, axes=axes, accumulate=True)


@gradient_of("flip")
def _flip(call: Call, g: Value) -> Value:
    return g.op("flip", axes=call.attrs["axes"])


@gradient_of("roll")
def _roll(call: Call, g: Value) -> Value:
    return g.op("roll", shifts=tuple(-s for s in call.attrs["shifts"]), axes=call.attrs["axes"])


@gradient_of("tril")
def _tril(call: Call, g: Value) -> Value:
    return g.op("tril", k=call.attrs["k"])


@gradient_of("triu")
def _triu(call: Call, g: Value) -> Value:
    return g.op("triu", k=call.attrs["k"])


@gradient_of("repeat")
def _repeat(call: Call, g: Value) -> Value:
    (x,) = call.inputs
    axis = resolve_axis(call.attrs["axis"], x.rank)
    if not x.rank:
        return g.sum((0,))
    return g.reshape(*x.shape[: axis + 1], call.attrs["repeats"], *x.shape[axis + 1 :]).sum((axis + 1,))


@gradient_of("slice_scatter")
def _slice_scatter(call: Call, g: Value) -> list[Value]:
    a, src = call.attrs, call.inputs[1]
    axis = resolve_axis(a["axis"], g.rank)
    return [g.op("slice_scatter", zeros(src), **a), _part(g, axis, a["start"], a["end"], a["step"])]


@gradient_of("take")
def _take(call: Call, g: Value) -> Value:
    x, indices = call.inputs
    axis = resolve_axis(call.attrs["axis"], x.rank)
    if call.attrs["mode"] == "clip":
        size = x.shape[axis]
        if not isinstance(size, int):
            raise NotDifferentiableError("mode clip has a gradient for a known size only")
        indices = indices.op("clip", a_min=0, a_max=max(size - 1, 0))
    return zeros(x).op("index_put", g, indices, axes=(axis,), accumulate=True)


@gradient_of("gather")
def _gather(call: Call, g: Value) -> Value:
    x, index = call.inputs
    if not x.rank:
        return g
    return zeros(x).op("scatter", index, g, axis=call.attrs["axis"], reduce="add")


@gradient_of("index")
def _index(call: Call, g: Value) -> Value:
    x, *indices = call.inputs
    return zeros(x).op("index_put", g, *indices, axes=call.attrs["axes"], accumulate=True)


@gradient_of("index_put")
def _index_put(call: Call, g: Value) -> list[Value]:
    _, values, *indices = call.inputs
    axes = call.attrs["axes"]
    by_values = unbroadcast(g.op("index", *indices, axes=axes), values)
    return [g if call.attrs["accumulate"] else g.op("index_put", zeros(values), *indices, axes=axes), by_values]


@gradient_of("scatter")
def _scatter(call: Call, g: Value) -> list[Value | None]:
    _, index, src = call.inputs
    axis, reduce = call.attrs["axis"], call.attrs["reduce"]
    if reduce not in ("none", "add") or (reduce == "add" and not call.attrs["include_self"]):
        raise NotDifferentiableError(f"scatter with reduce={reduce!r}, include_self={call.attrs['include_self']}")
    by_src = g.op("gather", index, axis=axis)
    if index.shape != src.shape:
        by_src = by_src.op("pad", pad_width=tuple((0, n - m) for n, m in zip(src.shape, index.shape)))
    return [g if reduce == "add" else g.op("scatter", index, zeros(src), axis=axis), None, by_src]


@gradient_of("im2col")
def _im2col(call: Call, g: Value) -> Value:
    return g.op("col2im", output_size=call.inputs[0].shape[2:], **call.attrs)


@gradient_of("col2im")
def _col2im(call: Call, g: Value) -> Value:
    return g.op("im2col", **{k: v for k, v in call.attrs.items() if k != "output_size"})
