"""FoldScaleAxis: scales and shifts per channel go into weights and biases.

```
%y = conv2d(%x, %w)
%z = multiply(%y, %s)    ->   %w1 = multiply(%w, reshape(%s)); %b1 = reshape(%t)
%a = add(%z, %t)              %a = conv2d(%x, %w1, %b1)
```
%s and %t must depend on parameters only, so that the new weight is computed once (PrecomputePrune). A scale also moves
- forwards into the weight of the convolution that reads it: ``conv(x * s, w) = conv(x, w * s)``;
- backwards through ops that commute with it, ReLU and max pooling only where it is a positive constant.

Batch normalisation becomes such a scale and shift (SimplifyInference). The scaled weight is rounded once more than
eager's result is; the option ``precise`` leaves everything as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnvm.graph.dependence import Fixed
from nnvm.graph.graph import Graph, Uses, rebuild, with_inputs
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["Commutes", "ScaleAxis", "fold_scale_axis"]


@dataclass(frozen=True)
class ScaleAxis:
    """Value of the op attribute ``scale_axis`` for ops with a weight (input 1) and an optional bias (input 2).

    Attributes:
        channels: axis of the channels in data and output.
        weight_out, weight_in: axes of the weight that count output and input channels.
        grouped: which of the two, ``out`` or ``in``, counts the channels of one group only.
        plain: attributes that must have their default (layouts).
    """

    channels: int
    weight_out: int
    weight_in: int
    grouped: str = "in"
    plain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Commutes:
    """Value of ``scale_axis`` for ops f with f(s * x) = s * f(x) channel by channel.

    Attributes:
        positive: holds for s > 0 only.
    """

    positive: bool


@register_pass("FoldScaleAxis", requires=["typed"], opt_level=2)
def fold_scale_axis(graph: Graph, context: PassContext) -> Graph:
    """Folds scales and shifts. requires: ``typed``."""
    if context.options.get("precise") or context.options.get("training"):
        return graph
    folder = _Folder(graph)
    return rebuild(graph, folder.rewrite)


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self.uses = Uses(graph)
        self.fixed = Fixed()

    def rewrite(self, node: Node, inputs: tuple[NodeEntry, ...]) -> Node | NodeEntry | None:
        algebra = node.op.attr("algebra")
        if algebra in ("multiply", "divide", "add", "subtract") and node.types is not None:
            for side in (0, 1) if algebra in ("multiply", "add") else (0,):
                alone = self.uses.sole_user(node.inputs[side]) is node
                if alone and not self.fixed(inputs[side].node) and self.fixed(inputs[1 - side].node):
                    return self._backwards(node, inputs[side], inputs[1 - side], algebra)
        elif isinstance(node.op.attr("scale_axis"), ScaleAxis) and self.uses.sole_user(node.inputs[0]) is node:
            return self._forwards(node, inputs)
        return None

    def _backwards(self, node: Node, data: NodeEntry, by: NodeEntry, algebra: str) -> Node | NodeEntry | None:
        """`data` op `by` with the op done in the weight or bias that `data` comes from."""
        if not _is_single_float(data) or data.type != node.outputs[0].type:
            return None
        path: list[Node] = []
        master = data.node
        while isinstance(commutes := master.op.attr("scale_axis"), Commutes):
            source = master.inputs[0]
            if algebra not in ("multiply", "divide") or (commutes.positive and not _is_positive(by)):
                return None
            if not self._is_read_once(source, master) or source.type.rank != data.type.rank:
                return None
            path.append(master)
            master = source.node
        rule = _rule(master)
        if rule is None or (vector := _per_channel(by, data, rule.channels)) is None:
            return None
        folded: Node = _scale_output(master, rule, vector, algebra) if algebra in ("multiply", "divide") else (
            _shift_output(master, rule, vector, algebra))  # fmt: skip
        for step in reversed(path):
            folded = with_inputs(step, (folded[0], *step.inputs[1:]))
        return folded

    def _is_read_once(self, entry: NodeEntry, user: Node) -> bool:
        """Whether only `user` reads an entry; nodes that this pass made have one reader."""
        return self.uses.sole_user(entry) is user or not (self.uses.of(entry) or self.uses.is_output(entry))

    def _forwards(self, node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
        """conv(x * s, w) with the scale in the weight."""
        rule, scaled = _rule(node), inputs[0]
        if rule is None or scaled.node.op.attr("algebra") != "multiply" or not _is_single_float(scaled):
            return None
        for side in (0, 1):
            data, by = scaled.node.inputs[side], scaled.node.inputs[1 - side]
            if self.fixed(data.node) or not self.fixed(by.node) or data.type != scaled.type:
                continue
            vector = _per_channel(by, scaled, rule.channels)
            if vector is not None:
                weight = _scale_weight(node, inputs[1], rule, vector, "in", "multiply")
                return with_inputs(node, (data, weight, *inputs[2:]))
        return None


def _rule(node: Node) -> ScaleAxis | None:
    rule = node.op.attr("scale_axis")
    if not isinstance(rule, ScaleAxis):
        return None
    plain = all(node.attrs[k] == node.op.params[k].default for k in rule.plain)
    return rule if plain else None


def _is_single_float(e: NodeEntry) -> bool:
    return e.type.dtype.is_float and not e.type.dtype.is_half


def _is_positive(by: NodeEntry) -> bool:
    if not by.node.is_constant:
        return False
    value = by.node.attrs["value"]
    return bool(np.all(value > 0) and np.all(np.isfinite(value)))


def _per_channel(by: NodeEntry, data: NodeEntry, axis: int) -> NodeEntry | None:
    """`by` as a vector over the channels (or a scalar), where it broadcasts to the data along nothing else."""
    rank, axis = data.type.rank, axis % data.type.rank
    shape = by.type.shape
    if by.type.numel == 1:
        return _op("reshape", by, shape=())
    position = axis - (rank - len(shape))
    if position < 0 or any(d != 1 for i, d in enumerate(shape) if i != position):
        return None
    if shape[position] != data.type.shape[axis]:
        return None
    return by if len(shape) == 1 else _op("reshape", by, shape=(shape[position],))


def _scale_output(master: Node, rule: ScaleAxis, by: NodeEntry, algebra: str) -> Node:
    data, weight, *bias = master.inputs
    scaled = [_op(algebra, b, by) for b in bias]
    return with_inputs(master, (data, _scale_weight(master, weight, rule, by, "out", algebra), *scaled))


def _shift_output(master: Node, rule: ScaleAxis, by: NodeEntry, algebra: str) -> Node:
    data, weight, *bias = master.inputs
    if bias:
        shifted = _op(algebra, bias[0], by)
    else:
        shifted = by if algebra == "add" else _op("negative", by)
        if by.type.rank == 0:
            channels = master.outputs[0].type.shape[rule.channels]
            shifted = _op("broadcast_to", shifted, shape=(channels,))
    return apply(master.op, (data, weight, shifted), master.attrs, master.name, master.source)


def _scale_weight(
    master: Node, weight: NodeEntry, rule: ScaleAxis, by: NodeEntry, which: str, algebra: str
) -> NodeEntry:
    """The weight scaled along its output or input channels; with groups one of its axes is split in two for that."""
    if by.type.rank == 0:
        return _op(algebra, weight, by)
    shape = weight.type.shape
    axis = rule.weight_out if which == "out" else rule.weight_in
    groups = master.attrs.get("groups", 1)
    if groups == 1 or which != rule.grouped:
        return _op(algebra, weight, _op("reshape", by, shape=tuple(-1 if i == axis else 1 for i in range(len(shape)))))
    whole = rule.weight_in if which == "out" else rule.weight_out  # the axis that counts the channels of all groups
    split = (*shape[:whole], groups, shape[whole] // groups, *shape[whole + 1 :])
    along = axis + 1 if axis > whole else axis
    factor = tuple(groups if i == whole else shape[axis] if i == along else 1 for i in range(len(split)))
    if along < whole:  # the vector lists groups before the channels of each
        by = _op("transpose", _op("reshape", by, shape=(groups, shape[axis])), axes=(1, 0))
    scaled = _op(algebra, _op("reshape", weight, shape=split), _op("reshape", by, shape=factor))
    return _op("reshape", scaled, shape=shape)


def _op(name: str, *inputs: NodeEntry, **attrs: object) -> NodeEntry:
    return apply(name, inputs, attrs)[0]
