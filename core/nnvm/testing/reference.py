"""The reference executor: runs any Graph on numpy arrays, slowly and plainly. Everything else is tested against it.

Each node goes through its op's ``reference`` attribute; an op without one through its ``compute`` or ``build_tir``,
lowered with the default schedule and run by the interpreter of TIR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnvm.dim import evaluate as evaluate_dim
from nnvm.graph.evaluate import Array, evaluate_graph
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node

__all__ = ["random_inputs", "run_graph"]


def run_graph(
    graph: Graph, inputs: Mapping[str, Array] | Sequence[Array], symbols: Mapping[str, int] | None = None
) -> list[Array]:
    """The graph's outputs for `inputs` (in calling order, or by name); bfloat16 is carried as uint16 bits."""
    return evaluate_graph(graph, inputs, symbols, _interpret)


def random_inputs(graph: Graph, seed: int = 0, symbols: Mapping[str, int] | None = None) -> list[Array]:
    """Arrays that fit the graph's inputs: normal floats, small integers, even booleans."""
    rng = np.random.default_rng(seed)
    arrays = []
    for v in graph.inputs:
        t = v[0].type
        shape = tuple(evaluate_dim(d, symbols or {}) for d in t.shape)
        if t.dtype.is_bool:
            arrays.append(rng.integers(0, 2, shape).astype(bool))
        elif t.dtype.is_int:
            arrays.append(rng.integers(0, 4, shape).astype(t.dtype.numpy))
        elif t.dtype.name == "bfloat16":
            from nnvm.dtype import f32_to_bf16

            arrays.append(f32_to_bf16(rng.standard_normal(shape).astype(np.float32)))
        else:
            arrays.append(rng.standard_normal(shape).astype(t.dtype.numpy))
    return arrays


def _interpret(node: Node, arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
    from nnvm.te import placeholder
    from nnvm.te.schedule import Schedule
    from nnvm.tir.interpreter import run
    from nnvm.tir.lower import lower

    assert node.types is not None, f"{node.name} has no types; run InferType"
    types = tuple(e.type for e in node.inputs)
    if node.op.has("build_tir"):
        func = node.op.attr("build_tir")(node.attrs, types, node.types, node.op.name)
    elif node.op.has("compute"):
        args = [placeholder(t.shape, t.dtype, f"p{i}") for i, t in enumerate(types)]
        outs = node.op.attr("compute")(node.attrs, args, node.types)
        func = lower(Schedule(outs), [*args, *outs], node.op.name)
    else:
        raise KeyError(f"op {node.op.name} has no reference, compute or build_tir: it cannot be run")
    outputs = [np.empty(tuple(evaluate_dim(d, symbols) for d in t.shape), t.dtype.numpy) for t in node.types]
    run(func, [*arrays, *outputs], dict(symbols))
    return outputs
