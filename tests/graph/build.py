"""Short ways to write graphs in these tests."""

from collections.abc import Sequence

import numpy as np

import nnvm.graph.passes
import nnvm.ops
import nnvm.ops.graph_rules  # noqa: F401
from nnvm.dtype import F32, dtype
from nnvm.graph import Graph, NodeEntry, TensorType, constant, variable
from nnvm.graph import apply as apply_op


def var(name: str, *shape, kind: str = "input", dt="float32") -> NodeEntry:
    return variable(name, TensorType(tuple(shape), dtype(dt)), kind)


def param(name: str, *shape, dt="float32") -> NodeEntry:
    return var(name, *shape, kind="param", dt=dt)


def op(name: str, *inputs: NodeEntry, at: str = "", **attrs) -> NodeEntry:
    """Output 0 of a new node, called `at`."""
    return apply_op(name, inputs, attrs, at)[0]


def scalar(value: float, dt="float32") -> NodeEntry:
    t = dtype(dt)
    return constant(np.asarray(value, t.numpy), TensorType((), t))


def const(value, dt="float32") -> NodeEntry:
    array = np.asarray(value, dtype(dt).numpy)
    return constant(array, TensorType(array.shape, dtype(dt)))


def graph(outputs: NodeEntry | Sequence[NodeEntry], *inputs: NodeEntry) -> Graph:
    """A graph with its inputs in the given order; those left out follow in the order of use."""
    outputs = (outputs,) if isinstance(outputs, NodeEntry) else tuple(outputs)
    g = Graph(outputs, ())
    listed = [e.node for e in inputs]
    listed += [n for n in g.nodes if n.is_variable and n not in listed]
    return Graph(outputs, tuple(listed))


def ops(g: Graph) -> list[str]:
    """Op names in topological order, variables and constants left out."""
    return [n.op.name for n in g.nodes if not n.is_variable and not n.is_constant]


def groups(g: Graph) -> list[list[str]]:
    """The ops of each node: of groups what is inside, of other nodes the name alone."""
    return [ops(n.attrs["graph"]) if n.op.name == "group" else [n.op.name]
            for n in g.nodes if not n.is_variable and not n.is_constant]  # fmt: skip


__all__ = ["F32", "const", "graph", "groups", "op", "ops", "param", "scalar", "var"]
