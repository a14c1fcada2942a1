"""Names of nodes made unique: several passes, plans and reports speak of nodes by name.

```
%x = variable                          %x = variable
%a = relu(%x)                          %a = relu(%x)
%a = exp(%a)                    ->     %a_1 = exp(%a)
%x = add(%x, %a)                       %x_1 = add(%x, %a_1)
```
The first in topological order keeps its name. Variables always keep theirs, as values are given to them by name.
"""

from __future__ import annotations

import itertools

from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.node import Node, NodeEntry

__all__ = ["new_names", "with_unique_names"]


def new_names(graph: Graph) -> dict[Node, str]:
    """The nodes that need another name, with it; empty where all names are unique."""
    nodes = [n for n in graph.nodes if not n.is_variable]
    taken = {v.name for v in (*graph.inputs, *graph.nodes) if v.is_variable}
    every = taken | {n.name for n in nodes}
    found: dict[Node, str] = {}
    counters: dict[str, itertools.count[int]] = {}
    for n in nodes:
        if n.name not in taken:
            taken.add(n.name)
            continue
        counter = counters.setdefault(n.name, itertools.count(1))
        found[n] = next(name for k in counter if (name := f"{n.name}_{k}") not in every)
        every.add(found[n])
    return found


def with_unique_names(graph: Graph) -> Graph:
    """The graph with names as the figure above shows; the same object where they are unique."""
    names = new_names(graph)
    if not names:
        return graph

    def rename(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
        if node not in names and inputs == node.inputs:
            return None
        return Node(node.op, inputs, node.attrs, names.get(node, node.name), node.types, node.source)

    return rebuild(graph, rename)
