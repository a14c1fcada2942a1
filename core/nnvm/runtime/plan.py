"""What the compiler hands to the Executor: steps in order, and where each value lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from nnvm.dim import Dim, substitute
from nnvm.dim_values import DimValues
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.passes.plan_memory import MemoryPlan, Place
from nnvm.runtime.defined_kernel import DefinedKernel
from nnvm.runtime.device import DeviceCall
from nnvm.runtime.llvm_jit import Kernel
from nnvm.runtime.triton_launch import TritonKernel

__all__ = ["DeviceStep", "HostStep", "KernelStep", "Plan"]


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
