"""CombineParallel: several ops on the same data as one wider op (horizontal fusion).

```
%q = dense(%x, %wq, %bq)         %w = concatenate(%wq, %wk, %wv)                               (prepared once)
%k = dense(%x, %wk, %bk)   ->    %y = dense(%x, %w, %b)
%v = dense(%x, %wv, %bv)         %q, %k, %v = slices of %y along the columns
```
The data is read once, and few rows give the threads enough columns. It is done where nothing is lost by it: the
weights are fixed, and no consumer is elementwise, as that would have been the epilogue of its own product (the gate of
a gated MLP). The op attribute ``combine``,

    (nodes: Sequence[Node]) -> Sequence[NodeEntry] | None

makes the wider op and gives what stands for each node, or None where they do not fit together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.graph.dependence import Fixed
from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.structural import attr_key

__all__ = ["CombineLimits", "combine_parallel"]


@dataclass(frozen=True)
class CombineLimits:
    """How far combining may go.

    Attributes:
        nodes: ops that become one.
        loses_epilogue: also combine where a consumer is elementwise.
    """

    nodes: int = 8
    loses_epilogue: bool = False


@register_pass("CombineParallel", requires=["typed"], opt_level=2)
def combine_parallel(graph: Graph, context: PassContext) -> Graph:
    """Applies the op attribute ``combine``. requires: ``typed``. Option ``training``: does nothing."""
    if context.options.get("training"):
        return graph
    limits = context.options.get("combine_limits") or CombineLimits()
    sets = _sets(graph, limits)
    if not sets:
        return graph
    done: dict[Node, NodeEntry] = {}

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> NodeEntry | None:
        siblings = sets.get(node)
        if siblings is not None and node not in done:
            # The other inputs are fixed, and this pass changes nothing that is.
            moved = [Node(n.op, (inputs[0], *n.inputs[1:]), n.attrs, n.name, n.types, n.source) for n in siblings]
            made = node.op.attr("combine")(moved)
            if made is not None:
                done.update(zip(siblings, made, strict=True))
        return done.get(node)

    return rebuild(graph, rewrite)


def _sets(graph: Graph, limits: CombineLimits) -> dict[Node, Sequence[Node]]:
    """The siblings of each node that has some, itself included."""
    uses, is_fixed = Uses(graph), Fixed()
    found: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        if not node.op.has("combine") or len(node.outputs) != 1 or is_fixed(node.inputs[0].node):
            continue
        if not all(is_fixed(e.node) for e in node.inputs[1:]) or uses.is_output(node[0]):
            continue
        if not limits.loses_epilogue and any(_is_epilogue(user) for user, _ in uses.of(node[0])):
            continue
        attrs = tuple(sorted((k, attr_key(v)) for k, v in node.attrs.items()))
        found.setdefault((node.inputs[0], node.op.name, len(node.inputs), attrs), []).append(node)
    sets = [s for s in found.values() if 2 <= len(s) <= limits.nodes]
    return {n: s for s in sets for n in s}


def _is_epilogue(node: Node) -> bool:
    return bool(node.op.attr("pattern", OpPattern.OPAQUE) <= OpPattern.BROADCAST)
