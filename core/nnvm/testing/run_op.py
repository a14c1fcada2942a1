"""Runs one op on numpy arrays, through its numpy reference or through a kernel of the default schedule.

The way of every test of an op: its meaning (`reference`), and its algorithm (`compute` or `build_tir`) as the
interpreter or as compiled code runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import nnvm.ops  # noqa: F401  (registers the ops)
from nnvm import te
from nnvm.compiler.lower_group import lower_group, lower_group_for_gpu
from nnvm.dim import evaluate
from nnvm.graph.evaluate import evaluate_node
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, apply, variable
from nnvm.graph.types import TensorType
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.runtime.memory import NumpyMemory
from nnvm.runtime.triton_launch import LaunchProgram, TritonKernel
from nnvm.target import Target
from nnvm.te.schedule import Schedule
from nnvm.testing.fence import fenced
from nnvm.tir.interpreter import run
from nnvm.tir.lower import lower
from nnvm.tir.stmt import GridKernel, PrimFunc

__all__ = ["ROUTES", "build_func", "run_launches", "run_op"]

Array = np.ndarray[Any, Any]


def build_func(node: Node, name: str = "kernel") -> PrimFunc:
    """The kernel of one node whose types are known, as its inputs and outputs stand, under the default schedule."""
    types = tuple(e.type for e in node.inputs)
    outputs = tuple(e.type for e in node.outputs)
    if (build_tir := node.op.attr("build_tir")) is not None:
        func: PrimFunc = build_tir(node.attrs, types, outputs, name)
        return func
    inputs = [te.placeholder(t.shape, t.dtype, f"p{i}") for i, t in enumerate(types)]
    computed: list[te.Tensor] = node.op.attr("compute")(node.attrs, inputs, outputs)
    for tensor, t in zip(computed, outputs, strict=True):
        assert (tensor.shape, tensor.dtype) == (t.shape, t.dtype), f"{node.op.name} computes {tensor}, inferred {t}"
    return lower(Schedule(computed), [*inputs, *computed], name)


def _outputs(node: Node, symbols: Mapping[str, int]) -> list[Array]:
    return [np.empty([evaluate(d, symbols) for d in e.type.shape], e.type.dtype.numpy) for e in node.outputs]


def _interpret(node: Node, arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
    func, outputs = build_func(node), _outputs(node, symbols)
    run(func, [*arrays, *outputs], {s: symbols[s] for s in func.symbols})
    return outputs


def _call_native(node: Node, arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
    func, outputs = build_func(node), _outputs(node, symbols)
    (kernel,) = compile_funcs([func])
    kernel(*arrays, *outputs, symbols={s: symbols[s] for s in func.symbols})
    return outputs


def _call_scheduled(node: Node, arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
    """As a group of its own, under the schedule that the compiler picks, behind fences."""
    graph = Graph(node.outputs, tuple(e.node for e in node.inputs))
    func, outputs = lower_group(graph, Target.current(), "kernel"), _outputs(node, symbols)
    (kernel,) = compile_funcs([func])
    for before in (True, False):
        params = [fenced(a, before) for a in (*arrays, *outputs)]
        # a param may have fewer dimensions than the tensor: only the memory counts
        shaped = [a.reshape([evaluate(d, symbols) for d in p.shape]) for p, a in zip(func.params, params)]
        kernel(*shaped, symbols={s: symbols[s] for s in func.symbols})
    return params[len(arrays) :]


def _call_triton(node: Node, arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
    """As a group of its own in Triton's interpreter, with a fence behind each tensor: where a tile is larger than what
    is left, the rest must be masked."""
    graph = Graph(node.outputs, tuple(e.node for e in node.inputs))
    params = [fenced(np.asarray(a, order="C"), False) for a in (*arrays, *_outputs(node, symbols))]
    run_launches(lower_group_for_gpu(graph, "kernel"), params, symbols)
    return params[len(arrays) :]


def run_launches(group: GridKernel, arrays: Sequence[Array], symbols: Mapping[str, int] | None = None) -> None:
    """Runs the launches of a group in Triton's interpreter; `arrays` are contiguous, the outputs written in place."""
    sizes = symbols or {}
    kernel, memory = TritonKernel.of(group, Target.parse("cuda")), NumpyMemory()
    workspace = memory.arena(evaluate(kernel.workspace, sizes))
    step = (kernel, [(i, 0) for i in range(len(arrays))], [sizes[s] for s in kernel.symbols])
    LaunchProgram([step]).run([memory.pointer(a) for a in arrays], memory.pointer(workspace), 1)


#: Ways to run an op: what the node gives for arrays and values of the named sizes.
ROUTES: dict[str, Callable[[Node, Sequence[Array], Mapping[str, int]], Sequence[Array]]] = {
    "reference": evaluate_node,
    "interpreter": _interpret,
    "llvm": _call_native,
    "scheduled": _call_scheduled,
    "triton": _call_triton,
}


def run_op(
    name: str, arrays: Sequence[Array], types: Sequence[TensorType], attrs: Mapping[str, Any], route: str,
    symbols: Mapping[str, int] | None = None,
) -> list[Array]:  # fmt: skip
    """The outputs of op `name`, on the way called `route` (see ROUTES); bfloat16 arrays are their uint16 bits."""
    inputs = [variable(f"p{i}", t) for i, t in enumerate(types)]
    node = apply(name, inputs, attrs)
    return list(ROUTES[route](node, arrays, symbols or {}))
