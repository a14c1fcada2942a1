"""FoldScaleAxis: scales and shifts per channel go into weights and biases.

```
%y = conv2d(%x, %w)
%z = multiply(%y, %s)    ->   %w1 = multiply(%w, reshape(%s)); %b1 = reshape(%t)
%a = add(%z, %t)              %a = conv2d(%x, %w1, %b1)
```
%s and %t must depend on parameters only, so that the new weight is computed once (PrecomputePrune). A scale moves
- backwards, ``conv(x, w) * s = conv(x, w * s)``, through ops that commute with it: ReLU and max pooling only where it
  is a positive constant; to both sides of a residual add; and together with another scale;
- forwards into the weight of the convolution that reads it, ``conv(x * s, w) = conv(x, w * s)``, through the same ops,
  and out of an add both sides of which have it.
A shift moves into the bias, through a residual add to either side. Nothing moves that would have to be computed twice:
all values on the way have one reader.

Batch normalisation becomes such a scale and shift (SimplifyInference). The scaled weight is rounded once more than
eager's result is; the option ``precise`` leaves everything as it is.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Value of ``scale_axis`` for ops f with f(s * x, ...) = s * f(x, ...) channel by channel.

    Attributes:
        positive: holds for s > 0 only.
        where: (node, axis of the channels or None for a scale that is one number) -> whether it holds for this node.
    """

    positive: bool
    where: Callable[[Node, int | None], bool] | None = None


@register_pass("FoldScaleAxis", requires=["typed"], opt_level=2)
def fold_scale_axis(graph: Graph, context: PassContext) -> Graph:
    """Folds scales and shifts. requires: ``typed``."""
    if context.options.get("precise") or context.options.get("training"):
        return graph
    folder = _Folder(graph)
    return rebuild(graph, folder.rewrite)


