"""A plan with every size known: what calls of the same sizes share.

Native code finds tensors by their place in a table of addresses (`Bases`): consecutive kernel calls become one program
that reads addresses from it. Nodes that the host runs stand between programs and work on views of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nnvm.dim import Dim
from nnvm.dtype import U8, DType
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.node import NodeEntry
from nnvm.runtime.defined_kernel import DefinedKernel, DefinedSegment
from nnvm.runtime.instances import Arena, ArenaPool
from nnvm.runtime.llvm_jit import Kernel
from nnvm.runtime.memory import Memory
from nnvm.runtime.plan import DeviceStep, HostStep, KernelStep, Plan
from nnvm.runtime.program import Program
from nnvm.runtime.triton_launch import LaunchProgram, TritonKernel

__all__ = ["Bases", "Bound", "Function", "HostCall", "Instance", "View", "instantiate"]

#: Of the tensors given: the outputs.
Function = Callable[[Sequence[Any]], list[Any]]
#: The values of a plan's sizes and offsets.
Value = Callable[[Dim], int]


class Bound(NamedTuple):
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


@dataclass(frozen=True)
class View:
    """A value as a tensor on the memory of a base, `offset` bytes into it."""

    base: int
    offset: int
    shape: tuple[int, ...]
    dtype: DType
    device: str


@dataclass(frozen=True)
class HostCall:
    """A node that the host or another device runs: ``call(env, *inputs, *into)`` gives tensors for `outputs`.

    Attributes:
        outputs: (base, shape, dtype) of each.
        here: whether the outputs are tensors of the host.
        into: where the call writes its results, which the plan has memory for.
    """

    call: Any
    inputs: list[View]
    outputs: list[tuple[int, tuple[int, ...], DType]]
    here: bool
    into: list[View]


#: What runs at a time.
Segment = Program | LaunchProgram | DefinedSegment | HostCall


@dataclass
class Instance:
    """A plan with every size known.

    Attributes:
        segments: what runs one after the other.
        outputs: (base, what makes a new tensor) of each output.
        elsewhere: outputs that no step writes: (position, where they are, copy or not).
        done: of each segment, bases of tensors made by host nodes that nothing needs after it: they are freed then, so
            that the next ones take their memory, which is in the cache.
        single: the program, where one native call is all there is to do.
        function: of the tensors given, which makes that call, and what it was made for.
    """

    env: Mapping[str, int]
    segments: Sequence[Segment]
    arenas: ArenaPool
    outputs: list[tuple[int, Callable[[], Any]]]
    elsewhere: list[tuple[int, View, bool]]
    done: list[tuple[int, ...]]
    single: Program | None
    function: tuple[Bound, Function] | None = None

    def raise_failures(self) -> None:
        """Raises what a check of an earlier call found, where a GPU tells it only after the call."""
        for segment in self.segments:
            if isinstance(segment, LaunchProgram):
                segment.raise_failure()


class Bases:
    """The places in a plan's table of addresses: the arena, inputs, outputs and constants of the graph, then what host
    nodes and other devices make.

    Attributes:
        of: the place of a constant, or of what a host node makes.
        count: of places.
    """

    def __init__(self, plan: Plan) -> None:
        graph = plan.graph
        self.plan = plan
        self.first_output = 1 + len(graph.inputs)
        self.first_constant = self.first_output + len(graph.outputs)
        made = [e for s in plan.steps if not isinstance(s, KernelStep) for e in s.node.outputs]
        self.of = {e: self.first_constant + i for i, e in enumerate((*plan.constants, *made))}
        self.count = self.first_constant + len(plan.constants) + len(made)

    def is_made(self, entry: NodeEntry) -> bool:
        """Whether anything of the plan's gives a value; a plan may have the steps for some outputs only."""
        return self.plan.located[entry][0].kind != "host" or self.plan.memory.root(entry) in self.of

    def reference(self, entry: NodeEntry, value: Value) -> tuple[int, int]:
        """(place in the table, byte offset) of a value."""
        place, offset = self.plan.located[entry]
        if place.kind == "arena":
            return 0, value(offset)
        if place.kind == "output":
            return self.first_output + place.index, value(offset)
        if place.kind in ("constant", "host"):
            return self.of[self.plan.memory.root(entry)], value(offset)
        return 1 + place.index, value(offset)

    def view(self, entry: NodeEntry, value: Value) -> View:
        base, offset = self.reference(entry, value)
        return View(base, offset, tuple(map(value, entry.type.shape)), entry.type.dtype, entry.type.device)


