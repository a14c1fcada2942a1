"""A compiled graph with its weights, called on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.graph import Graph
from nnvm.graph.evaluate import bind_symbols
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.runtime.plan import Plan

__all__ = ["Session"]

Array = np.ndarray[Any, Any]


class Session:
    """Compiles a graph and prepares its weights; `run` is re-entrant."""

    def __init__(self, graph: Graph, params: Mapping[str, Array], options: BuildOptions | None = None) -> None:
        self.inputs = tuple(v for v in graph.inputs if v.attrs["kind"] == "input")
        self._signature = Graph((), self.inputs)
        compiled = compile_graph(graph, options)
        prepared: list[Array] = []
        if compiled.prepare is not None:
            plan = compiled.prepare.plan
            prepared = _executor(plan).run([params[v.name] for v in plan.graph.inputs])
        self._executor = _executor(compiled.plan)
        weights = {v.name: params[v.name] for v in compiled.graph.inputs if v.attrs["kind"] == "param"}
        new = [v for v in compiled.graph.inputs if v.attrs["kind"] == "prepared"]
        weights.update({v.name: array for v, array in zip(new, prepared, strict=True)})
        position = {v.name: i for i, v in enumerate(compiled.graph.inputs)}
        if weights:
            self._executor.bind({position[name]: array for name, array in weights.items()})

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs for one array per input, in order. ValueError where an array does not fit its input's type."""
        if len(arrays) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} inputs are wanted, got {len(arrays)}")
        bind_symbols(self._signature, arrays)
        return self._executor.run([np.array(a, order="C", copy=None) for a in arrays])


def _executor(plan: Plan) -> Executor:
    return Executor(plan, NumpyMemory(), [np.array(e.node.attrs["value"], order="C") for e in plan.constants])
