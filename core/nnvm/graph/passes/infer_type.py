"""InferType: shape and element type of every value, from those of the inputs.

```
%x: float32[2, 3]                      %x: float32[2, 3]
%y = transpose(%x): ?          ->      %y = transpose(%x): float32[3, 2]
```
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnvm.dim import Dim
from nnvm.dtype import BF16, f32_to_bf16
from nnvm.graph.graph import Graph, with_inputs
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError, constant, variable
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.types import TensorType

__all__ = ["SCALAR", "Hint", "infer_type"]

#: Shape of a variable that waits for its reader's type: ("data", axis, divisor) stands for a size of the reader's data.
Hint = tuple[Dim | tuple[str, int, int], ...]
#: Of a constant number: it takes the element type of what stands beside it.
SCALAR: Hint = (("scalar", 0, 1),)


def _given(graph: Graph, context: PassContext) -> Graph:
    """Without InferType: the types must be there."""
    if untyped := [n.name for n in (*graph.inputs, *graph.nodes) if n.types is None]:
        raise TypeInferenceError(f"InferType is left out, and nothing else gives {untyped[0]} its type")
    return graph.with_attrs(typed=True)


@register_pass("InferType", provides=["typed"], without=_given)
def infer_type_pass(graph: Graph, context: PassContext) -> Graph:
    """Infers what is not known yet. requires: the types of the variables. provides: ``typed``."""
    return infer_type(graph)


def infer_type(graph: Graph, types: Mapping[str, TensorType] | None = None) -> Graph:
    """`graph` with every type known.

    `types` gives variables their types by name, over those they have; the attribute ``type_hints`` says how the other
    ones follow from their readers. TypeInferenceError names the variables that have none, or the node whose inputs do
    not fit together.
    """
    types = types or {}
    hints: dict[str, Hint] = dict(graph.attrs.get("type_hints", ()))
    new: dict[Node, tuple[NodeEntry, ...]] = {}
    for v in graph.inputs:
        wanted = types.get(v.name)
        fresh = v if wanted is None or v.types == (wanted,) else variable(v.name, wanted, v.attrs["kind"]).node
        new[v] = fresh.outputs
    missing = [v.name for v in graph.inputs if new[v][0].node.types is None and v.name not in hints]
    if missing:
        raise TypeInferenceError(f"no type is given for the variables {', '.join(missing)}")
    for node in graph.nodes:
        if node in new:
            continue
        if hints:
            _apply_hints(node, hints, new)
        entries = tuple(new[e.node][e.index] for e in node.inputs)
        kept = node if entries == node.inputs and node.types is not None else with_inputs(node, entries)
        if kept.types is None:
            raise TypeInferenceError(f"op {node.op.name} cannot infer its type: it has no attribute infer_type")
        new[node] = kept.outputs
    outputs = tuple(new[e.node][e.index] for e in graph.outputs)
    inputs = tuple(new[v][0].node for v in graph.inputs)
    if unread := [v.name for v in inputs if v.types is None]:
        raise TypeInferenceError(f"no type is given for the variables {', '.join(unread)}, which nothing reads")
    if outputs == graph.outputs and inputs == graph.inputs and graph.attrs.get("typed"):
        return graph
    attrs = {k: v for k, v in graph.attrs.items() if k != "type_hints"}
    return Graph(outputs, inputs, {**attrs, "typed": True})


def _apply_hints(node: Node, hints: Mapping[str, Hint], new: dict[Node, tuple[NodeEntry, ...]]) -> None:
    """Types the inputs of `node` that wait for it, from the first input with a type of its own."""
    waiting = {e.node: hints[e.node.name] for e in node.inputs if e.node.name in hints}
    typed = (new[e.node][e.index] for e in node.inputs if e.node not in waiting)
    data = next((e.type for e in typed if e.node.types is not None), None)
    if data is None:
        return
    for v, hint in waiting.items():
        if hint == SCALAR:
            value = v.attrs["value"].astype(np.float32)
            cast = f32_to_bf16(value) if data.dtype == BF16 else value.astype(data.dtype.numpy)
            new[v] = constant(cast, TensorType((), data.dtype, data.device), v.name).node.outputs
        elif new[v][0].node.types is None:
            shape = tuple(data.shape[d[1]] // d[2] if isinstance(d, tuple) else d for d in hint)
            new[v] = variable(v.name, TensorType(shape, data.dtype, data.device), v.attrs["kind"]).node.outputs
