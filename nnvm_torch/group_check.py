"""Each fused group of a compiled graph against the definitions of its ops: kernel by kernel, on equal inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nnvm.compiler.build import CompiledGraph, GroupCall, group_calls
from nnvm.dim import evaluate, row_major
from nnvm.dtype import BF16, DType, bf16_to_f32
from nnvm.graph.evaluate import Array, bind_symbols, evaluate_node
from nnvm.graph.graph import Graph
from nnvm.graph.group import fused_nodes, user_sources
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.types import TensorType
from nnvm.runtime.llvm_jit import Kernel
from nnvm.runtime.plan import KernelStep
from nnvm.schedules.kernel import span
from nnvm.te.expr import Buffer
from nnvm.testing.reference import run_graph
from nnvm_torch.imported import Imported
from nnvm_torch.tensors import constant_tensor, is_foreign, numpy_of

__all__ = ["GroupFault", "first_wrong_group"]

#: Error of a kernel, relative to the largest element, that rounding does not explain.
_LIMITS = {"float32": 1e-3, "float64": 1e-6, "float16": 2e-2, "bfloat16": 6e-2}


@dataclass(frozen=True)
class GroupFault:
    """A group whose kernel does not do what its ops say.

    Attributes:
        kernel: its name.
        ops: names of the fused operators in order.
        sources: the user's source lines.
        error: largest difference, relative to the largest element (1.0 where an integer differs).
        prepares: whether it is one of the kernels that prepare weights.
    """

    kernel: str
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    error: float
    prepares: bool

    def __str__(self) -> str:
        where = "".join(f"\n    {s}" for s in self.sources)
        of = " of the prepared weights" if self.prepares else ""
        return f"{self.kernel}{of} = {' + '.join(self.ops)}, relative error {self.error:.2g}{where}"


def first_wrong_group(imported: Imported, compiled: CompiledGraph, args: Sequence[Any]) -> GroupFault | None:
    """The first group, in the order of execution, whose kernel differs from its ops; None where all agree."""
    position = dict(zip((v.name for v in imported.graph.inputs), imported.positions))
    sizes = imported.sizes_in(args)

    def given(graph: Graph) -> list[Array | None]:
        names = (position.get(v.name) for v in graph.inputs)
        return [None if p is None else _array(args[p] if p >= 0 else imported.constants[-1 - p]) for p in names]

    prepared: list[Array] = []
    if compiled.prepare is not None:
        walk = _Walk(compiled.prepare, given(compiled.prepare.graph), sizes, True)
        if walk.fault is not None:
            return walk.fault
        prepared = walk.outputs
    rest = iter(prepared)
    inputs = [next(rest) if a is None else a for a in given(compiled.graph)]
    return _Walk(compiled, inputs, sizes, False).fault


def _array(value: Any) -> Any:
    """A tensor's values; the tensor itself where native code cannot hold it, and no tensor stands for a token."""
    if not isinstance(value, torch.Tensor):
        return np.empty(0, np.uint8)
    return numpy_of(value) if is_foreign(value) is None else value


def _tensor(value: Any, dtype: DType) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else constant_tensor(value, TensorType(value.shape, dtype))


