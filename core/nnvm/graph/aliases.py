"""Where values lie that have no memory of their own.

A view lies in what it shows, with an offset. So do, where the attribute ``in_place`` says so, a slice that is no single
piece of memory (it is read through strides) and the parts of a concatenation (they are written where the whole lies).
"""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.dim import Dim, Shape
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.views import view_offset

__all__ = ["Alias", "aliases", "contiguous", "covered"]


@dataclass(frozen=True)
class Alias:
    """A value that lies in the memory of `base`.

    Attributes:
        offset: bytes from the start of `base`.
        strides: in elements; None: contiguous.
    """

    base: NodeEntry
    offset: Dim
    strides: tuple[Dim, ...] | None = None


def aliases(graph: Graph) -> dict[NodeEntry, Alias]:
    """The values of a graph that lie in others. ValueError where ``in_place`` is not possible: a part of a
    concatenation that lies elsewhere already, or has to be contiguous where it cannot be."""
    found: dict[NodeEntry, Alias] = {}
    for node in reversed(graph.nodes):
        if (offset := view_offset(node)) is not None:
            found[node[0]] = Alias(node.inputs[0], offset)
        elif node.attrs.get("in_place"):
            if node.op.attr("is_slice"):
                begin, strides = node.op.attr("slice_strides")(node.attrs, node.inputs[0].type)
                found[node[0]] = _alias(node[0], node.inputs[0], begin, strides)
            else:
                _add_parts(node, found)
    return found


def _add_parts(node: Node, found: dict[NodeEntry, Alias]) -> None:
    whole = node[0]
    strides = contiguous(whole.type.shape)
    if whole in found:
        strides = found[whole].strides or strides
    axis = node.op.attr("joins")(node.attrs, whole.type.rank)
    start: Dim = 0
    for e in node.inputs:
        part = covered(e)
        alias = _alias(part, whole, start * strides[axis], strides if part == e else None)
        if part in found or part.node.is_variable or part.node.is_constant:
            raise ValueError(f"{part} cannot be written into {whole}: it has a place already; run ElideCopies")
        found[part] = alias
        start = start + e.type.shape[axis]


def _alias(e: NodeEntry, base: NodeEntry, begin: Dim, strides: tuple[Dim, ...] | None) -> Alias:
    """`begin` in elements of the base. Strides of a contiguous value are None."""
    own = contiguous(e.type.shape)
    same = strides is None or all(s == c for s, c, d in zip(strides, own, e.type.shape) if d != 1)
    return Alias(base, begin * e.type.dtype.bytes, None if same else strides)


def covered(e: NodeEntry) -> NodeEntry:
    """The value that `e` is, or is a view of all of."""
    while (offset := view_offset(e.node)) is not None and offset == 0 and e.type.nbytes == e.node.inputs[0].type.nbytes:
        e = e.node.inputs[0]
    return e


def contiguous(shape: Shape) -> tuple[Dim, ...]:
    """Strides of a contiguous value, in elements."""
    strides: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))
