"""Builds the graph of groups once it is known which nodes belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnvm.graph.graph import Graph, with_inputs
from nnvm.graph.group import make_group
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.op_attrs import OpPattern

__all__ = ["build_fused_graph"]


@dataclass(eq=False, slots=True)
class _Unit:
    """A group to build. `outputs` are its values that are needed outside."""

    nodes: list[Node]
    outputs: list[NodeEntry]
    depends: list[Node]


def build_fused_graph(graph: Graph, groups: Sequence[Sequence[Node]], index: Mapping[Node, int]) -> Graph:
    """The graph with one `group` node for each list of nodes; all other nodes are kept.

    A node in several lists is copied into each; its value must not be needed elsewhere then. `index` gives the
    topological position of every node. ValueError where groups depend on each other.
    """
    unit_of = _units(graph, groups, index)
    new: dict[NodeEntry, NodeEntry] = {}
    names = _Names({n.name for n in index if n not in unit_of} | {v.name for v in graph.inputs})
    done: set[object] = set()
    begun: set[object] = set()
    stack: list[tuple[Node, bool]] = [(e.node, False) for e in reversed(graph.outputs)]
    while stack:
        node, ready = stack.pop()
        unit = unit_of.get(node)
        key: object = node if unit is None else unit
        if key in done:
            continue
        if not ready:
            if key in begun:
                raise ValueError(f"the group of {node.name} ({node.op.name}) depends on itself")
            begun.add(key)
            stack.append((node, True))
            depends = [e.node for e in node.inputs] if unit is None else unit.depends
            stack.extend((d, False) for d in reversed(depends) if (unit_of.get(d) or d) not in done)
            continue
        done.add(key)
        if unit is None:
            _keep(node, new)
        else:
            _make(unit, new, names)
    return graph.with_outputs([new[e] for e in graph.outputs])


def _units(graph: Graph, groups: Sequence[Sequence[Node]], index: Mapping[Node, int]) -> dict[Node, _Unit]:
    counts = Counter(n for nodes in groups for n in nodes)
    units = [_Unit(sorted(nodes, key=index.__getitem__), [], []) for nodes in groups]
    unit_of = {n: unit for unit in units for n in unit.nodes if counts[n] == 1}
    wanted = set(graph.outputs)
    for node in index:
        if node not in counts:
            wanted.update(node.inputs)
    for unit in units:
        inside = set(unit.nodes)
        outer = dict.fromkeys(e for n in unit.nodes for e in n.inputs if e.node not in inside)
        wanted.update(outer)
        unit.depends = list(dict.fromkeys(e.node for e in outer))
    for unit in units:
        # a loop nest of its own writes all outputs of its op
        unit.outputs = [e for n in unit.nodes if counts[n] == 1 for e in n.outputs
                        if e in wanted or not n.op.has("compute")]  # fmt: skip
    return unit_of


def _keep(node: Node, new: dict[NodeEntry, NodeEntry]) -> None:
    inputs = tuple(new[e] for e in node.inputs)
    kept = node if inputs == node.inputs else with_inputs(node, inputs)
    new.update(zip(node.outputs, kept.outputs))


def _make(unit: _Unit, new: dict[NodeEntry, NodeEntry], names: _Names) -> None:
    pattern = max(OpPattern(n.op.attr("pattern", OpPattern.OPAQUE)) for n in unit.nodes)
    group = make_group(unit.nodes, unit.outputs, pattern)
    inner: Graph = group.attrs["graph"]
    if pairs := _inplace_pairs(unit, group, inner):
        group.attrs = {**group.attrs, "graph": inner.with_attrs(inplace=pairs)}
    group.name = names.unique(_group_name(unit))
    fused = with_inputs(group, tuple(new[e] for e in group.inputs))
    new.update(zip(unit.outputs, fused.outputs))


def _group_name(unit: _Unit) -> str:
    ops = [n.op.name for n in unit.nodes]
    return "_".join(ops if len(ops) <= 5 else [*ops[:4], f"and_{len(ops) - 4}_more"])


class _Names:
    """Gives names that are not taken, ``add``, ``add_1``, ..."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.next: dict[str, int] = {}

    def unique(self, base: str) -> str:
        k = self.next.get(base, 0)
        while (name := f"{base}_{k}" if k else base) in self.taken:
            k += 1
        self.next[base] = k + 1
        self.taken.add(name)
        return name


def _inplace_pairs(unit: _Unit, group: Node, inner: Graph) -> tuple[tuple[int, int], ...]:
    """Inputs that the single output may overwrite: in an elementwise group, each of the output's shape and width."""
    if len(unit.outputs) != 1 or any(n.op.attr("pattern", OpPattern.OPAQUE) > OpPattern.BROADCAST for n in unit.nodes):
        return ()
    out = unit.outputs[0].type
    return tuple(
        (i, 0)
        for i, v in enumerate(inner.inputs)
        if v[0].type.shape == out.shape and v[0].type.dtype.bytes == out.dtype.bytes
    )
