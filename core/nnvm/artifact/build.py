"""From a graph and its parameters to the file of an artifact.

Each level goes through the whole pipeline for its own target: layouts, algorithms and memory plans differ with the
vector width. What an artifact holds beside code: the plan of each level (`nnvm.runtime.artifact.plan`), the weights
that the levels read (`nnvm.artifact.weights`), and the graph that was compiled, in NNVM's JSON, to look at.
"""

from __future__ import annotations

import json
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

from nnvm.artifact.gpu_stage import build_gpu_stage
from nnvm.artifact.levels import CpuLevel, default_levels, level_of
from nnvm.artifact.stage import build_stage, foreign_steps
from nnvm.artifact.weights import WeightTable, fitting, packed
from nnvm.compiler.build import symbol_sources
from nnvm.compiler.pipeline import pipeline
from nnvm.dim import evaluate, numel
from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.json import save_json
from nnvm.graph.node import Node, NodeEntry, variable
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.unique_names import with_unique_names
from nnvm.runtime.artifact.container import write_container
from nnvm.runtime.artifact.plan import Level, Spec, TensorSpec, dump_spec
from nnvm.runtime.artifact.tensors import write_tensors
from nnvm.runtime.graph_runtime import Library

__all__ = ["SOURCES", "WEIGHTS", "ArtifactInfo", "NotCompilable", "compile_artifact", "save_library"]

Array = np.ndarray[Any, Any]
#: How weights are kept in the file.
WEIGHTS = ("auto", "packed", "original")
#: Elements of constants that the graph in the file spells out.
_LARGEST_CONSTANT = 4096
#: Sections with the Triton sources of a GPU's code, as JSON: to look at.
SOURCES = "triton"


class NotCompilable(ValueError):
    """The model cannot become an artifact; the message lists everything that stands against it."""


@dataclass(frozen=True)
class ArtifactInfo:
    """What was written.

    Attributes:
        nbytes: size of the file.
        code_bytes: of each level, by name.
        kernels: that a call of each level uses, by name.
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
    opt_level: int = 3, weights: str = "auto", progress: Callable[[str, float], None] | None = None,
) -> ArtifactInfo:  # fmt: skip
    """Compiles a graph into the file `path`. Equal graphs and parameters give equal files.

    Args:
        graph: its variables of kind ``param`` are the parameters, the others the inputs. Sizes may have names.
        params: arrays by name (bfloat16 as float or as its uint16 bits).
        levels: what to compile for, from the least to the most demanding; default: `default_levels`.
        name: of the model; default: the file's.
        output_names: in order; default ``output0`` and so on.
        options: settings of single passes.
        weights: ``packed``: laid out for each level's vectors, read in place; ``original``: as they are, once, and the
            code that packs them before the first call; ``auto``: packed for one level, original for several.
        progress: told what is done next, and the part of the work that is done.

    Raises:
        NotCompilable: there are calls that only a frontend runs, other devices, or parameters without values.
        ValueError: a parameter is of another type; names are not unique; no such `weights`.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights are {', '.join(WEIGHTS)}, not {weights!r}")
    levels = tuple(levels) or default_levels()
    label = name or Path(path).stem
    if len({level.name for level in levels}) != len(levels):
        raise ValueError(f"two levels of one name: {', '.join(level.name for level in levels)}")
    given = _parameters(graph, params)
    table = WeightTable()
    built: list[tuple[Level, dict[str, bytes]]] = []
    pack = weights == "packed" or (weights == "auto" and len(levels) == 1)
    builders: list[_LevelBuilder] = []
    for number, level in enumerate(levels):
        tell = partial(_tell, progress, level.name, number, len(levels))
        tell("passes", 0.0)
        context = PassContext(opt_level=opt_level, target=level.target, options=dict(options or {}))
        fused = apply_passes(graph, pipeline(), context)
        builders.append(_LevelBuilder(fused, level, given, table, pack))
        built.append(builders[-1].run(number, tell))
    return _write(path, label, graph, builders[0], output_names, built, table)


def save_library(
    lib: Library, params: Mapping[str, Any], path: str | os.PathLike[str], *, name: str | None = None,
    output_names: Sequence[str] | None = None, progress: Callable[[str, float], None] | None = None,
) -> ArtifactInfo:  # fmt: skip
    """Writes what `nnvm.compiler.build` gave (its code and its parameters) to the file `path`, for the target that it
    was built for; the other arguments are `compile_artifact`'s.

    >>> graph, lib, params = nnvm.compiler.build(net, "cuda -arch=sm_90", shape={"data": (1, 3, 8, 8)}, params=params)
    >>> save_library(lib, params, "net.nnvm")

    Raises:
        NotCompilable: there are calls that only a frontend runs, other devices, or parameters without values.
        ValueError: a parameter is of another type; the target is one that no artifact has code for.
        RuntimeError: the target is a GPU, and Triton interprets in this process.
    """
    graph, level, table = lib.plan.graph, level_of(lib.target), WeightTable()
    read = set(graph.nodes)
    wanted = [v for v in graph.inputs if v.attrs["kind"] != "input" and v in read]
    if missing := [f"{v.name}: {v[0].type}" for v in wanted if v.name not in params]:
        raise NotCompilable(f"parameters have no values: {', '.join(missing)}")
    given = {v.name: fitting(v.name, v[0].type, params[v.name]) for v in wanted}
    builder = _LevelBuilder(graph, level, given, table, True, prepared=False)
    built = [builder.run(0, partial(_tell, progress, level.name, 0, 1))]
    return _write(path, name or Path(path).stem, graph, builder, output_names, built, table)