@dataclass(frozen=True)
class _Factor:
    """What values are multiplied with or divided by.

    Attributes:
        by: depends on parameters only; broadcasts to the values.
        algebra: ``multiply`` or ``divide``.
    """

    by: NodeEntry
    algebra: str

    def times(self, e: NodeEntry) -> NodeEntry:
        return _op(self.algebra, e, self.by)

    @property
    def is_positive(self) -> bool:
        """Whether it is a constant above 0."""
        e = self.by
        while e.node.op.attr("view") or e.node.op.attr("is_broadcast"):
            e = e.node.inputs[0]
        if not e.node.is_constant:
            return False
        value = e.node.attrs["value"]
        return bool(np.all(value > 0) and np.all(np.isfinite(value)))

    def moved(self, node: Node) -> _Factor:
        """The factor behind a transpose of what it belongs to."""
        rank = node.inputs[0].type.rank
        if self.by.type.numel == 1:
            return self
        axes = node.op.attr("permutation")(node.attrs, rank)
        return _Factor(_op("transpose", _of_rank(self.by, rank), axes=axes), self.algebra)

    def is_same(self, other: _Factor) -> bool:
        if self.algebra != other.algebra:
            return False
        a, b = self.by, other.by
        if a == b:
            return True
        both = a.node.is_constant and b.node.is_constant and a.type == b.type
        return both and np.array_equal(a.node.attrs["value"], b.node.attrs["value"])


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self.uses = Uses(graph)
        self.fixed = Fixed()
        #: The old values that a new one stands for.
        self.origin: dict[NodeEntry, set[NodeEntry]] = {}

    def rewrite(self, node: Node, inputs: tuple[NodeEntry, ...]) -> Node | NodeEntry | None:
        for old, new in zip(node.inputs, inputs):
            self.origin.setdefault(new, set()).add(old)
        if node.types is None:
            return None
        if (found := self._scaled(node, inputs)) is not None:
            data, factor = found
            return self._absorb(data, factor) if _is_single_float(data) and data.type == node.outputs[0].type else None
        algebra = node.op.attr("algebra")
        if algebra in ("add", "subtract"):
            for side in (0, 1) if algebra == "add" else (0,):
                data, by = inputs[side], inputs[1 - side]
                fits = _is_single_float(data) and data.type == node.outputs[0].type
                if fits and self.fixed(by.node) and not self.fixed(data.node) and self._is_read_once(data):
                    return self._shift(data, by, algebra)
        rule = _rule(node)
        if rule is not None and (out := self._extract(inputs[0])) is not None:
            data, factor = out
            vector = _per_channel(factor.by, data, rule.channels)
            if vector is not None:
                weight = _scale_weight(node, inputs[1], rule, vector, "in", factor.algebra)
                return with_inputs(node, (data, weight, *inputs[2:]))
        return None

    def _is_read_once(self, entry: NodeEntry) -> bool:
        """Whether a value of the new graph has one reader. Nodes that this pass made on the way have."""
        old = self.origin.get(entry, ())
        return len(old) == 0 or (len(old) == 1 and all(self.uses.sole_user(e) is not None for e in old))

    def _scaled(self, node: Node, inputs: tuple[NodeEntry, ...]) -> tuple[NodeEntry, _Factor] | None:
        """(data, factor) of a node that is a value, read nowhere else, times or over something fixed."""
        algebra = node.op.attr("algebra")
        if algebra not in ("multiply", "divide"):
            return None
        for side in (0, 1) if algebra == "multiply" else (0,):
            data, by = inputs[side], inputs[1 - side]
            if self.fixed(by.node) and not self.fixed(data.node) and self._is_read_once(data):
                return data, _Factor(by, algebra)
        return None

    # Backwards

    def _absorb(self, e: NodeEntry, factor: _Factor) -> NodeEntry | None:
        """`e`, which has one reader, times the factor, with the factor in the weights that `e` comes from."""
        node = e.node
        if self.fixed(node):
            return factor.times(e)
        if (rule := _rule(node)) is not None:
            vector = _per_channel(factor.by, e, rule.channels)
            return None if vector is None else _scale_output(node, rule, vector, factor.algebra)[0]
        if (turned := _turned(node, factor.by)) is not None:
            source = self._absorb_input(node.inputs[0], _Factor(turned, factor.algebra))
            return None if source is None else with_inputs(node, (source,))[0]
        if self._commutes(node, e, factor):
            source = self._absorb_input(node.inputs[0], factor)
            return None if source is None else with_inputs(node, (source, *node.inputs[1:]))[0]
        if node.op.attr("algebra") in ("add", "subtract"):
            sides = [self._absorb_side(x, e, factor) for x in node.inputs]
            return None if None in sides else with_inputs(node, tuple(x for x in sides if x is not None))[0]
        found = self._scaled(node, node.inputs)
        if found is not None and found[0].type == e.type:
            data, inner = found
            source = self._absorb(data, factor)
            return None if source is None else inner.times(source)
        return None

    def _absorb_input(self, e: NodeEntry, factor: _Factor) -> NodeEntry | None:
        return self._absorb(e, factor) if self._is_read_once(e) and not self.fixed(e.node) else None

    def _absorb_side(self, e: NodeEntry, whole: NodeEntry, factor: _Factor) -> NodeEntry | None:
        """A side of an add: of its shape, or fixed."""
        if self.fixed(e.node):
            return factor.times(e)
        return self._absorb_input(e, factor) if e.type == whole.type else None

    def _commutes(self, node: Node, e: NodeEntry, factor: _Factor) -> bool:
        """Whether the factor may be moved before the node, whose output is `e`."""
        rule = node.op.attr("scale_axis")
        if not isinstance(rule, Commutes) or node.num_outputs != 1 or (rule.positive and not factor.is_positive):
            return False
        source = node.inputs[0]
        if source.type.rank != e.type.rank or source.type.dtype != e.type.dtype:
            return False
        axis = _axis(factor.by, e)
        if axis is not None and (axis < 0 or source.type.shape[axis] != e.type.shape[axis]):
            return False
        return rule.where is None or rule.where(node, axis)

    def _shift(self, e: NodeEntry, by: NodeEntry, algebra: str) -> NodeEntry | None:
        """`e`, which has one reader, plus or minus `by`, with that in the bias of what `e` comes from."""
        node = e.node
        if (rule := _rule(node)) is not None:
            vector = _per_channel(by, e, rule.channels)
            return None if vector is None else _shift_output(node, rule, vector, algebra)[0]
        if (turned := _turned(node, by)) is not None:
            x = node.inputs[0]
            shifted = self._shift(x, turned, algebra) if self._is_read_once(x) and not self.fixed(x.node) else None
            return None if shifted is None else with_inputs(node, (shifted,))[0]
        inner = node.op.attr("algebra")
        if inner not in ("add", "subtract"):
            return None
        for side in (0, 1) if inner == "add" else (0,):
            x = node.inputs[side]
            if x.type != e.type or self.fixed(x.node) or not self._is_read_once(x):
                continue
            if (shifted := self._shift(x, by, algebra)) is not None:
                return with_inputs(node, tuple(shifted if i == side else y for i, y in enumerate(node.inputs)))[0]
        return None

    # Forwards

    def _extract(self, e: NodeEntry) -> tuple[NodeEntry, _Factor] | None:
        """(value, factor) whose product is `e`, where `e` and all on the way to the factor have one reader."""
        node = e.node
        if not self._is_read_once(e) or self.fixed(node) or not _is_single_float(e):
            return None
        algebra = node.op.attr("algebra")
        if algebra in ("multiply", "divide"):
            for side in (0, 1) if algebra == "multiply" else (0,):
                data, by = node.inputs[side], node.inputs[1 - side]
                if self.fixed(by.node) and not self.fixed(data.node) and data.type == e.type:
                    return data, _Factor(by, algebra)
            return None
        if algebra in ("add", "subtract"):
            if any(x.type != e.type for x in node.inputs):
                return None
            sides = [self._extract(x) for x in node.inputs]
            (a, b) = sides
            if a is None or b is None or not a[1].is_same(b[1]):
                return None
            return with_inputs(node, (a[0], b[0]))[0], a[1]
        if node.op.attr("permutation") is not None:
            found = self._extract(node.inputs[0])
            return None if found is None else (with_inputs(node, (found[0],))[0], found[1].moved(node))
        if isinstance(node.op.attr("scale_axis"), Commutes):
            found = self._extract(node.inputs[0])
            if found is not None and self._commutes(node, e, found[1]):
                return with_inputs(node, (found[0], *node.inputs[1:]))[0], found[1]
        return None


