"""Runs a compiled graph: native segments, each in one native call, and host nodes between them.

All sizes and addresses of a call come from three places: the compiled graph's plan (who shares with whom), an
`Instance` of it for given values of the symbolic sizes (offsets and programs, kept), and the call's own tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from ctypes import c_int64
from dataclasses import replace
from functools import partial
from typing import Any

from nnvm.graph.devices import CPU, device_of
from nnvm.graph.node import Node, NodeEntry
from nnvm.runtime import openmp
from nnvm.runtime.call_function import call_function
from nnvm.runtime.defined_kernel import DefinedKernel
from nnvm.runtime.device import runtime_of
from nnvm.runtime.instance import Bases, Bound, Function, HostCall, Instance, View, instantiate
from nnvm.runtime.instances import Arena, Instances
from nnvm.runtime.memory import Memory
from nnvm.runtime.plan import KernelStep, Plan
from nnvm.runtime.program import Program

__all__ = ["Executor"]

#: Kinds of the places that are inputs of the graph.
_GIVEN = ("input", "param", "prepared")


class Executor:
    """Runs a `Plan` on the tensors of one `Memory`. Calls are re-entrant: each takes an arena of its own."""

    def __init__(self, plan: Plan, memory: Memory, constants: Sequence[Any]) -> None:
        """`constants`: tensors for ``plan.constants``, kept alive here."""
        self.plan = plan
        self.memory = memory
        self._lock = threading.Lock()
        self._instances: Instances[Instance] = Instances()
        self._only: Instance | None = None  # of a plan without symbolic sizes
        self._free_arenas: list[Arena] = []
        self._bases = Bases(plan)
        self._names = tuple(sorted(plan.symbols))
        # bases of tensors that native code never reads: they are on another device
        self._elsewhere = {1 + i for i, v in enumerate(plan.graph.inputs) if device_of(v) != CPU}
        self._elsewhere |= {self._bases.of[e] for e in plan.constants if e.type.device != CPU}
        places = (plan.located[e][0] for s in plan.steps if isinstance(s, KernelStep) for e in s.buffers)
        self._read = {1 + p.index for p in places if p.kind in _GIVEN} - self._elsewhere
        # constants, and what `bind` was given
        here = [self._on_device(e, c) for e, c in zip(plan.constants, constants, strict=True)]
        self._bound = self._bound_to({self._bases.first_constant + i: c for i, c in enumerate(here)})

    def _on_device(self, entry: NodeEntry, tensor: Any) -> Any:
        """A constant of the host where it is read."""
        t = entry.type
        shape = entry.node.attrs["value"].shape
        return tensor if t.device == CPU else runtime_of(t.device).receive(self.memory, tensor, shape, t.dtype)

    def _bound_to(self, fixed: Mapping[int, Any]) -> Bound:
        kind = c_int64 * self._bases.count
        bases = kind()
        for base, tensor in fixed.items():
            if base not in self._elsewhere:
                bases[base] = self.memory.pointer(tensor)
        free = tuple(i for i in range(len(self.plan.graph.inputs)) if 1 + i not in fixed)
        read = tuple((i, 1 + position) for i, position in enumerate(free) if 1 + position in self._read)
        return Bound(fixed, bases, free, read)

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

    def launched(self, inputs: Sequence[Any], env: Mapping[str, int] | None) -> Instance:
        """What the launches of a call of these sizes write besides tensors: whoever keeps such launches (a CUDA graph
        does) keeps this, and asks it to `raise_failures`."""
        return self._instance(inputs, env)

    def bound(self) -> Mapping[int, Any]:
        """The tensors that `bind` was given, by position."""
        return {b - 1: t for b, t in self._bound.fixed.items() if b < self._bases.first_output}

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

    def _function(self, instance: Instance, bound: Bound, positions: Sequence[int]) -> Function:
        assert instance.single is not None
        read = [(positions[i], base) for i, base in bound.read]
        return call_function(instance.single, bound.table, read, instance.outputs, instance.arenas, self.memory,
                             bound.fixed)  # fmt: skip

    def _made(self, instance: Instance) -> Function:
        """The function of an instance for what is bound."""
        bound = self._bound
        function = self._function(instance, bound, range(len(bound.free)))
        instance.function = bound, function
        return function

    def _run(self, instance: Instance, inputs: Sequence[Any]) -> list[Any]:
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
        kernels = [s for s in self.plan.steps if isinstance(s, KernelStep)]
        nodes = [s.node for s in kernels if not isinstance(s.kernel, DefinedKernel)]

        class _Timed:
            def __init__(self, program: Program) -> None:
                self.program = program

            def run(self, bases: Any, workspace: int, threads: int) -> None:
                times = self.program.profile(bases, workspace, threads)
                result.extend(zip(nodes[len(result) :], times))

        timed: list[Any] = [_Timed(s) if isinstance(s, Program) else s for s in instance.segments]
        self._run(replace(instance, segments=timed), inputs)
        return result

    def release(self) -> None:
        """Frees arenas and instances that are not in use."""
        self._instances.clear()
        self._only = None
        self._free_arenas.clear()

    def _run_segments(
        self, instance: Instance, bases: Any, arena: Arena, threads: int, inputs: Sequence[Any],
        bound: Bound, outputs: list[Any],
    ) -> None:  # fmt: skip
        """The segments in order, with host nodes between them on views of the call's memory."""
        memory = self.memory
        tensors: dict[int, Any] = {**bound.fixed, **{1 + p: t for p, t in zip(bound.free, inputs)}}
        tensors.update((self._bases.first_output + i, t) for i, t in enumerate(outputs))

        def view(v: View) -> Any:
            if v.base == 0:
                return memory.view(arena.tensor, v.offset, v.shape, v.dtype)
            reshape = memory.reshape if v.device == CPU else partial(runtime_of(v.device).view, memory)
            return reshape(tensors[v.base], v.offset, v.shape, v.dtype)

        for segment, done in zip(instance.segments, instance.done, strict=True):
            if not isinstance(segment, HostCall):
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

    def _instance(self, inputs: Sequence[Any], env: Mapping[str, int] | None) -> Instance:
        if not self._names:
            key: tuple[int, ...] = ()
        elif env is not None:
            key = tuple(env[n] for n in self._names)
        else:
            position_of = {p: i for i, p in enumerate(self._bound.free)}
            sources = (self.plan.symbols[n] for n in self._names)
            key = tuple(int(inputs[position_of[p]].shape[axis]) for p, axis in sources)
        def make() -> Instance:
            return instantiate(self._bases, self.memory, dict(zip(self._names, key)), self._free_arenas)

        instance = self._instances.get(key, make)
        if not self._names:
            self._only = instance
        return instance
