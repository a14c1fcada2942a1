"""From a fused graph with a memory plan to a `Stage`: its kernels as objects, and where each call finds its buffers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from nnvm.compiler.build import GroupCall, group_calls
from nnvm.compiler.lower_group import lower_group
from nnvm.dim import symbol, symbols
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.graph import Graph
from nnvm.graph.group import fused_nodes
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.passes.plan_memory import MemoryPlan
from nnvm.runtime.artifact.plan import Copy, KernelSpec, Ref, Stage, Step
from nnvm.runtime.llvm_jit import KernelObject, compile_objects
from nnvm.target import Target
from nnvm.tir.stmt import PrimFunc

__all__ = ["PlacedGraph", "build_stage", "foreign_steps", "ops_of"]


def foreign_steps(graph: Graph) -> list[str]:
    """All steps of a fused graph that are no kernels of the CPU, with why."""
    foreign = []
    for node in graph.attrs["memory_plan"].steps:
        if device_of(node) != CPU:
            foreign.append(f"{node.name} runs on {device_of(node)}")
        elif node.op.name != "group":
            foreign.append(f"{node.op.name} ({node.name}{', ' + node.source if node.source else ''})")
    return foreign


def build_stage(
    graph: Graph, target: Target, section: str, prefix: str, first_output: int, base_of: Callable[[Node], int],
    progress: Callable[[int, int], None],
) -> tuple[Stage, bytes]:  # fmt: skip
    """The stage and its code.

    Args:
        graph: has no `foreign_steps`.
        section: the name that the code will have.
        prefix: of the kernels' names.
        first_output: position of the first output in the table of bases; 0 is the arena.
        base_of: position of an input, a parameter or a constant. It is asked in the order of the calls.
        progress: told how many kernels of how many are compiled.
    """
    placed = PlacedGraph(graph, first_output, base_of)
    funcs, kernel_of = _lowered(graph, target, prefix)
    objects = compile_objects(funcs, target, lambda done: progress(done, len(funcs)))
    code, kernels = b"", []
    for func, made in zip(funcs, objects, strict=True):
        kernels.append(_kernel_spec(func, made, len(code)))
        code += made.code + bytes(-len(made.code) % 64)
    return placed.stage(section, kernels, kernel_of), code


class PlacedGraph:
    """Where the values of a fused graph lie, for a stage; the arguments are `build_stage`'s.

    Attributes:
        buffers: of each step, those that its kernel is given: inputs, then outputs.
    """

    def __init__(self, graph: Graph, first_output: int, base_of: Callable[[Node], int]) -> None:
        self._graph, self._first_output, self._base_of = graph, first_output, base_of
        self._memory: MemoryPlan = graph.attrs["memory_plan"]
        self.buffers: dict[Node, tuple[Ref, ...]] = {
            node: tuple(self._ref(e) for e in (*node.inputs, *node.outputs)) for node in self._memory.steps
        }

    def _ref(self, entry: NodeEntry) -> Ref:
        place, extra = self._memory.locate(entry)
        offset = place.offset + extra
        if place.kind == "arena":
            return Ref(0, offset)
        if place.kind == "output":
            return Ref(self._first_output + place.index, offset)
        return Ref(self._base_of(self._memory.root(entry).node), offset)

    def stage(self, section: str, kernels: Sequence[KernelSpec], kernel_of: Mapping[Node, int]) -> Stage:
        """The stage that calls these kernels, whose code lies in `section`; `kernel_of`: the kernel of each node."""
        steps = tuple(
            Step(kernel_of[node], refs, tuple(symbol(s) for s in kernels[kernel_of[node]].sizes))
            for node, refs in self.buffers.items()
        )
        copies = []
        for i, entry in enumerate(self._graph.outputs):
            where = self._ref(entry)
            if i in self._memory.copies or where.base != self._first_output + i:  # no kernel writes it where it is due
                copies.append(Copy(i, where))
        return Stage(section, tuple(kernels), steps, tuple(copies), self._memory.arena_bytes)


def _lowered(graph: Graph, target: Target, prefix: str) -> tuple[list[PrimFunc], Mapping[Node, int]]:
    """The distinct kernels, named by their ops, and the number of each node's."""
    funcs: list[PrimFunc] = []
    numbers: dict[tuple[object, ...], int] = {}
    kernel_of: dict[Node, int] = {}
    for call in group_calls(graph):
        key = call.key
        if key not in numbers:
            numbers[key] = len(funcs)
            funcs.append(lower_group(call.node.attrs["graph"], target, f"{prefix}{len(funcs)}_{ops_of(call)}",
                                     call.input_strides, call.output_strides))  # fmt: skip
        kernel_of[call.node] = numbers[key]
    return funcs, kernel_of


def ops_of(call: GroupCall) -> str:
    """Part of a C identifier: what the kernel computes, whatever the numbers of its nodes."""
    nodes = fused_nodes(call.node.attrs["graph"])
    return "_".join(dict.fromkeys(re.sub(r"\W", "_", n.op.name) for n in nodes))[:60]


def _kernel_spec(func: PrimFunc, made: KernelObject, start: int) -> KernelSpec:
    workspace = func.workspace()
    unknown = symbols(workspace) - set(func.symbols)
    assert not unknown, f"{func.name} has a workspace in sizes that it is not given: {unknown}"
    return KernelSpec(made.name, start, len(made.code), made.messages, len(func.params), func.symbols,
                      workspace, made.parallel)  # fmt: skip
