"""Which device each node runs on, so that as little as possible is copied between devices.

A value is copied once for each device that reads it and is not its own. What counts, in this order: copies at each
call, their bytes, copies of parameters (made once a version of the parameters), nodes that run elsewhere than on the
first device. For two devices the answer is exact: a minimum cut of the hypergraph whose edges are the values, each with
its producer and readers (Lawler, "Cutsets and partitions of hypergraphs", 1973). For more of them, every pair of
devices in turn divides its nodes anew in the best way, until no pair gains (swap moves; Boykov, Veksler and Zabih,
"Fast approximate energy minimization via graph cuts", 2001).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from nnvm.graph.max_flow import FlowNetwork

__all__ = ["Cost", "Flow", "assign", "total_cost"]

#: Weights of the four things that count; each outweighs any sum of the next.
_COPY, _BYTE, _ONCE, _ELSEWHERE = 1 << 120, 1 << 60, 1 << 30, 1
Cost = int


@dataclass(frozen=True)
class Flow:
    """A value that flows from a node to others.

    Attributes:
        producer: of the value.
        readers: nodes that read it.
        nbytes: its size, by estimate where sizes have names.
        once: whether it depends on parameters only, so that a copy is made once.
    """

    producer: Hashable
    readers: tuple[Hashable, ...]
    nbytes: int
    once: bool

    @property
    def weight(self) -> Cost:
        return _ONCE if self.once else _COPY + self.nbytes * _BYTE


def assign(
    allowed: Mapping[Hashable, Sequence[str]], flows: Sequence[Flow], devices: Sequence[str]
) -> dict[Hashable, str]:
    """The device of each node, out of those that it is `allowed`; the first of `devices` is preferred."""
    chosen = {n: next(d for d in devices if d in options) for n, options in allowed.items()}
    cost = total_cost(chosen, flows, devices[0])
    while True:
        for pair in combinations(devices, 2):
            _swap(pair, chosen, allowed, flows, devices[0])
        after = total_cost(chosen, flows, devices[0])
        if after >= cost:
            return chosen
        cost = after


def total_cost(chosen: Mapping[Hashable, str], flows: Sequence[Flow], first: str) -> Cost:
    """What an assignment costs."""
    copies = sum(len({chosen[r] for r in f.readers} - {chosen[f.producer]}) * f.weight for f in flows)
    return copies + sum(d != first for d in chosen.values()) * _ELSEWHERE


def _swap(
    pair: tuple[str, str], chosen: dict[Hashable, str], allowed: Mapping[Hashable, Sequence[str]],
    flows: Sequence[Flow], first: str,
) -> None:  # fmt: skip
    """Divides the nodes that are on one of two devices between them in the best way."""
    network = FlowNetwork()
    ends = dict(zip(pair, (network.SOURCE, network.SINK)))
    vertex: dict[Hashable, int] = {}
    for node, device in chosen.items():
        if device not in ends:
            continue
        if not all(d in allowed[node] for d in pair):
            vertex[node] = ends[device]
            continue
        vertex[node] = network.vertex()
        if pair[0] != first:
            network.edge(vertex[node], network.SINK, _ELSEWHERE)
        network.edge(network.SOURCE, vertex[node], _ELSEWHERE)  # the second of a pair is never the first device
    for flow in flows:
        around = flow.readers if flow.producer not in vertex else (flow.producer, *flow.readers)
        _hyperedge(network, list(dict.fromkeys(vertex[n] for n in around if n in vertex)), flow.weight)
    side = network.source_side()
    for node, v in vertex.items():
        if v not in (network.SOURCE, network.SINK):
            chosen[node] = pair[0] if v in side else pair[1]


def _hyperedge(network: FlowNetwork, vertices: list[int], weight: Cost) -> None:
    """Costs `weight` once where the vertices are not all on one side."""
    if len(vertices) == 2:
        network.edge(vertices[0], vertices[1], weight, weight)
    elif len(vertices) > 2:
        before, behind = network.vertex(), network.vertex()
        network.edge(before, behind, weight)
        for v in vertices:
            network.edge(v, before, weight)
            network.edge(behind, v, weight)
