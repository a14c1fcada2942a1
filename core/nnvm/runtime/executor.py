"""Runs a compiled graph: native segments, each in one native call, and host nodes between them.

All sizes and addresses of a call come from three places: the compiled graph's plan (who shares with whom), an
`_Instance` of it for given values of the symbolic sizes (offsets and programs, kept), and the call's own tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from nnvm.dim import Dim, substitute
from nnvm.dim_values import DimValues
from nnvm.dtype import U8, DType
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.passes.plan_memory import MemoryPlan, Place
from nnvm.runtime import openmp
from nnvm.runtime.defined_kernel import DefinedKernel, DefinedSegment
from nnvm.runtime.device import DeviceCall, runtime_of
from nnvm.runtime.instances import Arena, ArenaPool, Instances
from nnvm.runtime.llvm_jit import Kernel
from nnvm.runtime.memory import Memory
from nnvm.runtime.program import Program
from nnvm.runtime.triton_launch import LaunchProgram, TritonKernel

__all__ = ["DeviceStep", "Executor", "HostStep", "KernelStep", "Plan"]


@dataclass(frozen=True)
class KernelStep:
    """One kernel call: `kernel(*buffers)`."""

    node: Node
    kernel: Kernel | TritonKernel | DefinedKernel
    buffers: tuple[NodeEntry, ...]
    symbols: Mapping[str, Dim]


@dataclass(frozen=True)
class HostStep:
    """A node that the frontend runs itself, through its op's attribute ``host_call``."""

    node: Node


@dataclass(frozen=True)
class DeviceStep:
    """A node that another device runs, or that copies a value to or from one."""

    node: Node
    call: DeviceCall


@dataclass(frozen=True)
class Plan:
    """Everything an Executor needs of a compiled graph.

    Attributes:
        graph: the fused graph.
        memory: where its values live.
        steps: kernel calls, host nodes and nodes of other devices in order.
        constants: entries of the constant nodes, in the order in which the Executor wants their tensors.
        symbols: where the value of each size is read: name -> (position in graph.inputs, axis).
    """

    graph: Graph
    memory: MemoryPlan
    steps: tuple[KernelStep | HostStep | DeviceStep, ...]
    constants: tuple[NodeEntry, ...]
    symbols: Mapping[str, tuple[int, int]]

    @cached_property
    def located(self) -> Mapping[NodeEntry, tuple[Place, Dim]]:
        """Of each value that is touched: its place that is no view, and the byte offset in the memory it lies in."""
        touched = [e for s in self.steps for e in (*s.node.inputs, *s.node.outputs)]
        found: dict[NodeEntry, tuple[Place, Dim]] = {}
        for e in (*touched, *self.graph.outputs):
            if e not in found:
                place, extra = self.memory.locate(e)
                found[e] = place, place.offset + extra
        return found

    @cached_property
    def workspaces(self) -> tuple[Dim, ...]:
        """Bytes of workspace that one thread of each kernel call needs."""
        calls = (s for s in self.steps if isinstance(s, KernelStep))
        return tuple(dict.fromkeys(substitute(s.kernel.workspace, s.symbols) for s in calls))

    @cached_property
    def values(self) -> DimValues:
        """The sizes and offsets that an instance consists of."""
        return DimValues(self._dims())

    def _dims(self) -> Iterator[Dim]:
        yield self.memory.arena_bytes
        yield from self.workspaces
        for step in self.steps:
            if isinstance(step, KernelStep):
                yield from step.symbols.values()
        for entry, (_, offset) in self.located.items():
            yield offset
            yield from entry.type.shape
        for strides in self.graph.attrs.get("output_strides") or ():
            yield from strides or ()


#: The values of a plan's sizes and offsets.
Value = Callable[[Dim], int]


@dataclass
class _Instance:
    """A plan with every size known."""

    env: Mapping[str, int]
    segments: list[Any]  # Program, DefinedSegment or _Host
    arenas: ArenaPool
    outputs: list[tuple[tuple[int, ...], DType, tuple[int, ...] | None]]
    elsewhere: list[tuple[int, _View, bool]]  # outputs that no step writes: (position, where they are, copy or not)

    @property
    def simple(self) -> bool:
        """Whether one native call is all there is to do."""
        return len(self.segments) == 1 and not isinstance(self.segments[0], _Host) and not self.elsewhere


