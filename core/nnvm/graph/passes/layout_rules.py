"""Layout rules of ops without weights, for the attribute ``layout_rule`` (see alter_op_layout)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nnvm.dim import Dim, Shape, ceildiv
from nnvm.graph.dependence import Fixed
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.passes.alter_op_layout import SPATIAL, Blocker, LayoutRule, Value, Values, layout_name
from nnvm.graph.passes.layout_plan import Machine, Way

__all__ = ["concatenate", "elementwise", "interleave", "on_layout", "pad", "reduction", "reshape", "slice_axes",
           "transpose"]  # fmt: skip


def _blocks(shape: Shape, machine: Machine) -> tuple[int, ...]:
    """The blocks that a value may be in."""
    return machine.blocks(shape[1]) if len(shape) in SPATIAL else ()


def _same(allowed: Callable[[Node, int], bool]) -> Callable[[Node, Fixed, Machine], list[Way]]:
    """Ways in which all inputs and outputs have one block, where that is allowed."""

    def ways(node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
        blocks = _blocks(node.inputs[0].type.shape, machine)
        return [Way((b,) * len(node.inputs), b) for b in blocks if allowed(node, b)]

    return ways


# Elementwise


@dataclass(frozen=True)
class _Elementwise:
    """Elementwise and broadcasting ops of one output.

    Attributes:
        keeps_finite: finite for all finite inputs, so that padding stays harmless.
    """

    keeps_finite: bool

    def ways(self, node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
        shape = node.outputs[0].type.shape
        shapes = [e.type.shape for e in node.inputs]
        if not any(s == shape and not fixed(e.node) for s, e in zip(shapes, node.inputs)):
            return []
        found = []
        for b in _blocks(shape, machine):
            if self.keeps_finite or shape[1] % b == 0:
                found.append(Way(tuple(b if len(s) == len(shape) and s[1] == shape[1] else 1 for s in shapes), b))
        return found

    def make(self, node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
        shape = node.outputs[0].type.shape
        entries = [_operand(v, shape, way.block, blocker) for v in values]
        made = apply(node.op, entries, node.attrs, node.name, node.source)
        return (Value(made[0], shape, blocker.layout(len(shape), way.block)),)


def _operand(value: Value, like: Shape, block: int, blocker: Blocker) -> NodeEntry:
    """An operand that broadcasts to a value of shape `like` in blocks."""
    shape = value.shape
    if len(shape) == len(like) and shape[1] == like[1]:
        return blocker.to(value, block)
    entry = blocker.plain(value)
    if entry.type.numel == 1:
        return _op("reshape", entry, shape=()) if shape else entry
    shape = (*(1,) * (len(like) - len(shape)), *shape)
    entry = entry if len(value.shape) == len(like) else _op("reshape", entry, shape=shape)
    if shape[1] == 1:
        return _op("reshape", entry, shape=(*shape, 1))
    return blocker.to(Value(entry, shape), block)


# Ops with an attribute that names the layout


def _make_on_layout(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    entry, layout = blocker.to(values[0], way.block), blocker.layout(len(values[0].shape), way.block)
    made = apply(node.op, [entry], {**node.attrs, "layout": str(layout)}, node.name, node.source)
    return tuple(Value(e, old.type.shape, layout) for e, old in zip(made.outputs, node.outputs))


def _names_plain_layout(node: Node, block: int) -> bool:
    return node.attrs["layout"] in (None, layout_name(node.inputs[0].type.rank, 1))


# Parts and wholes


def _concatenates(node: Node, block: int) -> bool:
    """Along the channels, all parts but the last have to be whole blocks."""
    shapes = [e.type.shape for e in node.inputs]
    if node.attrs["axis"] % len(shapes[0]) != 1:
        return True
    return all(isinstance(s[1], int) and s[1] % block == 0 for s in shapes[:-1]) and isinstance(shapes[-1][1], int)


def _concatenate_ways(node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
    blocks = _blocks(node.outputs[0].type.shape, machine)
    return [Way((b,) * len(node.inputs), b) for b in blocks if _concatenates(node, b)]


def _make_concatenate(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    shape = node.outputs[0].type.shape
    entries = [blocker.to(v, way.block) for v in values]
    attrs = {**node.attrs, "axis": node.attrs["axis"] % len(shape)}
    made = apply(node.op, entries, attrs, node.name, node.source)
    return (Value(made[0], shape, blocker.layout(len(shape), way.block)),)


def _interleave_ways(node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
    blocks = _blocks(node.outputs[0].type.shape, machine) if 1 not in node.attrs["axes"] else ()
    return [Way((b,) * len(node.inputs), b) for b in blocks]


def _make_interleave(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    shape = node.outputs[0].type.shape
    made = apply(node.op, [blocker.to(v, way.block) for v in values], node.attrs, node.name, node.source)
    return (Value(made[0], shape, blocker.layout(len(shape), way.block)),)


def _pads_no_channels(node: Node, block: int) -> bool:
    return bool(node.attrs["pad_width"][1] == (0, 0))


def _make_pad(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    attrs = {**node.attrs, "pad_width": (*node.attrs["pad_width"], (0, 0))}
    shape = node.outputs[0].type.shape
    made = apply(node.op, [blocker.to(values[0], way.block)], attrs, node.name, node.source)
    return (Value(made[0], shape, blocker.layout(len(shape), way.block)),)


def _channel_range(node: Node) -> tuple[int, int, int] | None:
    """(begin, end, all) of the channels that a slice takes one after the other; None where they are not known."""
    shape = node.inputs[0].type.shape
    rank, channels = len(shape), shape[1]
    begin, end, step = (_per_axis(node.attrs[k], rank) for k in ("begin", "end", "step"))
    if not isinstance(channels, int) or (step[1] or 1) != 1:
        return None
    low, high = _bound(begin[1], 0, channels), _bound(end[1], channels, channels)
    return None if low is None or high is None or high <= low else (low, high, channels)


def _takes_whole_blocks(node: Node, block: int) -> bool:
    """Whether a slice begins with a block, and ends with one or with the data."""
    found = _channel_range(node)
    return found is not None and found[0] % block == 0 and (found[1] % block == 0 or found[1] == found[2])


def _make_slice(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    rank, block = len(values[0].shape), way.block
    found = _channel_range(node)
    assert found is not None
    begin, end, step = (_per_axis(node.attrs[k], rank) for k in ("begin", "end", "step"))
    attrs = {
        "begin": (begin[0], found[0] // block, *begin[2:]),
        "end": (end[0], ceildiv(found[1], block), *end[2:]),
        "step": tuple(s or 1 for s in step),
    }
    made = apply(node.op, [blocker.to(values[0], block)], attrs, node.name, node.source)
    return (Value(made[0], node.outputs[0].type.shape, blocker.layout(rank, block)),)


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


# Reductions and changes of shape


def _reduction_ways(node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
    """Over spatial axes: the result stays blocked, or is plain where nothing but channels is left."""
    axes, shape = node.attrs["axis"], node.inputs[0].type.shape
    if axes is None or len(shape) not in SPATIAL:
        return []
    reduced = _reduced(node)
    if not reduced or reduced[0] < 2 or not (node.attrs["keepdims"] or reduced == list(range(2, len(shape)))):
        return []
    return [Way((b,), b if node.attrs["keepdims"] else 1) for b in _blocks(shape, machine)]


def _reduced(node: Node) -> list[int]:
    axes, rank = node.attrs["axis"], node.inputs[0].type.rank
    return sorted(a % rank for a in (axes if isinstance(axes, tuple) else (axes,)))


def _make_reduction(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    shape, block, reduced = values[0].shape, way.inputs[0], _reduced(node)
    attrs = {**node.attrs, "axis": tuple(reduced), "keepdims": True}
    made = apply(node.op, [blocker.to(values[0], block)], attrs, node.name, node.source)
    kept = tuple(1 if i in reduced else d for i, d in enumerate(shape))
    value = Value(made[0], kept, blocker.layout(len(shape), block))
    if node.attrs["keepdims"]:
        return (value,)
    out = node.outputs[0].type.shape
    return (Value(_op("reshape", blocker.plain(value), shape=out), out),)


def _reshape_ways(node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
    """With one position per channel and no padding, the blocked value lies as the plain one."""
    shape = node.inputs[0].type.shape
    if any(d != 1 for d in shape[2:]):
        return []
    return [Way((b,), 1) for b in _blocks(shape, machine) if shape[1] % b == 0]


def _make_reshape(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    shape = node.outputs[0].type.shape
    return (Value(_op("reshape", blocker.to(values[0], way.inputs[0]), shape=shape), shape),)


def _transpose_ways(node: Node, fixed: Fixed, machine: Machine) -> list[Way]:
    """Out of the blocks, into the new order of axes and into blocks in one step."""
    inner = [1, *_blocks(node.inputs[0].type.shape, machine)]
    outer = [1, *_blocks(node.outputs[0].type.shape, machine)]
    return [Way((a,), b) for a in inner for b in outer]


def _make_transpose(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    value, out = values[0], node.outputs[0].type.shape
    rank = len(out)
    axes = node.op.attr("permutation")(node.attrs, rank)
    # the axes of the result by their letters there, and the source in these letters
    result = layout_name(rank, way.block)
    letters = dict(zip(axes, "NC" + SPATIAL[rank]))
    source = "".join(letters[i] for i in range(rank))
    entry = blocker.to(value, way.inputs[0])
    held = Value(entry, value.shape, blocker.layout(rank, way.inputs[0]) if way.inputs[0] > 1 else None)
    if held.layout is not None:
        source += f"{held.block}{source[1].lower()}"
    sizes = value.shape if held.is_padded else None
    made = _op("layout_transform", entry, src_layout=source, dst_layout=result, sizes=sizes)
    return (Value(made, out, blocker.layout(rank, way.block) if way.block > 1 else None),)


def _op(name: str, *inputs: NodeEntry, **attrs: object) -> NodeEntry:
    return apply(name, inputs, attrs)[0]


def elementwise(keeps_finite: bool) -> LayoutRule:
    """Elementwise and broadcasting ops; `keeps_finite`: finite for finite inputs, so that padding stays harmless."""
    rule = _Elementwise(keeps_finite)
    return LayoutRule(rule.ways, rule.make)


on_layout = LayoutRule(_same(_names_plain_layout), _make_on_layout)
concatenate = LayoutRule(_concatenate_ways, _make_concatenate)
interleave = LayoutRule(_interleave_ways, _make_interleave)
pad = LayoutRule(_same(_pads_no_channels), _make_pad)
slice_axes = LayoutRule(_same(_takes_whole_blocks), _make_slice)
reduction = LayoutRule(_reduction_ways, _make_reduction)
reshape = LayoutRule(_reshape_ways, _make_reshape)
transpose = LayoutRule(_transpose_ways, _make_transpose)
