"""EliminateDead: outputs and inputs of fused groups that nothing uses.

```
%g = group(%x, %y): two outputs        ->      %g = group(%x): one output
return %g.0                                    return %g
```
A graph is what its outputs depend on, so that a node that nothing uses is in no graph; only groups have dead parts.
"""

from __future__ import annotations

from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["eliminate_dead"]


@register_pass("EliminateDead", opt_level=1)
def eliminate_dead(graph: Graph, context: PassContext) -> Graph:
    """Drops what no node and no output of the graph needs from fused groups."""
    uses = Uses(graph)

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | tuple[NodeEntry, ...] | None:
        inner = node.attrs.get("graph")
        if not isinstance(inner, Graph):
            return None
        if any(n.op.has("build_tir") and not n.op.has("compute") for n in inner.nodes):
            return None  # its loop nest writes all outputs
        live = [i for i, e in enumerate(node.outputs) if uses.of(e) or uses.is_output(e)]
        smaller = inner.with_outputs([inner.outputs[i] for i in live])
        needed = set(smaller.nodes)
        read = [i for i, v in enumerate(inner.inputs) if v in needed]
        if len(live) == node.num_outputs and len(read) == len(inner.inputs):
            return None
        kept = {k: v for k, v in inner.attrs.items() if k != "inplace"}
        pairs = tuple((read.index(i), live.index(o)) for i, o in inner.attrs.get("inplace", ())
                      if i in read and o in live)  # fmt: skip
        attrs = {**kept, "inplace": pairs} if pairs else kept
        body = Graph(smaller.outputs, tuple(inner.inputs[i] for i in read), attrs)
        made = apply(node.op, [inputs[i] for i in read], {**node.attrs, "graph": body}, node.name, node.source)
        position = {o: k for k, o in enumerate(live)}
        # a dead output keeps a place that nothing reads
        return tuple(made[position.get(o, 0)] for o in range(node.num_outputs))

    return rebuild(graph, rewrite)
