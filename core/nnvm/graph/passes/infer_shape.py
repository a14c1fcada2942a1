"""InferShape: the shapes of variables that are not given, from those that are and from what the ops say.

```
graph(%x: float32[2, 8], %w: ?, %b: ?):          shapes: %w [16, 8], %b [16], %y [2, 16]
  %y = dense(%x, %w, %b): ?               ->
  %z = reshape(%y, shape=(2, 16)): ?
```
Shapes flow forward and backward until nothing more follows (graph/type_solver.py). What is found is left in the
graph attributes ``shapes`` and ``type_hints``; InferType gives every node its type from the latter.
"""

from __future__ import annotations

from nnvm.graph.graph import Graph
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.type_solver import Hint, partial, solve_types

__all__ = ["infer_shape"]


@register_pass("InferShape")
def infer_shape_pass(graph: Graph, context: PassContext) -> Graph:
    """Finds the shapes of all values. requires: nothing. provides: ``shapes`` and complete ``type_hints``, where a
    value has no type."""
    return infer_shape(graph)


def infer_shape(graph: Graph) -> Graph:
    """`graph` with the shape of every value; the same object where all have their types.

    TypeInferenceError names the variables whose shapes do not follow, or the nodes that contradict each other.
    """
    nodes = tuple(dict.fromkeys((*graph.inputs, *graph.nodes)))
    if all(n.types is not None for n in nodes):
        return graph
    solution = solve_types(graph)
    solution.require(dtypes=False)
    hints: dict[str, Hint] = dict(graph.attrs.get("type_hints", ()))
    for v in graph.inputs:
        value = solution.values[v[0]]
        if v.types is None or v[0].type.shape != value.shape:
            hints[v.name] = partial(value.shape, value.dtype)
    shapes = tuple((n.name, tuple(solution.known_shape(e) for e in n.outputs)) for n in nodes)
    if tuple(hints.items()) == graph.attrs.get("type_hints") and shapes == graph.attrs.get("shapes"):
        return graph
    return graph.with_attrs(type_hints=tuple(hints.items()), shapes=shapes)
