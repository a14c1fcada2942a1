"""InferType: shape and element type of every value, from those of the inputs.

```
%x: float32[2, 3]                      %x: float32[2, 3]
%y = transpose(%x): ?          ->      %y = transpose(%x): float32[3, 2]
```
"""

from __future__ import annotations

from collections.abc import Mapping

from nnvm.graph.graph import Graph, with_inputs
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError, variable
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.types import TensorType

__all__ = ["infer_type"]


@register_pass("InferType", provides=["typed"])
def infer_type_pass(graph: Graph, context: PassContext) -> Graph:
    """Infers what is not known yet. requires: the types of the variables. provides: ``typed``."""
    return infer_type(graph)


def infer_type(graph: Graph, types: Mapping[str, TensorType] | None = None) -> Graph:
    """`graph` with every type known.

    `types` gives variables their types by name, over those they have. TypeInferenceError names the variables that have
    none, or the node whose inputs do not fit together.
    """
    types = types or {}
    new: dict[Node, tuple[NodeEntry, ...]] = {}
    inputs: list[Node] = []
    for v in graph.inputs:
        wanted = types.get(v.name)
        fresh = v if wanted is None or v.types == (wanted,) else variable(v.name, wanted, v.attrs["kind"]).node
        new[v] = fresh.outputs
        inputs.append(fresh)
    missing = [v.name for v in inputs if v.types is None]
    if missing:
        raise TypeInferenceError(f"no type is given for the variables {', '.join(missing)}")
    for node in graph.nodes:
        if node in new:
            continue
        entries = tuple(new[e.node][e.index] for e in node.inputs)
        kept = node if entries == node.inputs and node.types is not None else with_inputs(node, entries)
        if kept.types is None:
            raise TypeInferenceError(f"op {node.op.name} cannot infer its type: it has no attribute infer_type")
        new[node] = kept.outputs
    outputs = tuple(new[e.node][e.index] for e in graph.outputs)
    if outputs == graph.outputs and tuple(inputs) == graph.inputs and graph.attrs.get("typed"):
        return graph
    return Graph(outputs, tuple(inputs), {**graph.attrs, "typed": True})
