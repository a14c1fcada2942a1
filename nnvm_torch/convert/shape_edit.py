"""Padding, and writing a piece into a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from nnvm.dim import Dim
from nnvm.graph import NodeEntry
from nnvm_torch.convert.shape import begin_of
from nnvm_torch.convert.table import Context, NeedsMemory, Scalar, Unsupported, Value, converts, normal_axis

__all__: list[str] = []


def _pairs(pads: Sequence[Dim], rank: int) -> tuple[tuple[Dim, Dim], ...]:
    """torch's list (last dimension first) as (low, high) for each dimension."""
    given = [(pads[i], pads[i + 1]) for i in range(0, len(pads), 2)]
    return (*((0, 0),) * (rank - len(given)), *reversed(given))


@converts("constant_pad_nd.default")
def _constant_pad(c: Context, x: NodeEntry, pads: Sequence[Dim], value: Scalar = 0) -> Value:
    if not isinstance(value, (int, float)):
        raise Unsupported("a symbolic padding value")
    if all(p == 0 for p in pads):
        return x
    c.stored(value, c.dtype)  # one that it does not hold is an error
    return c.op("pad", x, pad_width=_pairs(pads, x.type.rank), mode="constant", value=value)


@converts("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def _reflection_pad(c: Context, x: NodeEntry, pads: Sequence[Dim]) -> Value:
    return c.op("pad", x, pad_width=_pairs(pads, x.type.rank), mode="reflect")


@converts("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def _replication_pad(c: Context, x: NodeEntry, pads: Sequence[Dim]) -> Value:
    return c.op("pad", x, pad_width=_pairs(pads, x.type.rank), mode="edge")


def _write(c: Context, x: NodeEntry, piece: NodeEntry, axis: int, begin: Dim, length: Dim, step: int) -> NodeEntry:
    if length == 0:
        return x
    end = begin + (length - 1) * step + 1
    return c.op("slice_scatter", x, c.cast(piece, c.dtype), axis=axis, start=begin, end=end, step=step)


def check_apart(t: torch.Tensor) -> None:
    """NeedsMemory where elements of `t` may share memory: eager writes to a copy that lies in the same way, and what is
    written shows in other elements. Where only the call knows sizes or strides, how they compare becomes a guard."""
    reach: int | torch.SymInt = 1  # of the axes with smaller strides
    axes = [(s, n) for s, n in zip(t.stride(), t.shape) if not (isinstance(n, int) and n == 1)]
    for stride, n in sorted(axes, key=lambda axis: _example(axis[0])):
        known = math.inf not in (_example(stride), _example(reach))
        if not (bool(stride >= reach) if known else statically_known_true(stride >= reach)):
            raise NeedsMemory("a write to a copy of a tensor whose elements share memory")
        reach = stride * (n - 1) + reach


def _example(n: int | torch.SymInt) -> float:
    """A size as it was when the graph was traced; what has no value there is taken for large."""
    value = n if isinstance(n, int) else n.node.hint
    return math.inf if value is None else float(value)


@converts("slice_scatter.default")
def _slice_scatter(c: Context, x: NodeEntry, piece: NodeEntry, dim: int = 0, start: Dim | None = None,
                   end: Dim | None = None, step: int = 1) -> Value:  # fmt: skip
    if not isinstance(step, int):
        raise Unsupported("a symbolic step")
    check_apart(c.args[0])
    axis = normal_axis(dim, x.type.rank)
    size = c.args[0].shape[axis]
    first, last = _place(c.traced(3, "start"), 0, size), _place(c.traced(4, "end"), size, size)
    length = (last - first + step - 1) // step if last > first else 0
    if c.args[1].shape[axis] != length:  # a guard
        raise Unsupported("a piece that is not as long as the slice")
    return _write(c, x, piece, axis, begin_of(c, 3, "start", size), piece.type.shape[axis], step)


def _place(n: Any, absent: Any, size: Any) -> Any:
    """A bound of a slice of an axis of `size` as a place between 0 and it; how they compare is a guard."""
    if n is None:
        return absent
    if n < 0:
        n = n + size
    return 0 if n < 0 else size if n > size else n


@converts("select_scatter.default")
def _select_scatter(c: Context, x: NodeEntry, piece: NodeEntry, dim: int, index: Dim) -> Value:
    check_apart(c.args[0])
    axis = normal_axis(dim, x.type.rank)
    size, at = c.args[0].shape[axis], c.traced(3, "index")
    if not (at >= -size and at < size):  # guards
        raise Unsupported("an index out of range")
    begin = begin_of(c, 3, "index", size)
    shape = (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :])
    return _write(c, x, c.reshape(piece, shape), axis, begin, 1, 1)


@converts("slice_backward.default")
def _slice_backward(c: Context, grad: NodeEntry, sizes: Sequence[Dim], dim: int, start: Dim, end: Dim,
                    step: int) -> Value:  # fmt: skip
    axis = normal_axis(dim, len(c.shape))
    zeros = c.full(c.shape, 0, c.dtype)
    begin = begin_of(c, 3, "start", c.traced(1, "input_sizes")[axis])
    return _write(c, zeros, grad, axis, begin, grad.type.shape[axis], step)
