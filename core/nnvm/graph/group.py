"""Fused groups: what GraphFuse makes of nodes that become one kernel.

A group is a node of the op ``group`` whose attribute `graph` is a graph of its own: variables p0, p1, ... in the
order of the node's inputs, and one output per output of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry, apply, variable
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType

__all__ = ["fused_nodes", "make_group", "user_sources"]


def _infer(attrs: Mapping[str, Any], inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    graph: Graph = attrs["graph"]
    for var, t in zip(graph.inputs, inputs, strict=True):
        if var[0].type != t:
            raise ValueError(f"input {var.name} of the group is {var[0].type}, got {t}")
    return tuple(e.type for e in graph.outputs)


register(
    "group", inputs=["*args"], num_outputs=lambda attrs: len(attrs["graph"].outputs), infer_type=_infer,
    params={"graph": Param("the nodes that are fused, as a graph", lambda g: g),
            "pattern": Param("OpPattern of the whole", OpPattern)},
    pattern=OpPattern.OPAQUE, doc="Nodes that run as one kernel.",
)  # fmt: skip


def make_group(nodes: Sequence[Node], outputs: Sequence[NodeEntry], pattern: OpPattern, name: str = "") -> Node:
    """One group node that computes `outputs` out of the topologically ordered `nodes`.

    Its inputs are the entries that the nodes use from outside, in order of first use; scalar constants come along. A
    node that builds its own loop nest reads each of its inputs from memory: the group's inputs are the node's.
    """
    if len(nodes) == 1 and not nodes[0].op.has("compute"):
        return _alone(nodes[0], outputs, pattern, name)
    inside = set(nodes)
    outer: dict[NodeEntry, NodeEntry] = {}
    new: dict[Node, Node] = {}

    def inner(e: NodeEntry) -> NodeEntry:
        if e.node in new:
            return new[e.node][e.index]
        if e.node.is_constant and e.type.numel == 1:
            return e
        if e not in outer:
            outer[e] = variable(f"p{len(outer)}", e.type)
        return outer[e]

    for node in nodes:
        assert all(e.node not in inside or e.node in new for e in node.inputs), "nodes must be in topological order"
        new[node] = apply(node.op, [inner(e) for e in node.inputs], node.attrs, node.name, node.source)
    graph = Graph(tuple(inner(e) for e in outputs), tuple(v.node for v in outer.values()))
    return apply("group", list(outer), {"graph": graph, "pattern": pattern}, name or _group_name(nodes))


def _alone(node: Node, outputs: Sequence[NodeEntry], pattern: OpPattern, name: str) -> Node:
    inputs = [variable(f"p{i}", e.type) for i, e in enumerate(node.inputs)]
    inner = apply(node.op, inputs, node.attrs, node.name, node.source)
    graph = Graph(tuple(inner[e.index] for e in outputs), tuple(v.node for v in inputs))
    return apply("group", node.inputs, {"graph": graph, "pattern": pattern}, name or _group_name([node]))


def fused_nodes(graph: Graph) -> list[Node]:
    """The nodes of a group's graph that compute something, in order."""
    return [n for n in graph.nodes if not n.is_variable and not n.is_constant]


def user_sources(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The user's source lines that nodes come from, each once."""
    return tuple(dict.fromkeys(n.source for n in nodes if n.source))


def _group_name(nodes: Sequence[Node]) -> str:
    names = [n.op.name for n in nodes]
    return "_".join(names if len(names) <= 5 else [*names[:4], f"and_{len(names) - 4}_more"])
