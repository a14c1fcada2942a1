"""The device ``reference``: each op by its definition in numpy, slowly and plainly.

Its tensors are the host's own, so that the frontend can look at them; a copy to it is a copy nevertheless, as it would
be to any other device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dim import evaluate, numel
from nnvm.dtype import DType
from nnvm.graph.evaluate import Array, evaluate_graph
from nnvm.graph.graph import Graph
from nnvm.graph.node import NodeEntry
from nnvm.runtime.device import DeviceCall, DeviceRuntime, copy_on_host, register_runtime
from nnvm.runtime.memory import Memory

__all__ = ["REFERENCE"]


def _build(graph: Graph, device: str) -> DeviceCall:
    """What evaluates the graph."""

    def call(memory: Memory, sizes: Mapping[str, int], tensors: Sequence[Any]) -> list[Any]:
        given = [_array(memory, t, _shape(v[0], sizes), v[0].type.dtype) for v, t in zip(graph.inputs, tensors)]
        outputs = []
        for e, value in zip(graph.outputs, evaluate_graph(graph, given, sizes)):
            shape = _shape(e, sizes)
            outputs.append(memory.empty(shape, e.type.dtype, None))
            _array(memory, outputs[-1], shape, e.type.dtype)[...] = value
        return outputs

    return call


def _shape(entry: NodeEntry, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, sizes) for d in entry.type.shape)


def _array(memory: Memory, tensor: Any, shape: tuple[int, ...], dtype: DType) -> Array:
    """A contiguous tensor of the frontend as an array on the same memory."""
    count = numel(shape)
    assert isinstance(count, int), "all sizes are numbers here"
    if count == 0:
        return np.empty(shape, dtype.numpy)
    raw = memoryview((ctypes.c_uint8 * (count * dtype.bytes)).from_address(memory.pointer(tensor)))
    array: Array = np.ndarray(shape, dtype.numpy, buffer=raw)
    return array


def _view(memory: Memory, tensor: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
    return memory.reshape(tensor, offset, shape, dtype)


REFERENCE = DeviceRuntime("reference", _build, receive=copy_on_host, send=copy_on_host, view=_view)
register_runtime(REFERENCE)
