"""Shapes: views, joins, pieces, repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nnvm.dim import Dim
from nnvm.frontend.mxnet.table import (
    Context,
    Refused,
    Results,
    axes_of,
    axis_of,
    converts,
    cut,
    emit,
    of_array,
    rows,
    type_named,
)
from nnvm.graph import NodeEntry, TensorType, get

__all__: list[str] = []

#: Elements of a tensor that an operator makes out of numbers, at most.
LARGEST = 1 << 28


@converts("Flatten", "flatten")
def _flatten(c: Context) -> NodeEntry:
    x = c[0]
    return rows(x) if x.type.rank != 2 else x


@converts("Reshape", "reshape")
def _reshape(c: Context) -> NodeEntry:
    x, shape = c[0], c.attrs.integers("shape", None)
    if not shape:  # before there were codes: one 0 stands for what is left
        shape = c.attrs.integers("target_shape", None)
        if not shape:
            raise Refused("neither shape nor target_shape is given")
        shape = (0 if c.attrs.flag("keep_highest", False) else shape[0], *shape[1:])
        shape = tuple(-1 if d == 0 and not (i == 0 and c.attrs.flag("keep_highest", False)) else d
                      for i, d in enumerate(shape))  # fmt: skip
    if any(d is None for d in shape):
        raise Refused(f"the shape {shape}")
    if not c.attrs.flag("reverse", False):
        return emit("reshape_codes", x, shape=shape)
    if -4 in shape:
        raise Refused("the code -4 from the right")
    backwards = TensorType(x.type.shape[::-1], x.type.dtype)
    (found,) = get("reshape_codes").attr("infer_type")({"shape": shape[::-1]}, (backwards,))
    return emit("reshape", x, shape=found.shape[::-1])


@converts("reshape_like")
def _reshape_like(c: Context) -> NodeEntry:
    if any(c.attrs.has(n) for n in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")):
        raise Refused("ranges of axes")
    return emit("reshape", c[0], shape=c[1].type.shape)


@converts("expand_dims")
def _expand_dims(c: Context) -> NodeEntry:
    return emit("expand_dims", c[0], axis=axis_of(c.attrs.integer("axis"), c[0].type.rank + 1))


@converts("squeeze")
def _squeeze(c: Context) -> NodeEntry:
    x, axes = c[0], c.attrs.integers("axis", None)
    shape = x.type.shape
    gone = [a for a, d in enumerate(shape) if d == 1] if axes is None else axes_of(axes, len(shape))
    if any(shape[a] != 1 for a in gone):
        raise Refused(f"axes {tuple(gone)} of {x.type} are not all of length one")
    return emit("reshape", x, shape=tuple(d for a, d in enumerate(shape) if a not in gone) or (1,))


@converts("transpose")
def _transpose(c: Context) -> NodeEntry:
    x = c[0]
    axes = c.attrs.integers("axes", None)
    order = axes_of(axes, x.type.rank) if axes else tuple(reversed(range(x.type.rank)))
    return emit("transpose", x, axes=order)


@converts("SwapAxis", "swapaxes")
def _swap(c: Context) -> NodeEntry:
    rank = c[0].type.rank
    order = list(range(rank))
    a, b = axis_of(c.attrs.integer("dim1", 0), rank), axis_of(c.attrs.integer("dim2", 0), rank)
    order[a], order[b] = order[b], order[a]
    return emit("transpose", c[0], axes=tuple(order))


# joins and pieces


@converts("Concat", "concat")
def _concat(c: Context) -> NodeEntry:
    return emit("concatenate", *c.inputs, axis=axis_of(c.attrs.integer("dim", 1), c[0].type.rank))


@converts("stack")
def _stack(c: Context) -> NodeEntry:
    axis = axis_of(c.attrs.integer("axis", 0), c[0].type.rank + 1)
    return emit("concatenate", *(emit("expand_dims", x, axis=axis) for x in c.inputs), axis=axis)


@converts("SliceChannel", "split")
def _split(c: Context) -> Results:
    x, count = c[0], c.attrs.integer("num_outputs")
    axis = axis_of(c.attrs.integer("axis", 1), x.type.rank)
    size = x.type.shape[axis]
    if not isinstance(size, int) or count < 1 or size % count:
        raise Refused(f"{count} equal parts of {size}")
    return _pieces(x, axis, [i * (size // count) for i in range(count + 1)], c.attrs.flag("squeeze_axis", False))


@converts("_split_v2", "split_v2")
def _split_v2(c: Context) -> Results:
    x = c[0]
    axis, sections = axis_of(c.attrs.integer("axis", 1), x.type.rank), c.attrs.integer("sections", 0)
    size = x.type.shape[axis]
    if not isinstance(size, int):
        raise Refused("pieces of a symbolic size")
    if sections:
        if sections < 1 or size % sections:
            raise Refused(f"{sections} equal parts of {size}")
        bounds = [i * (size // sections) for i in range(sections + 1)]
    else:
        bounds = [*c.attrs.integers("indices"), size]
    return _pieces(x, axis, bounds, c.attrs.flag("squeeze_axis", False))


def _pieces(x: NodeEntry, axis: int, bounds: Sequence[int], squeezed: bool) -> Results:
    parts = [cut(x, axis, a, b) for a, b in pairwise(bounds)]
    if not squeezed:
        return parts
    shape = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
    return [emit("reshape", p, shape=shape or (1,)) for p in parts]


@converts("slice", "crop")
def _slice(c: Context) -> NodeEntry:
    x = c[0]
    begins, ends = c.attrs.integers("begin"), c.attrs.integers("end")
    steps = c.attrs.integers("step", None) or (1,) * len(begins)
    if not len(begins) == len(ends) == len(steps) <= x.type.rank:
        raise Refused(f"begin {begins}, end {ends} and step {steps} of {x.type.rank} axes")
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps)):
        x = _range(x, axis, begin, end, 1 if step is None else step)
    return x


def _range(x: NodeEntry, axis: int, begin: Any, end: Any, step: int) -> NodeEntry:
    """Python's ``x[begin:end:step]`` along an axis."""
    size = x.type.shape[axis]
    if step == 0:
        raise Refused("a step of 0")
    if (begin, end) in ((None, None), (0, None)) and step == 1:
        return x
    if not isinstance(size, int):
        if step < 0 or any(v is not None and v < 0 for v in (begin, end)):
            raise Refused(f"positions {begin} to {end} of a symbolic axis, counted from its end")
        return cut(x, axis, begin or 0, size if end is None else end, step)
    span = range(size)[slice(begin, end, step)]
    if len(span) == 0:
        raise Refused(f"nothing lies from {begin} to {end} of {size}")
    if step > 0:
        return cut(x, axis, span[0], span[-1] + 1, step)
    return emit("flip", cut(x, axis, span[-1], span[0] + 1, -step), axes=(axis,))


