"""AlterOpLayout: convolutions in blocked layouts, with layout transforms only where they must be.

```
%y = conv2d(%x, %w)                  %t = layout_transform(%w, OIHW -> OIHW8i8o)           (prepared once)
%z = relu(%y)                 ->     %y = conv2d(%x8, %t, NCHW8c)
%v = conv2d(%z, %u)                  %z = relu(%y)                                        (blocked as well)
return %v                            %v = conv2d(%z, ...); return layout_transform(%v, NCHW8c -> NCHW)
```
In ``NCHW8c`` the channels lie in blocks of one vector register (8 floats with AVX2, 16 with AVX-512), so that kernels
compute one block of output channels per vector. Which layout each value is in is decided for the whole graph at once
(`layout_plan`), from what kernels and transforms are estimated to cost; here the graph is written anew by that plan.
The op attribute ``layout_rule`` is a `LayoutRule`: the ways in which the op can run, and how it is made in one of them.

Channel counts that a block does not divide are padded with zeros where that costs less; weights have zeros there too,
so that what elementwise ops make of the padding is never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnvm.dim import Shape
from nnvm.graph.dependence import Fixed
from nnvm.graph.graph import Graph, with_inputs
from nnvm.graph.layout import Layout
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.passes.layout_plan import Machine, Way, keeps_order, plan_layouts

__all__ = ["SPATIAL", "Blocker", "LayoutRule", "Value", "Values", "alter_op_layout"]

#: Spatial axes by rank of the tensor.
SPATIAL = {3: "W", 4: "HW", 5: "DHW"}


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


Values = tuple[Value, ...]


@dataclass(frozen=True)
class LayoutRule:
    """Value of the op attribute ``layout_rule``.

    Attributes:
        ways: the ways in which a node can run besides the plain one.
        make: its outputs in the chosen way. The values come as they are; ``blocker.to`` brings them into the blocks
            that the way says.
        always: `make` is for the plain way too.
    """

    ways: Callable[[Node, Fixed, Machine], Sequence[Way]]
    make: Callable[[Node, Values, Way, Blocker], Values]
    always: bool = False


@register_pass("AlterOpLayout", requires=["typed"], opt_level=3)
def alter_op_layout(graph: Graph, context: PassContext) -> Graph:
    """Gives the graph on blocked layouts. requires: ``typed``. Does nothing where there is nothing to block."""
    if context.target.is_gpu:  # blocks are for vector registers
        return graph
    library = "cpu_library" in context.options and "ChooseLibrary" not in context.disabled
    machine, fixed = Machine(context.target, library), Fixed()
    plan = plan_layouts(graph, fixed, machine)
    blocker = Blocker(machine, fixed)
    values: dict[NodeEntry, Value] = {}
    changed = False
    for node in graph.nodes:
        given = tuple(values[e] for e in node.inputs)
        way = plan.get(node)
        if way is not None and (way.block > 1 or max(way.inputs, default=1) > 1 or node.op.attr("layout_rule").always):
            made = node.op.attr("layout_rule").make(node, given, way, blocker)
            changed |= made[0].entry.node is not node
        else:
            entries = tuple(blocker.plain(v) for v in given)
            kept = node if entries == node.inputs else with_inputs(node, entries)
            made = tuple(Value(e, e.type.shape if e.node.types is not None else ()) for e in kept.outputs)
        values.update(zip(node.outputs, made, strict=True))
    if not changed:
        return graph
    return graph.with_outputs([blocker.plain(values[e]) for e in graph.outputs])


class Blocker:
    """Converts values; each conversion is made once."""

    def __init__(self, machine: Machine, fixed: Fixed) -> None:
        self.machine, self.fixed = machine, fixed
        self._made: dict[tuple[NodeEntry, int], NodeEntry] = {}

    def layout(self, rank: int, block: int) -> Layout:
        return Layout.parse(layout_name(rank, block))

    def plain(self, value: Value) -> NodeEntry:
        """The value in its old layout."""
        return self.to(value, 1)

    def to(self, value: Value, block: int) -> NodeEntry:
        """The value in blocks of that size; 1: plain."""
        if value.block == block:
            return value.entry
        key = value.entry, block
        if key not in self._made:
            rank, shape = len(value.shape), value.shape
            names = "NC" + SPATIAL[rank]
            wanted = self.layout(rank, block)
            if keeps_order(shape, value.block) and keeps_order(shape, block):
                made = _op("reshape", value.entry, shape=wanted.shape(dict(zip(names, shape))))
            else:
                made = self.transformed(value, str(wanted))
            self._made[key] = made
        return self._made[key]

    def transformed(self, value: Value, layout: str) -> NodeEntry:
        """The value in any layout of its axes."""
        source = layout_name(len(value.shape), value.block)
        sizes = value.shape if value.is_padded else None
        return _op("layout_transform", value.entry, src_layout=source, dst_layout=layout, sizes=sizes)


def layout_name(rank: int, block: int) -> str:
    """The name of the layout with channels in blocks of that size; 1: plain."""
    return f"NC{SPATIAL[rank]}{block}c" if block > 1 else "NC" + SPATIAL[rank]


def _op(name: str, *inputs: NodeEntry, **attrs: object) -> NodeEntry:
    return apply(name, inputs, attrs)[0]
