"""What values depend on: parameters and constants only, or inputs that change at each call."""

from __future__ import annotations

from nnvm.dim import SymDim, is_static
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node

__all__ = ["Fixed", "depends_on_sizes", "is_pure", "parameter_dependence"]


def is_pure(node: Node) -> bool:
    """Whether a node's outputs depend on its inputs alone, by a rule that is known here."""
    op = node.op
    known = op.has("compute") or op.has("build_tir") or op.has("reference") or op.name == "group"
    return known and not op.attr("stateful", False)


def depends_on_sizes(node: Node) -> bool:
    """Whether a node's outputs depend on sizes known at the call only (positions up to the length of the sequence)."""
    return not all(is_static(e.type.shape) for e in node.outputs) or any(map(_has_size, node.attrs.values()))


def _has_size(value: object) -> bool:
    if isinstance(value, Graph):
        return any(map(depends_on_sizes, value.nodes))
    return isinstance(value, SymDim) or (isinstance(value, (tuple, list)) and any(map(_has_size, value)))


class Fixed:
    """Answers whether a node depends on parameters and constants only, remembering what it found."""

    def __init__(self) -> None:
        self._known: dict[Node, bool] = {}

    def __call__(self, node: Node) -> bool:
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._known:
                stack.pop()
            elif top.is_variable:
                self._known[top] = top.attrs["kind"] in ("param", "prepared")
            elif top.is_constant:
                self._known[top] = True
            elif not is_pure(top) or depends_on_sizes(top):
                self._known[top] = False
            else:
                missing = [e.node for e in top.inputs if e.node not in self._known]
                if missing:
                    stack.extend(missing)
                else:
                    self._known[top] = all(self._known[e.node] for e in top.inputs)
        return self._known[node]


def parameter_dependence(graph: Graph) -> dict[Node, frozenset[str] | None]:
    """For each node the names of the parameters that it depends on; None where it depends on an input or a size too, or
    is not pure. Constants depend on nothing."""
    found: dict[Node, frozenset[str] | None] = {}
    nothing: frozenset[str] = frozenset()
    for node in graph.nodes:
        if node.is_variable:
            found[node] = frozenset((node.name,)) if node.attrs["kind"] == "param" else None
        elif node.is_constant:
            found[node] = nothing
        elif not is_pure(node) or depends_on_sizes(node):
            found[node] = None
        else:
            total: frozenset[str] | None = nothing
            for e in node.inputs:
                part = found[e.node]
                if part is None:
                    total = None
                    break
                total = total | part if total is not None else None
            found[node] = total
    return found
