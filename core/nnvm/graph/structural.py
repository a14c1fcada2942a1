"""Structural equality: are two graphs the same up to the names of their nodes and variables?

`topological` visits structurally equal graphs in the same order, so comparing two node lists side by side decides it.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm.attribute import is_note
from nnvm.dim import SymDim
from nnvm.dtype import DType
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry

__all__ = ["attr_key", "first_difference", "same_attr", "structural_key", "structurally_equal"]


def structural_key(graph: Graph) -> str:
    """A hash (hex) that equal graphs share: ops, attributes, types, wiring, order and kind of the inputs, constants by
    value; not the names, nor the attributes of users (`nnvm.attribute`). Groups with equal keys are compiled once."""
    h = hashlib.blake2b(digest_size=16)
    number: dict[Node, int] = {}
    for v in graph.inputs:
        number[v] = len(number)
        h.update(f"v{v.attrs.get('kind')}:{_types_key(v)};".encode())
    for node in graph.nodes:
        if node in number:
            continue
        number[node] = len(number)
        args = ",".join(f"{number[e.node]}.{e.index}" for e in node.inputs)
        h.update(f"{node.op.name}({args}){_attrs_key(node)}:{_types_key(node)};".encode())
    h.update(",".join(f"{number[e.node]}.{e.index}" for e in graph.outputs).encode())
    h.update(repr(graph.attrs.get("inplace", ())).encode())
    return h.hexdigest()


def structurally_equal(a: Graph, b: Graph) -> bool:
    """Whether the two compute the same by the same nodes."""
    return a is b or first_difference(a, b) is None


def first_difference(a: Graph, b: Graph) -> tuple[Node | None, Node | None, str] | None:
    """The first pair of nodes at which two graphs part, and how; None where they are equal."""
    if len(a.inputs) != len(b.inputs):
        return None, None, f"{len(a.inputs)} inputs against {len(b.inputs)}"
    if len(a.outputs) != len(b.outputs):
        return None, None, f"{len(a.outputs)} outputs against {len(b.outputs)}"
    pair: dict[Node, Node] = dict(zip(a.inputs, b.inputs))
    for va, vb in zip(a.inputs, b.inputs):
        if why := _node_difference(va, vb, pair):
            return va, vb, why
    nodes_a = [n for n in a.nodes if n not in pair]
    listed = set(b.inputs)
    nodes_b = [n for n in b.nodes if n not in listed]
    for na, nb in zip(nodes_a, nodes_b):
        pair[na] = nb
        if why := _node_difference(na, nb, pair):
            return na, nb, why
    if len(nodes_a) != len(nodes_b):
        return None, None, f"{len(nodes_a)} nodes against {len(nodes_b)}"
    for i, (ea, eb) in enumerate(zip(a.outputs, b.outputs)):
        if not _same_entry(ea, eb, pair):
            return ea.node, eb.node, f"output {i} is {ea} against {eb}"
    return None


def same_attr(a: Any, b: Any) -> bool:
    """Equality of attribute values: type-exact (1 is not 1.0 is not True), arrays by bits, graphs by structure."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype
                and a.shape == b.shape and a.tobytes() == b.tobytes())  # fmt: skip
    if isinstance(a, Graph) and isinstance(b, Graph):
        return structurally_equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_attr, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b)  # tells 0.0 from -0.0 and takes NaN as equal to NaN
    return type(a) is type(b) and bool(a == b)


def attr_key(value: Any) -> str:
    """Text that equal attribute values share, in the sense of `same_attr`.

    A value of a type that is not known here counts as equal only to itself.
    """
    if value is None or isinstance(value, (bool, int, float, str, SymDim, DType)):
        return repr(value)
    if isinstance(value, tuple):
        return f"({','.join(map(attr_key, value))})"
    if isinstance(value, np.ndarray):
        data = value.tobytes()
        shown = data.hex() if len(data) <= 32 else hashlib.blake2b(data, digest_size=16).hexdigest()
        return f"array:{value.dtype}{value.shape}:{shown}"
    if isinstance(value, Graph):
        return f"graph:{structural_key(value)}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k!r}:{attr_key(v)}" for k, v in value.items()) + "}"
    return f"object:{id(value)}"


def _attrs_key(node: Node) -> str:
    return ",".join(f"{k}={attr_key(v)}" for k, v in node.attrs.items() if not is_note(k))


def _types_key(node: Node) -> str:
    return "?" if node.types is None else ",".join(map(str, node.types))


def _same_entry(a: NodeEntry, b: NodeEntry, pair: Mapping[Node, Node]) -> bool:
    return a.index == b.index and pair.get(a.node) is b.node


def _node_difference(a: Node, b: Node, pair: Mapping[Node, Node]) -> str | None:
    if a.op is not b.op:
        return f"op {a.op.name} against {b.op.name}"
    if a.types != b.types:
        return f"type {_types_key(a)} against {_types_key(b)}"
    if len(a.inputs) != len(b.inputs):
        return f"{len(a.inputs)} inputs against {len(b.inputs)}"
    for i, (ea, eb) in enumerate(zip(a.inputs, b.inputs)):
        if not _same_entry(ea, eb, pair):
            return f"input {i} is {ea} against {eb}"
    for key in {**a.attrs, **b.attrs}:
        if key not in a.attrs or key not in b.attrs or not same_attr(a.attrs[key], b.attrs[key]):
            return f"attribute {key}={a.attrs.get(key)} against {b.attrs.get(key)}"
    return None
