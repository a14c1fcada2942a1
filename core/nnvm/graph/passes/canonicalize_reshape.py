"""CanonicalizeReshape: views move down and meet, so that what computes stands side by side and fuses.

```
%a = reshape(%x, [B*S, K])                        %a = reshape(%x, [B*S, K])
%b = dense(%a, %w)                                %b = dense(%a, %w)
%c = reshape(%b, [B, S, N])              ->       %d = gelu(%b)
%d = gelu(%c)                                     %f = dense(%d, %v)
%e = reshape(%d, [B*S, N])                        %y = reshape(%f, [B, S, M])
%f = dense(%e, %v); %y = reshape(%f, [B, S, M])
```
A view moves below elementwise ops (the other operands take the shape from before the view), and below ops that work on
the last axes alone (``trailing_axes``: dense, softmax, layer_norm) or on matrices. Views of views become one. Dense
layers work on matrices: their data is viewed as one, so that all rows are one axis of the kernel.
A reshape after a slice that takes whole parts moves above it: then slice and transpose are one kernel (heads of
attention out of one projection).
"""

from __future__ import annotations

from nnvm.dim import Dim, Shape, numel
from nnvm.graph.dependence import Fixed
from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["canonicalize_reshape"]


@register_pass("CanonicalizeReshape", requires=["typed"], opt_level=2)
def canonicalize_reshape(graph: Graph, context: PassContext) -> Graph:
    """Moves and merges views. requires: ``typed``."""
    mover = _Mover(graph)
    return rebuild(graph, mover.rewrite)


