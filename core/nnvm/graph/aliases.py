"""Where values lie that have no memory of their own.

A view lies in what it shows, with an offset. The attribute ``in_place`` says of further nodes that they move no data:
slices and transposes (``input``) are read where their input lies, through strides; the parts of a whole (the attribute
``places``), and the input of a transpose (``output``), are written where its output lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.dim import Dim, Shape, row_major
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.views import view_offset

__all__ = ["Alias", "aliases", "covered", "is_contiguous", "restrided", "viewed"]

Strides = tuple[Dim, ...]


@dataclass(frozen=True)
class Alias:
    """A value that lies in the memory of `base`.

    Attributes:
        offset: bytes from the start of `base`.
        strides: in elements; None: contiguous.
    """

    base: NodeEntry
    offset: Dim
    strides: Strides | None = None


def aliases(graph: Graph) -> dict[NodeEntry, Alias]:
    """The values of a graph that lie in others. ValueError where ``in_place`` is not possible: a part of a
    concatenation that lies elsewhere already, or has to be contiguous where it cannot be."""
    found: dict[NodeEntry, Alias] = {}
    for node in reversed(graph.nodes):
        if node.attrs.get("in_place") and node.op.has("places"):
            _add_parts(node, found)
        elif node.attrs.get("in_place") == "output":
            permutation = node.op.attr("permutation")(node.attrs, node.outputs[0].type.rank)
            whole = _strides(node[0], found)
            own = [whole[permutation.index(i)] for i in range(len(whole))]
            _place(node.inputs[0], node[0], 0, tuple(own), found)
    for node in graph.nodes:
        if (offset := view_offset(node)) is not None:
            found[node[0]] = _view(node, offset, found)
        elif node.attrs.get("in_place") and node.op.has("strided_view") and node.attrs["in_place"] != "output":
            data = node.inputs[0]
            begin, strides = node.op.attr("strided_view")(node.attrs, data.type, _strides(data, found))
            found[node[0]] = _alias(node[0], data, begin, strides)
    return found


def _strides(e: NodeEntry, found: dict[NodeEntry, Alias]) -> Strides:
    return (found[e].strides if e in found else None) or row_major(e.type.shape)


def _add_parts(node: Node, found: dict[NodeEntry, Alias]) -> None:
    whole = node[0]
    strides = _strides(whole, found)
    places = node.op.attr("places")(node.attrs, [e.type.shape for e in node.inputs], strides)
    for e, (begin, own) in zip(node.inputs, places):
        part = covered(e)
        _place(part, whole, begin, own if part == e else None, found)


def _place(
    part: NodeEntry, whole: NodeEntry, begin: Dim, strides: Strides | None, found: dict[NodeEntry, Alias]
) -> None:
    if part in found or part.node.is_variable or part.node.is_constant:
        raise ValueError(f"{part} cannot be written into {whole}: it has a place already; run ElideCopies")
    found[part] = _alias(part, whole, begin, strides)


def _view(node: Node, offset: Dim, found: dict[NodeEntry, Alias]) -> Alias:
    data, out = node.inputs[0], node[0]
    strides = found[data].strides if data in found else None
    if strides is None:
        return Alias(data, offset)
    if (found_at := viewed(node, strides)) is None:
        raise ValueError(f"{out} cannot be a view of {data}, which is not contiguous; run ElideCopies")
    return _alias(out, data, *found_at)


def viewed(node: Node, strides: Strides) -> tuple[Dim, Strides] | None:
    """(begin, strides) in elements of what a view or a node with ``strided_view`` shows of an input with these strides;
    None where it cannot."""
    data = node.inputs[0].type
    if node.op.attr("view"):
        new = restrided(data.shape, strides, node.outputs[0].type.shape)
        return None if new is None else (0, new)
    rule = node.op.attr("strided_view")
    return None if rule is None else rule(node.attrs, data, strides)


def _alias(e: NodeEntry, base: NodeEntry, begin: Dim, strides: Strides | None) -> Alias:
    """`begin` in elements of the base. Strides of a contiguous value are None."""
    same = strides is None or is_contiguous(e.type.shape, strides)
    return Alias(base, begin * e.type.dtype.bytes, None if same else strides)


def is_contiguous(shape: Shape, strides: Sequence[Dim]) -> bool:
    """Whether these strides lay the elements out one after the other."""
    return all(s == c for s, c, d in zip(strides, row_major(shape), shape) if d != 1)


def covered(e: NodeEntry) -> NodeEntry:
    """The value that `e` is, or is a view of all of."""
    while (offset := view_offset(e.node)) is not None and offset == 0 and e.type.nbytes == e.node.inputs[0].type.nbytes:
        e = e.node.inputs[0]
    return e


def restrided(shape: Shape, strides: Sequence[Dim], new: Shape) -> Strides | None:
    """Strides of the same memory under another shape; None where there are none, or sizes have names.

    Axes that follow each other in memory are one run; each run is cut anew.
    """
    old = _known([x for d, s in zip(shape, strides) if d != 1 for x in (d, s)])
    wanted = _known(new)
    if old is None or wanted is None or 0 in old[::2]:
        return None
    runs: list[list[int]] = []  # [elements, stride of the last]
    for d, s in zip(old[::2], old[1::2]):
        if runs and runs[-1][1] == d * s:
            runs[-1] = [runs[-1][0] * d, s]
        else:
            runs.append([d, s])
    out: list[Dim] = []
    for d in reversed(wanted):
        while runs and runs[-1][0] == 1:
            runs.pop()
        if d == 1:
            out.append(1)
            continue
        if not runs or runs[-1][0] % d:
            return None
        out.append(runs[-1][1])
        runs[-1] = [runs[-1][0] // d, runs[-1][1] * d]
    return tuple(reversed(out))


def _known(dims: Sequence[Dim]) -> list[int] | None:
    """Sizes as numbers; None where one has a name."""
    known = [d for d in dims if isinstance(d, int)]
    return known if len(known) == len(dims) else None
