"""Types of a graph's inputs by name, set in place: NNVM's ``graph_attr``.

>>> graph = nnvm.graph.create(net)
>>> set_shape_inputs(graph, {"data": (1, 3, 8, 8)})
>>> graph.apply(["InferShape", "InferType"]).json_attr("shape")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnvm.dim import Dim, as_shape
from nnvm.dtype import F32, DType
from nnvm.dtype import dtype as as_dtype
from nnvm.graph.graph import Graph
from nnvm.graph.index import DTYPE_CODES
from nnvm.graph.input_types import check_names, replace_variables, with_input_types
from nnvm.graph.node import Node
from nnvm.graph.types import TensorType

__all__ = ["DTYPE_TO_TCODE", "TCODE_TO_DTYPE", "set_dtype_inputs", "set_shape_inputs"]

DTYPE_TO_TCODE = {"default": 0, **DTYPE_CODES}
TCODE_TO_DTYPE: dict[int | None, str | None] = {code: name for name, code in DTYPE_CODES.items()}
TCODE_TO_DTYPE.update(dict.fromkeys((None, -1)))


def set_shape_inputs(graph: Graph, shape: Mapping[str, Sequence[Dim]] | None) -> Graph:
    """Gives inputs their shapes; their element types stay, or are float32. Changes `graph` and gives it back.

    ValueError names what is no input.
    """
    shape = shape or {}
    old = {v.name: v for v in graph.inputs}
    check_names(graph, shape)
    types = {n: TensorType(as_shape(s, n), _dtype_of(old[n])) for n, s in shape.items()}
    return graph._become(with_input_types(graph, types))


def set_dtype_inputs(graph: Graph, dtype: Mapping[str, DType | str] | DType | str | None) -> Graph:
    """Gives inputs their element types: one for all, or by name. Changes `graph` and gives it back."""
    if dtype is None:
        return graph
    if isinstance(dtype, (DType, str)):
        dtype = dict.fromkeys((v.name for v in graph.inputs), dtype)
    check_names(graph, dtype)
    wanted = {name: as_dtype(t) for name, t in dtype.items()}
    return graph._become(replace_variables(graph, lambda v: _with_dtype(v, wanted[v.name]) if v.name in wanted else v))


def _dtype_of(v: Node) -> DType:
    return v[0].type.dtype if v.types is not None else v.attrs.get("__dtype__", F32)


def _with_dtype(v: Node, dtype: DType) -> Node:
    if v.types is not None:
        return Node(v.op, (), v.attrs, v.name, (v[0].type.with_dtype(dtype),))
    return Node(v.op, (), {**v.attrs, "__dtype__": dtype}, v.name, None)
