"""Questions about graphs and symbols that need types, by NNVM's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnvm.compiler.build_module import DTypes, typed_graph
from nnvm.dim import Dim
from nnvm.graph import HasGraph
from nnvm.graph.graph import Graph
from nnvm.graph.node import NodeEntry, apply
from nnvm.graph.passes.gradient import gradient
from nnvm.graph.passes.mirror import Policy
from nnvm.graph.structural import first_difference
from nnvm.graph.types import TensorType

__all__ = ["check_graph_equal", "get_gradient_graph", "infer_dtype", "infer_shape"]


def infer_shape(graph: Graph | HasGraph, **shape: Sequence[Dim]) -> tuple[list[tuple[Dim, ...]], list[tuple[Dim, ...]]]:
    """(shapes of the inputs in order, shapes of the outputs), from the shapes of some inputs by name."""
    typed = typed_graph(graph, shape)
    return [v[0].type.shape for v in typed.inputs], [e.type.shape for e in typed.outputs]


def infer_dtype(graph: Graph | HasGraph, shape: Any = None, dtype: DTypes = "float32") -> tuple[list[str], list[str]]:
    """(element types of the inputs in order, of the outputs); shapes and element types as in `build`."""
    typed = typed_graph(graph, shape, dtype)
    return [v[0].type.dtype.name for v in typed.inputs], [e.type.dtype.name for e in typed.outputs]


def check_graph_equal(a: Graph, b: Graph) -> None:
    """ValueError where two graphs are not structurally equal; it tells the first nodes that differ."""
    if found := first_difference(a, b):
        first, second, why = found
        raise ValueError(f"the graphs differ{f' at {first!r} and {second!r}' if first and second else ''}: {why}")


def get_gradient_graph(
    ys: Graph | HasGraph, xs: Sequence[str], grad_ys: Sequence[NodeEntry | None] | None = None, *,
    mirrored: Policy = "marked", **shape: Sequence[Dim],
) -> Graph:  # fmt: skip
    """Gradients of the sum of all outputs of `ys` by the inputs called `xs`.

    `grad_ys` weighs the outputs (a value of the output's type each); by default they are ones. `mirrored` says what is
    recomputed (graph/passes/mirror.py). `shape` tells the types where the symbol does not.
    """
    typed = typed_graph(ys, shape)
    heads = [_ones(e.type) for e in typed.outputs] if grad_ys is None else grad_ys
    return gradient(typed, xs, heads, mirrored)


def _ones(t: TensorType) -> NodeEntry | None:
    if not t.dtype.is_float:
        return None
    return apply("full", [], {"shape": t.shape, "dtype": t.dtype, "value": 1})[0]
