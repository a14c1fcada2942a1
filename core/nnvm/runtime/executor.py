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
from typing import Any, NamedTuple

from nnvm.dim import Dim, substitute
from nnvm.dim_values import DimValues
from nnvm.dtype import U8, DType
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.passes.plan_memory import MemoryPlan, Place
from nnvm.runtime import openmp
from nnvm.runtime.call_function import call_function
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


#: Of the tensors given: the outputs.
Function = Callable[[Sequence[Any]], list[Any]]
#: Kinds of the places that are inputs of the graph.
_GIVEN = ("input", "param", "prepared")
#: The values of a plan's sizes and offsets.
Value = Callable[[Dim], int]


@dataclass
class _Instance:
    """A plan with every size known.

    Attributes:
        segments: a Program, LaunchProgram, DefinedSegment or _Host each.
        outputs: (base, what makes a new tensor) of each output.
        elsewhere: outputs that no step writes: (position, where they are, copy or not).
        done: of each segment, bases of tensors made by host nodes that nothing needs after it: they are freed then, so
            that the next ones take their memory, which is in the cache.
        single: the program, where one native call is all there is to do.
        function: of the tensors given, which makes that call, and what it was made for.
    """

    env: Mapping[str, int]
    segments: list[Any]
    arenas: ArenaPool
    outputs: list[tuple[int, Callable[[], Any]]]
    elsewhere: list[tuple[int, _View, bool]]
    done: list[tuple[int, ...]]
    single: Program | None
    function: tuple[_Bound, Function] | None = None

    def raise_failures(self) -> None:
        """Raises what a check of an earlier call found, where a GPU tells it only after the call."""
        for segment in self.segments:
            if isinstance(segment, LaunchProgram):
                segment.raise_failure()


class _Bound(NamedTuple):
    """What stays from call to call, in one: a call sees one state of it.

    Attributes:
        fixed: tensors by base.
        table: addresses, those of `fixed` filled in.
        free: positions of the graph inputs that a call gives.
        read: (position among the tensors given, base) of those whose address native code reads.
    """

    fixed: Mapping[int, Any]
    table: Any
    free: tuple[int, ...]
    read: tuple[tuple[int, int], ...]