def _write(path: str | os.PathLike[str], label: str, graph: Graph, first: _LevelBuilder,
           output_names: Sequence[str] | None, built: Sequence[tuple[Level, dict[str, bytes]]],
           table: WeightTable) -> ArtifactInfo:  # fmt: skip
    """The file of levels that are built; `first` of them says what the inputs and outputs are."""
    spec = Spec(label, f"nnvm, LLVM {'.'.join(map(str, llvm.llvm_version_info))}", first.inputs(),
                first.outputs(output_names), first.sizes(), table.digests, tuple(b for b, _ in built))  # fmt: skip
    sections: dict[str, Sequence[bytes | memoryview]] = {
        "plan": [dump_spec(spec)],
        "graph": [save_json(_renumbered(graph), indent=None).encode()],
        **{name: [code] for _, found in built for name, code in found.items()},
        "weights": write_tensors(table.tensors),
    }
    size = write_container(path, sections)
    return ArtifactInfo(os.fspath(path), size, spec.inputs, spec.outputs,
                        {level.name: sum(len(c) for n, c in found.items() if not n.startswith(SOURCES))
                         for level, found in built},
                        {level.name: len(level.main.kernels) for level, _ in built}, table.nbytes)  # fmt: skip


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
    """One level: the fused graph, its stages, and where its values lie."""

    def __init__(self, graph: Graph, level: CpuLevel, params: Mapping[str, Array], table: WeightTable,
                 pack: bool, prepared: bool = True) -> None:  # fmt: skip
        """`pack`: prepare the weights now, for the file; else before the first call, where that takes kernels only (a
        GPU's are always prepared now). `prepared` False: what is prepared is among `params`."""
        self.graph, self.level, self.table = graph, level, table
        self._inputs = [v for v in graph.inputs if v.attrs["kind"] == "input"]
        self._positions = {v: i for i, v in enumerate(self._inputs)}
        self._weights: dict[str, int] = {}  # name in the file -> position among the level's weights
        self._arrays: dict[Node, tuple[str, Array]] = {}
        self._params = params
        if foreign := foreign_steps(graph):
            where = "GPU" if level.target.is_gpu else "CPU"
            raise NotCompilable(f"an artifact holds code of the {where} only; this has none: {'; '.join(foreign)}")
        early: Graph | None = graph.attrs.get("prepare") if prepared else None
        self._early = early if early is not None and early.outputs else None
        self._prepared = [v for v in graph.inputs if v.attrs["kind"] == "prepared"]
        later = not pack and not level.target.is_gpu
        self._later = later and self._early is not None and not foreign_steps(self._early)

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

    def run(self, number: int, tell: Callable[[str, float], None]) -> tuple[Level, dict[str, bytes]]:
        """The level's plan, and the sections with its code."""
        tell("weights", 0.2)
        self._find_arrays(self.graph, "")
        first_output = 1 + len(self._inputs)
        bases = {v: 1 + i for i, v in enumerate(self._inputs)}
        first_weight = first_output + len(self.graph.outputs)
        if self._later:
            bases.update((v, first_weight + i) for i, v in enumerate(self._prepared))
            first_weight += len(self._prepared)

        def base_of(node: Node) -> int:
            return bases[node] if node in bases else first_weight + self._weight(node)

        def done(kernels: int, of: int) -> None:
            tell("kernels", 0.3 + 0.6 * kernels / of)

        section = f"code{number}"
        sections: dict[str, bytes] = {}
        if self.level.target.is_gpu:
            main, code, sources = build_gpu_stage(self.graph, self.level.target, section, first_output, base_of, done)
            sections[f"{SOURCES}{number}"] = json.dumps(sources, indent=0).encode()
        else:
            main, code = build_stage(self.graph, self.level.target, section, "k", first_output, base_of, done)
        sections[section], prepare = code, None
        sizes: tuple[int, ...] = ()
        if self._later and self._early is not None:
            self._find_arrays(self._early, "prepare.")
            count = len(self._prepared)
            prepare, code = build_stage(self._early, self.level.target, f"prepare{number}", "p", 1,
                                        lambda node: 1 + count + self._weight(node),
                                        lambda done, all_: tell("kernels", 0.9 + 0.1 * done / all_))  # fmt: skip
            sections[prepare.code] = code
            sizes = tuple(evaluate(numel(v[0].type.shape), {}) * v[0].type.dtype.bytes for v in self._prepared)
        return Level(self.level.name, self.level.target.triple, self.level.features, main, prepare, sizes,
                     tuple(self._weights)), sections  # fmt: skip

    def _find_arrays(self, graph: Graph, prefix: str) -> None:
        """The arrays of what is no input: parameters, prepared values, constants."""
        for v in graph.inputs:
            if v.attrs["kind"] != "input" and v.name in self._params:
                self._arrays[v] = (v.name, self._params[v.name])
        for i, n in enumerate(n for n in graph.nodes if n.is_constant):
            self._arrays[n] = (f"{prefix}constant.{i}", np.array(n.attrs["value"], order="C"))
        if graph is self.graph and self._early is not None and self._prepared and not self._later:
            for i, (v, array) in enumerate(zip(self._prepared, packed(self._early, self._params), strict=True)):
                self._arrays[v] = (f"prepared.{i}", array)

    def _weight(self, node: Node) -> int:
        """Position among the level's weights."""
        wish, array = self._arrays[node]
        name = self.table.add(wish, array, node[0].type.dtype)
        return self._weights.setdefault(name, len(self._weights))
