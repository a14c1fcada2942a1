"""Graphs as JSON, in NNVM's format, and back without loss.

``nodes`` lists ops in topological order with their attributes as text and their inputs as [node, output, version];
``arg_nodes`` are the variables, ``heads`` the outputs, ``node_row_ptr`` counts outputs. Netron opens it. An attribute's
text is a Python literal; what literals cannot say (types, sizes with names, arrays) is a JSON object of one key.
Types and the user's source line are attributes with a space in their name, which no attribute of an op has.
"""

from __future__ import annotations

import ast
import base64
import enum
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnvm.dim import Dim, SymDim, dim_max, dim_min, symbol
from nnvm.dtype import DType, dtype
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.op import get
from nnvm.graph.types import TensorType

__all__ = ["decode_value", "encode_value", "load_json", "register_value", "save_json"]

_VERSION = 1
_TYPES, _SOURCE = "output types", "source line"
#: Classes of frontends: name -> (class, to plain data, from plain data).
_OTHERS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {}


def register_value(name: str, cls: type, save: Callable[[Any], Any], load: Callable[[Any], Any]) -> None:
    """Lets values of `cls` stand in graphs as JSON, under the key `name`.

    `save` gives plain data (numbers, text, lists, dicts, None; `encode_value` helps), and `load` the value back.
    """
    if name in _OTHERS:
        raise ValueError(f"values {name!r} are registered already, for {_OTHERS[name][0].__name__}")
    _OTHERS[name] = cls, save, load


def save_json(graph: Graph, *, indent: int | None = 2) -> str:
    """The graph as JSON text. Graph attributes that are no plain data (memory plans) are left out.

    TypeError names an op attribute of a kind that cannot be written.
    """
    return json.dumps(_graph_data(graph), indent=indent)


def load_json(text: str) -> Graph:
    """The graph that `save_json` wrote; ValueError where the text is none, naming the node that cannot be read."""
    data = json.loads(text)
    if not isinstance(data, dict) or not {"nodes", "arg_nodes", "heads"} <= set(data):
        raise ValueError("no graph in NNVM's JSON format: nodes, arg_nodes or heads are missing")
    return _graph_of(data)


def _graph_data(graph: Graph) -> dict[str, Any]:
    order = list(dict.fromkeys((*graph.inputs, *graph.nodes)))
    number = {n: i for i, n in enumerate(order)}
    rows = [0]
    for n in order:
        rows.append(rows[-1] + n.num_outputs)
    kept = {k: text for k, v in graph.attrs.items() if (text := _graph_attr(v)) is not None}
    return {
        "nodes": [_node_data(n, number) for n in order],
        "arg_nodes": [number[v] for v in graph.inputs],
        "node_row_ptr": rows,
        "heads": [[number[e.node], e.index, 0] for e in graph.outputs],
        "attrs": {"nnvm_version": ["int", _VERSION], **kept},
    }


def _graph_attr(value: Any) -> str | None:
    try:
        return _encode(value)
    except TypeError:
        return None


def _node_data(node: Node, number: Mapping[Node, int]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "op": "null" if node.is_variable else node.op.name,
        "name": node.name,
        "inputs": [[number[e.node], e.index, 0] for e in node.inputs],
    }
    attrs = {k: _encode(v) for k, v in node.attrs.items()}
    if node.types is not None:
        attrs[_TYPES] = _types_text(node.types)
    if node.source:
        attrs[_SOURCE] = _encode(node.source)
    return {**data, "attrs": attrs}


def _graph_of(data: Mapping[str, Any]) -> Graph:
    nodes: list[Node] = []
    for i, item in enumerate(data["nodes"]):
        try:
            nodes.append(_node_of(item, nodes))
        except (KeyError, IndexError, TypeError, ValueError, SyntaxError) as error:
            name = item.get("name", "") if isinstance(item, dict) else ""
            why = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise ValueError(f"node {i} {name} of the JSON cannot be read: {why}") from error
    for n in data["arg_nodes"]:
        if not (isinstance(n, int) and 0 <= n < len(nodes) and nodes[n].is_variable):
            raise ValueError(f"arg_nodes of the JSON names {n!r}, which is no variable of its {len(nodes)} nodes")
    outputs = tuple(_entry_of(head, nodes) for head in data["heads"])
    kept = {k: _decode(v) for k, v in data.get("attrs", {}).items() if isinstance(v, str)}
    return Graph(outputs, tuple(nodes[i] for i in data["arg_nodes"]), kept)


def _node_of(item: Mapping[str, Any], nodes: list[Node]) -> Node:
    """A node on those before it."""
    attrs = dict(item.get("attrs", {}))
    types = _types_of(attrs.pop(_TYPES)) if _TYPES in attrs else None
    attrs = {k: _decode(v) for k, v in attrs.items()}
    source = attrs.pop(_SOURCE, "")
    inputs = tuple(_entry_of(e, nodes) for e in item["inputs"])
    op = get("variable" if item["op"] == "null" else item["op"])
    op.check_inputs(len(inputs))
    full = attrs if op.name == "constant" else op.normalise(attrs)
    return Node(op, inputs, full, item["name"], types, source)


