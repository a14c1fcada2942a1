"""Nodes and values of a graph by number, and graph attributes as NNVM's JSON speaks of them.

A value's number (its entry id) is the place in the lists ``shape``, ``dtype`` and ``storage_id`` that passes leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nnvm.dim import Shape
from nnvm.dtype import DType
from nnvm.graph.node import Node, NodeEntry

if TYPE_CHECKING:
    from nnvm.graph.graph import Graph

__all__ = ["DTYPE_CODES", "GraphIndex", "json_attr"]

#: NNVM's numbers of element types; bfloat16, which it did not know, has TVM's.
DTYPE_CODES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "int16": 7,
               "uint16": 8, "uint32": 9, "uint64": 10, "bool": 11, "bfloat16": 12}  # fmt: skip


class GraphIndex:
    """Numbers of the nodes of a graph, in the order of its JSON: the inputs, then the others topologically.

    Attributes:
        nodes: each as a dict with ``op`` (``null``: a variable), ``name``, ``inputs`` ([node, output, 0]), ``attrs``.
        entry_ptr: the first value of each node, and the number of values at the end.
        input_names: names of the variables.
        output_entries: the graph's outputs.
    """

    def __init__(self, graph: Graph) -> None:
        self._order = list(dict.fromkeys((*graph.inputs, *graph.nodes)))
        self._number = {n: i for i, n in enumerate(self._order)}
        self._by_name = {n.name: i for i, n in enumerate(self._order)}
        self.entry_ptr = [0]
        for n in self._order:
            self.entry_ptr.append(self.entry_ptr[-1] + n.num_outputs)
        self.nodes: list[dict[str, Any]] = [
            {"op": "null" if n.is_variable else n.op.name, "name": n.name, "attrs": dict(n.attrs),
             "inputs": [[self._number[e.node], e.index, 0] for e in n.inputs]} for n in self._order
        ]  # fmt: skip
        self.input_names = [v.name for v in graph.inputs]
        self.output_entries = [(self._number[e.node], e.index) for e in graph.outputs]

    @property
    def num_nodes(self) -> int:
        return len(self._order)

    @property
    def num_node_entries(self) -> int:
        return self.entry_ptr[-1]

    @property
    def entries(self) -> list[NodeEntry]:
        """All values in the order of their numbers."""
        return [e for n in self._order for e in n.outputs]

    def node_id(self, key: str | Node | NodeEntry) -> int:
        """The number of a node, by itself or by its name (of several of one name, the last); KeyError."""
        if isinstance(key, str):
            if key not in self._by_name:
                raise KeyError(f"no node {key!r} in the graph")
            return self._by_name[key]
        return self._number[key.node if isinstance(key, NodeEntry) else key]

    def entry_id(self, key: str | Node | NodeEntry, value_index: int = 0) -> int:
        """The number of output `value_index` of a node."""
        index = key.index if isinstance(key, NodeEntry) else value_index
        return self.entry_ptr[self.node_id(key)] + index


def json_attr(graph: Graph, key: str) -> Any:
    """A graph attribute as plain data; None where the graph has none.

    ``shape`` (a list of sizes per value), ``dtype`` (a number of DTYPE_CODES), ``shape_num_unknown_nodes``,
    ``dtype_num_unknown_nodes``, and once memory is planned ``storage_id`` (-1: not in the arena) follow from the graph.
    """
    entries = graph.index.entries
    found = dict(graph.attrs.get("shapes", ()))
    nothing = not any(e.node.types is not None for e in entries)
    if (key == "shape" and nothing and not found) or (key == "dtype" and nothing):
        return None
    if key == "shape":
        return [list(_shape(e, found)) for e in entries]
    if key == "dtype":
        return [_code(e.type.dtype) if e.node.types is not None else -1 for e in entries]
    if key in ("shape_num_unknown_nodes", "dtype_num_unknown_nodes"):
        told = found if key.startswith("shape") else {}
        return sum(e.node.types is None and e.node.name not in told for e in entries)
    if key == "storage_id":
        plan = graph.attrs.get("memory_plan")
        places = None if plan is None else [plan.places.get(e) for e in entries]
        return None if places is None else [p.index if p is not None and p.kind == "arena" else -1 for p in places]
    return graph.attrs.get(key)


def _shape(entry: NodeEntry, found: Mapping[str, tuple[Shape, ...]]) -> Shape:
    """The shape of a value, from its type or else from what InferShape found; () where nothing tells it."""
    if entry.node.types is not None:
        return entry.type.shape
    return found[entry.node.name][entry.index] if entry.node.name in found else ()


def _code(dtype: DType) -> int:
    return DTYPE_CODES[dtype.name]
