"""How orders, indexing, writes at indices, repetitions and windows are written in ONNX."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnvm.dtype import I32, I64
from nnvm.frontend.onnx.export import CannotExport, Exporter, exports
from nnvm.frontend.onnx.export_rules import axes_of, static
from nnvm.frontend.onnx.protos import element_code
from nnvm.graph import Node, NodeEntry, TensorType
from nnvm.ops.index import index_shape, indexed_shape

__all__: list[str] = []


def _as_index(x: Exporter, e: NodeEntry) -> str:
    """An index as int64."""
    return x[e] if e.type.dtype == I64 else x.emit("Cast", x[e], to=element_code(I64))


@exports("sort", "argsort")
def _sort(x: Exporter, n: Node) -> list[str] | str:
    """The first of all: TopK keeps the order of equal elements."""
    t, axis = n.inputs[0].type, n.attrs["axis"]
    data = x[n.inputs[0]]
    narrow = t.dtype.is_int and t.dtype.bits < 32
    if t.dtype.is_bool or t.dtype.is_half or t.rank == 0:
        raise CannotExport(f"the order of {t}")
    if narrow:
        data = x.emit("Cast", data, to=element_code(I32))
    shape = x.emit("Shape", data)
    count = x.emit("Gather", shape, x.ints([axis % t.rank]))
    values, where = x.emit_many("TopK", [data, count], 2, axis=axis, largest=int(n.attrs["descending"]), sorted=1)
    if n.op.name == "argsort":
        return where
    return [x.emit("Cast", values, to=element_code(t.dtype)) if narrow else values, where]


@exports("scatter")
def _scatter(x: Exporter, n: Node) -> str:
    data, index, src = n.inputs
    kind = n.attrs["reduce"]
    reduction = {"none": "none", "add": "add", "prod": "mul", "amax": "max", "amin": "min"}.get(kind)
    if reduction is None or (kind != "none" and not n.attrs["include_self"]):
        raise CannotExport(f"reduce={kind!r}, include_self={n.attrs['include_self']}")
    if data.type.rank == 0:
        raise CannotExport("a tensor without axes")
    update = x[src]
    if src.type.shape != index.type.shape:
        sizes, rank = static(index.type.shape, "the index"), index.type.rank
        bounds = ([0] * rank, list(sizes), list(range(rank)))
        update = x.emit("Slice", update, *map(x.ints, bounds))
    return x.emit("ScatterElements", x[data], _as_index(x, index), update, axis=n.attrs["axis"],
                  reduction=reduction)  # fmt: skip


def _positions(x: Exporter, indices: Sequence[NodeEntry], common: Sequence[int]) -> str:
    """[*common, number of indices]: an index tensor for GatherND and ScatterND."""
    columns = []
    for e in indices:
        one = _as_index(x, e)
        if e.type.shape != tuple(common):
            one = x.emit("Expand", one, x.ints(common))
        columns.append(x.emit("Unsqueeze", one, x.ints([-1])))
    return columns[0] if len(columns) == 1 else x.emit("Concat", *columns, axis=-1)


def _in_front(x: Exporter, data: str, rank: int, axes: Sequence[int]) -> str:
    """The indexed axes first."""
    order = [*axes, *(a for a in range(rank) if a not in axes)]
    return data if order == list(range(rank)) else x.emit("Transpose", data, perm=order)


@exports("index")
def _index(x: Exporter, n: Node) -> str:
    data, *indices = n.inputs
    axes, shape, place = index_shape(n.attrs, data.type, tuple(e.type for e in indices))
    common = static(shape, "the indices")
    taken = x.emit("GatherND", _in_front(x, x[data], data.type.rank, axes), _positions(x, indices, common))
    rank, c = n[0].type.rank, len(common)
    order = [*range(c, c + place), *range(c), *range(c + place, rank)]
    return taken if order == list(range(rank)) else x.emit("Transpose", taken, perm=order)


@exports("index_put")
def _index_put(x: Exporter, n: Node) -> str:
    data, values, *indices = n.inputs
    axes, shape, place = index_shape(n.attrs, data.type, tuple(e.type for e in indices))
    common = static(shape, "the indices")
    wanted = static(indexed_shape(data.type, axes, common, place), "what is indexed")
    if n.attrs["accumulate"] and data.type.dtype.is_bool:
        raise CannotExport("truth values that are added")
    update = x[values] if values.type.shape == wanted else x.emit("Expand", x[values], x.ints(wanted))
    c, rank = len(common), data.type.rank
    order = [*range(place, place + c), *range(place), *range(place + c, len(wanted))]
    update = update if order == list(range(len(wanted))) else x.emit("Transpose", update, perm=order)
    reduction = "add" if n.attrs["accumulate"] else "none"
    written = x.emit("ScatterND", _in_front(x, x[data], rank, axes), _positions(x, indices, common), update,
                     reduction=reduction)  # fmt: skip
    front = [*axes, *(a for a in range(rank) if a not in axes)]
    back = [front.index(a) for a in range(rank)]
    return written if back == list(range(rank)) else x.emit("Transpose", written, perm=back)


@exports("slice_scatter")
def _slice_scatter(x: Exporter, n: Node) -> str:
    """The elements along the axis are counted, and those of the slice replaced."""
    data, src = n.inputs
    axis = n.attrs["axis"] % data.type.rank
    (size,) = static(data.type.shape[axis : axis + 1], "the axis")
    places = np.arange(size)[slice(n.attrs["start"], n.attrs["end"], n.attrs["step"])]
    shape = static(src.type.shape, "what is written")
    line = [1] * data.type.rank
    line[axis] = len(places)
    where = x.constant(np.broadcast_to(places.reshape(line), shape), I64)
    return x.emit("ScatterElements", x[data], where, x[src], axis=axis)


@exports("take")
def _take(x: Exporter, n: Node) -> str:
    data, index = n.inputs
    axis, where = n.attrs["axis"], _as_index(x, index)
    source = x[data] if axis is not None else x.emit("Reshape", x[data], x.ints([-1]))
    if n.attrs["mode"] == "clip":
        size = data.type.numel if axis is None else data.type.shape[axis]
        (size,) = static([size], "the axis")
        where = x.emit("Clip", where, x.scalar(0, I64), x.scalar(size - 1, I64))
    return x.emit("Gather", source, where, axis=axis or 0)


# shapes


@exports("reshape_codes")
def _reshape_codes(x: Exporter, n: Node) -> str:
    return x.reshaped(x[n.inputs[0]], n.inputs[0].type, n[0].type.shape)


@exports("repeat")
def _repeat(x: Exporter, n: Node) -> str:
    t, count = n.inputs[0].type, n.attrs["repeats"]
    if t.rank == 0:
        return x.emit("Expand", *x.inputs(n), x.ints([count]))
    axis = n.attrs["axis"] % t.rank
    apart = x.emit("Unsqueeze", *x.inputs(n), x.ints([axis + 1]))
    wide = x.emit("Expand", apart, x.ints([count if i == axis + 1 else 1 for i in range(t.rank + 1)]))
    spread = TensorType((*t.shape[: axis + 1], count, *t.shape[axis + 1 :]), t.dtype)
    return x.reshaped(wide, spread, n[0].type.shape)


@exports("roll")
def _roll(x: Exporter, n: Node) -> str:
    t, data = n.inputs[0].type, x[n.inputs[0]]
    for axis, shift in zip(axes_of(n, "axes") or [], n.attrs["shifts"], strict=True):
        (size,) = static(t.shape[axis : axis + 1], "the axis")
        if size == 0 or shift % size == 0:
            continue
        at = size - shift % size
        tail = x.emit("Slice", data, x.ints([at]), x.ints([size]), x.ints([axis]))
        data = x.emit("Concat", tail, x.emit("Slice", data, x.ints([0]), x.ints([at]), x.ints([axis])), axis=axis)
    return x.emit("Identity", data)


@exports("slice_like")
def _slice_like(x: Exporter, n: Node) -> str:
    data, like = n.inputs
    axes = axes_of(n) if n.attrs["axis"] is not None else list(range(data.type.rank))
    axes = axes or []
    ends = x.emit("Gather", x.emit("Shape", x[like]), x.ints(axes))
    return x.emit("Slice", x[data], x.ints([0] * len(axes)), ends, x.ints(axes))


@exports("expand_like")
def _expand_like(x: Exporter, n: Node) -> str:
    data, like = n.inputs
    axes = [a % like.type.rank for a in n.attrs["axis"]]
    source = x[data] if data.type.rank == like.type.rank else x.emit("Unsqueeze", x[data], x.ints(axes))
    return x.emit("Expand", source, x.emit("Shape", x[like]))


@exports("upscale")
def _upscale(x: Exporter, n: Node) -> str:
    if n.attrs["layout"] != "NCHW":
        raise CannotExport(f"layout {n.attrs['layout']}")
    sizes = x.ints(static(n[0].type.shape[2:], "the size"))
    mode, at = ("nearest", "asymmetric") if n.attrs["method"] == "NEAREST_NEIGHBOR" else ("linear", "half_pixel")
    return x.emit("Resize", *x.inputs(n), "", "", sizes, axes=[2, 3], mode=mode, coordinate_transformation_mode=at,
                  nearest_mode="floor")  # fmt: skip


# windows


def _windows(n: Node, rank: int) -> dict[str, list[int]]:
    """Strides, padding and dilation of each spatial axis; one value stands for all."""
    padding, strides, dilation = (
        list(n.attrs[k]) * (rank if len(n.attrs[k]) == 1 else 1) for k in ("padding", "strides", "dilation")
    )
    pads = [*static([p[0] for p in padding], "padding"), *static([p[1] for p in padding], "padding")]
    return {"strides": strides, "pads": pads, "dilations": dilation}


@exports("im2col")
def _im2col(x: Exporter, n: Node) -> str:
    """A convolution of each channel with kernels that pick one tap each."""
    t, kernel = n.inputs[0].type, n.attrs["kernel_size"]
    (channels,) = static(t.shape[1:2], "the number of channels")
    if not t.dtype.is_float:
        raise CannotExport(f"windows of {t.dtype}")
    taps = math.prod(kernel)
    picks = np.tile(np.eye(taps).reshape(taps, 1, *kernel), (channels, 1, *[1] * len(kernel)))
    weight = x.constant(picks.astype(t.dtype.numpy), t.dtype)
    out = x.emit("Conv", x[n.inputs[0]], weight, group=channels, **_windows(n, len(kernel)))
    return x.emit("Reshape", out, x.ints([0, channels * taps, -1]))


@exports("col2im")
def _col2im(x: Exporter, n: Node) -> str:
    size = static(n.attrs["output_size"], "the size")
    return x.emit("Col2Im", *x.inputs(n), x.ints(size), x.ints(n.attrs["kernel_size"]), **_windows(n, len(size)))


@exports(*(f"max_pool{r}d_with_indices" for r in (1, 2, 3)))
def _max_pool_with_indices(x: Exporter, n: Node) -> list[str]:
    """ONNX counts positions in the whole tensor, nnvm in each plane."""
    a, sizes = n.attrs, static(n.inputs[0].type.shape[2:], "the data")
    if str(a["layout"]) != "NC" + "DHW"[3 - len(sizes) :]:
        raise CannotExport(f"layout {a['layout']}")
    low, high = ([p[i] for p in a["padding"]] for i in (0, 1))
    pads = static([*low, *high], "padding")
    values, where = x.emit_many("MaxPool", x.inputs(n), 2, kernel_shape=a["pool_size"], pads=pads,
                                strides=a["strides"] or a["pool_size"], ceil_mode=int(a["ceil_mode"]),
                                dilations=a["dilation"])  # fmt: skip
    return [values, x.emit("Mod", where, x.scalar(math.prod(sizes), I64))]
