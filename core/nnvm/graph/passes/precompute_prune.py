"""PrecomputePrune: cuts a graph into what depends on parameters only and the rest.

```
graph(%x, %w param):                 prepare(%w param):                  main(%x, %w param, %t prepared):
  %t = transpose(%w)                   %t = transpose(%w)                  %y = dense(%x, %t)
  %y = dense(%x, %t)            ->     return %t                           return %y
  return %y
```
The prepare graph runs once per version of the parameters. What costs nothing (views) or would only take memory
(broadcasts) stays in the main graph, and so does what the graph returns, because the caller may write into it.
The main graph keeps all inputs in their order; prepared values follow them, as variables of kind ``prepared``.
"""

from __future__ import annotations

from collections.abc import Mapping

from nnvm.graph.dependence import parameter_dependence
from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.node import Node, NodeEntry, variable
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["precompute_prune"]

#: Results up to this size are worth keeping in any case.
_SMALL_BYTES = 1 << 14


def _uncut(graph: Graph, context: PassContext) -> Graph:
    """Without PrecomputePrune: everything is computed at each call."""
    return graph.with_attrs(prepare=Graph((), (), {"typed": True}), prepare_depends=())


@register_pass("PrecomputePrune", requires=["typed"], provides=["prepare", "prepare_depends"], without=_uncut)
def precompute_prune(graph: Graph, context: PassContext) -> Graph:
    """Gives the main graph, with the other part as an attribute.

    requires: ``typed``. provides: ``prepare``, a Graph on the parameters whose outputs are the prepared variables of
    the main graph in order, and ``prepare_depends``. Option ``precompute`` False: the prepare graph is empty.
    """
    if not context.options.get("precompute", True):
        return _uncut(graph, context)
    cut = _cut(graph)
    prepared = {e: variable(_name(e), e.type, "prepared") for e in cut}
    main = graph
    if cut:
        main = _replace(graph, prepared)
        main = Graph(main.outputs, (*graph.inputs, *(v.node for v in prepared.values())), graph.attrs)
    params = tuple(v for v in graph.inputs if v.attrs["kind"] == "param")
    used = {n for n in Graph(tuple(cut), ()).nodes if n.is_variable}
    prepare = Graph(tuple(cut), tuple(v for v in params if v in used), {"typed": True})
    return main.with_attrs(prepare=prepare, prepare_depends=tuple(cut.values()))


def _cut(graph: Graph) -> dict[NodeEntry, frozenset[str]]:
    """The values at the border, with the parameters that each depends on."""
    depends = parameter_dependence(graph)
    uses = Uses(graph)
    # nodes that depend on parameters only and are computed before the call
    early = {n for n in uses.order if depends[n] and not n.is_variable and not n.is_constant}
    for node in reversed(uses.order):
        if node in early and _belongs_to_main(node, uses, early):
            early.discard(node)
    cut: dict[NodeEntry, frozenset[str]] = {}
    for node in uses.order:
        if node not in early:
            for e in node.inputs:
                if e.node in early:
                    cut[e] = depends[e.node] or frozenset()
    return cut


def _belongs_to_main(node: Node, uses: Uses, early: set[Node]) -> bool:
    """Whether a node is returned, or stands at the border and is no gain there."""
    if any(uses.is_output(e) for e in node.outputs):
        return True
    at_border = any(user not in early for user, _ in uses.of_node(node))
    return at_border and (bool(node.op.attr("view")) or _only_takes_memory(node))


def _only_takes_memory(node: Node) -> bool:
    """Whether a node spreads its inputs over more elements without computing anything worth keeping."""
    if node.op.attr("pattern", OpPattern.OPAQUE) > OpPattern.BROADCAST or node.op.attr("expensive"):
        return False
    size = node.outputs[0].type.nbytes
    small = isinstance(size, int) and size <= _SMALL_BYTES
    return not small and all(_grows(e, node) for e in node.inputs)


def _grows(e: NodeEntry, node: Node) -> bool:
    before, after = e.type.numel, node.outputs[0].type.numel
    return isinstance(before, int) and isinstance(after, int) and after > before


def _replace(graph: Graph, prepared: Mapping[NodeEntry, NodeEntry]) -> Graph:
    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...] | None:
        if not any(e in prepared for e in node.outputs):
            return None
        return tuple(prepared.get(e, e) for e in node.outputs)

    return rebuild(graph, rewrite)


def _name(e: NodeEntry) -> str:
    return f"{e.node.name}.{e.index}" if e.node.num_outputs > 1 else e.node.name
