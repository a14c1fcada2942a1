"""Types and kinds of a graph's variables, given from outside by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.types import TensorType

__all__ = ["check_names", "replace_variables", "with_input_types"]


def with_input_types(graph: Graph, types: Mapping[str, TensorType]) -> Graph:
    """`graph` with these types of its variables; what follows from them is to be inferred anew.

    ValueError names what is no variable of the graph, and the variables there are.
    """
    check_names(graph, types)
    return replace_variables(graph, lambda v: _typed(v, types[v.name]) if v.name in types else v)


def check_names(graph: Graph, names: Mapping[str, object], what: str = "input") -> None:
    """ValueError where one of `names` is no variable of the graph."""
    known = [v.name for v in graph.inputs]
    if wrong := [n for n in names if n not in known]:
        raise ValueError(f"no {what} {', '.join(map(repr, wrong))} in the graph; its inputs are {', '.join(known)}")


def replace_variables(graph: Graph, replacement: Callable[[Node], Node]) -> Graph:
    """The graph with other variables in the place of its own; the same object where each is replaced by itself."""
    new = {v: replacement(v) for v in graph.inputs}
    if all(a is b for a, b in new.items()):
        return graph
    done: dict[Node, Node] = dict(new)
    for node in graph.nodes:
        if node not in done:
            inputs = tuple(NodeEntry(done[e.node], e.index) for e in node.inputs)
            done[node] = node if inputs == node.inputs else _rewired(node, inputs)
    outputs = tuple(NodeEntry(done[e.node], e.index) for e in graph.outputs)
    attrs = graph.attrs if all(n.types is not None for n in done.values()) else _untyped(graph)
    return Graph(outputs, tuple(new.values()), attrs)


def _rewired(node: Node, inputs: tuple[NodeEntry, ...]) -> Node:
    same = all(new.node.types == old.node.types for new, old in zip(inputs, node.inputs))
    return Node(node.op, inputs, node.attrs, node.name, node.types if same else None, node.source)


def _typed(v: Node, type: TensorType) -> Node:
    return v if v.types == (type,) else Node(v.op, (), v.attrs, v.name, (type,))


def _untyped(graph: Graph) -> dict[str, object]:
    return {k: v for k, v in graph.attrs.items() if k != "typed"}
