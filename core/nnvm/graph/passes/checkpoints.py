"""Where to keep values when the others are recomputed: about sqrt(N) checkpoints, for the least memory.

The nodes in order are cut into segments of about equal bytes, near which the cut goes where the fewest bytes cross it.
Kept are the values that cross a cut; a segment's other values live together while its gradients are computed. So the
memory is about (bytes across the cuts) + (bytes of the largest segment): all numbers of segments up to 2 sqrt(N) are
compared by it.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nnvm.dim import estimate
from nnvm.graph.graph import Graph, Uses
from nnvm.graph.node import Node, NodeEntry

__all__ = ["between_checkpoints"]

#: Value that a named size is taken to have.
_ESTIMATE = 128


def between_checkpoints(nodes: Sequence[Node], graph: Graph, read: Collection[NodeEntry]) -> set[Node]:
    """Those of `nodes` that are recomputed; empty where that saves nothing.

    Args:
        nodes: candidates, in topological order.
        read: values that the backward pass reads; the others are not kept anyway.
    """
    spans = _spans(nodes, graph, read)
    best, best_bytes = set[Node](), sum(s.size for s in spans if s.read)
    for count in range(2, 2 * math.isqrt(len(nodes)) + 3):
        cuts = _cuts(spans, len(nodes), count)
        inside, estimate = _cost(spans, nodes, cuts)
        if estimate < best_bytes:
            best, best_bytes = inside, estimate
    return best


@dataclass(frozen=True)
class _Span:
    """A value from the position of its node to that of its last reader."""

    first: int
    last: int
    size: int
    read: bool


def _spans(nodes: Sequence[Node], graph: Graph, read: Collection[NodeEntry]) -> list[_Span]:
    uses, position = Uses(graph), {n: i for i, n in enumerate(nodes)}
    order = {n: i for i, n in enumerate(graph.nodes)}
    starts = [order[n] for n in nodes]

    def place(n: Node) -> int:
        """Of a reader; of one that is no candidate, that of the next candidate."""
        return position[n] if n in position else bisect.bisect(starts, order[n])

    return [
        _Span(i, max([i, *(place(u) for u, _ in uses.of(e))]), _bytes(e), e in read)
        for i, n in enumerate(nodes)
        for e in n.outputs
    ]


def _bytes(e: NodeEntry) -> int:
    return estimate(e.type.nbytes, _ESTIMATE)


def _cuts(spans: Sequence[_Span], count: int, segments: int) -> list[int]:
    """Positions before which the nodes are cut into that many segments (fewer where cuts would fall together)."""
    weight, change = [0] * count, [0] * (count + 1)
    for s in spans:
        weight[s.first] += s.size if s.read else 0
        change[s.first + 1] += s.size
        change[min(s.last, count - 1) + 1] -= s.size
    crossing = list(itertools.accumulate(change))[:count]
    before = [0, *itertools.accumulate(weight)]
    cuts = set()
    for k in range(1, segments):
        target, slack = before[-1] * k / segments, before[-1] / (2 * segments)
        low, high = bisect.bisect_left(before, target - slack), bisect.bisect_right(before, target + slack)
        places = range(max(1, low), min(high, count))
        if places:
            cuts.add(min(places, key=lambda p: (crossing[p], abs(before[p] - target))))
    return sorted(cuts)


def _cost(spans: Sequence[_Span], nodes: Sequence[Node], cuts: Sequence[int]) -> tuple[set[Node], int]:
    """(nodes that are recomputed, estimated bytes). What follows the last cut is needed at once: it is kept."""
    if not cuts:
        return set(), sum(s.size for s in spans if s.read)
    segment = [bisect.bisect(cuts, i) for i in range(len(nodes) + 1)]
    across = [segment[s.first] != segment[s.last] for s in spans]
    crossed = {s.first for s, crosses in zip(spans, across) if crosses}
    kept = sum(s.size for s, crosses in zip(spans, across) if crosses)
    inside = [0] * (len(cuts) + 1)
    for s, crosses in zip(spans, across):
        if s.read and not crosses:
            inside[segment[s.first]] += s.size
    recomputed = {n for i, n in enumerate(nodes) if i not in crossed and segment[i] < len(cuts)}
    return recomputed, kept + max(inside)
