"""Graph IR: what is computed, as a graph of operators on tensors."""

from typing import Protocol

from nnvm.graph.graph import Graph, Uses, rebuild, topological
from nnvm.graph.json import load_json, save_json
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError, apply, constant, variable
from nnvm.graph.op import Op, Param, get, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType

__all__ = [
    "Graph", "HasGraph", "Node", "NodeEntry", "Op", "OpPattern", "Param", "TensorType", "TypeInferenceError", "Uses",
    "apply", "constant", "create", "get", "load_json", "rebuild", "register", "save_json", "topological", "variable",
]  # fmt: skip


class HasGraph(Protocol):
    """What has a graph: a Symbol."""

    def graph(self) -> Graph: ...


def create(symbol: HasGraph) -> Graph:
    """The graph of a Symbol, for passes: ``nnvm.graph.create(net).apply("InferType")``.

    TypeError where it is none.
    """
    if isinstance(symbol, Graph) or not hasattr(symbol, "graph"):
        raise TypeError(f"expected a Symbol, got {'a Graph already' if isinstance(symbol, Graph) else repr(symbol)}")
    return symbol.graph()