@converts("slice_axis")
def _slice_axis(c: Context) -> NodeEntry:
    axis = axis_of(c.attrs.integer("axis"), c[0].type.rank)
    return _range(c[0], axis, c.attrs.integer("begin"), c.attrs.integer("end", None), 1)


@converts("slice_like")
def _slice_like(c: Context) -> NodeEntry:
    x, other = c[0], c[1].type.shape
    for axis in axes_of(c.attrs.integers("axes", None), x.type.rank):
        x = cut(x, axis, 0, other[axis])
    return x


@converts("Crop")
def _crop(c: Context) -> NodeEntry:
    """Height and width of the data cut to those of the second input, or to h_w."""
    x = c[0]
    size = c[1].type.shape[2:] if c.has(1) else c.attrs.integers("h_w")
    offset = c.attrs.integers("offset", (0, 0))
    for axis, (n, low) in enumerate(zip(size, offset), 2):
        whole = x.type.shape[axis]
        if not isinstance(n, int) or not isinstance(whole, int):
            raise Refused("symbolic sizes")
        low = (whole - n) // 2 if c.attrs.flag("center_crop", False) else low
        if not 0 <= low <= whole - n:
            raise Refused(f"{n} positions from {low} on of {whole}")
        x = cut(x, axis, low, low + n)
    return x


# repetitions


@converts("broadcast_to")
def _broadcast_to(c: Context) -> NodeEntry:
    x, wanted = c[0], c.attrs.integers("shape")
    if len(wanted) != x.type.rank:
        raise Refused(f"the shape {wanted} for {x.type}")
    return emit("broadcast_to", x, shape=_checked(tuple(w or d for w, d in zip(wanted, x.type.shape))))


@converts("broadcast_axis", "broadcast_axes")
def _broadcast_axis(c: Context) -> NodeEntry:
    x, sizes = c[0], c.attrs.integers("size")
    shape = list(x.type.shape)
    for axis, n in zip(axes_of(c.attrs.integers("axis"), x.type.rank), sizes, strict=True):
        if shape[axis] != 1:
            raise Refused(f"axis {axis} of {x.type} is not of length one")
        shape[axis] = n
    return emit("broadcast_to", x, shape=_checked(shape))


