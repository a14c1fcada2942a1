"""A graph: its outputs, and the variables it is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from nnvm.graph.index import GraphIndex, json_attr
from nnvm.graph.node import Node, NodeEntry, apply

__all__ = ["Graph", "Uses", "rebuild", "topological", "with_inputs"]


@dataclass(eq=False, frozen=True)
class Graph:
    """Immutable. Passes give a new Graph, or the same object where they change nothing.

    Attributes:
        outputs: what it computes.
        inputs: its variables in calling order, those that nothing uses included.
        attrs: graph attributes (`graph_attrs`), each provided by a pass.
    """

    outputs: tuple[NodeEntry, ...]
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, inputs before their users; graph inputs that nothing uses are not among them. Read only."""
        return topological(self.outputs)

    def with_attrs(self, **attrs: Any) -> Graph:
        return replace(self, attrs={**self.attrs, **attrs})

    def with_outputs(self, outputs: Sequence[NodeEntry]) -> Graph:
        return replace(self, outputs=tuple(outputs))

    def ir(self) -> str:
        """The graph as text."""
        from nnvm.graph.printer import print_graph

        return print_graph(self)

    def json(self) -> str:
        """The graph in NNVM's JSON format; `nnvm.graph.load_json` reads it."""
        from nnvm.graph.json import save_json

        return save_json(self)

    def dot(self) -> str:
        """The graph for Graphviz."""
        from nnvm.graph.dot import save_dot

        return save_dot(self)

    def to_onnx(self, params: Mapping[str, Any] | None = None) -> Any:
        """The graph as an `onnx.ModelProto`, variables in `params` as initialisers; see `nnvm.frontend.onnx.to_onnx`,
        which must be imported."""
        from nnvm.graph.exporters import exporter

        return exporter("onnx", "nnvm.frontend.onnx")(self, params)

    def apply(self, passes: str | Sequence[str]) -> Graph:
        """The graph after one or several passes, under the current `PassContext`."""
        import nnvm.graph.passes  # noqa: F401  registers them
        from nnvm.graph.pass_manager import apply_passes

        return apply_passes(self, [passes] if isinstance(passes, str) else passes)

    @cached_property
    def index(self) -> GraphIndex:
        """Numbers of nodes and values, as in the JSON."""
        return GraphIndex(self)

    def json_attr(self, key: str) -> Any:
        """A graph attribute as plain data, None where there is none; see graph/index.py."""
        return json_attr(self, key)

    def _set_json_attr(self, key: str, value: Any, type_name: str | None = None) -> None:
        """Sets a graph attribute in place, as NNVM does; a value keeps its Python type, whatever `type_name` says."""
        self._become(self.with_attrs(**{key: value}))

    def _become(self, other: Graph) -> Graph:
        """Changes this graph into `other`: for the functions of NNVM that work in place."""
        for name in ("outputs", "inputs", "attrs"):
            object.__setattr__(self, name, getattr(other, name))
        for cached in ("nodes", "index"):
            self.__dict__.pop(cached, None)
        return self

    def __copy__(self) -> Graph:
        return replace(self, attrs=dict(self.attrs))  # nodes never change

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self.__copy__()

    def __reduce__(self) -> tuple[Callable[[str], Graph], tuple[str]]:
        """Pickled as its JSON; graph attributes that are no plain data are left out."""
        from nnvm.graph.json import load_json

        return load_json, (self.json(),)

    def __str__(self) -> str:
        return self.ir()


def topological(outputs: Iterable[NodeEntry]) -> list[Node]:
    """Nodes that `outputs` depend on, inputs first; iterative, so depth is no limit.

    ValueError names two nodes that depend on each other.
    """
    order: dict[Node, None] = {}
    opened: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(e.node, False) for e in reversed(list(outputs))]
    while stack:
        node, done = stack.pop()
        if node in order:
            continue
        if done:
            order[node] = None
        elif node in opened:
            user = next(n for n, entered in reversed(stack) if entered and any(e.node is node for e in n.inputs))
            raise ValueError(f"{node.name} and {user.name} depend on each other; a graph has no cycles")
        else:
            opened.add(node)
            stack.append((node, True))
            stack.extend((e.node, False) for e in reversed(node.inputs) if e.node not in order)
    return list(order)


class Uses:
    """Who uses each value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.order = graph.nodes
        self._uses: dict[NodeEntry, list[tuple[Node, int]]] = {}
        for node in self.order:
            for i, e in enumerate(node.inputs):
                self._uses.setdefault(e, []).append((node, i))
        self.outputs = set(graph.outputs)

    def of(self, entry: NodeEntry) -> list[tuple[Node, int]]:
        """(user, input position) pairs, in topological order; graph outputs are not counted."""
        return self._uses.get(entry, [])

    def of_node(self, node: Node) -> list[tuple[Node, int]]:
        return [u for e in node.outputs for u in self.of(e)]

    def is_output(self, entry: NodeEntry) -> bool:
        return entry in self.outputs

    def sole_user(self, entry: NodeEntry) -> Node | None:
        """The one node that uses it, where it is used once and is no graph output."""
        users = self.of(entry)
        return users[0][0] if len(users) == 1 and entry not in self.outputs else None


def with_inputs(node: Node, inputs: tuple[NodeEntry, ...]) -> Node:
    """The same node on other inputs; types are inferred anew only where the inputs' types changed."""
    if node.types is not None and all(
        new.node.types is not None and new.type == old.type for new, old in zip(inputs, node.inputs, strict=True)
    ):
        return Node(node.op, inputs, node.attrs, node.name, node.types, node.source)
    return apply(node.op, inputs, node.attrs, node.name, node.source)


Rewrite = Callable[[Node, tuple[NodeEntry, ...]], "Node | tuple[NodeEntry, ...] | NodeEntry | None"]


def rebuild(graph: Graph, rewrite: Rewrite) -> Graph:
    """The graph with nodes replaced, in topological order.

    `rewrite(node, inputs)` gets each node that is no variable with its already rewritten inputs, and gives None to
    keep it (on the new inputs), a Node, or the entries that replace its outputs. Gives the same Graph object where
    nothing changed.
    """
    new: dict[Node, tuple[NodeEntry, ...]] = {}
    changed = False
    for node in graph.nodes:
        if node.is_variable:
            new[node] = node.outputs
            continue
        inputs = tuple(new[e.node][e.index] for e in node.inputs)
        result = rewrite(node, inputs)
        if result is None:
            same = all(a == b for a, b in zip(inputs, node.inputs))
            kept = node if same else with_inputs(node, inputs)
            new[node] = kept.outputs
            changed |= not same
            continue
        outputs = result.outputs if isinstance(result, Node) else (result,) if isinstance(result, NodeEntry) else result
        new[node] = tuple(outputs)
        changed |= tuple(outputs) != node.outputs
    if not changed:
        return graph
    return graph.with_outputs([new[e.node][e.index] for e in graph.outputs])
