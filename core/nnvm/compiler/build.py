"""Graph to executable plan: passes, then one kernel per distinct fused group, then the order of calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import nnvm.ops  # noqa: F401  registers the operators
from nnvm.compiler import cuda_device  # noqa: F401  registers the device
from nnvm.compiler.debug_log import log_kernels
from nnvm.compiler.lower_group import lower_group, lower_group_for_gpu
from nnvm.compiler.pipeline import pipeline
from nnvm.dim import Dim, SymDim, known_ranges, likely_sizes, symbol, symbols
from nnvm.garbage import no_garbage_collection
from nnvm.graph import Graph, Node, apply, variable
from nnvm.graph.device_copy import is_device_copy
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.dump import default_instruments
from nnvm.graph.group import fused_nodes, user_sources
from nnvm.graph.pass_manager import Instrument, PassContext, apply_passes
from nnvm.graph.passes.place_device import Placement
from nnvm.graph.passes.plan_memory import MemoryPlan
from nnvm.graph.structural import structural_key
from nnvm.runtime import reference_device  # noqa: F401  registers the device
from nnvm.runtime.defined_kernel import DefinedKernel, can_define
from nnvm.runtime.device import copy_call, runtime_of
from nnvm.runtime.llvm_jit import Kernel, compile_funcs
from nnvm.runtime.plan import DeviceStep, HostStep, KernelStep, Plan
from nnvm.runtime.triton_launch import TritonKernel
from nnvm.target import Target
from nnvm.tir.stmt import PrimFunc

__all__ = ["BuildOptions", "Clock", "CompiledGraph", "CompilerFault", "GroupCall", "KernelInfo", "compile_fused",
           "compile_graph", "group_calls", "symbol_sources"]  # fmt: skip

Strides = tuple[Dim, ...] | None
#: Equal for group calls that one kernel serves.
Key = tuple[object, ...]


@dataclass(frozen=True)
class CompilerFault:
    """An exception inside the compiler that it could do without.

    Attributes:
        stage: ``pass``, ``schedule`` or ``LLVM``.
        what: the pass, or the kernel with its operators.
        sources: user source lines of the group.
        error: the exception.
    """

    stage: str
    what: str
    sources: tuple[str, ...]
    error: Exception

    def __str__(self) -> str:
        where = f" ({', '.join(self.sources)})" if self.sources else ""
        kind = f"{self.stage} {self.what}" if self.stage == "pass" else f"{self.stage} of {self.what}"
        return f"{kind}{where}: {type(self.error).__name__}: {self.error}"


OnFault = Callable[[CompilerFault], None]


@dataclass(frozen=True)
class BuildOptions:
    """Settings of one build.

    Attributes:
        target: what to compile for; None: `Target.current()`.
        opt_level: 0 (no more than needed to run) to 3.
        disabled_passes: names of passes left out.
        enabled_passes: names of passes that run at any level; registered ones that are not in the pipeline run after
            the rewriting.
        options: settings of single passes (`precise`, `fast_math`).
        verify: check the graph after each pass.
        instruments: watchers of passes.
        prepare_on_host: what depends on parameters only is compiled for this machine's processor, whatever the target.
        on_fault: is told of an exception inside the compiler, which then goes on: without the pass that failed, or with
            the group that failed run by the definitions of its ops. None: exceptions come through.
    """

    target: Target | None = None
    opt_level: int = 3
    disabled_passes: frozenset[str] = frozenset()
    enabled_passes: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)
    verify: bool = False
    instruments: tuple[Instrument, ...] = ()
    on_fault: OnFault | None = None
    prepare_on_host: bool = False


@dataclass(frozen=True)
class KernelInfo:
    """One kernel call of a plan, for reports.

    Attributes:
        ops: names of the fused operators in order.
        sources: user source lines they come from.
        shared: another call of the plan uses the same machine code.
    """

    name: str
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    shared: bool


@dataclass(frozen=True)
class CompiledGraph:
    """A graph ready to run.

    Attributes:
        plan: for the `Executor`.
        prepare: the part that depends on parameters only, with outputs for the main graph's inputs of kind
            ``prepared`` in order; None where there is none.
        kernels: one per kernel call.
        seconds: compile time by phase (``passes``, ``lower``, ``llvm``, ``plan``).
    """

    plan: Plan
    prepare: CompiledGraph | None
    kernels: tuple[KernelInfo, ...]
    seconds: Mapping[str, float]

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def placement(self) -> Placement | None:
        """Which node runs on which device, and why; None where all run on the host's main target."""
        return self.graph.attrs.get("placement")

    @property
    def host_nodes(self) -> list[Node]:
        """Nodes that the frontend runs itself."""
        return [s.node for s in self.plan.steps if isinstance(s, HostStep)]


