"""CanonicalizeMatmul: transposes go into matrix products, and products with a weight become dense layers.

```
matmul(%a, transpose(%b, (0, 2, 1)))     ->     matmul(%a, %b, transpose_b=True)
matmul(%x, %w)      (%w: param [K, N])   ->     dense(%x, transpose(%w))         (prepared once)
transpose(transpose(%x))                 ->     one transpose, or %x
transpose(%x) that moves axes of 1 only  ->     reshape(%x)
```
"""

from __future__ import annotations

from nnvm.graph.dependence import Fixed
from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["canonicalize_matmul"]


@register_pass("CanonicalizeMatmul", requires=["typed"], opt_level=1)
def canonicalize_matmul(graph: Graph, context: PassContext) -> Graph:
    """Folds transposes. requires: ``typed``."""
    fixed = Fixed()

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | NodeEntry | None:
        if node.op.attr("permutation") is not None and node.types is not None:
            return _merge(node, inputs[0])
        if node.op.attr("is_matmul"):
            return _matmul(node, inputs, fixed)
        return None

    return rebuild(graph, rewrite)


def _axes(node: Node) -> tuple[int, ...]:
    axes: tuple[int, ...] = node.op.attr("permutation")(node.attrs, node.inputs[0].type.rank)
    return axes


def _merge(node: Node, source: NodeEntry) -> Node | NodeEntry | None:
    axes = _axes(node)
    merged = source.node.op.attr("permutation") is not None
    if merged:
        before = _axes(source.node)
        axes, source = tuple(before[a] for a in axes), source.node.inputs[0]
    if axes == tuple(range(len(axes))):
        return source
    shape = source.type.shape
    moved = [a for a in axes if shape[a] != 1]
    if moved == sorted(moved):
        return apply("reshape", [source], {"shape": tuple(shape[a] for a in axes)}, node.name, node.source)
    return apply(node.op, [source], {"axes": axes}, node.name, node.source) if merged else None


def _matmul(node: Node, inputs: tuple[NodeEntry, ...], fixed: Fixed) -> Node | NodeEntry | None:
    attrs = dict(node.attrs)
    entries = list(inputs)
    for i, key in enumerate(("transpose_a", "transpose_b")):
        swapped = _before_swap(entries[i])
        if swapped is not None:
            entries[i], attrs[key] = swapped, not attrs[key]
    a, b = entries
    if b.type.rank == 2 and fixed(b.node) and not fixed(a.node) and (a.type.rank == 2 or not attrs["transpose_a"]):
        weight = b if attrs["transpose_b"] else apply("transpose", [b], {"axes": (1, 0)})[0]
        data = apply("transpose", [a], {"axes": (1, 0)})[0] if attrs["transpose_a"] else a
        return apply("dense", [data, weight], {}, node.name, node.source)
    if tuple(entries) == inputs:
        return None
    return apply(node.op, entries, attrs, node.name, node.source)


def _before_swap(e: NodeEntry) -> NodeEntry | None:
    """`e` with its last two axes swapped back, where a transpose brings the last axis to the place before the last.

    What is left of the transpose then keeps the last axis, and copies rows.
    """
    if e.node.op.attr("permutation") is None:
        return None
    axes, source = _axes(e.node), e.node.inputs[0]
    rank = len(axes)
    if rank < 2 or axes[-2] != rank - 1:
        return None
    left = (*axes[:-2], axes[-1], axes[-2])
    return source if left == tuple(range(rank)) else apply(e.node.op, [source], {"axes": left})[0]
