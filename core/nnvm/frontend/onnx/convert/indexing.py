"""Gathering and scattering."""

from __future__ import annotations

import numpy as np

from nnvm.dim import is_static
from nnvm.dtype import I64
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__ = ["REDUCE", "coordinates"]


def _wrapped(index: NodeEntry, size: object) -> NodeEntry:
    """Indices with negative ones counted from the end."""
    if not isinstance(size, int):
        raise Unsupported("indices of a symbolic axis")
    index = cast(index, I64)
    return emit("where", emit("less", index, scalar(0, I64)), emit("add", index, scalar(size, I64)), index)


@converts("Gather")
def gather(c: Context) -> NodeEntry:
    return emit("take", c[0], cast(c[1], I64), axis=c.axis(0, c[0].type.rank), mode="wrap")


@converts("GatherElements")
def gather_elements(c: Context) -> NodeEntry:
    axis = c.axis(0, c[0].type.rank)
    return emit("gather", c[0], _wrapped(c[1], c[0].type.shape[axis]), axis=axis)


def coordinates(data: NodeEntry, indices: NodeEntry, batch: int) -> list[NodeEntry]:
    """One index tensor for each of the first axes of `data`, from the last axis of `indices`."""
    if not is_static(indices.type.shape):
        raise Unsupported("indices of symbolic shape")
    shape = tuple(int(d) for d in indices.type.shape)  # type: ignore[arg-type]
    out = []
    for b in range(batch):
        along = np.arange(shape[b]).reshape([-1 if i == b else 1 for i in range(len(shape) - 1)])
        out.append(of_array(np.broadcast_to(along, shape[:-1]).copy(), I64))
    last = len(shape) - 1
    for k in range(shape[-1]):
        part = emit("reshape", cut(indices, last, k, k + 1), shape=shape[:-1])
        out.append(_wrapped(part, data.type.shape[batch + k]))
    return out


@converts("GatherND")
def gather_nd(c: Context) -> NodeEntry:
    at = coordinates(c[0], c[1], c.attrs.get("batch_dims", 0))
    return emit("index", c[0], *at, axes=tuple(range(len(at))))


#: ONNX's reductions of scattered elements as the op `scatter` names them.
REDUCE = {"none": "none", "add": "add", "mul": "prod", "max": "amax", "min": "amin"}


@converts("ScatterElements", "Scatter")
def scatter_elements(c: Context) -> NodeEntry:
    axis = c.axis(0, c[0].type.rank)
    index = _wrapped(c[1], c[0].type.shape[axis])
    return emit("scatter", c[0], index, c[2], axis=axis, reduce=REDUCE[c.attrs.get("reduction", "none")])


@converts("Compress")
def compress(c: Context) -> NodeEntry:
    x = c[0] if "axis" in c.attrs else emit("reshape", c[0], shape=(c[0].type.numel,))
    kept = np.flatnonzero(c.value(1, "the condition"))
    return emit("take", x, of_array(kept.astype(np.int64), I64), axis=c.axis(0, x.type.rank), mode="wrap")
