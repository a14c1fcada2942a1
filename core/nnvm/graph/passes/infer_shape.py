"""InferShape: the shapes of variables that are not given, from those that are and from what the ops say.

```
graph(%x: float32[2, 8], %w: ?, %b: ?):          %w: [16, 8] and %b: [16] are known
  %y = dense(%x, %w, %b): ?               ->     %y = dense(%x, %w, %b): ?
  %z = reshape(%y, shape=(2, 16)): ?             %z = reshape(%y, shape=(2, 16)): ?
```
Shapes flow forward and backward until nothing more follows (graph/type_solver.py). What is found is left in the
graph attribute ``type_hints``, from which InferType gives every node its type.
"""

from __future__ import annotations

from nnvm.graph.graph import Graph
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.type_solver import Hint, partial, solve_types

__all__ = ["infer_shape"]


@register_pass("InferShape")
def infer_shape_pass(graph: Graph, context: PassContext) -> Graph:
    """Completes the shapes of variables. requires: nothing. provides: nothing new; completes ``type_hints``."""
    return infer_shape(graph)


def infer_shape(graph: Graph) -> Graph:
    """`graph` with hints that tell the shape of every variable; the same object where all have their types.

    TypeInferenceError names the variables whose shapes do not follow, or the nodes that contradict each other.
    """
    if all(v.types is not None for v in graph.inputs):
        return graph
    solution = solve_types(graph)
    solution.require(dtypes=False)
    hints: dict[str, Hint] = dict(graph.attrs.get("type_hints", ()))
    for v in graph.inputs:
        value = solution.values[v[0]]
        if v.types is None or v[0].type.shape != value.shape:
            hints[v.name] = partial(value.shape, value.dtype)
    known = tuple(hints.items())
    return graph if known == graph.attrs.get("type_hints") else graph.with_attrs(type_hints=known)
