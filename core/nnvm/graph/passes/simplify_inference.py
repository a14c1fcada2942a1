"""SimplifyInference: ops that do something special in training, in the simpler ops that they are at inference.

```
%y = batch_norm(%x, %gamma, %beta, %mean, %var)  ->  %scale = gamma * rsqrt(var + epsilon)
                                                     %y = add(multiply(%x, %scale), %beta - %mean * %scale)
%y = dropout(%x)                                 ->  %x
```
The new parts that depend on parameters only end in the prepare graph, or in the weights (FoldScaleAxis).
"""

from __future__ import annotations

from nnvm.graph.graph import Graph, rebuild, with_inputs
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["simplify_inference"]


@register_pass("SimplifyInference", requires=["typed"], opt_level=0)
def simplify_inference(graph: Graph, context: PassContext) -> Graph:
    """Applies the op attribute ``simplify_inference``. requires: ``typed``. Option ``training``: does nothing."""
    if context.options.get("training"):
        return graph

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | tuple[NodeEntry, ...] | NodeEntry | None:
        rule = node.op.attr("simplify_inference")
        if rule is None:
            return None
        return rule(node if inputs == node.inputs else with_inputs(node, inputs))  # type: ignore[no-any-return]

    return rebuild(graph, rewrite)