class _Mover:
    def __init__(self, graph: Graph) -> None:
        self.uses = Uses(graph)
        self.fixed = Fixed()

    def rewrite(self, node: Node, inputs: tuple[NodeEntry, ...]) -> Node | NodeEntry | None:
        if node.types is None or len(node.types) != 1 or not inputs:
            return None
        if node.op.attr("view"):
            return _merged_view(node, inputs[0])
        pattern = node.op.attr("pattern", OpPattern.OPAQUE)
        if pattern <= OpPattern.BROADCAST and not node.op.attr("is_broadcast"):
            return self._below_elementwise(node, inputs)
        if node.op.attr("is_matmul"):
            return _below_matmul(node, inputs)
        if node.op.has("trailing_axes"):
            return _below_trailing(node, inputs)
        if node.op.attr("permutation") is not None and not self._feeds_product(node[0]):
            return _below_transpose(node, inputs[0])
        return None

    def _feeds_product(self, entry: NodeEntry) -> bool:
        """Whether a matrix product reads a value, maybe viewed: it takes transposes itself (CanonicalizeMatmul)."""
        users = [user for user, _ in self.uses.of(entry)]
        return any(u.op.attr("is_matmul") or (u.op.attr("view") and self._feeds_product(u[0])) for u in users)

    def _below_elementwise(self, node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
        assert node.types is not None
        out = node.types[0].shape
        for e in inputs:
            if not e.node.op.attr("view") or e.type.shape != out or self.fixed(e.node):
                continue
            source = e.node.inputs[0]
            if source.node.is_variable and len(inputs) > 1:
                continue
            entries = [self._under(y, old, e, source.type.shape) for y, old in zip(inputs, node.inputs)]
            known = [y for y in entries if y is not None]
            if len(known) < len(entries):
                continue
            made = apply(node.op, known, node.attrs, f"{node.name}.viewed", node.source)
            if made[0].type.shape == source.type.shape:
                return apply("reshape", [made[0]], {"shape": out}, node.name, node.source)
        return None

    def _under(self, y: NodeEntry, old: NodeEntry, view: NodeEntry, shape: Shape) -> NodeEntry | None:
        """Operand `y` beside a viewed value, as it is beside the value before the view (of that shape)."""
        out = view.type.shape
        if y.node.op.attr("view") and y.type.shape == out and y.node.inputs[0].type.shape == shape:
            return y.node.inputs[0]
        if y.type.numel == 1:
            return y if y.type.rank <= len(shape) else _reshaped(y, ())
        if y.type.shape == out:
            # for its own fusion it matters where the view stands, unless it is stored anyway
            stored = self.fixed(y.node) or y.node.is_variable or len(self.uses.of(old)) > 1 or self.uses.is_output(old)
            return _reshaped(y, shape) if stored or y.node.op.attr("view") else None
        same = _common_suffix(out, shape)
        if y.type.rank == len(out) and same and y.type.shape[:-same] == out[:-same]:
            return _reshaped(y, (*shape[: len(shape) - same], *y.type.shape[len(out) - same :]))
        leading = next(i for i, d in enumerate(y.type.shape) if d != 1)
        stripped = y.type.shape[leading:]
        if len(stripped) <= same:
            return y if leading == 0 else _reshaped(y, stripped)
        return None


def _merged_view(node: Node, source: NodeEntry) -> Node | NodeEntry | None:
    """One reshape for a chain of views; none where the shape is the first one again."""
    assert node.types is not None
    shape = node.types[0].shape
    chained = bool(source.node.op.attr("view"))
    if chained:
        source = source.node.inputs[0]
    if source.type.shape == shape:
        return source
    if source.node.op.attr("is_slice") and (moved := _above_slice(source.node, shape)) is not None:
        return moved
    if not chained and node.op.name == "reshape":
        return None
    return apply("reshape", [source], {"shape": shape}, node.name, node.source)


def _above_slice(node: Node, shape: Shape) -> NodeEntry | None:
    """reshape(slice(x)) as slice(reshape(x)), where the view only splits axes and the slice takes whole parts."""
    x, sliced = node.inputs[0], node.outputs[0].type.shape
    groups = _splits(sliced, shape)
    if groups is None or not all(isinstance(d, int) for d in (*x.type.shape, *shape)):
        return None
    rank = len(sliced)
    steps = node.attrs["step"]
    if steps is not None and any(s not in (None, 1) for s in steps):
        return None
    wide: list[Dim] = []
    begin: list[Dim] = []
    end: list[Dim] = []
    for axis, parts in enumerate(groups):
        size, taken = x.type.shape[axis], sliced[axis]
        first = _first_index(node, axis, rank)
        inner = numel(parts[1:])
        assert isinstance(size, int) and isinstance(taken, int) and isinstance(inner, int)
        if first is None or inner == 0 or size % inner or first % inner or taken % inner:
            return None
        wide += [size // inner, *parts[1:]]
        begin += [first // inner, *(0 for _ in parts[1:])]
        end += [(first + taken) // inner, *parts[1:]]
    view = _reshaped(x, tuple(wide))
    return apply(node.op, [view], {"begin": tuple(begin), "end": tuple(end)}, f"{node.name}.parts", node.source)[0]


def _first_index(node: Node, axis: int, rank: int) -> int | None:
    given = tuple(node.attrs["begin"] or ())
    begin = given[axis] if axis < len(given) else 0
    size = node.inputs[0].type.shape[axis]
    if begin is None:
        return 0
    if not isinstance(begin, int) or not isinstance(size, int):
        return None
    return max(0, min(size, begin + size if begin < 0 else begin))


def _splits(before: Shape, after: Shape) -> list[Shape] | None:
    """For each axis of `before` the axes of `after` that it is split into; None where axes are merged."""
    groups: list[Shape] = []
    at = 0
    for d in before:
        start, product = at, 1 if at >= len(after) else after[at]
        at += 1
        while product != d:
            if at >= len(after):
                return None
            product = product * after[at]
            at += 1
            if isinstance(product, int) and isinstance(d, int) and product > d:
                return None
        groups.append(after[start:at])
    if not all(d == 1 for d in after[at:]) or any(not g for g in groups):
        return None
    if at < len(after) and groups:
        groups[-1] = (*groups[-1], *after[at:])
    return groups


def _below_trailing(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
    """An op on the last axes before the view of its data; a dense layer on a matrix in any case."""
    assert node.types is not None
    data, out = inputs[0], node.types[0].shape
    rule = node.op.attr("trailing_axes")(node.attrs, data.type.rank)
    if rule is None:
        return None
    count, attrs = rule
    if data.node.op.attr("view"):
        source = data.node.inputs[0]
        kept = _common_suffix(source.type.shape, data.type.shape) >= count and source.type.rank > count - 1
        if kept and 0 not in data.type.shape[-count:]:  # of no elements, views may change the other axes as they like
            data = source
    if node.op.has("linear_in") and data.type.rank != 2:
        data = _reshaped(data, (numel(data.type.shape[:-1]), data.type.shape[-1]))
    if data == inputs[0]:
        return None
    made = apply(node.op, [data, *inputs[1:]], attrs, f"{node.name}.viewed", node.source)
    return apply("reshape", [made[0]], {"shape": out}, node.name, node.source)


def _below_matmul(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
    """A batched product on the batch axes from before the view of its left operand; the right one is viewed so too."""
    assert node.types is not None
    a, b = inputs
    if not (a.node.op.attr("view") and b.node.op.attr("view")) or a.type.shape[:-2] != b.type.shape[:-2]:
        return None
    source = a.node.inputs[0]
    if source.type.rank < 2 or source.type.shape[-2:] != a.type.shape[-2:] or 0 in a.type.shape[-2:]:
        return None
    entries = [source, _reshaped(b, (*source.type.shape[:-2], *b.type.shape[-2:]))]
    made = apply(node.op, entries, node.attrs, f"{node.name}.viewed", node.source)
    return apply("reshape", [made[0]], {"shape": node.types[0].shape}, node.name, node.source)


def _below_transpose(node: Node, data: NodeEntry) -> Node | None:
    """A transpose of merged axes: the axes are moved together before they are merged."""
    assert node.types is not None
    if not data.node.op.attr("view"):
        return None
    source = data.node.inputs[0]
    groups = _splits(data.type.shape, source.type.shape)
    if groups is None or source.type.rank <= data.type.rank:
        return None
    first = [sum(len(g) for g in groups[:i]) for i in range(len(groups))]
    axes = node.op.attr("permutation")(node.attrs, data.type.rank)
    moved = tuple(first[a] + k for a in axes for k in range(len(groups[a])))
    made = apply(node.op, [source], {"axes": moved}, f"{node.name}.split", node.source)
    return apply("reshape", [made[0]], {"shape": node.types[0].shape}, node.name, node.source)


def _common_suffix(a: Shape, b: Shape) -> int:
    """Number of last axes in which two shapes agree."""
    count = 0
    for x, y in zip(reversed(a), reversed(b)):
        if x != y:
            break
        count += 1
    return count


def _reshaped(e: NodeEntry, shape: Shape) -> NodeEntry:
    if e.node.op.attr("view"):
        e = e.node.inputs[0]
    return e if e.type.shape == shape else apply("reshape", [e], {"shape": shape})[0]
