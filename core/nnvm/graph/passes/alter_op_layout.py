"""AlterOpLayout: convolutions in blocked layouts, with layout transforms only where they must be.

```
%y = conv2d(%x, %w)                  %t = layout_transform(%w, OIHW -> OIHW8i8o)           (prepared once)
%z = relu(%y)                 ->     %y = conv2d(%x8, %t, NCHW8c)
%v = conv2d(%z, %u)                  %z = relu(%y)                                        (blocked as well)
return %v                            %v = conv2d(%z, ...); return layout_transform(%v, NCHW8c -> NCHW)
```
In ``NCHW8c`` the channels lie in blocks of one vector register (8 floats with AVX2, 16 with AVX-512), so that kernels
compute one block of output channels per vector. Values are followed through the graph with the layout they are in; the
op attribute ``layout_rule``,

    (node, values: tuple[Value, ...], blocker: Blocker) -> tuple[Value, ...] | None

makes the op on blocked values, or gives None where it has to have them plain. Channel counts that a block does not
divide are padded with zeros where that does not cost much more; weights have zeros there too, so that what elementwise
ops make of the padding is never seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnvm.dim import Dim, Shape
from nnvm.graph.dependence import Fixed
from nnvm.graph.graph import Graph, with_inputs
from nnvm.graph.layout import Layout
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.target import Target

__all__ = ["MOST_PADDING", "SPATIAL", "Blocker", "Rule", "Value", "alter_op_layout", "padded"]

#: Spatial axes by rank of the tensor.
SPATIAL = {3: "W", 4: "HW", 5: "DHW"}
#: Largest part of the padded channels to the real ones.
MOST_PADDING = 1.6


@dataclass(frozen=True)
class Value:
    """A value of the old graph in the new one.

    Attributes:
        entry: the new value.
        shape: the old value's shape.
        layout: blocked layout of `entry`; None: plain, `entry` has `shape`.
    """

    entry: NodeEntry
    shape: Shape
    layout: Layout | None = None

    @property
    def block(self) -> int:
        return 1 if self.layout is None else self.layout.block("C")

    @property
    def is_padded(self) -> bool:
        """Whether the last block of channels has some that do not exist."""
        channels = self.shape[1] if len(self.shape) > 1 else 1
        return self.layout is not None and (not isinstance(channels, int) or channels % self.block != 0)


Rule = Callable[[Node, "tuple[Value, ...]", "Blocker"], "tuple[Value, ...] | None"]


@register_pass("AlterOpLayout", requires=["typed"], opt_level=3)
def alter_op_layout(graph: Graph, context: PassContext) -> Graph:
    """Gives the graph on blocked layouts. requires: ``typed``. Does nothing where there is nothing to block."""
    blocker = Blocker(context.target)
    values: dict[NodeEntry, Value] = {}
    for node in graph.nodes:
        given = tuple(values[e] for e in node.inputs)
        rule: Rule | None = node.op.attr("layout_rule")
        made = rule(node, given, blocker) if rule is not None and node.types is not None else None
        if made is None:
            entries = tuple(blocker.plain(v) for v in given)
            kept = node if entries == node.inputs else with_inputs(node, entries)
            made = tuple(Value(e, e.type.shape if e.node.types is not None else ()) for e in kept.outputs)
        values.update(zip(node.outputs, made, strict=True))
    if not blocker.changed:
        return graph
    return graph.with_outputs([blocker.plain(values[e]) for e in graph.outputs])


class Blocker:
    """Chooses blocks and converts values; each conversion is made once."""

    def __init__(self, target: Target) -> None:
        self.lanes = max(4, target.lanes(32))
        self.fixed = Fixed()
        self.changed = False
        self._plain: dict[NodeEntry, NodeEntry] = {}
        self._blocked: dict[NodeEntry, NodeEntry] = {}

    def block_of(self, channels: Dim) -> int | None:
        """Block for that many channels: a vector register, or half of one; None where it would be mostly padding."""
        if not isinstance(channels, int) or channels < 1:
            return None
        for block in (self.lanes, self.lanes // 2):
            if block >= 4 and padded(channels, block) <= MOST_PADDING * channels:
                return block
        return None

    def layout(self, rank: int, block: int) -> Layout:
        return Layout.parse(f"NC{SPATIAL[rank]}{block}c")

    def plain(self, value: Value) -> NodeEntry:
        """The value in its old layout."""
        if value.layout is None:
            return value.entry
        if value.entry not in self._plain:
            names = value.layout.names
            if _keeps_order(value.shape, value.is_padded):
                made = _op("reshape", value.entry, shape=value.shape)
            else:
                made = self.unblocked(value, names)
            self._plain[value.entry] = made
        return self._plain[value.entry]

    def unblocked(self, value: Value, names: str) -> NodeEntry:
        """A blocked value as a plain tensor with its axes in the order of `names`."""
        assert value.layout is not None
        sizes = value.shape if value.is_padded else None
        return _op("layout_transform", value.entry, src_layout=str(value.layout), dst_layout=names, sizes=sizes)

    def blocked(self, value: Value, block: int) -> NodeEntry:
        """The value in blocks of that size; a transpose before it is done on the way."""
        if value.layout is not None:
            if value.block == block:
                return value.entry
            value = Value(self.plain(value), value.shape)
        rank = len(value.shape)
        layout = self.layout(rank, block)
        if value.entry not in self._blocked:
            channels = value.shape[1]
            partial = not isinstance(channels, int) or channels % block != 0
            if _keeps_order(value.shape, partial):
                made = _op("reshape", value.entry, shape=layout.shape(dict(zip(layout.names, value.shape))))
            else:
                source, names = value.entry, layout.names
                permutation = source.node.op.attr("permutation")
                if permutation is not None and not self.fixed(source.node):
                    axes = permutation(source.node.attrs, rank)
                    source = source.node.inputs[0]
                    names = "".join(layout.names[axes.index(d)] for d in range(rank))
                made = _op("layout_transform", source, src_layout=names, dst_layout=str(layout))
            self._blocked[value.entry] = made
        return self._blocked[value.entry]


def padded(channels: int, block: int) -> int:
    """Channels with those that fill the last block."""
    return -(-channels // block) * block


def _keeps_order(shape: Shape, partial: bool) -> bool:
    """Whether blocking leaves all elements where they are: one position per channel, no partial block."""
    return not partial and all(d == 1 for d in shape[2:])


def _op(name: str, *inputs: NodeEntry, **attrs: object) -> NodeEntry:
    return apply(name, inputs, attrs)[0]