def compile_graph(graph: Graph, options: BuildOptions | None = None) -> CompiledGraph:
    """Optimises and compiles `graph` (its types inferred).

    Errors of type inference or of a pass come through as they are; a group that no schedule takes is a ValueError
    that names its nodes.
    """
    ranges, hints = graph.attrs.get("dim_ranges", ()), graph.attrs.get("dim_hints", ())
    # The compiler makes many objects and few cycles; each collection would walk all of the process's modules.
    with no_garbage_collection(), known_ranges(ranges), likely_sizes(hints):
        compiled = _compile(graph, options or BuildOptions())
    log_kernels(compiled)
    return compiled


def _compile(graph: Graph, options: BuildOptions) -> CompiledGraph:
    target = options.target or Target.current()
    context = PassContext(opt_level=options.opt_level, disabled=options.disabled_passes,
                          enabled=options.enabled_passes, target=target, options=options.options,
                          instruments=(*default_instruments(), *options.instruments),
                          verify=options.verify)  # fmt: skip
    clock = Clock()
    with clock("passes"):
        graph = _optimised(graph, options, context)
    prepare_graph: Graph | None = graph.attrs.get("prepare")
    host = target if target.has_kernels else Target.host()
    compiled = compile_fused(graph, host, clock, options.on_fault)
    if prepare_graph is None or not prepare_graph.outputs:
        return compiled
    prepare = compile_fused(prepare_graph, Target.host() if options.prepare_on_host else host, clock, options.on_fault)
    return CompiledGraph(compiled.plan, prepare, compiled.kernels, clock.seconds)


def _optimised(graph: Graph, options: BuildOptions, context: PassContext) -> Graph:
    """The graph after all passes; one that fails is left out where faults are to be done without."""
    while True:
        try:
            return apply_passes(graph, pipeline(options.enabled_passes), context)
        except Exception as error:
            name = getattr(error, "failed_pass", "")
            if options.on_fault is None or not name or name in context.disabled:
                raise
            options.on_fault(CompilerFault("pass", name, (), error))
            context = replace(context, disabled=context.disabled | {name})


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class GroupCall:
    """A group node with the strides of the graph inputs and outputs that it touches directly."""

    node: Node
    input_strides: tuple[Strides, ...]
    output_strides: tuple[Strides, ...]

    @property
    def key(self) -> Key:
        return structural_key(self.node.attrs["graph"]), self.input_strides, self.output_strides


def compile_fused(graph: Graph, target: Target, clock: Clock, on_fault: OnFault | None = None) -> CompiledGraph:
    """Kernels and plan of a fused and memory-planned graph; `on_fault` as in `BuildOptions`."""
    calls = group_calls(graph)
    if target.is_gpu:
        return _compile_for_gpu(graph, target, clock, calls)
    funcs: dict[Key, PrimFunc] = {}
    kernels: dict[Key, Kernel | DefinedKernel] = {}
    keys: list[Key] = []
    with clock("lower"):
        for call in calls:
            key = call.key
            keys.append(key)
            if key in funcs or key in kernels:
                continue
            name = f"k{len(funcs) + len(kernels)}_{call.node.name}"
            try:
                funcs[key] = lower_group(call.node.attrs["graph"], target, name,
                                         call.input_strides, call.output_strides)  # fmt: skip
            except Exception as error:
                kernels[key] = _defined(call, name, "schedule", error, on_fault)
    with clock("llvm"):
        try:
            kernels.update(zip(funcs, compile_funcs(list(funcs.values()), target)))
        except Exception:
            if on_fault is None:
                raise
            first = dict(reversed(list(zip(keys, calls))))
            for key, func in funcs.items():
                try:
                    (kernels[key],) = compile_funcs([func], target)
                except Exception as error:
                    kernels[key] = _defined(first[key], func.name, "LLVM", error, on_fault)
    return _planned(graph, calls, keys, kernels, clock)


def _planned(graph: Graph, calls: Sequence[GroupCall], keys: Sequence[Key], kernels: Mapping[Key, Any],
             clock: Clock) -> CompiledGraph:  # fmt: skip
    """The plan of a graph whose group calls have the kernels of their keys."""
    with clock("plan"):
        plan = _plan(graph, {c.node: kernels[k] for c, k in zip(calls, keys)})
    uses = Counter(keys)
    infos = tuple(_info(c.node, kernels[k], uses[k] > 1) for c, k in zip(calls, keys))
    return CompiledGraph(plan, None, infos, clock.seconds)


def _defined(call: GroupCall, name: str, stage: str, error: Exception, on_fault: OnFault | None) -> DefinedKernel:
    """What runs a group that cannot be compiled; the error again where faults come through, or nothing can run it."""
    graph: Graph = call.node.attrs["graph"]
    if on_fault is None or not can_define(graph):
        raise error
    inner = fused_nodes(graph)
    what = f"{name} = {' + '.join(n.op.name for n in inner)}"
    on_fault(CompilerFault(stage, what, user_sources(inner), error))
    strides = (*call.input_strides, *call.output_strides)
    used: set[str] = set()
    for n in graph.nodes:
        for d in (d for e in n.outputs for d in e.type.shape):
            used |= symbols(d)
    for s in strides:
        for d in s or ():
            used |= symbols(d)
    return DefinedKernel(name, graph, sorted(used), strides)