@dataclass
class _Host:
    call: Any
    inputs: list[_View]
    outputs: list[tuple[int, tuple[int, ...], DType]]  # (base, shape, dtype)
    here: bool  # whether the outputs are tensors of the host
    into: list[_View]  # where the call writes its results, which the plan has memory for


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
        self._only: _Instance | None = None  # of a plan without symbolic sizes
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
        places = (plan.located[e][0] for s in plan.steps if isinstance(s, KernelStep) for e in s.buffers)
        self._read = {1 + p.index for p in places if p.kind in _GIVEN} - self._elsewhere
        # constants, and what `bind` was given
        here = [self._on_device(e, c) for e, c in zip(plan.constants, constants, strict=True)]
        self._bound = self._bound_to({self._first_constant + i: c for i, c in enumerate(here)})

    def _on_device(self, entry: NodeEntry, tensor: Any) -> Any:
        """A constant of the host where it is read."""
        t = entry.type
        shape = entry.node.attrs["value"].shape
        return tensor if t.device == CPU else runtime_of(t.device).receive(self.memory, tensor, shape, t.dtype)

    def _bound_to(self, fixed: Mapping[int, Any]) -> _Bound:
        kind = c_int64 * self._num_bases
        bases = kind()
        for base, tensor in fixed.items():
            if base not in self._elsewhere:
                bases[base] = self.memory.pointer(tensor)
        free = tuple(i for i in range(len(self.plan.graph.inputs)) if 1 + i not in fixed)
        read = tuple((i, 1 + position) for i, position in enumerate(free) if 1 + position in self._read)
        return _Bound(fixed, bases, free, read)

    def bind(self, values: Mapping[int, Any]) -> None:
        """Gives graph inputs (by position) their tensors once for all calls to come; they must be contiguous."""
        with self._lock:
            self._bound = self._bound_to({**self._bound.fixed, **{1 + i: t for i, t in values.items()}})

    @property
    def binding(self) -> object:
        """Another object after each `bind`: while it is the same, what is bound lies at the same addresses."""
        return self._bound

    def raise_failures(self) -> None:
        """Raises what a check of an earlier call found, where a GPU tells it only after the call."""
        for instance in self._instances.values():
            instance.raise_failures()

    def launched(self, inputs: Sequence[Any], env: Mapping[str, int] | None) -> _Instance:
        """What the launches of a call of these sizes write besides tensors: whoever keeps such launches (a CUDA graph
        does) keeps this, and asks it to `raise_failures`."""
        return self._instance(inputs, env)

    def bound(self) -> Mapping[int, Any]:
        """The tensors that `bind` was given, by position."""
        return {b - 1: t for b, t in self._bound.fixed.items() if b < self._first_output}

    def run(self, inputs: Sequence[Any], env: Mapping[str, int] | None = None) -> list[Any]:
        """The graph's outputs, fresh tensors.

        Args:
            inputs: tensors for the graph inputs that are not bound, in order. Their shapes, dtypes and strides must
                have been checked against the graph's: native code relies on them.
            env: values of the symbolic sizes; by default read from the shapes of `inputs`.
        """
        instance = self._only or self._instance(inputs, env)
        if instance.single is None:
            return self._run(instance, inputs)
        made = instance.function
        return (made[1] if made is not None and made[0] is self._bound else self._made(instance))(inputs)

    def function(self, positions: Sequence[int]) -> Function | None:
        """A function of a call's arguments, at `positions` of which are the tensors for the graph inputs that are not
        bound: does as `run` with what is bound now. None where sizes are symbolic, or one native call is not all."""
        if self._names or (instance := self._instance((), None)).single is None:
            return None
        return self._function(instance, self._bound, positions)

    def _function(self, instance: _Instance, bound: _Bound, positions: Sequence[int]) -> Function:
        assert instance.single is not None
        read = [(positions[i], base) for i, base in bound.read]
        return call_function(instance.single, bound.table, read, instance.outputs, instance.arenas, self.memory,
                             bound.fixed)  # fmt: skip

    def _made(self, instance: _Instance) -> Function:
        """The function of an instance for what is bound."""
        bound = self._bound
        function = self._function(instance, bound, range(len(bound.free)))
        instance.function = bound, function
        return function

    def _run(self, instance: _Instance, inputs: Sequence[Any]) -> list[Any]:
        """Segment by segment."""
        bound, address = self._bound, self.memory.address
        bases = type(bound.table).from_buffer_copy(bound.table)
        for i, base in bound.read:
            bases[base] = address(inputs[i]) or self.memory.absent(inputs[i])
        outputs: list[Any] = []
        for base, make in instance.outputs:
            out = make()
            outputs.append(out)
            bases[base] = address(out)
        threads = openmp.max_threads()
        arena = instance.arenas.take(threads)
        bases[0] = arena.address
        try:
            self._run_segments(instance, bases, arena, threads, inputs, bound, outputs)
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
        self._only = None
        self._free_arenas.clear()

    def _run_segments(
        self, instance: _Instance, bases: Any, arena: Arena, threads: int, inputs: Sequence[Any],
        bound: _Bound, outputs: list[Any],
    ) -> None:  # fmt: skip
        """The segments in order, with host nodes between them on views of the call's memory."""
        memory = self.memory
        tensors: dict[int, Any] = {**bound.fixed, **{1 + p: t for p, t in zip(bound.free, inputs)}}
        tensors.update((self._first_output + i, t) for i, t in enumerate(outputs))

        def view(v: _View) -> Any:
            if v.base == 0:
                return memory.view(arena.tensor, v.offset, v.shape, v.dtype)
            reshape = memory.reshape if v.device == CPU else partial(runtime_of(v.device).view, memory)
            return reshape(tensors[v.base], v.offset, v.shape, v.dtype)

        for segment, done in zip(instance.segments, instance.done, strict=True):
            if not isinstance(segment, _Host):
                segment.run(bases, arena.workspace, threads)
            else:
                results = segment.call(instance.env, *(view(v) for v in (*segment.inputs, *segment.into)))
                for (base, shape, dtype), result in zip(segment.outputs, results or (), strict=True):
                    tensors[base] = memory.contiguous(result, shape, dtype) if segment.here else result
                    bases[base] = memory.pointer(tensors[base]) if segment.here else 0
                results = result = None  # what is freed below has no other owner
            for base in done:
                del tensors[base]
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
            position_of = {p: i for i, p in enumerate(self._bound.free)}
            sources = (self.plan.symbols[n] for n in self._names)
            key = tuple(int(inputs[position_of[p]].shape[axis]) for p, axis in sources)
        instance = self._instances.get(key, lambda: self._instantiate(dict(zip(self._names, key))))
        if not self._names:
            self._only = instance
        return instance

    def _instantiate(self, env: dict[str, int]) -> _Instance:
        plan, graph = self.plan, self.plan.graph
        value = plan.values(env)
        segments: list[Program | LaunchProgram | DefinedSegment | _Host] = []
        calls: list[tuple[Kernel | TritonKernel, list[tuple[int, int]], list[int]]] = []
        last: dict[int, int] = {}  # segment that needs a base last

        def flush() -> None:
            if calls:
                last.update((base, len(segments)) for _, refs, _ in calls for base, _ in refs)
                segments.append(_program(calls, self.memory))
                calls.clear()

        for step in plan.steps:
            if not isinstance(step, KernelStep):
                flush()
                host = self._host(step, env, value)
                last.update((base, len(segments)) for base, *_ in host.outputs)
                last.update((v.base, len(segments)) for v in host.inputs)
                segments.append(host)
                continue
            refs = [self._reference(e, value) for e in step.buffers]
            if isinstance(step.kernel, DefinedKernel):
                flush()
                last.update((base, len(segments)) for base, _ in refs)
                segments.append(step.kernel.segment(refs, env))
                continue
            calls.append((step.kernel, refs, [value(d) for d in step.symbols.values()]))
        flush()
        workspace = max(map(value, plan.workspaces), default=0)
        strides = graph.attrs.get("output_strides") or (None,) * len(graph.outputs)
        outputs: list[tuple[int, Callable[[], Any]]] = []
        elsewhere: list[tuple[int, _View, bool]] = []
        make = self.memory.maker
        for i, (entry, stride) in enumerate(zip(graph.outputs, strides)):
            if not self._is_made(entry):
                outputs.append((self._first_output + i, make((0,), U8, None)))
                continue
            where = self._view(entry, value)
            copied = i in plan.memory.copies
            if copied or where.base != self._first_output + i:
                elsewhere.append((i, where, copied))
            if not copied and where.base != self._first_output + i:
                outputs.append((self._first_output + i, make((0,), U8, None)))  # the tensor is another one's
            else:
                wanted = tuple(map(value, stride)) if stride is not None else None
                outputs.append((self._first_output + i, make(where.shape, where.dtype, wanted)))
        arenas = ArenaPool(self.memory, value(plan.memory.arena_bytes), workspace, self._free_arenas)
        single = segments[0] if len(segments) == 1 and not elsewhere else None
        single = single if isinstance(single, Program) else None
        returned = {where.base for _, where, _ in elsewhere}
        done: list[list[int]] = [[] for _ in segments]
        for base in {base for s in segments if isinstance(s, _Host) for base, *_ in s.outputs} - returned:
            done[last[base]].append(base)
        return _Instance(env, segments, arenas, outputs, elsewhere, [tuple(d) for d in done], single)

    def _is_made(self, entry: NodeEntry) -> bool:
        """Whether anything of the plan's gives a value; a plan may have the steps for some outputs only."""
        return self.plan.located[entry][0].kind != "host" or self.plan.memory.root(entry) in self._base_of

    def _host(self, step: HostStep | DeviceStep, env: Mapping[str, int], value: Value) -> _Host:
        outputs, into = [], []
        for e in step.node.outputs:
            where = self._view(e, value)
            if isinstance(step, HostStep) and step.node.op.has("library_into"):
                into.append(where)
            else:
                outputs.append((where.base, where.shape, where.dtype))
        call: Any
        if isinstance(step, HostStep):
            op = step.node.op
            names = ("host_call", "library_into", "library_call")
            call = op.attr(next(name for name in names if op.has(name)))(step.node.attrs)
        else:
            device_call, memory = step.call, self.memory

            def call(env: Mapping[str, int], *tensors: Any) -> Sequence[Any]:
                return device_call(memory, env, tensors)

        here = device_of(step.node) == CPU
        return _Host(call, [self._view(e, value) for e in step.node.inputs], outputs, here, into)

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
