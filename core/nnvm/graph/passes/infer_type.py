"""InferType: shape and element type of every value, from what is known of some of them.

```
%x: float32[2, 3], %w: ?, %s: float32[n, 3]         %x: float32[2, 3], %w: float32[2, 3], %s: float32[2, 3]
%y = transpose(%x): ?                               %y = transpose(%x): float32[3, 2]
%z = dense(%x, %w): ?                        ->     %z = dense(%x, %w): float32[2, 2]
%u = elemwise_add(%s, %x): ?                        %u = elemwise_add(%s, %x): float32[2, 3]
```
Where every variable has a type, one walk forward is all. Otherwise, or where named sizes do not fit together as they
stand, types flow forward and backward until nothing more follows (graph/type_solver.py): a named size that is found
equal to another one or to a number becomes it, in the nodes' attributes too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnvm.dtype import F32, DType
from nnvm.graph.graph import Graph, with_inputs
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError, constant, retyped
from nnvm.graph.number import number_as
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.type_solver import SCALAR, Hint, TypeSolution, solve_types
from nnvm.graph.types import TensorType

__all__ = ["infer_type"]


def _given(graph: Graph, context: PassContext) -> Graph:
    """Without InferType: the types must be there."""
    if untyped := [n.name for n in (*graph.inputs, *graph.nodes) if n.types is None]:
        raise TypeInferenceError(f"InferType is left out, and nothing else gives {untyped[0]} its type")
    return graph.with_attrs(typed=True)


@register_pass("InferType", provides=["typed"], without=_given)
def infer_type_pass(graph: Graph, context: PassContext) -> Graph:
    """Infers what is not known yet. requires: enough types of variables. provides: ``typed``."""
    return infer_type(graph)


def infer_type(graph: Graph, types: Mapping[str, TensorType | Hint] | None = None) -> Graph:
    """`graph` with every type known.

    `types` gives variables (and other values, see `solve_types`) their types by name, over those they have, in part
    or as a whole; the attribute ``type_hints`` tells more. TypeInferenceError names the variables whose types do not
    follow, or the nodes that contradict each other, with their shapes.
    """
    types = types or {}
    known = {v: types.get(v.name, v.types[0] if v.types is not None else None) for v in graph.inputs}
    complete = {v: t for v, t in known.items() if isinstance(t, TensorType)}
    named = {v.name for v in known}
    if len(complete) < len(known) or "type_hints" in graph.attrs or not named.issuperset(types):
        return _from_solution(solve_types(graph, types))
    try:
        return _forward(graph, complete, None)
    except TypeInferenceError:
        if all(t.is_static for t in complete.values()):
            raise
        solution = solve_types(graph, types)
        if not solution.sizes:
            raise
        return _from_solution(solution)


def _from_solution(solution: TypeSolution) -> Graph:
    solution.require()
    given = [v[0].type.device for v in solution.graph.inputs if v.types is not None]
    types: dict[Node, TensorType] = {}
    for v in solution.graph.inputs:
        value = solution.values[v[0]]
        assert value.shape is not None and value.dtype is not None, "required above"
        if v.types is None:
            types[v] = TensorType(value.shape, value.dtype, given[0] if given else "cpu")
        else:
            old = v[0].type
            types[v] = TensorType(value.shape, value.dtype, old.device, old.layout)
    return _forward(solution.graph, types, solution)


def _forward(graph: Graph, types: Mapping[Node, TensorType], solution: TypeSolution | None) -> Graph:
    """The graph with every node typed, from those of the variables and what `solution` says about numbers and sizes."""
    new: dict[Node, tuple[NodeEntry, ...]] = {}
    for v in graph.inputs:
        new[v] = v.outputs if v.types == (types[v],) else retyped(v, types[v]).node.outputs
    scalars = {name for name, hint in graph.attrs.get("type_hints", ()) if hint == SCALAR}
    user_of = {e.node: n for n in graph.nodes for e in n.inputs if e.node.is_constant} if scalars else {}
    for node in graph.nodes:
        if node in new:
            continue
        if node.is_constant:
            number = solution is not None and node.name in scalars
            new[node] = (
                _cast(node, solution.values[node[0]].dtype, user_of.get(node)).outputs
                if number and solution
                else node.outputs
            )
            continue
        entries = tuple(new[e.node][e.index] for e in node.inputs)
        sized = node if solution is None or not solution.sizes else _with_sizes(node, solution)
        kept = sized if entries == sized.inputs and sized.types is not None else with_inputs(sized, entries)
        if kept.types is None:
            raise TypeInferenceError(f"op {node.op.name} cannot infer its type: it has no attribute infer_type")
        new[node] = kept.outputs
    outputs = tuple(new[e.node][e.index] for e in graph.outputs)
    inputs = tuple(new[v][0].node for v in graph.inputs)
    if outputs == graph.outputs and inputs == graph.inputs and graph.attrs.get("typed"):
        return graph
    attrs = {k: v if solution is None else solution.bound(v) for k, v in graph.attrs.items()
             if k not in ("type_hints", "shapes")}  # fmt: skip
    return Graph(outputs, inputs, {**attrs, "typed": True})


def _with_sizes(node: Node, solution: TypeSolution) -> Node:
    """The node with named sizes in its attributes replaced by what they equal, and its types to be inferred anew."""
    attrs: dict[str, Any] = {k: solution.bound(v) for k, v in node.attrs.items()}
    return Node(node.op, node.inputs, attrs, node.name, None, node.source)


def _cast(node: Node, dtype: DType | None, user: Node | None) -> Node:
    """A number written by the user, in the dtype of what stands beside it."""
    dtype = dtype or F32  # nothing stands beside it but numbers
    if node[0].type.dtype == dtype:
        return node
    try:
        value = number_as(node.attrs["value"], dtype)
    except ValueError as error:
        users = f", an input of {user.op.name} {user.name}" if user is not None else ""
        raise TypeInferenceError(f"%{node.name}{users}: {error}") from None
    return constant(value, TensorType((), dtype, node[0].type.device), node.name).node