class _Walk:
    """All nodes of a graph by their definitions, and the groups by their kernels as well."""

    def __init__(
        self, compiled: CompiledGraph, inputs: Sequence[Array | None], sizes: Mapping[str, int], prepares: bool
    ) -> None:
        graph = compiled.graph
        self.fault: GroupFault | None = None
        arrays = [a for a in inputs if a is not None]
        self.sizes = {**sizes, **bind_symbols(_without_handles(graph), _kept(graph, arrays))}
        self.values: dict[NodeEntry, Array] = {v[0]: a for v, a in zip(graph.inputs, arrays, strict=True)}
        kernels = {s.node: s.kernel for s in compiled.plan.steps if isinstance(s, KernelStep)}
        calls = {c.node: c for c in group_calls(graph)}
        for node in graph.nodes:
            if node.is_variable:
                continue
            given = [self.values[e] for e in node.inputs]
            results = self._defined(node, given)
            self.values.update(zip(node.outputs, results))
            kernel = kernels.get(node)
            if self.fault is None and isinstance(kernel, Kernel):
                error = self._error(calls[node], kernel, given, results)
                if error is not None:
                    inner = fused_nodes(node.attrs["graph"])
                    ops = tuple(n.op.name for n in inner)
                    self.fault = GroupFault(kernel.name, ops, user_sources(inner), error, prepares)
                    return
        self.outputs = [self.values[e] for e in graph.outputs]

    def _defined(self, node: Node, given: Sequence[Array]) -> Sequence[Array]:
        if node.op.has("host_call"):
            tensors = [_tensor(a, e.type.dtype) for a, e in zip(given, node.inputs)]
            return [_array(t) for t in node.op.attr("host_call")(node.attrs)(self.sizes, *tensors)]
        if node.op.name == "group":
            return run_graph(node.attrs["graph"], list(given), self.sizes)
        return evaluate_node(node, given, self.sizes)

    def _error(self, call: GroupCall, kernel: Kernel, given: Sequence[Array], wanted: Sequence[Array]) -> float | None:
        """How wrong the kernel is; None where it is right."""
        strides = (*call.input_strides, *call.output_strides)
        memory, views = [], []
        for buffer, array, own in zip(kernel.params, (*given, *wanted), strides, strict=True):
            laid, view = self._buffer(buffer, array, own)
            memory.append(laid)
            views.append(view)
            if len(views) <= len(given):
                view[...] = array
        kernel(*memory, symbols={s: self.sizes[s] for s in kernel.symbols})
        worst = None
        for got, want, e in zip(views[len(given) :], wanted, call.node.outputs):
            error = _difference(got, want, e.type.dtype)
            if error > _LIMITS.get(e.type.dtype.name, 0.0) and (worst is None or error > worst):
                worst = error
        return worst

    def _buffer(self, buffer: Buffer, array: Array, strides: Any) -> tuple[Array, Array]:
        """The same memory as the kernel wants it, and as the graph's tensor."""
        shape = tuple(evaluate(d, self.sizes) for d in buffer.shape)
        steps = tuple(evaluate(buffer.stride_of(k), self.sizes) for k in range(len(shape)))
        own = tuple(evaluate(d, self.sizes) for d in (row_major(array.shape) if strides is None else strides))
        size = max(int(span(shape, steps)), int(span(array.shape, own)))  # type: ignore[arg-type]
        flat = np.zeros(size, buffer.dtype.numpy)
        item = flat.itemsize
        laid = np.lib.stride_tricks.as_strided(flat, shape, [s * item for s in steps])
        view = np.lib.stride_tricks.as_strided(flat, array.shape, [s * item for s in own])
        return laid, view


def _difference(got: Array, want: Array, dtype: DType) -> float:
    if dtype == BF16:
        got, want = bf16_to_f32(np.ascontiguousarray(got)), bf16_to_f32(np.ascontiguousarray(want))
    if not dtype.is_float:
        return float(not np.array_equal(got, want))
    a, b = got.astype(np.float64), want.astype(np.float64)
    odd = ~np.isfinite(b) | ~np.isfinite(a)
    if not np.array_equal(a[odd], b[odd], equal_nan=True):
        return float("inf")
    a, b = a[~odd], b[~odd]
    scale = float(np.abs(b).max()) if b.size else 0.0
    return float(np.abs(a - b).max()) / (scale or 1.0) if b.size else 0.0


def _without_handles(graph: Graph) -> Graph:
    """The graph with the inputs only whose sizes native code knows."""
    return Graph((), tuple(v for v in graph.inputs if v[0].type.dtype.name != "handle"))


def _kept(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    return [a for v, a in zip(graph.inputs, arrays) if v[0].type.dtype.name != "handle"]