@dataclass
class _Host:
    call: Any
    inputs: list[_View]
    outputs: list[tuple[int, tuple[int, ...], DType]]  # (base, shape, dtype)
    here: bool  # whether the outputs are tensors of the host


@dataclass(frozen=True)
class _View:
    base: int
    offset: int
    shape: tuple[int, ...]
    dtype: DType
    device: str


class Executor:
    """Runs a `Plan` on the tensors of one `Memory`. Calls are re-entrant: each takes an arena of its own."""

    def __init__(self, plan: Plan, memory: Memory, constants: Sequence[Any]) -> None:
        """`constants`: tensors for ``plan.constants``, kept alive here."""
        self.plan = plan
        self.memory = memory
        self._lock = threading.Lock()
        self._instances: Instances[_Instance] = Instances()
        self._free_arenas: list[Arena] = []
        graph = plan.graph
        self._first_output = 1 + len(graph.inputs)
        self._first_constant = self._first_output + len(graph.outputs)
        first_host = self._first_constant + len(constants)
        hosted = [e for s in plan.steps if not isinstance(s, KernelStep) for e in s.node.outputs]
        self._base_of = {e: self._first_constant + i for i, e in enumerate(plan.constants)}
        self._base_of.update((e, first_host + i) for i, e in enumerate(hosted))
        self._num_bases = first_host + len(hosted)
        self._names = tuple(sorted(plan.symbols))
        # bases of tensors that native code never reads: they are on another device
        self._elsewhere = {1 + i for i, v in enumerate(graph.inputs) if device_of(v) != CPU}
        self._elsewhere |= {self._base_of[e] for e in plan.constants if e.type.device != CPU}
        # tensors that stay: constants, and what `bind` was given; replaced as a whole, so that a call sees one state
        fixed: dict[int, Any] = {self._first_constant + i: self._on_device(e, c)
                                 for i, (e, c) in enumerate(zip(plan.constants, constants, strict=True))}  # fmt: skip
        self._fixed = (fixed, self._template(fixed))
        self._free_inputs = tuple(range(len(graph.inputs)))

    def _on_device(self, entry: NodeEntry, tensor: Any) -> Any:
        """A constant of the host where it is read."""
        t = entry.type
        shape = entry.node.attrs["value"].shape
        return tensor if t.device == CPU else runtime_of(t.device).receive(self.memory, tensor, shape, t.dtype)

    def _template(self, fixed: Mapping[int, Any]) -> Any:
        bases = (c_int64 * self._num_bases)()
        for base, tensor in fixed.items():
            if base not in self._elsewhere:
                bases[base] = self.memory.pointer(tensor)
        return bases

    def bind(self, values: Mapping[int, Any]) -> None:
        """Gives graph inputs (by position) their tensors once for all calls to come; they must be contiguous."""
        with self._lock:
            fixed = {**self._fixed[0], **{1 + i: t for i, t in values.items()}}
            self._fixed = (fixed, self._template(fixed))
            bound = {b - 1 for b in fixed if b < self._first_output}
            self._free_inputs = tuple(i for i in range(len(self.plan.graph.inputs)) if i not in bound)

    @property
    def binding(self) -> object:
        """Another object after each `bind`: while it is the same, what is bound lies at the same addresses."""
        return self._fixed

    def raise_failures(self) -> None:
        """Raises what a check of an earlier call found, where a GPU tells it only after the call."""
        for instance in self._instances.values():
            for segment in instance.segments:
                if isinstance(segment, LaunchProgram):
                    segment.raise_failure()

    def bound(self) -> Mapping[int, Any]:
        """The tensors that `bind` was given, by position."""
        return {b - 1: t for b, t in self._fixed[0].items() if b < self._first_output}

    def run(self, inputs: Sequence[Any], env: Mapping[str, int] | None = None) -> list[Any]:
        """The graph's outputs, fresh tensors.

        Args:
            inputs: tensors for the graph inputs that are not bound, in order. Their shapes, dtypes and strides must
                have been checked against the graph's: native code relies on them.
            env: values of the symbolic sizes; by default read from the shapes of `inputs`.
        """
        return self._run(self._instance(inputs, env), inputs)

    def _run(self, instance: _Instance, inputs: Sequence[Any]) -> list[Any]:
        fixed, template = self._fixed
        bases = (c_int64 * self._num_bases).from_buffer_copy(template)
        pointer = self.memory.pointer
        for position, tensor in zip(self._free_inputs, inputs):
            if not self._elsewhere or 1 + position not in self._elsewhere:
                bases[1 + position] = pointer(tensor)
        threads = openmp.max_threads()
        arena = instance.arenas.take(threads)
        bases[0] = arena.address
        empty = self.memory.empty
        outputs: list[Any] = []
        for i, (shape, dtype, strides) in enumerate(instance.outputs):
            out = empty(shape, dtype, strides)
            outputs.append(out)
            bases[self._first_output + i] = pointer(out)
        try:
            if instance.simple:
                instance.segments[0].run(bases, arena.workspace, threads)
            else:
                self._run_mixed(instance, bases, arena, threads, inputs, fixed, outputs)
        finally:
            instance.arenas.give(arena)
        return outputs

    def profile(self, inputs: Sequence[Any], env: Mapping[str, int] | None = None) -> list[tuple[Node, int]]:
        """(node, nanoseconds) of every kernel step of one call."""
        instance = self._instance(inputs, env)
        result: list[tuple[Node, int]] = []
        original = instance.segments
        kernels = [s for s in self.plan.steps if isinstance(s, KernelStep)]
        nodes = [s.node for s in kernels if not isinstance(s.kernel, DefinedKernel)]

        class _Timed:
            def __init__(self, program: Program) -> None:
                self.program = program

            def run(self, bases: Any, workspace: int, threads: int) -> None:
                times = self.program.profile(bases, workspace, threads)
                result.extend(zip(nodes[len(result) :], times))

        timed: list[Any] = [_Timed(s) if isinstance(s, Program) else s for s in original]
        self._run(replace(instance, segments=timed), inputs)
        return result

    def release(self) -> None:
        """Frees arenas and instances that are not in use."""
        self._instances.clear()
        self._free_arenas.clear()

    def _run_mixed(
        self, instance: _Instance, bases: Any, arena: Arena, threads: int, inputs: Sequence[Any],
        fixed: Mapping[int, Any], outputs: list[Any],
    ) -> None:  # fmt: skip
        """The segments in order, with host nodes between them on views of the call's memory."""
        memory = self.memory
        tensors: dict[int, Any] = {**fixed, **{1 + p: t for p, t in zip(self._free_inputs, inputs)}}
        tensors.update((self._first_output + i, t) for i, t in enumerate(outputs))

        def view(v: _View) -> Any:
            if v.base == 0:
                return memory.view(arena.tensor, v.offset, v.shape, v.dtype)
            reshape = memory.reshape if v.device == CPU else partial(runtime_of(v.device).view, memory)
            return reshape(tensors[v.base], v.offset, v.shape, v.dtype)

        for segment in instance.segments:
            if not isinstance(segment, _Host):
                segment.run(bases, arena.workspace, threads)
                continue
            results = segment.call(instance.env, *(view(v) for v in segment.inputs))
            for (base, shape, dtype), result in zip(segment.outputs, results, strict=True):
                tensors[base] = memory.contiguous(result, shape, dtype) if segment.here else result
                bases[base] = memory.pointer(tensors[base]) if segment.here else 0
        for i, where, copied in instance.elsewhere:
            if copied:
                memory.copy(outputs[i], view(where))
            else:
                outputs[i] = view(where)

    def _instance(self, inputs: Sequence[Any], env: Mapping[str, int] | None) -> _Instance:
        if not self._names:
            key: tuple[int, ...] = ()
        elif env is not None:
            key = tuple(env[n] for n in self._names)
        else:
            position_of = {p: i for i, p in enumerate(self._free_inputs)}
            sources = (self.plan.symbols[n] for n in self._names)
            key = tuple(int(inputs[position_of[p]].shape[axis]) for p, axis in sources)
        return self._instances.get(key, lambda: self._instantiate(dict(zip(self._names, key))))

    def _instantiate(self, env: dict[str, int]) -> _Instance:
        plan, graph = self.plan, self.plan.graph
        value = plan.values(env)
        segments: list[Program | LaunchProgram | DefinedSegment | _Host] = []
        calls: list[tuple[Kernel | TritonKernel, list[tuple[int, int]], list[int]]] = []

        def flush() -> None:
            if calls:
                segments.append(_program(calls, self.memory))
                calls.clear()

        for step in plan.steps:
            if not isinstance(step, KernelStep):
                flush()
                segments.append(self._host(step, env, value))
                continue
            refs = [self._reference(e, value) for e in step.buffers]
            if isinstance(step.kernel, DefinedKernel):
                flush()
                segments.append(step.kernel.segment(refs, env))
                continue
            calls.append((step.kernel, refs, [value(d) for d in step.symbols.values()]))
        flush()
        workspace = max(map(value, plan.workspaces), default=0)
        strides = graph.attrs.get("output_strides") or (None,) * len(graph.outputs)
        outputs: list[tuple[tuple[int, ...], DType, tuple[int, ...] | None]] = []
        elsewhere: list[tuple[int, _View, bool]] = []
        for i, (entry, stride) in enumerate(zip(graph.outputs, strides)):
            where = self._view(entry, value)
            copied = i in plan.memory.copies
            if copied or where.base != self._first_output + i:
                elsewhere.append((i, where, copied))
            if not copied and where.base != self._first_output + i:
                outputs.append(((0,), U8, None))  # takes no memory: the tensor is another one's
            else:
                wanted = tuple(map(value, stride)) if stride is not None else None
                outputs.append((where.shape, where.dtype, wanted))
        arenas = ArenaPool(self.memory, value(plan.memory.arena_bytes), workspace, self._free_arenas)
        return _Instance(env, segments, arenas, outputs, elsewhere)

    def _host(self, step: HostStep | DeviceStep, env: Mapping[str, int], value: Value) -> _Host:
        outputs = []
        for e in step.node.outputs:
            base, _ = self._reference(e, value)
            outputs.append((base, tuple(map(value, e.type.shape)), e.type.dtype))
        call: Any
        if isinstance(step, HostStep):
            call = step.node.op.attr("host_call")(step.node.attrs)
        else:
            device_call, memory = step.call, self.memory

            def call(env: Mapping[str, int], *tensors: Any) -> Sequence[Any]:
                return device_call(memory, env, tensors)

        here = device_of(step.node) == CPU
        return _Host(call, [self._view(e, value) for e in step.node.inputs], outputs, here)

    def _view(self, entry: NodeEntry, value: Value) -> _View:
        base, offset = self._reference(entry, value)
        return _View(base, offset, tuple(map(value, entry.type.shape)), entry.type.dtype, entry.type.device)

    def _reference(self, entry: NodeEntry, value: Value) -> tuple[int, int]:
        """(position in the table of base addresses, byte offset) of a value."""
        place, offset = self.plan.located[entry]
        if place.kind == "arena":
            return 0, value(offset)
        if place.kind == "output":
            return self._first_output + place.index, value(offset)
        if place.kind in ("constant", "host"):
            return self._base_of[self.plan.memory.root(entry)], value(offset)
        return 1 + place.index, value(offset)


def _program(calls: Sequence[tuple[Any, list[tuple[int, int]], list[int]]], memory: Memory) -> Program | LaunchProgram:
    """The calls as one native program, or as launches on a GPU."""
    if isinstance(calls[0][0], TritonKernel):
        return LaunchProgram(calls, memory)
    return Program(calls)
