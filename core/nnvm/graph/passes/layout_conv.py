"""Layout rules of ops with weights, for the attribute ``layout_rule`` (see alter_op_layout)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnvm.graph.dependence import Fixed
from nnvm.graph.node import Node, NodeEntry, apply, constant
from nnvm.graph.passes.alter_op_layout import SPATIAL, Blocker, LayoutRule, Value, Values
from nnvm.graph.passes.layout_plan import MOST_PADDING, Machine, Way, padded
from nnvm.graph.types import TensorType

__all__ = ["convolution", "dense", "for_library"]

#: Groups that are computed as one, with zeros between them, at most.
_MOST_MERGED = 4
#: Input channels from which on a library's convolution with strides is taken.
LIBRARY_CHANNELS = 32


def for_library(node: Node) -> bool:
    """Whether a vendor's library, where there is one, computes a convolution with strides at least as soon as we do
    after packing its weight: several taps, and channels that fill vectors."""
    kernel = node.inputs[1].type.shape
    wide = isinstance(kernel[1], int) and kernel[1] >= LIBRARY_CHANNELS
    return node.attrs["groups"] == 1 and wide and any(k != 1 for k in kernel[2:])


def _ways(node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
    """Of a convolution with attributes data_layout, kernel_layout, out_layout, groups and channels: input and output in
    any blocks; few channels stay plain, as in the first layer of a network."""
    if not _applies(node, fixed):
        return []
    if machine.library and for_library(node) and not fixed(node.inputs[1].node):
        return []
    total, outputs = node.inputs[0].type.shape[1], node.outputs[0].type.shape[1]
    groups, rest = node.attrs["groups"], (1,) * (len(node.inputs) - 1)
    if not isinstance(total, int) or not isinstance(outputs, int):
        return []
    if groups == total == outputs and groups > 1:
        return [Way((b, *rest), b) for b in machine.blocks(total)]
    inner = [1, *(b for b in machine.blocks(total) if b <= total)]
    outer = [1, *machine.blocks(outputs)]
    pairs = [(a, b) for a in inner for b in outer if a > 1 or b > 1]
    if groups > 1:
        pairs = [(a, b) for a, b in pairs if b > 1 and _merged(groups, total, outputs, a, b) is not None]
    return [Way((a, *rest), b) for a, b in pairs]


def _applies(node: Node, fixed: Fixed) -> bool:
    """A weight that is new at each call is packed then, where the plain layout is much slower: with strides no
    axis of the output is contiguous in the input."""
    plain = all(node.attrs[k] == node.op.params[k].default
                for k in ("data_layout", "kernel_layout", "out_layout", "channels"))  # fmt: skip
    weight = node.inputs[1]
    return (
        plain and len(node.inputs[0].type.shape) in SPATIAL and all(isinstance(d, int) for d in weight.type.shape)
        and (fixed(weight.node) or any(s > 1 for s in node.attrs["strides"]))
        and node.outputs[0].type.dtype.is_float
    )  # fmt: skip


def _pack(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    data, weight = values[0], values[1].entry
    inner, block, groups = way.inputs[0], way.block, node.attrs["groups"]
    spatial = SPATIAL[len(data.shape)]
    plain = "OI" + spatial
    packed = plain + (f"{inner}i" if inner > 1 else "") + (f"{block}o" if block > 1 else "")
    total, outputs = data.shape[1], node.outputs[0].type.shape[1]
    assert isinstance(total, int) and isinstance(outputs, int)
    if groups > 1 and groups == total == outputs:
        groups, packed = padded(groups, block), f"OI{spatial}1i{block}o"
    elif groups > 1:
        count = _merged(groups, total, outputs, inner, block)
        assert count is not None
        groups, weight = groups // count, _merge_groups(weight, groups, count)
    kernel = _op("layout_transform", weight, src_layout=plain, dst_layout=packed)
    shape = node.outputs[0].type.shape
    out = blocker.layout(len(shape), block)
    bias = [_bias(blocker.plain(v), outputs, block) for v in values[2:]]
    attrs = {
        **node.attrs, "groups": groups, "kernel_layout": packed, "out_layout": str(out),
        "data_layout": str(blocker.layout(len(shape), inner)),
        "channels": None if outputs % block == 0 else outputs,
    }  # fmt: skip
    entries = [blocker.to(data, inner), kernel, *bias]
    made = apply(node.op, entries, attrs, node.name, node.source)
    return (Value(made[0], shape, out if block > 1 else None),)


def _bias(bias: NodeEntry, channels: int, block: int) -> NodeEntry:
    if block == 1:
        return bias
    if channels % block == 0:
        return _op("reshape", bias, shape=(channels // block, block))
    return _op("layout_transform", bias, src_layout="C", dst_layout=f"C{block}c")


def _merged(groups: int, inputs: int, outputs: int, inner: int, block: int) -> int | None:
    """As few groups together as make whole blocks of channels; None where that is too many."""
    for m in range(1, _MOST_MERGED + 1):
        if groups % m == 0 and m * (inputs // groups) % inner == 0 and m * (outputs // groups) % block == 0:
            return m
    return None


def _merge_groups(weight: NodeEntry, groups: int, m: int) -> NodeEntry:
    """A weight for `m` groups as one, with zeros between them."""
    if m == 1:
        return weight
    outputs, inputs = weight.type.shape[0] // groups, weight.type.shape[1]
    window = weight.type.shape[2:]
    parts = _op("reshape", weight, shape=(groups // m, m, outputs, 1, inputs, *window))
    eye = np.eye(m, dtype=weight.type.dtype.numpy).reshape(1, m, 1, m, 1, *(1 for _ in window))
    diagonal = constant(eye, TensorType(eye.shape, weight.type.dtype, weight.type.device))
    merged = _op("where", _op("not_equal", diagonal, _zero(weight)), parts, _zero(weight))
    return _op("reshape", merged, shape=(weight.type.shape[0], m * inputs, *window))


def _no_ways(node: Node, fixed: Fixed, machine: Machine) -> Sequence[Way]:
    return ()


def _pack_dense(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    """The weight [N, K] in blocks of columns, [N/p, K, p], two vectors wide; the data stays plain."""
    weight, out, lanes = values[1], node.outputs[0].type, blocker.machine.lanes
    entries, attrs = [blocker.plain(v) for v in values], dict(node.attrs)
    units = weight.shape[0]
    block = lanes if isinstance(units, int) and units <= lanes else 2 * lanes
    plain = node.attrs["kernel_layout"] == node.op.params["kernel_layout"].default
    fits = isinstance(units, int) and padded(units, block) <= MOST_PADDING * units
    if plain and out.dtype.is_float and blocker.fixed(weight.entry.node) and fits:
        packed = f"NK{block}n"
        entries[1] = _op("layout_transform", weight.entry, src_layout="NK", dst_layout=packed)
        attrs |= {"kernel_layout": packed, "units": None if units % block == 0 else units}
    elif tuple(entries) == node.inputs:
        return (Value(node[0], out.shape),)
    made = apply(node.op, entries, attrs, node.name, node.source)
    return (Value(made[0], out.shape),)


def _zero(like: NodeEntry) -> NodeEntry:
    dtype = like.type.dtype
    return constant(np.zeros((), dtype.numpy), TensorType((), dtype, like.type.device))


def _op(name: str, *inputs: NodeEntry, **attrs: object) -> NodeEntry:
    return apply(name, inputs, attrs)[0]


convolution = LayoutRule(_ways, _pack)
dense = LayoutRule(_no_ways, _pack_dense, always=True)
