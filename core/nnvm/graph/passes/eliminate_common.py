"""EliminateCommon: what is computed twice is computed once.

```
%a = relu(%x)
%b = relu(%x)            ->      %a = relu(%x)
%c = add(%a, %b)                 %c = add(%a, %a)
```
Equal constants become one. Ops with effects or random numbers, and what the compiler knows nothing of, are left alone.
"""

from __future__ import annotations

from nnvm.graph.dependence import is_pure
from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.structural import attr_key

__all__ = ["eliminate_common"]


@register_pass("EliminateCommon", opt_level=1)
def eliminate_common(graph: Graph, context: PassContext) -> Graph:
    """Merges nodes of the same op, attributes, inputs and types."""
    seen: dict[tuple[object, ...], Node] = {}

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
        if not node.is_constant and not is_pure(node):
            return None
        attrs = tuple((k, attr_key(v)) for k, v in node.attrs.items())
        key = (node.op, inputs, attrs, node.types)
        first = seen.get(key)
        if first is None:
            seen[key] = kept = node if inputs == node.inputs else _on(node, inputs)
            return kept
        return first

    return rebuild(graph, rewrite)


def _on(node: Node, inputs: tuple[NodeEntry, ...]) -> Node:
    return Node(node.op, inputs, node.attrs, node.name, node.types, node.source)
