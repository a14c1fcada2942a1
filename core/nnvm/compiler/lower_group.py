"""A fused group of the graph to one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnvm.dim import Dim
from nnvm.graph.graph import Graph
from nnvm.graph.group import fused_nodes
from nnvm.graph.node import Node, NodeEntry
from nnvm.schedules.gpu.nests import lower_nest_for_grid
from nnvm.schedules.gpu.scan import lower_scan_for_grid
from nnvm.schedules.gpu.select import lower_for_grid
from nnvm.schedules.select import lower_tensors
from nnvm.target import Target
from nnvm.te.expr import const
from nnvm.te.tensor import Tensor, compute, placeholder
from nnvm.tir.stmt import GridKernel, PrimFunc

__all__ = ["group_bytes", "group_flops", "lower_group", "lower_group_for_gpu", "tensors_of"]

Strides = tuple[Dim, ...] | None


def lower_group(
    graph: Graph, target: Target, name: str, input_strides: Sequence[Strides] | None = None,
    output_strides: Sequence[Strides] | None = None,
) -> PrimFunc:  # fmt: skip
    """The kernel of a group.

    Its params are the graph's inputs, then its outputs. A param may have fewer dimensions than the graph's type (most
    have one): only the memory counts, element by element as the type and the strides lay it out.

    Args:
        graph: types inferred; constants of one element are built in, larger ones must be inputs.
        name: a C identifier.
        input_strides, output_strides: in elements, per input and output; None: contiguous.

    Raises:
        ValueError: an op has neither a compute nor a build_tir, or is not alone although it builds its own loop nest.

    Attributes of the result: ``inplace`` (pairs of an input and an output that may be the same memory), and for reports
    ``ops`` (names in order), ``flops`` and ``bytes`` (of all params; a Dim each).
    """
    nodes = fused_nodes(graph)
    facts = _facts(graph, nodes)
    builder = next((n for n in nodes if not n.op.has("compute")), None)
    if builder is not None:
        func = _build_alone(builder, graph, name, (*(input_strides or ()), *(output_strides or ())))
        return replace(func, attrs={**func.attrs, **facts})
    inputs, outputs = tensors_of(graph)
    func = lower_tensors(inputs, outputs, target, name, _strides_of(inputs, outputs, input_strides, output_strides))
    return replace(func, attrs={**func.attrs, **facts})


def lower_group_for_gpu(
    graph: Graph, name: str, input_strides: Sequence[Strides] | None = None,
    output_strides: Sequence[Strides] | None = None,
) -> GridKernel:  # fmt: skip
    """The launches of a group on a GPU; args and attributes as of `lower_group`.

    Raises:
        ValueError: an op has no compute, and no loop nest that may run in any order.
    """
    nodes = fused_nodes(graph)
    if without := next((n for n in nodes if not n.op.has("compute")), None):
        if without.op.has("running"):
            return replace(_running_for_grid(without, name), attrs=_facts(graph, nodes))
        if not without.op.has("any_order"):
            raise ValueError(f"{without.op.name} has no compute: it has no kernel on a GPU")
        func = _build_alone(without, graph, name, (*(input_strides or ()), *(output_strides or ())))
        return replace(lower_nest_for_grid(func), attrs=_facts(graph, nodes))
    inputs, outputs = tensors_of(graph)
    kernel = lower_for_grid(inputs, outputs, name, _strides_of(inputs, outputs, input_strides, output_strides))
    return replace(kernel, attrs=_facts(graph, nodes))


def _running_for_grid(node: Node, name: str) -> GridKernel:
    (x,), (out,) = node.inputs, node.outputs
    by = node.op.attr("running")(node.attrs, (x.type,))
    if by is None:
        raise ValueError(f"{node.op.name} of {x.type} has no kernel on a GPU")
    axis = node.attrs["axis"] % x.type.rank
    return lower_scan_for_grid(by, axis, x.type.shape, x.type.dtype, out.type.dtype, name)


def _facts(graph: Graph, nodes: Sequence[Node]) -> dict[str, object]:
    return {"ops": tuple(n.op.name for n in nodes), "flops": group_flops(nodes), "bytes": group_bytes(graph),
            "inplace": tuple(graph.attrs.get("inplace", ()))}  # fmt: skip


def _strides_of(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], input_strides: Sequence[Strides] | None,
    output_strides: Sequence[Strides] | None,
) -> dict[Tensor, tuple[Dim, ...]]:  # fmt: skip
    strides: dict[Tensor, tuple[Dim, ...]] = {}
    for tensors, given in ((inputs, input_strides), (outputs, output_strides)):
        strides.update((t, s) for t, s in zip(tensors, given or ()) if s is not None)
    return strides


def tensors_of(graph: Graph) -> tuple[list[Tensor], list[Tensor]]:
    """Placeholders for the inputs of a group and the tensors of its outputs, each a tensor of its own."""
    values: dict[NodeEntry, Tensor] = {}
    inputs: list[Tensor] = []
    for i, v in enumerate(graph.inputs):
        inputs.append(placeholder(v[0].type.shape, v[0].type.dtype, f"in{i}"))
        values[v[0]] = inputs[-1]
    for node in graph.nodes:
        if node.is_constant:
            values[node[0]] = _constant(node)
        elif not node.is_variable:
            made = node.op.attr("compute")(
                node.attrs, [values[e] for e in node.inputs], tuple(e.type for e in node.outputs)
            )
            values.update(zip(node.outputs, made, strict=True))
    outputs: list[Tensor] = []
    for i, e in enumerate(graph.outputs):
        t = values[e]
        outputs.append(_copy(t, f"out{i}") if t.is_placeholder or t in outputs else t)
    return inputs, outputs


def _constant(node: Node) -> Tensor:
    array, t = node.attrs["value"], node[0].type
    if array.size != 1:
        raise ValueError(f"constant {node.name} of {array.size} elements inside a group: it must be an input")
    value = array.reshape(()).item()
    if t.dtype.name == "bfloat16":
        from nnvm.dtype import bf16_to_f32

        value = float(bf16_to_f32(array).reshape(()))
    return compute(t.shape, lambda *i: const(value, t.dtype), node.name, {"constant": True})


def _copy(t: Tensor, name: str) -> Tensor:
    return compute(t.shape, lambda *i: t[i], name)


def _build_alone(node: Node, graph: Graph, name: str, strides: Sequence[Strides]) -> PrimFunc:
    builder = node.op.attr("build_tir")
    if builder is None:
        raise ValueError(f"{node.op.name} has neither a compute nor a build_tir: it cannot be compiled")
    alone = tuple(e.node for e in node.inputs) == graph.inputs and node.outputs == graph.outputs
    if not alone or any(s is not None for s in strides):
        raise ValueError(
            f"{node.op.name} builds its own loop nest: it must be alone in its group, on contiguous memory"
        )
    func: PrimFunc = builder(node.attrs, tuple(e.type for e in node.inputs), tuple(e.type for e in node.outputs), name)
    return func


def group_flops(nodes: Sequence[Node]) -> Dim:
    """Operations of the nodes of a group; one an element where an op does not say."""
    total: Dim = 0
    for n in nodes:
        count = n.op.attr("flops")
        inputs, outputs = tuple(e.type for e in n.inputs), tuple(e.type for e in n.outputs)
        total = total + (count(n.attrs, inputs, outputs) if count is not None else outputs[0].numel)
    return total


def group_bytes(graph: Graph) -> Dim:
    """Bytes of everything that a group reads and writes, each once."""
    total: Dim = 0
    for e in (*(v[0] for v in graph.inputs), *graph.outputs):
        total = total + e.type.nbytes
    return total
