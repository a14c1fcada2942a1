"""A fused group run by the definitions of its ops in numpy, in place of a kernel that could not be compiled.

It reads and writes the same memory as the kernel would, so that nothing else of the plan changes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dim import Dim, evaluate, row_major
from nnvm.graph.evaluate import Array, can_evaluate, evaluate_graph
from nnvm.graph.graph import Graph
from nnvm.graph.node import NodeEntry

__all__ = ["DefinedKernel", "can_define"]

Strides = tuple[Dim, ...] | None


def can_define(graph: Graph) -> bool:
    """Has every op of the group a definition?"""
    return all(n.is_variable or can_evaluate(n) for n in graph.nodes)


class DefinedKernel:
    """Stands for a kernel in a plan.

    Attributes:
        name: for reports.
        symbols: names of the sizes that it needs.
    """

    workspace: Dim = 0
    parallel = False

    def __init__(self, name: str, graph: Graph, symbols: Sequence[str], strides: Sequence[Strides]) -> None:
        """`strides`: in elements, of the group's inputs and outputs; None: contiguous."""
        self.name, self.graph, self.symbols, self.strides = name, graph, tuple(symbols), tuple(strides)

    def segment(self, buffers: Sequence[tuple[int, int]], env: Mapping[str, int]) -> DefinedSegment:
        """It as a part of a program, for sizes that are known; `buffers`: (base, byte offset) of each."""
        return DefinedSegment(self, buffers, env)


class DefinedSegment:
    """A `DefinedKernel` with the places of its buffers."""

    def __init__(self, kernel: DefinedKernel, buffers: Sequence[tuple[int, int]], env: Mapping[str, int]) -> None:
        graph = kernel.graph
        entries: list[NodeEntry] = [*(v[0] for v in graph.inputs), *graph.outputs]
        self.graph, self.env, self.inputs = graph, dict(env), len(graph.inputs)
        self.buffers = [
            (base, offset, *_layout(e, s, env)) for (base, offset), e, s in zip(buffers, entries, kernel.strides)
        ]

    def run(self, bases: Any, workspace: int, threads: int) -> None:
        """As `Program.run`."""
        arrays = [_at(int(bases[base]) + offset, *layout) for base, offset, *layout in self.buffers]
        results = evaluate_graph(self.graph, [a.copy() for a in arrays[: self.inputs]], self.env)
        for array, result in zip(arrays[self.inputs :], results):
            array[...] = result


def _layout(e: NodeEntry, strides: Strides, env: Mapping[str, int]) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """(dtype, shape, strides in bytes)."""
    dtype = np.dtype(e.type.dtype.numpy)
    shape = tuple(evaluate(d, env) for d in e.type.shape)
    steps = tuple(evaluate(d, env) for d in (row_major(shape) if strides is None else strides))
    return dtype, shape, tuple(s * dtype.itemsize for s in steps)


def _at(address: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The memory at an address as an array."""
    if 0 in shape:
        return np.empty(shape, dtype)
    span = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides))
    raw = memoryview((ctypes.c_uint8 * span).from_address(address))
    array: Array = np.ndarray(shape, dtype, buffer=raw, strides=strides)
    return array
