"""Graph groups run through lower_group, in the interpreter or as machine code, and by the ops' references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import nnvm.ops  # noqa: F401
from nnvm.compiler.lower_group import lower_group
from nnvm.dim import evaluate
from nnvm.dtype import DType
from nnvm.dtype import dtype as as_dtype
from nnvm.graph.graph import Graph
from nnvm.graph.node import NodeEntry, apply, variable
from nnvm.graph.types import TensorType
from nnvm.target import Target
from nnvm.tir import interpreter, verify
from tests.schedules.harness import HASWELL

Array = np.ndarray[Any, Any]


def data(shape: Sequence[Any], dtype: DType | str = "float32") -> NodeEntry:
    return variable(f"x{np.random.randint(1 << 30)}", TensorType(tuple(shape), as_dtype(dtype)))


def graph_of(outputs: Sequence[NodeEntry], inputs: Sequence[NodeEntry]) -> Graph:
    return Graph(tuple(outputs), tuple(e.node for e in inputs))


def op(name: str, *inputs: NodeEntry, **attrs: Any) -> NodeEntry:
    return apply(name, inputs, attrs)[0]


def run(graph: Graph, arrays: Sequence[Array], compiled: bool, symbols: Mapping[str, int] | None = None,
        target: Target | None = None) -> list[Array]:  # fmt: skip
    """The outputs of the graph as one kernel."""
    sizes = dict(symbols or {})
    func = lower_group(graph, target or (Target.host() if compiled else HASWELL), "kernel")
    verify.verify(func)
    shapes = [[evaluate(d, sizes) for d in e.type.shape] for e in graph.outputs]
    outs = [np.zeros(s, e.type.dtype.numpy) for s, e in zip(shapes, graph.outputs)]
    params = [np.ascontiguousarray(a).reshape([evaluate(d, sizes) for d in b.shape])
              for a, b in zip([*arrays, *outs], func.params)]  # fmt: skip
    if compiled:
        from nnvm.runtime.llvm_jit import compile_funcs

        (kernel,) = compile_funcs([func], Target.host())
        kernel(*params, symbols=sizes)
    else:
        interpreter.run(func, params, sizes)
    return [p.reshape(s) for p, s in zip(params[len(arrays) :], shapes)]


def reference(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs by the numpy references of the ops."""
    values: dict[NodeEntry, Array] = {v[0]: a for v, a in zip(graph.inputs, arrays)}
    for node in graph.nodes:
        if node.is_constant:
            values[node[0]] = node.attrs["value"]
        elif not node.is_variable:
            found = node.op.attr("reference")(node.attrs, *(values[e] for e in node.inputs))
            values.update((e, np.asarray(f).astype(e.type.dtype.numpy)) for e, f in zip(node.outputs, found))
    return [values[e] for e in graph.outputs]