def _turned(node: Node, by: NodeEntry) -> NodeEntry | None:
    """What broadcasts to a transpose's input as `by` does to its output; None where the node is no transpose."""
    permutation = node.op.attr("permutation")
    if permutation is None or by.type.numel == 1:
        return None if permutation is None else by
    axes = permutation(node.attrs, node.inputs[0].type.rank)
    return _op("transpose", _of_rank(by, len(axes)), axes=tuple(axes.index(i) for i in range(len(axes))))


def _of_rank(by: NodeEntry, rank: int) -> NodeEntry:
    missing = rank - by.type.rank
    return _op("reshape", by, shape=(*(1,) * missing, *by.type.shape)) if missing else by


def _axis(by: NodeEntry, e: NodeEntry) -> int | None:
    """The axis of `e` along which `by` differs; None: it is one number; -1: several."""
    if by.type.numel == 1:
        return None
    shape = by.type.shape
    axes = [i + e.type.rank - len(shape) for i, d in enumerate(shape) if d != 1]
    return axes[0] if len(axes) == 1 else -1


def _rule(node: Node) -> ScaleAxis | None:
    rule = node.op.attr("scale_axis")
    if not isinstance(rule, ScaleAxis):
        return None
    plain = all(node.attrs[k] == node.op.params[k].default for k in rule.plain)
    return rule if plain else None


def _is_single_float(e: NodeEntry) -> bool:
    return e.type.dtype.is_float and not e.type.dtype.is_half


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
