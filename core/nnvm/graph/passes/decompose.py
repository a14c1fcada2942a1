"""Decompose: ops taken apart into others that together are faster.

```
%y = conv2d_transpose(%x, %w, strides=2)   ->   %a, %b, %c, %d = conv2d(%x, a quarter of %w), ...
                                                %y = interleave(%a, %b, %c, %d, steps=(2, 2))
```
The op attribute ``decompose``,

    (node) -> NodeEntry | None

makes the node's value of other ops, by the same formula (sums may be in another order), or gives None where it stays.
What is made of weights ends in the prepare graph.
"""

from __future__ import annotations

from nnvm.graph.graph import Graph, rebuild, with_inputs
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["decompose"]


@register_pass("Decompose", requires=["typed"], opt_level=1)
def decompose(graph: Graph, context: PassContext) -> Graph:
    """Applies the op attribute ``decompose``. requires: ``typed``."""

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> NodeEntry | None:
        rule = node.op.attr("decompose")
        return None if rule is None else rule(with_inputs(node, inputs))

    return rebuild(graph, rewrite)
