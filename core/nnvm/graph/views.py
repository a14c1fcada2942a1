"""Which nodes are free: their output is a piece of their first input, or what their inputs make up together."""

from __future__ import annotations

from nnvm.dim import Dim
from nnvm.graph.node import Node

__all__ = ["is_view", "view_offset"]


def is_view(node: Node) -> bool:
    """Whether a node only gives another shape to (a contiguous part of) its first input, or moves no data as its
    attribute ``in_place`` says (`aliases`)."""
    return bool(node.attrs.get("in_place")) or view_offset(node) is not None


def view_offset(node: Node) -> Dim | None:
    """Where the output of a view begins, in bytes from the start of its first input; None where it is no view."""
    if node.op.attr("view"):
        return 0
    rule = node.op.attr("view_offset")
    if rule is None or node.types is None or any(e.node.types is None for e in node.inputs):
        return None
    return rule(node.attrs, tuple(e.type for e in node.inputs))  # type: ignore[no-any-return]
