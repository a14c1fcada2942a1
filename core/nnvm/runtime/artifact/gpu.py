"""Runs a stage of an artifact on a CUDA GPU: its cubins, loaded and launched through the driver.

A call has one block of the GPU's memory: the arena, then the inputs, the outputs, the flags of checks and a workspace.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import evaluate
from nnvm.kernel_error import failure
from nnvm.runtime.artifact.container import Container
from nnvm.runtime.artifact.plan import Binary, LaunchSpec, Ref, Stage
from nnvm.runtime.cuda_driver import CudaDevice, CudaMemory, DeviceBlock, Function
from nnvm.runtime.instances import ArenaPool
from nnvm.runtime.memory import aligned

__all__ = ["GpuCode"]

Array = np.ndarray[Any, Any]
#: Elements from which on 32 bits do not count those of a buffer.
_WIDE = 1 << 31


class GpuCode:
    """A stage whose code is loaded, and the weights that it reads.

    The table of bases is the arena, the model's inputs, its outputs, then the weights.
    """

    def __init__(self, container: Container, stage: Stage, device: CudaDevice) -> None:
        self._container, self._stage, self._device = container, stage, device
        self._functions: dict[int, Function] = {}  # by where their code lies
        self._weights: list[int] = []  # addresses on the GPU
        self._kept: DeviceBlock | None = None
        code = container.read(stage.code)
        launches = [launch for k in stage.kernels for launch in k.launches]
        binaries = [b for launch in launches for b in (launch.narrow, launch.wide) if b is not None]
        if any(b.start + b.size > len(code) for b in binaries):
            raise container.error("its plan is damaged: a kernel lies outside the code")
        self._code = code

    def upload(self, weights: Sequence[Array]) -> None:
        """Copies the weights to the GPU, once for all calls to come."""
        offsets, total = [], 0
        for array in weights:
            offsets.append(total)
            total += aligned(array.nbytes)
        with self._device.current():
            self._kept = self._device.allocate(total)
            self._weights = [self._kept.address + offset for offset in offsets]
            for array, address in zip(weights, self._weights):
                self._device.to_device(address, array.ctypes.data, array.nbytes)

    def instance(self, env: Mapping[str, int], inputs: Sequence[int], outputs: Sequence[int]) -> GpuInstance:
        """The stage with these sizes, for inputs and outputs of so many bytes; ArtifactError where a size is none."""
        stage = self._stage
        starts: list[int] = []
        try:
            arena = evaluate(stage.arena, env)
            flags = aligned(arena)  # for now: where the inputs begin
            for nbytes in (*inputs, *outputs):
                starts.append(flags)
                flags += aligned(nbytes)
            calls: list[_Launch] = []
            workspace = 0
            with self._device.current():
                for step in stage.steps:
                    kernel = stage.kernels[step.kernel]
                    sizes = dict(zip(kernel.sizes, (evaluate(d, env) for d in step.sizes)))
                    workspace = max(workspace, evaluate(kernel.workspace, sizes))
                    refs = [Ref(r.base, evaluate(r.offset, env)) for r in step.buffers]
                    calls += [self._launch(launch, refs, sizes) for launch in kernel.launches]
            copies = [(c.output, c.source.base, evaluate(c.source.offset, env)) for c in stage.copies]
        except ArithmeticError as error:
            raise self._container.error(f"a size of its plan has no value ({error})") from error
        if arena < 0 or workspace < 0:
            raise self._container.error("a size of its plan is negative")
        checked = [c for c in calls if c.messages]
        for i, call in enumerate(checked):
            call.flag = flags + 4 * i
        pool = ArenaPool(CudaMemory(self._device), flags + 4 * len(checked), workspace)  # type: ignore[arg-type]
        return GpuInstance(self, self._device, calls, starts, flags, checked, copies, pool, tuple(inputs))

    def bases(self, arena: int, starts: Sequence[int]) -> list[int]:
        """Addresses on the GPU, in the order of the plan's table."""
        return [arena, *(arena + start for start in starts), *self._weights]

    def _launch(self, launch: LaunchSpec, refs: Sequence[Ref], sizes: Mapping[str, int]) -> _Launch:
        wide = any(evaluate(n, sizes) >= _WIDE for n in launch.elements) or launch.narrow is None
        binary = launch.wide if wide else launch.narrow
        if binary is None:
            raise self._container.error("its plan is damaged: a launch has no code for 64-bit indices")
        places = []
        for p in launch.pointers:
            offset = evaluate(p.offset, sizes)
            if p.base == len(refs):
                places.append((-1, offset))
            else:
                places.append((refs[p.base].base, evaluate(refs[p.base].offset, {}) + offset))
        number = ctypes.c_int64 if wide else ctypes.c_int32
        return _Launch(self._function(binary), evaluate(launch.grid, sizes), binary.threads, places,
                       [number(sizes[s]) for s in launch.sizes], launch.messages, binary.hidden)  # fmt: skip

    def _function(self, binary: Binary) -> Function:
        found = self._functions.get(binary.start)
        if found is None:
            code = bytes(self._code[binary.start : binary.start + binary.size])
            found = self._functions[binary.start] = self._device.function(code, binary.symbol, binary.shared)
        return found


