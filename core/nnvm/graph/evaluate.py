"""Runs graphs on numpy arrays through the ops' ``reference`` attribute: what a graph means.

bfloat16 tensors are carried as their uint16 bits between nodes. A reference function gets half types widened to float32
and may give any dtype: its results are narrowed to the node's types here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dim import Dim, SymDim
from nnvm.dim import evaluate as evaluate_dim
from nnvm.dtype import BF16, DType, bf16_to_f32, f32_to_bf16
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node

__all__ = ["Array", "bind_symbols", "can_evaluate", "evaluate_graph", "evaluate_node"]

Array = np.ndarray  # type: ignore[type-arg]
Fallback = Callable[[Node, Sequence[Array], Mapping[str, int]], "Sequence[Array]"]


def can_evaluate(node: Node) -> bool:
    """Whether `evaluate_node` can run it without a fallback."""
    return node.is_constant or node.op.has("reference") or any(isinstance(v, Graph) for v in node.attrs.values())


def evaluate_node(
    node: Node, arrays: Sequence[Array], symbols: Mapping[str, int] | None = None, fallback: Fallback | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """The outputs of one node for these inputs. KeyError where the op has no reference and there is no `fallback`."""
    symbols = symbols or {}
    if node.is_constant:
        return (node.attrs["value"],)
    body = next((v for v in node.attrs.values() if isinstance(v, Graph)), None)
    if body is not None:
        return tuple(evaluate_graph(body, list(arrays), symbols, fallback))
    reference = node.op.attr("reference")
    if reference is None:
        if fallback is None:
            raise KeyError(f"op {node.op.name} has no reference")
        return tuple(fallback(node, arrays, symbols))
    given = [_widen(a, e.type.dtype) for e, a in zip(node.inputs, arrays)]
    attrs = {k: _bound(v, symbols) for k, v in node.attrs.items()} if symbols else node.attrs
    with np.errstate(all="ignore"):
        results = reference(attrs, *given)
    if isinstance(results, np.ndarray) or np.isscalar(results):
        results = (results,)
    return tuple(_as_type(node, i, r) for i, r in enumerate(results))


def evaluate_graph(
    graph: Graph, inputs: Mapping[str, Array] | Sequence[Array], symbols: Mapping[str, int] | None = None,
    fallback: Fallback | None = None,
) -> list[Array]:  # fmt: skip
    """The outputs of a graph. `inputs` in calling order or by name; named sizes are read off
    their shapes."""
    arrays = [inputs[v.name] for v in graph.inputs] if isinstance(inputs, Mapping) else list(inputs)
    if len(arrays) != len(graph.inputs):
        raise ValueError(f"the graph takes {len(graph.inputs)} inputs, got {len(arrays)}")
    sizes = {**(symbols or {}), **bind_symbols(graph, arrays)}
    values: dict[Node, tuple[Array, ...]] = {v: (a,) for v, a in zip(graph.inputs, arrays)}
    for node in graph.nodes:
        if node not in values:
            values[node] = evaluate_node(node, [values[e.node][e.index] for e in node.inputs], sizes, fallback)
    return [values[e.node][e.index] for e in graph.outputs]


def bind_symbols(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """Values of the named sizes that stand alone in an input's shape; ValueError where arrays do not fit the types."""
    sizes: dict[str, int] = {}
    for v, a in zip(graph.inputs, arrays):
        if v.types is None:
            continue
        t = v.types[0]
        if a.ndim != t.rank or a.dtype != t.dtype.numpy:
            raise ValueError(f"input {v.name} is {t}, got {a.dtype}{list(a.shape)}")
        for d, n in zip(t.shape, a.shape):
            if isinstance(d, SymDim) and str(d).isidentifier():
                sizes.setdefault(str(d), n)
    for v, a in zip(graph.inputs, arrays):
        if v.types is not None and tuple(_bound(v.types[0].shape, sizes)) != a.shape:
            raise ValueError(f"input {v.name} is {v.types[0]}, got {a.dtype}{list(a.shape)} with {sizes}")
    return sizes


def _bound(value: Any, symbols: Mapping[str, int]) -> Any:
    if isinstance(value, SymDim):
        return _size(value, symbols)
    if isinstance(value, tuple):
        return tuple(_bound(v, symbols) for v in value)
    return value


def _size(d: Dim, symbols: Mapping[str, int]) -> int:
    return evaluate_dim(d, symbols)


def _widen(array: Array, dtype: DType) -> Array:
    if dtype == BF16:
        return bf16_to_f32(array)
    return array.astype(np.float32) if dtype.is_half else array


def _as_type(node: Node, index: int, value: Any) -> Array:
    array = np.asarray(value)
    if node.types is None:
        return array
    dtype = node.types[index].dtype
    if dtype == BF16:
        return f32_to_bf16(array.astype(np.float32))
    return array.astype(dtype.numpy, copy=False)
