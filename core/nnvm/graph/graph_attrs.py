"""The one table of graph attributes: every fact a pass may leave on a graph, documented once.

>>> sorted(GRAPH_ATTRIBUTES)[:2]
['fused', 'inplace']
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GRAPH_ATTRIBUTES", "declare_graph_attr"]


@dataclass(frozen=True)
class GraphAttribute:
    name: str
    signature: str
    doc: str


GRAPH_ATTRIBUTES: dict[str, GraphAttribute] = {}


def declare_graph_attr(name: str, signature: str, doc: str) -> None:
    """Adds an attribute to the table; declaring one twice is a ValueError."""
    if name in GRAPH_ATTRIBUTES:
        raise ValueError(f"graph attribute {name!r} is declared already: {GRAPH_ATTRIBUTES[name].doc}")
    GRAPH_ATTRIBUTES[name] = GraphAttribute(name, signature, doc)


declare_graph_attr("typed", "bool", "Every node has its types.")
declare_graph_attr("shapes", "tuple[tuple[str, tuple[Shape, ...]], ...]",
                   "By the name of each node the shapes of its outputs, as InferShape found them.")  # fmt: skip
declare_graph_attr("type_hints", "tuple[tuple[str, Hint], ...]",
                   "How types of variables and numbers follow from readers (graph/passes/infer_type.py).")  # fmt: skip
declare_graph_attr("prepare", "Graph", "What depends on parameters only: run once per version of the parameters.")
declare_graph_attr("prepare_depends", "tuple[frozenset[str], ...]",
                   "Names of the parameters that each output of `prepare` depends on.")  # fmt: skip
declare_graph_attr("fused", "bool", "Every compiled node is a `group`; the others are views and host nodes.")
declare_graph_attr("inplace", "tuple[tuple[int, int], ...]",
                   "On the graph of a group: (input, output) pairs that may share memory, as the group reads the input "
                   "only at the index that it writes.")  # fmt: skip
declare_graph_attr("memory_plan", "MemoryPlan", "Where every value lives (graph/passes/plan_memory.py).")
declare_graph_attr("device_wishes", "tuple[tuple[str, str], ...]",
                   "Pairs of a node's name, or a pattern, and the device or group that it is to run on "
                   "(graph/device_wishes.py).")  # fmt: skip
declare_graph_attr("device_groups", "tuple[tuple[str, str], ...]", "The device of each group of nodes.")
declare_graph_attr(
    "library_choices",
    "tuple[tuple[str, str, Choice], ...]",
    "Products on a GPU: in our kernel or the vendor's library, and why (compiler/choose_library.py).",
)
declare_graph_attr("placement", "Placement", "Where the nodes run, and why (graph/passes/place_device.py).")
declare_graph_attr("input_strides", "tuple[tuple[Dim, ...] | None, ...]",
                   "Strides in elements of each graph input as the caller gives it; None: contiguous.")  # fmt: skip
declare_graph_attr("output_strides", "tuple[tuple[Dim, ...] | None, ...]",
                   "Strides in elements that the caller wants of each graph output; None: contiguous.")  # fmt: skip
declare_graph_attr("dim_ranges", "tuple[tuple[str, int, int | None], ...]",
                   "Named sizes, their least and greatest value (None: none), which callers keep to.")  # fmt: skip
declare_graph_attr("dim_hints", "tuple[tuple[str, int], ...]",
                   "Named sizes and the values they have at the first call: what choices that are right for any value "
                   "go by.")  # fmt: skip
