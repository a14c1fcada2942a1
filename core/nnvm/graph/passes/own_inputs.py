"""OwnInputs: a loop nest that an op builds itself reads contiguous memory.

```
%x (strides 1, 8), %y = cumsum(%x)      ->      %c = identity(%x); %y = cumsum(%c)
```
Tensor expressions are lowered for the strides of the graph's inputs; the loop nests of scans, sorts and scatters are
written for contiguous memory, so an input that the caller lays out otherwise is copied for them, once for all.
"""

from __future__ import annotations

from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["own_inputs"]


@register_pass("OwnInputs", requires=["typed"], opt_level=0)
def own_inputs(graph: Graph, context: PassContext) -> Graph:
    """Copies the inputs that need it. requires: ``typed``; reads ``input_strides``."""
    strides = graph.attrs.get("input_strides") or ()
    apart = {v[0] for v, s in zip(graph.inputs, strides) if s is not None}
    if not apart:
        return graph
    copies: dict[NodeEntry, NodeEntry] = {}

    def copied(e: NodeEntry) -> NodeEntry:
        if e not in copies:
            copies[e] = apply("identity", [e], name=f"{e.node.name}.contiguous", source=e.node.source)[0]
        return copies[e]

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
        alone = node.op.has("build_tir") and not node.op.has("compute")
        if not alone or not any(e in apart for e in inputs):
            return None
        given = [copied(e) if e in apart else e for e in inputs]
        return apply(node.op, given, node.attrs, node.name, node.source)

    return rebuild(graph, rewrite)
