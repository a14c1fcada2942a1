"""Graph IR: what is computed, as a graph of operators on tensors."""

from nnvm.graph.graph import Graph, Uses, rebuild, topological
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError, apply, constant, variable
from nnvm.graph.op import Op, Param, get, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType

__all__ = [
    "Graph", "Node", "NodeEntry", "Op", "OpPattern", "Param", "TensorType", "TypeInferenceError", "Uses", "apply",
    "constant", "get", "rebuild", "register", "topological", "variable",
]  # fmt: skip
