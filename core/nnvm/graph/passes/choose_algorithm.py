"""ChooseAlgorithm: ops that have a faster algorithm for their shapes become the op of that algorithm.

```
%y = conv2d(%x, %w, 3 x 3, NCHW8c)   ->   %u = (G ⊗ G) %w, in panels                       (prepared once)
                                          %y = conv2d_winograd(%x, %u, tile=4, NCHW8c)
```
The op attribute ``algorithm``,

    (node, is_fixed: Callable[[Node], bool], target: Target) -> tuple[NodeEntry, ...] | None

makes the node's values in the other way, or gives None where the op itself is better. Such algorithms round otherwise
than the op does, by a bound that their ops state; the option ``precise`` leaves every op as it is, and so does
``training``, where weights change at each step.
"""

from __future__ import annotations

from nnvm.graph.dependence import Fixed
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.graph import Graph, rebuild, with_inputs
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["choose_algorithm"]


@register_pass("ChooseAlgorithm", requires=["typed"], opt_level=3)
def choose_algorithm(graph: Graph, context: PassContext) -> Graph:
    """Applies the op attribute ``algorithm``. requires: ``typed``. Options ``precise``, ``training``: does nothing."""
    if context.options.get("precise") or context.options.get("training") or context.target.is_gpu:
        return graph
    is_fixed = Fixed()

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...] | None:
        rule = node.op.attr("algorithm")
        if rule is None or device_of(node) != CPU:  # it is a choice for the main target
            return None
        made: tuple[NodeEntry, ...] | None = rule(with_inputs(node, inputs), is_fixed, context.target)
        return made

    return rebuild(graph, rewrite)
