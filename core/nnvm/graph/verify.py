"""Is a graph well formed? Run after every pass in tests, and on entry and exit of the compiler in debug mode."""

from __future__ import annotations

from collections.abc import Iterable

from nnvm.attribute import is_note
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, TypeInferenceError, infer_node
from nnvm.graph.printer import print_nodes

__all__ = ["VerifyError", "verify"]


class VerifyError(ValueError):
    """A malformed graph; the message shows what is wrong and the piece of graph around it."""


def verify(graph: Graph, when: str = "") -> Graph:
    """Gives the graph back, or raises VerifyError.

    Checked: no cycles; every variable that is used is listed among the inputs, once; names are unique; every node has
    the inputs and attributes its op takes, and uses outputs that exist; types are what inference gives from the
    inputs' types; constants are of their type; graphs of fused groups likewise.
    """
    order = _acyclic_order(graph, when)
    _check_inputs(graph, order, when)
    _check_names(graph, order, when)
    for node in order:
        _check_node(node, order, when)
    for i, e in enumerate(graph.outputs):
        if not 0 <= e.index < e.node.num_outputs:
            raise _error(when, f"output {i} is output {e.index} of {e.node.name}", [e.node], order)
    return graph


def _acyclic_order(graph: Graph, when: str) -> list[Node]:
    """Topological order by depth-first search; an input that is still open closes a cycle."""
    done: dict[Node, None] = {}
    opened: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(e.node, False) for e in reversed(graph.outputs)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            opened.discard(node)
            done[node] = None
            continue
        if node in done or node in opened:
            continue
        opened.add(node)
        stack.append((node, True))
        for e in reversed(node.inputs):
            if e.node in opened:
                raise _error(when, f"{node.name} and {e.node.name} depend on each other", [e.node, node], [])
            if e.node not in done:
                stack.append((e.node, False))
    return list(done)


def _check_inputs(graph: Graph, order: list[Node], when: str) -> None:
    listed = set(graph.inputs)
    if len(listed) != len(graph.inputs):
        twice = next(v for i, v in enumerate(graph.inputs) if v in graph.inputs[:i])
        raise _error(when, f"{twice.name} is listed twice among the inputs", [twice], order)
    for v in graph.inputs:
        if not v.is_variable:
            raise _error(when, f"input {v.name} is no variable", [v], order)
    for node in order:
        if node.is_variable and node not in listed:
            raise _error(when, f"variable {node.name} is used but is no input of the graph", [node], order)


def _check_names(graph: Graph, order: list[Node], when: str) -> None:
    by_name: dict[str, Node] = {}
    for node in dict.fromkeys((*graph.inputs, *order)):
        other = by_name.setdefault(node.name, node)
        if other is not node:
            raise _error(when, f"two nodes are called {node.name}", [other, node], order)


def _check_node(node: Node, order: list[Node], when: str) -> None:
    try:
        node.op.check_inputs(len(node.inputs))
    except ValueError as error:
        raise _error(when, str(error), [node], order) from None
    for i, e in enumerate(node.inputs):
        if not 0 <= e.index < e.node.num_outputs:
            raise _error(when, f"input {i} of {node.name} is output {e.index} of {e.node.name}", [node], order)
    if {k for k in node.attrs if not is_note(k)} != set(node.op.params):
        raise _error(when, f"{node.name} has attributes {sorted(node.attrs)}, {node.op.name} takes "
                           f"{sorted(node.op.params)}", [node], order)  # fmt: skip
    if node.is_constant:
        _check_constant(node, order, when)
    elif not node.is_variable:
        _check_types(node, order, when)
    for value in node.attrs.values():
        if isinstance(value, Graph):
            verify(value, f"in {node.name}" + (f", {when}" if when else ""))


def _check_constant(node: Node, order: list[Node], when: str) -> None:
    assert node.types is not None, "constants are made with their type"
    value, t = node.attrs["value"], node.types[0]
    if tuple(value.shape) != t.shape or value.dtype != t.dtype.numpy:
        raise _error(when, f"constant {node.name} of type {t} holds {value.dtype}{list(value.shape)}", [node], order)


def _check_types(node: Node, order: list[Node], when: str) -> None:
    if node.types is None:
        return
    if len(node.types) != node.op.outputs(node.attrs):
        raise _error(when, f"{node.name} has {len(node.types)} types for {node.op.outputs(node.attrs)} outputs",
                     [node], order)  # fmt: skip
    untyped = [e for e in node.inputs if e.node.types is None]
    if untyped:
        raise _error(when, f"{node.name} has types but its input {untyped[0]} has none", [node], order)
    if not node.op.has("infer_type"):
        return
    try:
        expected = infer_node(node, tuple(e.type for e in node.inputs))
    except TypeInferenceError as error:
        raise _error(when, str(error), [node], order) from None
    if expected != node.types:
        shown = ", ".join(map(str, expected))
        raise _error(when, f"{node.name} says {', '.join(map(str, node.types))}; inference gives {shown}",
                     [node], order)  # fmt: skip


def _error(when: str, what: str, at: list[Node], order: Iterable[Node]) -> VerifyError:
    """The message with the nodes in question, their inputs, and who uses them."""
    users = [n for n in order if any(e.node in at for e in n.inputs) and n not in at]
    around = dict.fromkeys([e.node for n in at for e in n.inputs if e.node not in at] + at + users[:4])
    return VerifyError(f"malformed graph{f' {when}' if when else ''}: {what}\n{_indented(print_nodes(around))}")


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())
