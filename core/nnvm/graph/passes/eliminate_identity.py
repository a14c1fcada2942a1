"""EliminateIdentity: nodes that change nothing.

```
%a = slice(%x)  (all of it)       %b = cast(cast(%h, float32), float16)      %c = add(broadcast_to(%v), %x)
%y = relu(%a)                     (%h: float16)
->  %y = relu(%x)                 ->  %h                                     ->  %c = add(%v, %x)
```
Removed are copies; ops marked ``same_shape_is_identity`` whose output has their input's shape; casts to the type that
is there, and pairs of casts of which the first loses nothing; broadcasts whose reader would broadcast by itself.
A broadcast before an elementwise op of one input moves behind it.
"""

from __future__ import annotations

from nnvm.dtype import DType
from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError, apply
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["eliminate_identity"]


@register_pass("EliminateIdentity", requires=["typed"], opt_level=1)
def eliminate_identity(graph: Graph, context: PassContext) -> Graph:
    """Removes nodes without effect. requires: ``typed``."""
    return rebuild(graph, _rewrite)


def _rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | NodeEntry | None:
    if node.types is None or not inputs or len(node.types) != 1:
        return None
    op, first, out = node.op, inputs[0], node.types[0]
    if op.attr("is_copy") and first.type == out:
        return first
    if op.attr("same_shape_is_identity") and first.type.shape == out.shape and first.type.dtype == out.dtype:
        return first
    if op.attr("is_cast"):
        return _shorter_cast(node, first, out.dtype)
    if any(e.node.op.attr("is_broadcast") for e in inputs):
        return _without_broadcasts(node, inputs)
    return None


def _shorter_cast(node: Node, source: NodeEntry, to: DType) -> Node | NodeEntry | None:
    if source.type.dtype == to:
        return source
    if not source.node.op.attr("is_cast"):
        return None
    origin = source.node.inputs[0]
    if not _loses_nothing(origin.type.dtype, source.type.dtype):
        return None
    if origin.type.dtype == to:
        return origin
    return apply(node.op, [origin], node.attrs, node.name, node.source)


def _loses_nothing(a: DType, b: DType) -> bool:
    """Whether every value of type `a` has an equal one in type `b`."""
    if a == b or a.is_bool:
        return True
    if b.is_bool:
        return False
    if a.is_float:
        wider = b.is_float and b.bits > a.bits
        return wider and not (a.is_half and b.is_half)
    if b.is_float:
        return a.bits <= {16: 8, 32: 16, 64: 32}[b.bits]
    return b.bits > a.bits and (b.is_signed or not a.is_signed)


def _without_broadcasts(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
    """The node on the values before they are broadcast, where its output is the same."""
    pattern = node.op.attr("pattern", OpPattern.OPAQUE)
    if len(inputs) == 1 and pattern == OpPattern.ELEMWISE:
        spread = inputs[0].node
        inner = apply(node.op, spread.inputs, node.attrs, f"{node.name}.narrow", node.source)
        return apply(spread.op, [inner[0]], spread.attrs, node.name, spread.source)
    places = range(len(inputs)) if pattern == OpPattern.BROADCAST else node.op.attr("broadcast_inputs", ())
    entries = list(inputs)
    changed = False
    for i in places:
        if i >= len(entries) or not entries[i].node.op.attr("is_broadcast"):
            continue
        shorter = [*entries[:i], entries[i].node.inputs[0], *entries[i + 1 :]]
        if _gives_same_type(node, shorter):
            entries, changed = shorter, True
    return apply(node.op, entries, node.attrs, node.name, node.source) if changed else None


def _gives_same_type(node: Node, inputs: list[NodeEntry]) -> bool:
    try:
        return apply(node.op, inputs, node.attrs).types == node.types
    except TypeInferenceError:
        return False
