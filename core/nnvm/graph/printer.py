"""Graphs as text.

```
graph(%x: float32[1, 3], %w: float32[4, 3] param):
  %dense = dense(%x, %w): float32[1, 4]
  %relu = relu(%dense): float32[1, 4]
  return %relu
```
Only attributes that differ from the op's default are shown; small constants are shown by value, and the graph of a
fused group is indented below its node. Nodes that do not run where it was wished are named first, with the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry

__all__ = ["canonical_names", "format_attr", "print_graph", "print_nodes"]

_SHOWN_ELEMENTS = 8


def print_graph(graph: Graph, *, canonical: bool = False) -> str:
    """The graph as text. `canonical` numbers the nodes by op instead of using their names (for golden files)."""
    return "\n".join(_lines(graph, "graph", canonical_names(graph) if canonical else None, canonical, ""))


def print_nodes(nodes: Iterable[Node]) -> str:
    """Some nodes of a graph, one a line."""
    return "\n".join(line for n in nodes for line in _node_lines(n, None, False, ""))


def canonical_names(graph: Graph) -> dict[Node, str]:
    """Names that depend on the structure alone: ``conv2d``, ``conv2d_1``, ...; variables keep theirs."""
    names = {v: v.name for v in graph.inputs}
    taken = set(names.values())
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node in names:
            continue
        base = node.op.name
        while True:
            k = counts[base] = counts.get(base, -1) + 1
            name = f"{base}_{k}" if k else base
            if name not in taken:
                break
        taken.add(name)
        names[node] = name
    return names


def format_attr(value: Any) -> str:
    """One attribute value, short: arrays by dtype and shape, small ones by value."""
    if isinstance(value, np.ndarray):
        if value.size <= _SHOWN_ELEMENTS:
            return str(value.tolist())
        return f"<{value.dtype}{list(value.shape)}>"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return f"({', '.join(map(format_attr, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {format_attr(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _lines(graph: Graph, head: str, names: Mapping[Node, str] | None, canonical: bool, indent: str) -> list[str]:
    params = []
    for v in graph.inputs:
        kind = v.attrs["kind"] if v.is_variable else "input"
        params.append(f"%{_name(v, names)}: {_types(v)}" + (f" {kind}" if kind != "input" else ""))
    lines = [f"{indent}{head}({', '.join(params)}):"]
    if (placement := graph.attrs.get("placement")) is not None:
        lines += [f"{indent}  # {name} on {placement.device_of[name]}: {placement.reasons[name]}"
                  for name in placement.moved]  # fmt: skip
    for node in graph.nodes:
        if not node.is_variable:
            lines += _node_lines(node, names, canonical, indent + "  ")
    lines.append(f"{indent}  return {', '.join(_entry(e, names) for e in graph.outputs)}")
    return lines


def _node_lines(node: Node, names: Mapping[Node, str] | None, canonical: bool, indent: str) -> list[str]:
    if node.is_variable:
        return [f"{indent}%{_name(node, names)} = variable({node.attrs['kind']}): {_types(node)}"]
    args = [_entry(e, names) for e in node.inputs]
    graphs: list[tuple[str, Graph]] = []
    for key, value in node.attrs.items():
        if isinstance(value, Graph):
            graphs.append((key, value))
        elif node.is_constant:
            args.append(format_attr(value))
        elif not _is_default(node, key, value):
            args.append(f"{key}={format_attr(value)}")
    lines = [f"{indent}%{_name(node, names)} = {node.op.name}({', '.join(args)}): {_types(node)}"]
    for key, graph in graphs:
        lines += _lines(graph, key, canonical_names(graph) if canonical else None, canonical, indent + "  ")
    return lines


def _is_default(node: Node, key: str, value: Any) -> bool:
    param = node.op.params.get(key)
    return param is not None and not param.required and type(value) is type(param.default) and value == param.default


def _name(node: Node, names: Mapping[Node, str] | None) -> str:
    return node.name if names is None else names.get(node, node.name)


def _entry(e: NodeEntry, names: Mapping[Node, str] | None) -> str:
    name = "%" + _name(e.node, names)
    return name if e.node.num_outputs == 1 else f"{name}.{e.index}"


def _types(node: Node) -> str:
    return ", ".join(map(str, node.types)) if node.types is not None else "?"