@dataclass
class _Launch:
    """A launch with sizes known; `places`: (base, byte offset) of each pointer, base -1 for the workspace."""

    function: Function
    grid: int
    threads: int
    places: list[tuple[int, int]]
    sizes: list[Any]
    messages: tuple[str, ...]
    hidden: int
    flag: int = 0  # where its flag lies in the call's block


@dataclass
class GpuInstance:
    """A stage with every size known.

    Attributes:
        starts: of the inputs and outputs in a call's block.
        flags: where those of `checked` begin in it.
        copies: (output, base, offset) of those that no kernel writes.
        inputs: bytes of each.
    """

    code: GpuCode
    device: CudaDevice
    calls: list[_Launch]
    starts: list[int]
    flags: int
    checked: list[_Launch]
    copies: list[tuple[int, int, int]]
    arenas: ArenaPool
    inputs: tuple[int, ...]

    def run(self, bases: Any, first_output: int, nbytes: Sequence[int]) -> None:
        """Inputs to the GPU, all launches, outputs back. `bases`: addresses on the host of inputs (from 1 on) and
        outputs (from `first_output` on), these of `nbytes` each. `KernelError` where a check failed."""
        with self.device.current():
            arena = self.arenas.take(1)
            try:
                self._run(arena.address, arena.workspace, bases, first_output, nbytes)
            finally:
                self.arenas.give(arena)

    def _run(self, block: int, workspace: int, bases: Any, first_output: int, nbytes: Sequence[int]) -> None:
        device = self.device
        there = self.code.bases(block, self.starts)
        for i, size in enumerate(self.inputs, 1):
            device.to_device(there[i], bases[i], size)
        device.zero(block + self.flags, 4 * len(self.checked))
        for call in self.calls:
            pointers = [(workspace if base < 0 else there[base]) + offset for base, offset in call.places]
            flag = [block + call.flag] if call.messages else []
            hidden = [0] * call.hidden
            arguments = [*map(ctypes.c_uint64, pointers), *call.sizes, *map(ctypes.c_uint64, (*flag, *hidden))]
            call.function.launch(call.grid, call.threads, arguments)
        for output, base, offset in self.copies:
            device.copy(there[first_output + output], there[base] + offset, nbytes[output])
        device.synchronize()
        self._raise_failure(block)
        for i, size in enumerate(nbytes, first_output):
            device.to_host(bases[i], there[i], size)

    def _raise_failure(self, block: int) -> None:
        if not self.checked:
            return
        codes = (ctypes.c_int32 * len(self.checked))()
        self.device.to_host(ctypes.addressof(codes), block + self.flags, ctypes.sizeof(codes))
        for call, code in zip(self.checked, codes):
            if code:
                raise failure(call.messages[code - 1] if code <= len(call.messages) else f"check {code} failed")
