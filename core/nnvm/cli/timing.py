"""How long each kernel of a compiled graph takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from nnvm.cli.source import Model
from nnvm.compiler.build import CompiledGraph
from nnvm.graph import Node
from nnvm.runtime.executor import Executor
from nnvm.runtime.plan import Plan

__all__ = ["kernel_times"]

#: Calls before anything is timed: caches fill, clocks rise.
_WARM_UP = 3


def kernel_times(
    model: Model, compiled: CompiledGraph, sizes: Mapping[str, int], calls: int,
    progress: Callable[[str, float], None] = lambda text, done: None,
) -> dict[Node, float]:  # fmt: skip
    """Median nanoseconds of each kernel of the main graph over `calls` calls, on the model's own tensors.

    `progress` is told what is done next, between calls, and the part that is done.
    """
    progress("preparing weights", 0.0)
    graph = compiled.graph
    tensors = dict(zip((v.name for v in model.graph.inputs), model.tensors(sizes)))
    prepared: list[Any] = []
    if compiled.prepare is not None:
        plan = compiled.prepare.plan
        prepared = _executor(model, plan).run([tensors[v.name] for v in plan.graph.inputs])
    new = (v.name for v in graph.inputs if v.attrs["kind"] == "prepared")
    tensors.update(zip(new, prepared, strict=True))
    executor = _executor(model, compiled.plan)
    inputs = [tensors[v.name] for v in graph.inputs]
    env = {name: sizes[name] for name in compiled.plan.symbols} or None
    for _ in range(_WARM_UP):
        executor.run(inputs, env)
    times: dict[Node, list[int]] = {}
    for call in range(calls):
        progress(f"call {call + 1} of {calls}", call / calls)
        for node, nanoseconds in executor.profile(inputs, env):
            times.setdefault(node, []).append(nanoseconds)
    return {node: float(statistics.median(taken)) for node, taken in times.items()}


def _executor(model: Model, plan: Plan) -> Executor:
    return Executor(plan, model.memory, [model.constant(e) for e in plan.constants])