@converts("broadcast_like")
def _broadcast_like(c: Context) -> NodeEntry:
    if c.attrs.has("lhs_axes") or c.attrs.has("rhs_axes"):
        raise Refused("chosen axes")
    return emit("broadcast_to", c[0], shape=c[1].type.shape)


@converts("tile")
def _tile(c: Context) -> NodeEntry:
    x, reps = c[0], c.attrs.integers("reps")
    rank = max(x.type.rank, len(reps))
    shape = (*(1,) * (rank - x.type.rank), *x.type.shape)
    reps = (*(1,) * (rank - len(reps)), *reps)
    _checked([d * n for d, n in zip(shape, reps)])
    apart = emit("reshape", x, shape=tuple(v for d in shape for v in (1, d)))
    spread = emit("broadcast_to", apart, shape=tuple(v for d, n in zip(shape, reps) for v in (n, d)))
    return emit("reshape", spread, shape=tuple(d * n for d, n in zip(shape, reps)))


@converts("repeat")
def _repeat(c: Context) -> NodeEntry:
    x, axis = c[0], c.attrs.integer("axis", None)
    if axis is None:
        x, axis = emit("reshape", x, shape=(x.type.numel,)), 0
    return emit("repeat", x, repeats=c.attrs.integer("repeats"), axis=axis_of(axis, x.type.rank))


@converts("reverse", "flip")
def _reverse(c: Context) -> NodeEntry:
    return emit("flip", c[0], axes=axes_of(c.attrs.integers("axis"), c[0].type.rank))


@converts("Pad", "pad")
def _pad(c: Context) -> NodeEntry:
    x, width = c[0], c.attrs.integers("pad_width")
    if len(width) != 2 * x.type.rank or any(w is None or w < 0 for w in width):
        raise Refused(f"pad_width {width} of {x.type.rank} axes")
    pairs = tuple(zip(width[::2], width[1::2]))
    _checked([d + a + b for d, (a, b) in zip(x.type.shape, pairs)])
    mode = c.attrs.choice("mode", ("constant", "edge", "reflect"), "constant")
    value = {"value": c.attrs.number("constant_value", 0.0)} if mode == "constant" else {}
    return emit("pad", x, pad_width=pairs, mode=mode, **value)


@converts("depth_to_space", "space_to_depth")
def _blocks(c: Context) -> NodeEntry:
    """Blocks of positions as channels and back, channels of one position in a block next to each other."""
    x, b = c[0], c.attrs.integer("block_size")
    n, ch, h, w = x.type.shape
    if c.op == "depth_to_space":
        apart = emit("reshape", x, shape=(n, b, b, ch // (b * b), h, w))
        return emit("reshape", emit("transpose", apart, axes=(0, 3, 4, 1, 5, 2)),
                    shape=(n, ch // (b * b), h * b, w * b))  # fmt: skip
    apart = emit("reshape", x, shape=(n, ch, h // b, b, w // b, b))
    return emit("reshape", emit("transpose", apart, axes=(0, 3, 5, 1, 2, 4)), shape=(n, ch * b * b, h // b, w // b))


# out of nothing


def _checked(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    size = 1
    for d in shape:
        if isinstance(d, int):
            if d < 0:
                raise Refused(f"the shape {tuple(shape)}")
            size *= d
    if size > LARGEST:
        raise Refused(f"the shape {tuple(shape)} has more than {LARGEST} elements")
    return tuple(shape)


@converts("_zeros", "_ones", "_full")
def _full(c: Context) -> NodeEntry:
    value = {"_zeros": 0.0, "_ones": 1.0}.get(c.op)
    shape = _checked(c.attrs.integers("shape"))
    if 0 in shape:
        raise Refused(f"the shape {shape} is not known")
    number = c.attrs.number("value") if value is None else value
    return emit("full", shape=shape, dtype=type_named(c.attrs), value=number)


@converts("_arange")
def _arange(c: Context) -> NodeEntry:
    start, stop, step = c.attrs.number("start", 0.0), c.attrs.number("stop", None), c.attrs.number("step", 1.0)
    if stop is None:
        start, stop = 0.0, start
    repeat, dtype = c.attrs.integer("repeat", 1), type_named(c.attrs)
    if step == 0 or c.attrs.flag("infer_range", False) or not (stop - start) / step * repeat <= LARGEST:
        raise Refused(f"numbers from {start} to {stop} by {step}")
    return of_array(np.repeat(np.arange(start, stop, step), repeat).astype(dtype.numpy), dtype)