def instantiate(bases: Bases, memory: Memory, env: Mapping[str, int], free: list[Arena]) -> Instance:
    """The plan of `bases` for these sizes; `free`: arenas that all its instances share."""
    plan = bases.plan
    value = plan.values(env)
    segments, last = _segments(bases, memory, env, value)
    outputs, elsewhere = _outputs(bases, memory, value)
    returned = {where.base for _, where, _ in elsewhere}
    done: list[list[int]] = [[] for _ in segments]
    for base in {base for s in segments if isinstance(s, HostCall) for base, *_ in s.outputs} - returned:
        done[last[base]].append(base)
    workspace = max(map(value, plan.workspaces), default=0)
    arenas = ArenaPool(memory, value(plan.memory.arena_bytes), workspace, free)
    only = segments[0] if len(segments) == 1 and not elsewhere else None
    single = only if isinstance(only, Program) else None
    return Instance(env, segments, arenas, outputs, elsewhere, [tuple(d) for d in done], single)


class _Call(NamedTuple):
    """A kernel call: (base, byte offset) of each tensor, and the sizes."""

    kernel: Kernel | TritonKernel
    refs: list[tuple[int, int]]
    sizes: list[int]


def _segments(
    bases: Bases, memory: Memory, env: Mapping[str, int], value: Value
) -> tuple[list[Segment], dict[int, int]]:
    """The steps, native calls that follow on each other as one segment; and which segment needs each base last."""
    segments: list[Segment] = []
    calls: list[_Call] = []
    last: dict[int, int] = {}

    def append(segment: Segment, used: Iterable[int]) -> None:
        last.update((base, len(segments)) for base in used)
        segments.append(segment)

    def flush() -> None:
        if calls:
            append(_program(calls, memory), [base for call in calls for base, _ in call.refs])
            calls.clear()

    for step in bases.plan.steps:
        if not isinstance(step, KernelStep):
            flush()
            host = _host_call(step, bases, memory, value)
            append(host, [*(base for base, *_ in host.outputs), *(v.base for v in host.inputs)])
            continue
        refs = [bases.reference(e, value) for e in step.buffers]
        if isinstance(step.kernel, DefinedKernel):
            flush()
            append(step.kernel.segment(refs, env), [base for base, _ in refs])
        else:
            calls.append(_Call(step.kernel, refs, [value(d) for d in step.symbols.values()]))
    flush()
    return segments, last


def _outputs(
    bases: Bases, memory: Memory, value: Value
) -> tuple[list[tuple[int, Callable[[], Any]]], list[tuple[int, View, bool]]]:
    """`Instance.outputs` and `Instance.elsewhere`."""
    plan = bases.plan
    strides = plan.graph.attrs.get("output_strides") or (None,) * len(plan.graph.outputs)
    outputs: list[tuple[int, Callable[[], Any]]] = []
    elsewhere: list[tuple[int, View, bool]] = []
    nothing = memory.maker((0,), U8, None)
    for i, (entry, stride) in enumerate(zip(plan.graph.outputs, strides)):
        own = bases.first_output + i
        if not bases.is_made(entry):
            outputs.append((own, nothing))
            continue
        where, copied = bases.view(entry, value), i in plan.memory.copies
        if copied or where.base != own:
            elsewhere.append((i, where, copied))
        if not copied and where.base != own:
            outputs.append((own, nothing))  # the tensor is another one's
        else:
            wanted = tuple(map(value, stride)) if stride is not None else None
            outputs.append((own, memory.maker(where.shape, where.dtype, wanted)))
    return outputs, elsewhere


def _host_call(step: HostStep | DeviceStep, bases: Bases, memory: Memory, value: Value) -> HostCall:
    outputs, into = [], []
    for e in step.node.outputs:
        where = bases.view(e, value)
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
        device_call = step.call

        def call(env: Mapping[str, int], *tensors: Any) -> Sequence[Any]:
            return device_call(memory, env, tensors)

    here = device_of(step.node) == CPU
    return HostCall(call, [bases.view(e, value) for e in step.node.inputs], outputs, here, into)


def _program(calls: Sequence[Any], memory: Memory) -> Program | LaunchProgram:
    """The calls as one native program, or as launches on a GPU."""
    if isinstance(calls[0].kernel, TritonKernel):
        return LaunchProgram(calls, memory)
    return Program(calls)
