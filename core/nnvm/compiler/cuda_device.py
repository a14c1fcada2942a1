"""The device ``cuda``: part of a graph on a CUDA GPU, the rest on the processor.

Groups become launches as they do where a whole graph is for a GPU. Kernels are compiled when a group is first run, for
the GPU that is there, and started through its driver (`nnvm.runtime.cuda_driver`), so that no framework is needed; its
tensors are memory of the GPU that only copies and its own kernels touch. With TRITON_INTERPRET=1 Triton's interpreter
runs the launches on memory of the host instead, which needs no GPU.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nnvm.compiler.lower_group import lower_group_for_gpu
from nnvm.dim import evaluate, numel
from nnvm.dtype import DType
from nnvm.graph.devices import register_device_kind
from nnvm.graph.graph import Graph
from nnvm.graph.group import fused_nodes
from nnvm.graph.node import Node
from nnvm.kernel_error import failure
from nnvm.runtime import cuda_driver
from nnvm.runtime.device import DeviceCall, DeviceRuntime, copy_on_host, register_runtime
from nnvm.runtime.memory import Memory, NumpyMemory
from nnvm.runtime.triton_binary import launch_binary
from nnvm.runtime.triton_interpret import interpret, is_interpreting
from nnvm.runtime.triton_launch import Launch, TritonKernel, load_source
from nnvm.target import Target

__all__ = ["DeviceTensor"]


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """Contiguous elements on the device. `block` keeps the memory."""

    block: Any
    address: int


class _Machine(Protocol):
    """What runs launches: a GPU, or the interpreter."""

    target: Target

    def allocate(self, nbytes: int) -> DeviceTensor: ...

    def to_device(self, target: int, source: int, nbytes: int) -> None: ...

    def to_host(self, target: int, source: int, nbytes: int) -> None: ...

    def launch(self, launch: Launch, wide: bool, programs: int, pointers: list[int], sizes: Mapping[str, int]) -> None:
        """Runs a launch; raises the failure of its checks."""


class _Interpreter:
    target = Target.parse("cuda")

    def allocate(self, nbytes: int) -> DeviceTensor:
        block = NumpyMemory().arena(max(nbytes, 1))
        return DeviceTensor(block, int(block.ctypes.data))

    def to_device(self, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

    to_host = to_device

    def launch(self, launch: Launch, wide: bool, programs: int, pointers: list[int], sizes: Mapping[str, int]) -> None:
        source = launch.source(wide)
        arguments = [*pointers, *(sizes[s] for s in launch.func.symbols)]
        nbytes = [evaluate(numel(b.shape), sizes) * b.dtype.bytes for b in launch.func.params]
        if code := interpret(load_source(source), source.signature, arguments, programs, nbytes):
            raise failure(source.messages[code - 1])


class _Gpu:
    """A GPU through its driver. Everything is on the default stream, so that copies to the host wait for launches."""

    def __init__(self, ordinal: int) -> None:
        self._device = cuda_driver.device_at(ordinal)
        self.target = Target.parse(f"cuda -arch={self._device.arch}")
        self._functions: dict[tuple[object, ...], tuple[cuda_driver.Function, int, int]] = {}
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> DeviceTensor:
        with self._device.current():
            block = self._device.allocate(nbytes)
        return DeviceTensor(block, block.address)

    def to_device(self, target: int, source: int, nbytes: int) -> None:
        with self._device.current():
            self._device.to_device(target, source, nbytes)

    def to_host(self, target: int, source: int, nbytes: int) -> None:
        with self._device.current():
            self._device.to_host(target, source, nbytes)

    def launch(self, launch: Launch, wide: bool, programs: int, pointers: list[int], sizes: Mapping[str, int]) -> None:
        messages = launch.source(wide).messages
        with self._device.current():
            flag = self._device.allocate(4) if messages else None
            if flag is not None:
                self._device.zero(flag.address, 4)
                pointers = [*pointers, flag.address]
            function, threads, hidden = self._function(launch, wide, tuple(p % 16 == 0 for p in pointers))
            number = ctypes.c_int64 if wide else ctypes.c_int32
            ahead, flags = (pointers[:-1], pointers[-1:]) if flag is not None else (pointers, [])
            named = [number(sizes[s]) for s in launch.func.symbols]
            arguments = [*map(ctypes.c_uint64, ahead), *named, *map(ctypes.c_uint64, flags)]
            function.launch(programs, threads, [*arguments, *(ctypes.c_uint64(0) for _ in range(hidden))])
            if flag is None:
                return
            code = ctypes.c_int32(0)
            self._device.to_host(ctypes.addressof(code), flag.address, 4)
            if code.value:
                raise failure(messages[code.value - 1])

    def _function(self, launch: Launch, wide: bool, aligned: tuple[bool, ...]) -> tuple[cuda_driver.Function, int, int]:
        key = (launch, wide, aligned)
        with self._lock:
            if key not in self._functions:
                made = launch_binary(launch, wide, aligned)
                function = self._device.function(made.code, made.symbol, made.shared)
                self._functions[key] = (function, made.threads, made.hidden)
            return self._functions[key]


_machines: dict[int, _Machine] = {}
_lock = threading.Lock()


def _machine(device: str) -> _Machine:
    """What stands for ``cuda`` or ``cuda:1``.

    Raises:
        ValueError: its number is none.
        OSError, CudaError: there is no such GPU.
    """
    number = device.partition(":")[2] or "0"
    if not number.isdigit():
        raise ValueError(f"device {device!r} has no number; write cuda:0")
    if is_interpreting():
        return _Interpreter()
    with _lock:
        if int(number) not in _machines:
            _machines[int(number)] = _Gpu(int(number))
        return _machines[int(number)]


def _build(graph: Graph, device: str) -> DeviceCall:
    """What launches the kernels of a group."""
    machine = _machine(device)
    names = [n.op.name for n in fused_nodes(graph)]
    group = lower_group_for_gpu(graph, f"on_{device.replace(':', '_')}_{'_'.join(names)}"[:80])
    kernel = TritonKernel.of(group, machine.target, ", ".join(names))

    def call(memory: Memory, sizes: Mapping[str, int], tensors: Sequence[Any]) -> list[DeviceTensor]:
        shapes = [tuple(evaluate(d, sizes) for d in e.type.shape) for e in graph.outputs]
        outputs = [machine.allocate(_nbytes(s, e.type.dtype)) for s, e in zip(shapes, graph.outputs)]
        workspace = machine.allocate(evaluate(kernel.workspace, sizes))
        params = [*tensors, *outputs]
        for launch in kernel.steps:
            programs = launch.programs(sizes)
            if not programs:
                continue
            pointers = [params[a.param].address if a.param >= 0 else workspace.address + evaluate(a.offset, sizes)
                        for a in launch.arguments]  # fmt: skip
            machine.launch(launch, launch.is_wide(sizes), programs, pointers, sizes)
        return outputs

    return call


def _nbytes(shape: tuple[int, ...], dtype: DType) -> int:
    count = numel(shape)
    assert isinstance(count, int)
    return count * dtype.bytes


def _runtime(device: str) -> DeviceRuntime:
    """The runtime of one device of the kind."""

    def receive(memory: Memory, tensor: Any, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        machine, plain = _machine(device), copy_on_host(memory, tensor, shape, dtype)
        there = machine.allocate(_nbytes(shape, dtype))
        machine.to_device(there.address, memory.pointer(plain), _nbytes(shape, dtype))
        return there

    def send(memory: Memory, tensor: DeviceTensor, shape: tuple[int, ...], dtype: DType) -> Any:
        out = memory.empty(shape, dtype, None)
        _machine(device).to_host(memory.pointer(out), tensor.address, _nbytes(shape, dtype))
        return out

    def view(memory: Memory, tensor: DeviceTensor, offset: int, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        return tensor if offset == 0 else DeviceTensor(tensor.block, tensor.address + offset)

    return DeviceRuntime("cuda", _build, receive, send, view)


def _why_not(node: Node) -> str | None:
    types = tuple(e.type for e in node.inputs)
    rule = node.op.attr("any_order")
    rule = rule if rule is not None else node.op.attr("running")
    if node.op.has("compute") or (rule is not None and rule(node.attrs, types)):
        return None
    return f"{node.op.name} has no kernel for a GPU"


register_device_kind("cuda", _why_not)
register_runtime(replace(_runtime("cuda"), at=_runtime))
