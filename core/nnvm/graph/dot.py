"""Graphs for Graphviz: ``dot -Tsvg``. Groups are boxes with their ops, parameters and constants are left out."""

from __future__ import annotations

from nnvm.graph.graph import Graph
from nnvm.graph.node import Node
from nnvm.graph.views import is_view

__all__ = ["save_dot"]


def save_dot(graph: Graph, *, parameters: bool = False) -> str:
    """The graph in the DOT language; edges carry types. `parameters`: show weights and constants as well."""
    lines = ["digraph graph_ {", "  rankdir=TB; node [shape=box, fontname=Helvetica, fontsize=10]; edge [fontsize=8];"]
    shown = {n: f"n{i}" for i, n in enumerate(graph.nodes) if parameters or not _is_parameter(n)}
    for node, name in shown.items():
        lines.append(f"  {name} [label={_quoted(_label(node))}{_style(node)}];")
        for e in node.inputs:
            if e.node in shown:
                known = e.node.types is not None
                lines.append(f"  {shown[e.node]} -> {name} [label={_quoted(str(e.type) if known else '')}];")
    for i, e in enumerate(graph.outputs):
        lines.append(f"  out{i} [label={_quoted(f'output {i}')}, shape=ellipse];")
        if e.node in shown:
            lines.append(f"  {shown[e.node]} -> out{i};")
    return "\n".join([*lines, "}", ""])


def _is_parameter(node: Node) -> bool:
    return node.is_constant or (node.is_variable and node.attrs["kind"] != "input")


def _label(node: Node) -> str:
    inner = node.attrs.get("graph")
    if isinstance(inner, Graph):
        return "\n".join(n.op.name for n in inner.nodes if not n.is_variable and not n.is_constant)
    return node.name if node.is_variable or node.is_constant else node.op.name


def _style(node: Node) -> str:
    if node.is_variable or node.is_constant:
        return ", shape=ellipse"
    if is_view(node):
        return ", style=dashed"
    return ", style=filled, fillcolor=lightblue" if node.op.name == "group" else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
