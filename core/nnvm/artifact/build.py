"""From a graph and its parameters to the file of an artifact.

Each level goes through the whole pipeline for its own target: layouts, algorithms and memory plans differ with the
vector width. What an artifact holds beside code: the plan of each level (`nnvm.runtime.artifact.plan`), the weights
that the levels read (`nnvm.artifact.weights`), and the graph that was compiled, in NNVM's JSON, to look at.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from nnvm.artifact.levels import CpuLevel, default_levels
from nnvm.artifact.weights import WeightTable, fitting, prepare
from nnvm.compiler.build import GroupCall, group_calls, symbol_sources
from nnvm.compiler.lower_group import lower_group
from nnvm.compiler.pipeline import pipeline
from nnvm.dim import symbol, symbols
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.json import save_json
from nnvm.graph.node import Node, NodeEntry, variable
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.plan_memory import MemoryPlan
from nnvm.graph.unique_names import with_unique_names
from nnvm.runtime.artifact.container import write_container
from nnvm.runtime.artifact.plan import Copy, KernelSpec, Level, Ref, Spec, Step, TensorSpec, dump_spec
from nnvm.runtime.artifact.tensors import write_tensors
from nnvm.runtime.llvm_jit import KernelObject, compile_objects
from nnvm.tir.stmt import PrimFunc

__all__ = ["ArtifactInfo", "NotCompilable", "compile_artifact"]

Array = np.ndarray[Any, Any]
#: Elements of constants that the graph in the file spells out.
_LARGEST_CONSTANT = 4096


class NotCompilable(ValueError):
    """The model cannot become an artifact; the message lists everything that stands against it."""


@dataclass(frozen=True)
class ArtifactInfo:
    """What was written.

    Attributes:
        nbytes: size of the file.
        code_bytes: of each level, by name.
        kernels: of each level, by name.
        weight_bytes: of the weights, as they lie in the file.
    """

    path: str
    nbytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    code_bytes: Mapping[str, int]
    kernels: Mapping[str, int]
    weight_bytes: int


def compile_artifact(
    graph: Graph, params: Mapping[str, Any], path: str | os.PathLike[str], levels: Sequence[CpuLevel] = (), *,
    name: str | None = None, output_names: Sequence[str] | None = None, options: Mapping[str, Any] | None = None,
    opt_level: int = 3, progress: Callable[[str, float], None] | None = None,
) -> ArtifactInfo:  # fmt: skip
    """Compiles a graph into the file `path`. Equal graphs and parameters give equal files.

    Args:
        graph: its variables of kind ``param`` are the parameters, the others the inputs. Sizes may have names.
        params: arrays by name (bfloat16 as float or as its uint16 bits).
        levels: what to compile for, from the least to the most demanding; default: `default_levels`.
        name: of the model; default: the file's.
        output_names: in order; default ``output0`` and so on.
        options: settings of single passes.
        progress: told what is done next, and the part of the work that is done.

    Raises:
        NotCompilable: there are calls that only a frontend runs, other devices, or parameters without values.
        ValueError: a parameter is of another type; names are not unique.
    """
    levels = tuple(levels) or default_levels()
    label = name or Path(path).stem
    if len({level.name for level in levels}) != len(levels):
        raise ValueError(f"two levels of one name: {', '.join(level.name for level in levels)}")
    given = _parameters(graph, params)
    table = WeightTable()
    built: list[tuple[Level, bytes]] = []
    spec: Spec | None = None
    for number, level in enumerate(levels):
        tell = partial(_tell, progress, level.name, number, len(levels))
        tell("passes", 0.0)
        context = PassContext(opt_level=opt_level, target=level.target, options=dict(options or {}))
        fused = apply_passes(graph, pipeline(), context)
        one = _LevelBuilder(fused, level, given, table)
        built.append(one.run(f"code{number}", tell))
        if spec is None:
            inputs, outputs = one.inputs(), one.outputs(output_names)
            spec = Spec(label, f"nnvm, LLVM {'.'.join(map(str, llvm.llvm_version_info))}", inputs, outputs,
                        one.sizes(), {}, ())  # fmt: skip
    assert spec is not None, "there is at least one level"
    spec = Spec(spec.model, spec.producer, spec.inputs, spec.outputs, spec.sizes, table.digests,
                tuple(b for b, _ in built))  # fmt: skip
    sections: dict[str, Sequence[bytes | memoryview]] = {
        "plan": [dump_spec(spec)],
        "graph": [save_json(_renumbered(graph), indent=None).encode()],
        **{level.code: [code] for level, code in built},
        "weights": write_tensors(table.tensors),
    }
    size = write_container(path, sections)
    return ArtifactInfo(os.fspath(path), size, spec.inputs, spec.outputs,
                        {level.name: len(code) for level, code in built},
                        {level.name: len(level.kernels) for level, _ in built}, table.nbytes)  # fmt: skip


def _tell(progress: Callable[[str, float], None] | None, level: str, number: int, levels: int, what: str,
          part: float) -> None:  # fmt: skip
    if progress is not None:
        progress(f"{level}: {what}", (number + part) / levels)


def _renumbered(graph: Graph, *, whole: bool = True) -> Graph:
    """Without what depends on the process and the machine: automatic names count from 0, there are no source lines.

    Large constants become parameters (of the `whole` graph, not of bodies in it): their values are among the weights.
    """
    counters: Counter[str] = Counter()
    moved: list[Node] = []

    def rename(node: Node, inputs: tuple[NodeEntry, ...]) -> Node:
        found, name = re.fullmatch(r"(.+?)_?\d+", node.name), node.name
        if found is not None and (stem := found[1]) in (node.op.name, "const"):
            name = f"{stem}_{counters[stem]}"
            counters[stem] += 1
        if whole and node.is_constant and node.attrs["value"].size > _LARGEST_CONSTANT:
            moved.append(variable(name, node[0].type, "param").node)
            return moved[-1]
        attrs = {k: _renumbered(v, whole=False) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
        return Node(node.op, inputs, attrs, name, node.types)

    named = rebuild(graph, rename)
    return with_unique_names(Graph(named.outputs, (*named.inputs, *moved), named.attrs))


def _parameters(graph: Graph, params: Mapping[str, Any]) -> dict[str, Array]:
    wanted = [v for v in graph.inputs if v.attrs["kind"] == "param"]
    if missing := [f"{v.name}: {v[0].type}" for v in wanted if v.name not in params]:
        raise NotCompilable(f"parameters have no values: {', '.join(missing)}")
    return {v.name: fitting(v.name, v[0].type, params[v.name]) for v in wanted}


class _LevelBuilder:
    """One level: the fused graph, its kernels, and where its values lie."""

    def __init__(self, graph: Graph, level: CpuLevel, params: Mapping[str, Array], table: WeightTable) -> None:
        self.graph, self.level, self.table = graph, level, table
        self.memory: MemoryPlan = graph.attrs["memory_plan"]
        self._inputs = [v for v in graph.inputs if v.attrs["kind"] == "input"]
        self._positions = {v: i for i, v in enumerate(self._inputs)}
        self._weights: dict[str, int] = {}  # name in the file -> position among the level's weights
        self._arrays: dict[Node, tuple[str, Array]] = {}
        self._params = params
        self._refuse_foreign()

    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(v.name, v[0].type.dtype, v[0].type.shape) for v in self._inputs)

    def outputs(self, names: Sequence[str] | None) -> tuple[TensorSpec, ...]:
        found = list(names) if names is not None else [f"output{i}" for i in range(len(self.graph.outputs))]
        if len(found) != len(self.graph.outputs) or len(set(found)) != len(found):
            raise ValueError(f"{len(self.graph.outputs)} outputs need as many names, each once, not {found}")
        return tuple(TensorSpec(n, e.type.dtype, e.type.shape) for n, e in zip(found, self.graph.outputs))

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Where each named size is read: (position of the input, axis)."""
        found: dict[str, tuple[int, int]] = {}
        for name, (position, axis) in symbol_sources(self.graph, set()).items():
            if position < 0:
                raise NotCompilable(f"the size {name} is no axis of an input, so no call can tell it; give the shapes "
                                    f"of the inputs")  # fmt: skip
            found[name] = (self._positions[self.graph.inputs[position]], axis)
        return found

    def run(self, section: str, tell: Callable[[str, float], None]) -> tuple[Level, bytes]:
        """The level's plan, and its code."""
        tell("weights", 0.2)
        self._find_arrays()
        tell("kernels", 0.3)
        funcs, kernel_of = self._lowered()
        objects = compile_objects(funcs, self.level.target, lambda n: tell("kernels", 0.3 + 0.7 * n / len(funcs)))
        code, kernels = b"", []
        for func, made in zip(funcs, objects, strict=True):
            kernels.append(_kernel_spec(func, made, len(code)))
            code += made.code + bytes(-len(made.code) % 64)
        steps = tuple(
            Step(kernel_of[node], tuple(self._ref(e) for e in (*node.inputs, *node.outputs)),
                 tuple(symbol(s) for s in kernels[kernel_of[node]].sizes))
            for node in self.memory.steps
        )  # fmt: skip
        copies = tuple(Copy(i, ref) for i, ref in self._elsewhere())
        level = Level(self.level.name, self.level.target.triple, self.level.features, section, tuple(kernels), steps,
                      copies, self.memory.arena_bytes, tuple(self._weights))  # fmt: skip
        return level, code

    def _refuse_foreign(self) -> None:
        """NotCompilable with all steps that are no kernels of this CPU."""
        foreign = []
        for node in self.memory.steps:
            if device_of(node) != CPU:
                foreign.append(f"{node.name} runs on {device_of(node)}")
            elif node.op.name != "group":
                foreign.append(f"{node.op.name} ({node.name}{', ' + node.source if node.source else ''})")
        if foreign:
            raise NotCompilable(f"an artifact holds code of the CPU only; this has none: {'; '.join(foreign)}")

    def _find_arrays(self) -> None:
        """The arrays of what is no input: parameters, prepared values, constants."""
        for v in self.graph.inputs:
            if v.attrs["kind"] == "param":
                self._arrays[v] = (v.name, self._params[v.name])
        for i, n in enumerate(n for n in self.graph.nodes if n.is_constant):
            self._arrays[n] = (f"constant.{i}", np.array(n.attrs["value"], order="C"))
        early: Graph | None = self.graph.attrs.get("prepare")
        new = [v for v in self.graph.inputs if v.attrs["kind"] == "prepared"]
        if early is None or not new:
            return
        for i, (v, array) in enumerate(zip(new, prepare(early, self._params), strict=True)):
            self._arrays[v] = (f"prepared.{i}", array)

    def _lowered(self) -> tuple[list[PrimFunc], dict[Node, int]]:
        """The distinct kernels, named by their ops, and the number of each node's."""
        funcs: list[PrimFunc] = []
        numbers: dict[tuple[object, ...], int] = {}
        kernel_of: dict[Node, int] = {}
        for call in group_calls(self.graph):
            key = call.key
            if key not in numbers:
                numbers[key] = len(funcs)
                funcs.append(lower_group(call.node.attrs["graph"], self.level.target, _kernel_name(len(funcs), call),
                                         call.input_strides, call.output_strides))  # fmt: skip
            kernel_of[call.node] = numbers[key]
        return funcs, kernel_of

    def _elsewhere(self) -> list[tuple[int, Ref]]:
        """Outputs that no kernel writes where they are wanted."""
        found = []
        for i, entry in enumerate(self.graph.outputs):
            ref = self._ref(entry)
            if i in self.memory.copies or ref.base != 1 + len(self._inputs) + i:
                found.append((i, ref))
        return found

    def _ref(self, entry: NodeEntry) -> Ref:
        place, extra = self.memory.locate(entry)
        offset = place.offset + extra
        if place.kind == "arena":
            return Ref(0, offset)
        if place.kind == "output":
            return Ref(1 + len(self._inputs) + place.index, offset)
        node = self.memory.root(entry).node
        if node in self._positions:
            return Ref(1 + self._positions[node], offset)
        wish, array = self._arrays[node]
        name = self.table.add(wish, array, node[0].type.dtype)
        position = self._weights.setdefault(name, len(self._weights))
        return Ref(1 + len(self._inputs) + len(self.graph.outputs) + position, offset)


def _kernel_name(number: int, call: GroupCall) -> str:
    """A C identifier that says what the kernel computes and does not depend on how often nodes were numbered."""
    nodes = [n for n in call.node.attrs["graph"].nodes if not n.is_variable and not n.is_constant]
    ops = "_".join(dict.fromkeys(re.sub(r"\W", "_", n.op.name) for n in nodes))
    return f"k{number}_{ops[:60]}"


def _kernel_spec(func: PrimFunc, made: KernelObject, start: int) -> KernelSpec:
    workspace = func.workspace()
    unknown = symbols(workspace) - set(func.symbols)
    assert not unknown, f"{func.name} has a workspace in sizes that it is not given: {unknown}"
    return KernelSpec(made.name, start, len(made.code), made.messages, len(func.params), func.symbols,
                      workspace, made.parallel)  # fmt: skip
