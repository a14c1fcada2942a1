"""Running compiled graphs: ``nnvm.runtime.create(graph, lib)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnvm.graph.graph import Graph
    from nnvm.runtime.graph_runtime import GraphModule, Library

__all__ = ["create"]


def create(graph: Graph, lib: Library, ctx: object = None) -> GraphModule:
    """A module with set_input, run and get_output; see `nnvm.runtime.graph_runtime`."""
    from nnvm.runtime import graph_runtime  # not at the top: other parts of this package come without it

    return graph_runtime.create(graph, lib, ctx)