def _compile_for_gpu(graph: Graph, target: Target, clock: Clock, calls: Sequence[GroupCall]) -> CompiledGraph:
    """As `compile_fused`; a kernel's machine code is made at its first launch, where its GPU is at hand."""
    kernels: dict[Key, TritonKernel] = {}
    keys: list[Key] = []
    with clock("lower"):
        for call in calls:
            key = call.key
            keys.append(key)
            if key not in kernels:
                group = lower_group_for_gpu(call.node.attrs["graph"], f"k{len(kernels)}_{call.node.name}",
                                            call.input_strides, call.output_strides)  # fmt: skip
                comment = ", ".join(str(op) for op in group.attrs["ops"])  # type: ignore[attr-defined]
                kernels[key] = TritonKernel.of(group, target, comment)
    return _planned(graph, calls, keys, kernels, clock)


def group_calls(graph: Graph) -> list[GroupCall]:
    """The groups of the graph in order."""
    in_strides = graph.attrs.get("input_strides") or (None,) * len(graph.inputs)
    out_strides = graph.attrs.get("output_strides") or (None,) * len(graph.outputs)
    of_input = {v[0]: s for v, s in zip(graph.inputs, in_strides)}
    memory: MemoryPlan = graph.attrs["memory_plan"]
    # An output that others read too lies contiguous in the arena and is copied into the caller's strides.
    of_output = {e: s for e, s in zip(graph.outputs, out_strides) if memory.places[e].kind == "output"}
    of_input.update(memory.strides)
    of_output.update(memory.strides)
    return [
        GroupCall(n, tuple(of_input.get(e) for e in n.inputs), tuple(of_output.get(e) for e in n.outputs))
        for n in graph.nodes
        if n.op.name == "group" and device_of(n) == CPU
    ]


def _plan(graph: Graph, kernels: Mapping[Node, Kernel | DefinedKernel] | Mapping[Node, TritonKernel]) -> Plan:
    memory = graph.attrs["memory_plan"]
    steps: list[KernelStep | HostStep | DeviceStep] = []
    for node in memory.steps:
        if is_device_copy(node[0]):
            steps.append(DeviceStep(node, copy_call(node)))
            continue
        if (device := device_of(node)) != CPU:
            steps.append(DeviceStep(node, runtime_of(device).build(_alone(node), device)))
            continue
        if node not in kernels:
            if not (node.op.has("host_call") or node.op.has("library_call")):
                raise ValueError(f"nothing can run {node}: the op has neither a compute nor a host_call")
            steps.append(HostStep(node))
            continue
        kernel = kernels[node]
        sizes = {name: symbol(name) for name in kernel.symbols}
        steps.append(KernelStep(node, kernel, (*node.inputs, *node.outputs), sizes))
    named = {name for s in steps if isinstance(s, KernelStep) for name in s.symbols}
    named.update(*(symbols(p.offset) for p in memory.places.values()))
    constants = tuple(n[0] for n in graph.nodes if n.is_constant)
    return Plan(graph, memory, tuple(steps), constants, symbol_sources(graph, named))


def _alone(node: Node) -> Graph:
    """The graph of a fused group, or of a node that is none, with an input for each of the node's."""
    if node.op.name == "group":
        graph: Graph = node.attrs["graph"]
        return graph
    inputs = [variable(f"p{i}", e.type) for i, e in enumerate(node.inputs)]
    return Graph(apply(node.op, inputs, node.attrs, node.name).outputs, tuple(v.node for v in inputs))


def symbol_sources(graph: Graph, used: set[str]) -> dict[str, tuple[int, int]]:
    """Which axis of which input tells each size, those in `used` included; the caller gives what no axis tells."""
    sources: dict[str, tuple[int, int]] = {}
    for position, var in enumerate(graph.inputs):
        for axis, d in enumerate(var[0].type.shape):
            if isinstance(d, SymDim) and (names := symbols(d)) and d == symbol(name := next(iter(names))):
                sources.setdefault(name, (position, axis))
    for strides in (*graph.attrs.get("input_strides", ()), *graph.attrs.get("output_strides", ())):
        for d in strides or ():
            used |= symbols(d)
    for node in graph.nodes:
        for t in node.types or ():
            for d in t.shape:
                used |= symbols(d)
        if node.op.has("host_sizes"):
            used |= node.op.attr("host_sizes")(node.attrs)
    for name in used - sources.keys():
        sources[name] = (-1, -1)
    return sources


def _info(node: Node, kernel: Kernel | TritonKernel | DefinedKernel, shared: bool) -> KernelInfo:
    inner = fused_nodes(node.attrs["graph"])
    return KernelInfo(kernel.name, tuple(n.op.name for n in inner), user_sources(inner), shared)
