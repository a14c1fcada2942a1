"""Layout rules by kind of op, for the attribute ``layout_rule`` (see alter_op_layout)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import Dim, ceildiv
from nnvm.graph.node import Node, NodeEntry, apply, constant
from nnvm.graph.passes.alter_op_layout import MOST_PADDING, SPATIAL, Blocker, Value, padded
from nnvm.graph.types import TensorType

__all__ = [
    "Convolution", "Elementwise", "concatenate", "dense", "on_layout", "pad", "reduction", "reshape", "slice_axes",
    "transpose",
]  # fmt: skip

Values = tuple[Value, ...]
#: Groups that are computed as one, with zeros between them, at most.
_MOST_MERGED = 4


@dataclass(frozen=True)
class Convolution:
    """Convolutions with attributes data_layout, kernel_layout, out_layout, groups and channels.

    Attributes:
        transposed: the weight is [I, O/groups, ...] instead of [O, I/groups, ...].
    """

    transposed: bool = False

    def __call__(self, node: Node, values: Values, blocker: Blocker) -> Values | None:
        data, weight = values[0], values[1]
        rank = len(data.shape)
        if not self._applies(node, values, blocker):
            return None
        out = node.outputs[0].type
        groups, total = node.attrs["groups"], data.shape[1]
        block = blocker.block_of(out.shape[1])
        if block is None or not isinstance(total, int) or (self.transposed and groups > 1):
            return None
        inner = data.block if data.layout is not None else blocker.block_of(total)
        if groups == 1:
            if data.layout is None and (inner is None or total < inner):
                inner = None  # few channels: the data stays plain, as in the first layer of a network
            groups_out, kernel = 1, weight.entry
        elif groups == total == out.shape[1]:
            return self._depthwise(node, values, blocker, block if data.layout is None else data.block)
        else:
            merged = self._merge_groups(node, weight.entry, inner, block)
            if merged is None:
                return None
            groups_out, kernel = merged
        plain = ("IO" if self.transposed else "OI") + SPATIAL[rank]
        packed = plain + (f"{inner}i" if inner else "") + f"{block}o"
        kernel = _op("layout_transform", kernel, src_layout=plain, dst_layout=packed)
        source = blocker.blocked(data, inner) if inner else blocker.plain(data)
        return self._made(node, values, blocker, source, kernel, packed, inner, block, groups_out)

    def _applies(self, node: Node, values: Values, blocker: Blocker) -> bool:
        defaults = all(node.attrs[k] == node.op.params[k].default
                       for k in ("data_layout", "kernel_layout", "out_layout", "channels"))  # fmt: skip
        weight = values[1]
        return (
            defaults and len(values[0].shape) in SPATIAL and weight.layout is None
            and all(isinstance(d, int) for d in weight.shape) and blocker.fixed(weight.entry.node)
            and node.outputs[0].type.dtype.is_float
        )  # fmt: skip

    def _depthwise(self, node: Node, values: Values, blocker: Blocker, block: int) -> Values:
        spatial = SPATIAL[len(values[0].shape)]
        packed = f"OI{spatial}1i{block}o"
        kernel = _op("layout_transform", values[1].entry, src_layout=f"OI{spatial}", dst_layout=packed)
        groups = padded(node.attrs["groups"], block)
        source = blocker.blocked(values[0], block)
        return self._made(node, values, blocker, source, kernel, packed, block, block, groups)

    def _merge_groups(
        self, node: Node, weight: NodeEntry, inner: int | None, block: int
    ) -> tuple[int, NodeEntry] | None:
        """As few groups as make whole blocks of channels: the new number of groups and a weight with zeros between."""
        groups = node.attrs["groups"]
        outputs, inputs = weight.type.shape[0] // groups, weight.type.shape[1]
        for m in range(1, _MOST_MERGED + 1):
            if inner and groups % m == 0 and m * inputs % inner == 0 and m * outputs % block == 0:
                break
        else:
            return None
        if m == 1:
            return groups, weight
        window = weight.type.shape[2:]
        parts = _op("reshape", weight, shape=(groups // m, m, outputs, 1, inputs, *window))
        eye = np.eye(m, dtype=weight.type.dtype.numpy).reshape(1, m, 1, m, 1, *(1 for _ in window))
        diagonal = constant(eye, TensorType(eye.shape, weight.type.dtype, weight.type.device))
        merged = _op("where", _op("not_equal", diagonal, _zero(weight)), parts, _zero(weight))
        return groups // m, _op("reshape", merged, shape=(weight.type.shape[0], m * inputs, *window))

    def _made(
        self, node: Node, values: Values, blocker: Blocker, source: NodeEntry, kernel: NodeEntry, packed: str,
        inner: int | None, block: int, groups: int,
    ) -> Values:  # fmt: skip
        rank = len(values[0].shape)
        shape = node.outputs[0].type.shape
        channels = shape[1]
        assert isinstance(channels, int)
        out = blocker.layout(rank, block)
        bias = []
        if len(values) > 2:
            b = blocker.plain(values[2])
            whole = channels % block == 0
            bias = [_op("reshape", b, shape=(channels // block, block)) if whole
                    else _op("layout_transform", b, src_layout="C", dst_layout=f"C{block}c")]  # fmt: skip
        attrs = {
            **node.attrs, "groups": groups, "kernel_layout": packed, "out_layout": str(out),
            "data_layout": str(blocker.layout(rank, inner)) if inner else "NC" + SPATIAL[rank],
            "channels": None if channels % block == 0 else channels,
        }  # fmt: skip
        made = apply(node.op, [source, kernel, *bias], attrs, node.name, node.source)
        blocker.changed = True
        return (Value(made[0], shape, out),)


def dense(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """The weight [N, K] in blocks of columns, [N/p, K, p], two vectors wide; the data stays plain."""
    weight = values[1]
    plain = node.attrs["kernel_layout"] == node.op.params["kernel_layout"].default
    if not plain or not node.outputs[0].type.dtype.is_float or not blocker.fixed(weight.entry.node):
        return None
    units = weight.shape[0]
    block = 2 * blocker.lanes
    if isinstance(units, int) and units <= blocker.lanes:
        block = blocker.lanes
    if not isinstance(units, int) or padded(units, block) > MOST_PADDING * units:
        return None
    packed = f"NK{block}n"
    kernel = _op("layout_transform", weight.entry, src_layout="NK", dst_layout=packed)
    entries = [blocker.plain(values[0]), kernel, *map(blocker.plain, values[2:])]
    attrs = {**node.attrs, "kernel_layout": packed, "units": None if units % block == 0 else units}
    made = apply(node.op, entries, attrs, node.name, node.source)
    blocker.changed = True
    return (Value(made[0], node.outputs[0].type.shape),)


@dataclass(frozen=True)
class Elementwise:
    """Elementwise and broadcasting ops of one output.

    Attributes:
        keeps_finite: finite for all finite inputs, so that padding stays harmless.
    """

    keeps_finite: bool = False

    def __call__(self, node: Node, values: Values, blocker: Blocker) -> Values | None:
        first = next((v for v in values if v.layout is not None), None)
        shape = node.outputs[0].type.shape
        if first is None or first.layout is None or len(shape) != len(first.layout.names):
            return None
        if shape[1] != first.shape[1] or (first.is_padded and not self.keeps_finite):
            return None
        whole = [v for v in values if v.shape == shape and not blocker.fixed(v.entry.node)]
        if 2 * sum(v.layout is None for v in whole) > len(whole):
            return None
        entries = []
        for v in values:
            e = _operand(v, first, blocker)
            if e is None:
                return None
            entries.append(e)
        made = apply(node.op, entries, node.attrs, node.name, node.source)
        return (Value(made[0], shape, first.layout),)


def _operand(value: Value, like: Value, blocker: Blocker) -> NodeEntry | None:
    """An operand that broadcasts to a blocked value, in its layout."""
    assert like.layout is not None
    if value.layout is not None:
        return value.entry if value.layout == like.layout and value.shape[1] == like.shape[1] else None
    rank, shape = len(like.shape), value.shape
    if value.entry.type.numel == 1:
        return _op("reshape", value.entry, shape=()) if shape else value.entry
    if len(shape) > rank:
        return None
    shape = (*(1,) * (rank - len(shape)), *shape)
    entry = value.entry if len(value.shape) == rank else _op("reshape", value.entry, shape=shape)
    if shape[1] == 1:
        return _op("reshape", entry, shape=(*shape, 1))
    return blocker.blocked(Value(entry, shape), like.block)


def on_layout(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """Pooling and resizing: an attribute ``layout`` says it all."""
    value = values[0]
    if value.layout is None or node.attrs["layout"] not in (None, value.layout.names):
        return None
    made = apply(node.op, [value.entry], {**node.attrs, "layout": str(value.layout)}, node.name, node.source)
    return tuple(Value(e, old.type.shape, value.layout) for e, old in zip(made.outputs, node.outputs))


def concatenate(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """Along the channels only where all parts are whole blocks."""
    first = next((v for v in values if v.layout is not None), None)
    if first is None or first.layout is None or 2 * sum(v.layout is None for v in values) > len(values):
        return None
    rank, block = len(first.shape), first.block
    axis = node.attrs["axis"] % rank
    for v in values:
        channels = v.shape[1]
        if v.layout not in (None, first.layout) or not isinstance(channels, int):
            return None
        if axis == 1 and channels % block:
            return None
    entries = [blocker.blocked(v, block) for v in values]
    made = apply(node.op, entries, {**node.attrs, "axis": axis}, node.name, node.source)
    return (Value(made[0], node.outputs[0].type.shape, first.layout),)


def pad(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """Where the channels are not padded."""
    value, widths = values[0], node.attrs["pad_width"]
    if value.layout is None or widths[1] != (0, 0):
        return None
    made = apply(node.op, [value.entry], {**node.attrs, "pad_width": (*widths, (0, 0))}, node.name, node.source)
    return (Value(made[0], node.outputs[0].type.shape, value.layout),)


def slice_axes(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """Where whole blocks of channels are taken."""
    value = values[0]
    if value.layout is None:
        return None
    rank, block, channels = len(value.shape), value.block, value.shape[1]
    begin, end = _per_axis(node.attrs["begin"], rank), _per_axis(node.attrs["end"], rank)
    step = tuple(s or 1 for s in _per_axis(node.attrs["step"], rank))
    assert isinstance(channels, int)
    low, high = _bound(begin[1], 0, channels), _bound(end[1], channels, channels)
    if step[1] != 1 or low is None or high is None or low % block or (high % block and high != channels):
        return None
    attrs = {
        "begin": (begin[0], low // block, *begin[2:]),
        "end": (end[0], ceildiv(high, block), *end[2:]),
        "step": step,
    }
    made = apply(node.op, [value.entry], attrs, node.name, node.source)
    return (Value(made[0], node.outputs[0].type.shape, value.layout),)


def reduction(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """Over spatial axes: the result stays blocked, or is plain where nothing but blocks of channels is left."""
    value, axes = values[0], node.attrs["axis"]
    if value.layout is None or axes is None:
        return None
    rank = len(value.shape)
    reduced = sorted(a % rank for a in (axes if isinstance(axes, tuple) else (axes,)))
    if reduced[0] < 2 or not (node.attrs["keepdims"] or reduced == list(range(2, rank))):
        return None
    attrs = {**node.attrs, "axis": tuple(reduced), "keepdims": True}
    made = apply(node.op, [value.entry], attrs, node.name, node.source)
    shape = tuple(1 if i in reduced else d for i, d in enumerate(value.shape))
    kept = Value(made[0], shape, value.layout)
    if node.attrs["keepdims"]:
        return (kept,)
    out = node.outputs[0].type.shape
    return (Value(_op("reshape", blocker.plain(kept), shape=out), out),)


def reshape(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """With one position per channel, the blocked value lies as the plain one."""
    value = values[0]
    if value.layout is None or value.is_padded or any(d != 1 for d in value.shape[2:]):
        return None
    shape = node.outputs[0].type.shape
    return (Value(_op("reshape", value.entry, shape=shape), shape),)


def transpose(node: Node, values: Values, blocker: Blocker) -> Values | None:
    """Out of the blocks and into the new order of axes in one step."""
    value = values[0]
    if value.layout is None:
        return None
    axes = node.op.attr("permutation")(node.attrs, len(value.shape))
    names = "".join(value.layout.names[a] for a in axes)
    return (Value(blocker.unblocked(value, names), node.outputs[0].type.shape),)


def _per_axis(given: Sequence[Any] | None, rank: int) -> tuple[Any, ...]:
    given = tuple(given or ())
    return (*given, *(None,) * (rank - len(given)))


def _bound(value: Dim | None, missing: int, size: int) -> int | None:
    """A bound of a slice as an index from the front; None where it is not known."""
    if value is None:
        return missing
    if not isinstance(value, int):
        return None
    return max(0, min(size, value + size if value < 0 else value))


def _zero(like: NodeEntry) -> NodeEntry:
    dtype = like.type.dtype
    return constant(np.zeros((), dtype.numpy), TensorType((), dtype, like.type.device))


def _op(name: str, *inputs: NodeEntry, **attrs: object) -> NodeEntry:
    return apply(name, inputs, attrs)[0]
