"""Running compiled graphs: ``nnvm.runtime.create(graph, lib)``, and artifacts: ``nnvm.runtime.load(path)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from nnvm.graph.graph import Graph
    from nnvm.runtime.artifact.module import Module
    from nnvm.runtime.graph_runtime import GraphModule, Library

__all__ = ["create", "load"]


def create(graph: Graph, lib: Library, ctx: object = None) -> GraphModule:
    """A module with set_input, run and get_output; see `nnvm.runtime.graph_runtime`."""
    from nnvm.runtime import graph_runtime  # not at the top: other parts of this package come without it

    return graph_runtime.create(graph, lib, ctx)


def load(path: str | os.PathLike[str], *, level: str | None = None, verify: bool = True) -> Module:
    """The model in a file that ``nnvm compile`` wrote; see `nnvm.runtime.artifact.module.load`."""
    from nnvm.runtime.artifact import module  # not at the top, as above

    return module.load(path, level=level, verify=verify)
