"""How other devices than the host's main target run their part of a graph, and how values get there and back.

A `DeviceRuntime` is all that a further target needs beside its facts in `nnvm.graph.devices`:

>>> register_runtime(DeviceRuntime("npu", build=compile_for_npu, receive=to_npu, send=to_host, view=as_view))

Its values are tensors of its own kind, which the executor only hands on; on the host they are the frontend's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnvm.dim import evaluate
from nnvm.dtype import DType
from nnvm.graph.devices import CPU, device_of, kind_of
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node
from nnvm.runtime.memory import Memory

__all__ = ["DeviceCall", "DeviceRuntime", "copy_call", "copy_on_host", "register_runtime", "runtime_of"]

#: (memory of the host, values of the named sizes, input tensors on the device) -> output tensors on the device, which
#: share no memory with the inputs.
DeviceCall = Callable[[Memory, Mapping[str, int], Sequence[Any]], Sequence[Any]]
#: (memory of the host, tensor, shape, dtype) -> the tensor elsewhere.
Transfer = Callable[[Memory, Any, "tuple[int, ...]", DType], Any]


@dataclass(frozen=True)
class DeviceRuntime:
    """One kind of device.

    Attributes:
        kind: as in `nnvm.graph.devices.register_device_kind`.
        build: makes of a graph (of a fused group, its types inferred) for a device what runs it there.
        receive: a tensor of the host as one of the device; the host's may have any strides.
        send: a tensor of the device as a contiguous one of the host.
        view: (memory of the host, tensor of the device, offset in bytes, shape, dtype) -> a tensor on the same memory
            of the device; the tensor itself where that is all of it.
        at: the runtime of one device by its name, where there may be several of the kind (``cuda:1``).
    """

    kind: str
    build: Callable[[Graph, str], DeviceCall]
    receive: Transfer
    send: Transfer
    view: Callable[[Memory, Any, int, tuple[int, ...], DType], Any]
    at: Callable[[str], DeviceRuntime] | None = None


_RUNTIMES: dict[str, DeviceRuntime] = {}


def register_runtime(runtime: DeviceRuntime) -> None:
    """Makes a kind of device usable; ValueError where it is already."""
    if runtime.kind in _RUNTIMES:
        raise ValueError(f"a runtime for {runtime.kind!r} is registered already")
    _RUNTIMES[runtime.kind] = runtime


def runtime_of(device: str) -> DeviceRuntime:
    """The runtime of a device; ValueError lists the kinds that there are."""
    kind = kind_of(device)
    if kind not in _RUNTIMES:
        raise ValueError(f"nothing runs graphs on device {device!r}; there are runtimes for {', '.join(_RUNTIMES)}")
    found = _RUNTIMES[kind]
    return found if found.at is None else found.at(device)


def copy_call(node: Node) -> DeviceCall:
    """What runs a ``device_copy``; between two devices that are not the host's, through the host."""
    entry = node.inputs[0]
    source, target = entry.type.device, device_of(node)
    transfers: list[Transfer] = [] if source == CPU else [runtime_of(source).send]
    transfers += [] if target == CPU else [runtime_of(target).receive]

    def call(memory: Memory, sizes: Mapping[str, int], tensors: Sequence[Any]) -> list[Any]:
        shape = tuple(evaluate(d, sizes) for d in entry.type.shape)
        tensor = tensors[0]
        for transfer in transfers or [copy_on_host]:
            tensor = transfer(memory, tensor, shape, entry.type.dtype)
        return [tensor]

    return call


def copy_on_host(memory: Memory, tensor: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """A contiguous copy in the host's memory."""
    out = memory.empty(shape, dtype, None)
    memory.copy(out, tensor)
    return out
