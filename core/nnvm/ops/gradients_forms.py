"""Gradients of the ops in `nnvm_forms`."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.graph import op as registry
from nnvm.graph.node import Node, NodeEntry
from nnvm.ops.gradient_terms import Call, Value, gradient_of, zero_gradient, zeros
from nnvm.ops.nnvm_forms import resize_attrs, sections

__all__: list[str] = []

zero_gradient("block_grad", "full_like", "zeros_like", "ones_like")


def _split(node: Node, out_grads: Sequence[NodeEntry | None]) -> list[NodeEntry | None]:
    """The parts put together again; one that nothing used is zeros."""
    if all(g is None for g in out_grads):
        return [None]
    axis, _ = sections(node.attrs, node.inputs[0].type.shape)
    parts = [zeros(Value(e)) if g is None else Value(g) for e, g in zip(node.outputs, out_grads)]
    return [parts[0].op("concatenate", *parts[1:], axis=axis).entry]


registry.get("split").set_attr("gradient", _split)


@gradient_of("reshape_codes")
def _reshape_codes(call: Call, g: Value) -> Value:
    return g.reshape(*call.inputs[0].shape)


@gradient_of("slice_like")
def _slice_like(call: Call, g: Value) -> Value:
    return g.op("pad", pad_width=tuple((0, n - m) for n, m in zip(call.inputs[0].shape, g.shape)))


@gradient_of("elemwise_sum")
def _elemwise_sum(call: Call, g: Value) -> list[Value]:
    return [g] * len(call.inputs)


@gradient_of("expand_like")
def _expand_like(call: Call, g: Value) -> Value:
    (x, _), axes = call.inputs, tuple(a % g.rank for a in call.attrs["axis"])
    if x.rank < g.rank:
        return g.sum(axes)
    return g.sum(tuple(d for d in range(g.rank) if x.shape[d] != g.shape[d]), keepdims=True)


@gradient_of("upscale")
def _upscale(call: Call, g: Value) -> Value:
    (x,), a = call.inputs, call.attrs
    resized = x.op("resize", **resize_attrs(a, x.shape))
    (found,) = registry.get("resize").attr("gradient")(resized.entry.node, [g.entry])
    return Value(found)


@gradient_of("prelu_channels")
def _prelu_channels(call: Call, g: Value) -> list[Value]:
    (x, alpha), axis = call.inputs, call.attrs["axis"] % g.rank
    shape = tuple(alpha.shape[0] if d == axis else 1 for d in range(g.rank))
    above = x.op("greater", 0)
    by_alpha = (g * x).unless(above).sum(tuple(d for d in range(g.rank) if d != axis))
    return [g.where(above, g * alpha.reshape(*shape)), by_alpha]
