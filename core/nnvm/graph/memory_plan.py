"""Where every value of a compiled graph lives: the result of the pass PlanMemory, read by the executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nnvm.dim import Dim
from nnvm.graph.node import NodeEntry

__all__ = ["MemoryPlan", "Slot"]


@dataclass(frozen=True)
class Slot:
    """Memory of one value.

    Attributes:
        kind: ``input`` (variable of any kind; `index` is its position in Graph.inputs), ``output`` (a fresh tensor of
            the caller's; `index` into Graph.outputs), ``constant`` (`index` into MemoryPlan.constants), ``arena``
            (`index` is the storage id), ``host`` (made by an opaque node outside the compiler; `index` counts them).
        offset: bytes from the start of that memory (of the arena, for ``arena``).
        nbytes: size of the value.
    """

    kind: str
    index: int
    offset: Dim
    nbytes: Dim


@dataclass(frozen=True)
class MemoryPlan:
    """The plan.

    Attributes:
        slots: of every entry that a node of the graph gives, views (reshape) included: they point into the memory of
            what they view.
        constants: entries of constant nodes, in the order of `Slot.index`.
        arena_bytes: size of the arena (64-byte aligned storages).
        unplanned_bytes: what it would be without sharing.
        lower_bound_bytes: the largest sum of values alive at one time.
        live_bytes: the same sum at each node of `nodes`, the timeline for the report (static sizes only, else empty).
    """

    slots: Mapping[NodeEntry, Slot]
    constants: tuple[NodeEntry, ...]
    arena_bytes: Dim
    unplanned_bytes: Dim
    lower_bound_bytes: Dim
    live_bytes: tuple[int, ...] = field(default=())