def _entry_of(place: list[int], nodes: list[Node]) -> NodeEntry:
    """The value at [node, output, version]."""
    number, index = place[:2]
    if not 0 <= number < len(nodes):
        raise ValueError(f"it uses node {number}, and {len(nodes)} stand before it")
    if not 0 <= index < nodes[number].num_outputs:
        raise ValueError(f"it uses output {index} of {nodes[number].name}, which has {nodes[number].num_outputs}")
    return NodeEntry(nodes[number], index)


def _types_text(types: tuple[TensorType, ...]) -> str:
    """As the text of graphs shows them where that says everything."""
    text = "; ".join(map(str, types))
    try:
        same = _types_of(text) == types
    except ValueError:
        same = False
    return text if same else _encode(types)


def _types_of(text: str) -> tuple[TensorType, ...]:
    if text.startswith('{"'):
        return _decode(text)  # type: ignore[no-any-return]
    return tuple(map(_type_of, text.split("; "))) if text else ()


def _type_of(text: str) -> TensorType:
    found = re.fullmatch(r"(\w+)\[(.*)\](?: ([^\s@]+))?(?: @(\S+))?", text)
    if found is None:
        raise ValueError(f"no type: {text!r}")
    name, sizes, layout, device = found.groups()
    shape = ast.parse(f"[{sizes}]", mode="eval").body
    assert isinstance(shape, ast.List)
    return TensorType(tuple(map(_size_of, shape.elts)), dtype(name), device or "cpu", layout)


def encode_value(value: Any) -> str:
    """The text that stands for a value; TypeError where nothing does."""
    return _encode(value)


def decode_value(text: str) -> Any:
    """The value that `encode_value` wrote."""
    return _decode(text)


def _encode(value: Any) -> str:
    if _is_literal(value):
        return repr(value)
    return json.dumps(_wrapped(value))


def _is_literal(value: Any) -> bool:
    if isinstance(value, enum.Enum):
        return False
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_is_literal, value))
    return value is None or type(value) in (bool, int, str)


def _wrapped(value: Any) -> dict[str, Any]:
    for name, (cls, save, _) in _OTHERS.items():
        if isinstance(value, cls):
            return {name: save(value)}
    if isinstance(value, tuple):
        return {"tuple": [_encode(v) for v in value]}
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.name, base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, SymDim):
        return {"size": str(value)}
    if isinstance(value, DType):
        return {"dtype": _dtype_data(value)}
    if isinstance(value, TensorType):
        return {"type": [_encode(value.shape), _dtype_data(value.dtype), value.device, value.layout]}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.name, list(value.shape), data]}
    if isinstance(value, Graph):
        return {"graph": _graph_data(value)}
    if isinstance(value, enum.IntEnum):
        return {"enum": int(value)}
    if isinstance(value, frozenset):
        return {"set": sorted(map(_encode, value))}
    if isinstance(value, list):
        return {"list": [_encode(v) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_encode(k), _encode(v)] for k, v in value.items()]}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def _decode(text: str) -> Any:
    if not text.startswith('{"'):
        return ast.literal_eval(text)
    ((kind, value),) = json.loads(text).items()
    if kind == "array":
        name, shape, data = value
        return np.frombuffer(base64.b64decode(data), name).reshape(shape)
    if kind == "scalar":
        return np.frombuffer(base64.b64decode(value[1]), value[0])[0]
    if kind == "type":
        shape, name, device, layout = value
        return TensorType(_decode(shape), _dtype_of(name), device, layout)
    if kind in ("tuple", "set", "list"):
        return {"tuple": tuple, "set": frozenset, "list": list}[kind](map(_decode, value))
    if kind == "dict":
        return {_decode(k): _decode(v) for k, v in value}
    if kind == "graph":
        return _graph_of(value)
    if kind in _OTHERS:
        return _OTHERS[kind][2](value)
    plain: dict[str, Callable[[Any], Any]] = {"float": float, "size": _size, "dtype": _dtype_of, "enum": int}
    if kind not in plain:
        raise ValueError(f"no value is written as {kind!r}; import the package that wrote the graph")
    return plain[kind](value)


def _dtype_data(d: DType) -> Any:
    """The name, or everything about an element type that is a frontend's own."""
    try:
        return d.name if dtype(d.name) == d else [d.name, d.kind, d.bits]
    except ValueError:
        return [d.name, d.kind, d.bits]


def _dtype_of(data: Any) -> DType:
    return dtype(data) if isinstance(data, str) else DType(*data)


def _size(text: str) -> Dim:
    """A size from its text: sums and products of names, and floordiv, mod, max and min of two sizes."""
    return _size_of(ast.parse(text, mode="eval").body)


def _size_of(e: ast.expr) -> Dim:
    if isinstance(e, ast.Constant) and isinstance(e.value, int):
        return e.value
    if isinstance(e, ast.Name):
        return symbol(e.id)
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        return -_size_of(e.operand)
    if isinstance(e, ast.BinOp):
        a, b = _size_of(e.left), _size_of(e.right)
        if isinstance(e.op, ast.Add):
            return a + b
        if isinstance(e.op, ast.Sub):
            return a - b
        if isinstance(e.op, ast.Mult):
            return a * b
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and len(e.args) == 2:
        a, b = map(_size_of, e.args)
        if e.func.id in ("floordiv", "mod"):
            return a // b if e.func.id == "floordiv" else a % b
        if e.func.id in ("max", "min"):
            return dim_max(a, b) if e.func.id == "max" else dim_min(a, b)
    raise ValueError(f"no size: {ast.unparse(e)}")
