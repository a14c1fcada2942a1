"""Which layout each value is computed in: a choice over the whole graph.

The layouts of a value are named by the block of their channels: 1 is plain (``NCHW``), 8 is ``NCHW8c``. A node can run
in several ways (`Way`: the layouts that it takes and gives), and each costs an estimated time, by the op attribute
``layout_cost``; between a node that gives one layout and a node that takes another stands a transform, which costs the
time to move the bytes. The least sum is found by PBQP reduction (`pbqp`), exactly on series-parallel graphs:

    variables   each node that has several ways, and each value that several nodes use: for that, the set of layouts
                which it is brought into, so that a transform that two users share counts once
    edges       a node with the nodes or values that it reads

What depends on parameters only costs nothing: it is prepared once. Nodes with one way only become costs of their
neighbours. Regions where no node gains from blocks are left out: without a convolution nothing is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations
from typing import Any

import numpy as np

from nnvm.dim import Dim, Shape, estimate
from nnvm.graph.dependence import Fixed
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.passes.pbqp import Problem
from nnvm.graph.types import TensorType
from nnvm.target import Target

__all__ = ["MOST_PADDING", "Cost", "Machine", "Way", "channels_of", "count", "keeps_order", "padded", "plan_layouts"]

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Largest part of the padded channels to the real ones.
MOST_PADDING = 1.6
#: Value that a named size is taken to have where none is likely.
_ESTIMATE = 64
#: Seconds that a kernel more takes at least.
_KERNEL = 3e-7
#: Seconds that a view costs, as it keeps what is around it from being one kernel; and what decides between equals: an
#: elementwise op follows its producer.
_VIEW, _APART = 1e-7, 1e-13


@dataclass(frozen=True)
class Way:
    """One way to run a node.

    Attributes:
        inputs: the block that each input is taken in; 1: plain. What depends on parameters only is converted to fit.
        block: of the outputs.
    """

    inputs: tuple[int, ...]
    block: int


@dataclass(frozen=True)
class Machine:
    """Estimates for one target, of one core: what counts are the ratios.

    Measured on AVX2 with blocks of 8: 3x3 convolutions of 64 to 128 channels reach 75 GFLOP/s; transforms between plain
    and blocked move 12 to 17 GB/s, between two blocks 3.5 GB/s.

    Attributes:
        library: a vendor's library computes convolutions of plain layout whose weights are new at each call.
    """

    target: Target
    library: bool = False

    @cached_property
    def lanes(self) -> int:
        """float32 values of one vector register."""
        return max(4, self.target.lanes(32))

    @property
    def flops(self) -> float:
        """Operations per second: two vectors of multiply-adds per cycle at 2.5 GHz."""
        return 2.5e9 * 4 * self.lanes

    #: Bytes per second that a kernel reads and writes.
    bandwidth: float = 12e9
    #: The same for a transform from one block to another.
    shuffled: float = 3.5e9

    def blocks(self, channels: Dim) -> tuple[int, ...]:
        """Blocks for that many channels: a vector register and half of one, where they are not mostly padding."""
        if not isinstance(channels, int) or channels < 1:
            return ()
        options = (b for b in (self.lanes, self.lanes // 2) if b >= 4)
        return tuple(b for b in options if padded(channels, b) <= MOST_PADDING * channels)

    def transforms(self, value: TensorType, sources: Sequence[int], results: Sequence[int]) -> list[list[float]]:
        """Seconds to bring a value from each of the blocks `sources` into each of `results`."""
        shape = value.shape
        if all(b == 1 for b in (*sources, *results)):
            return [[0.0] * len(results) for _ in sources]
        channels = max(1, channels_of(shape))
        part = count(shape) * value.dtype.bytes // channels
        ordered = {b: keeps_order(shape, b) for b in {*sources, *results}}

        def seconds(source: int, result: int) -> float:
            if source == result:
                return 0.0
            if ordered[source] and ordered[result]:
                return _VIEW
            moved = part * (padded(channels, source) + padded(channels, result))
            return _KERNEL + moved / (self.bandwidth if 1 in (source, result) else self.shuffled)

        return [[seconds(s, r) for r in results] for s in sources]


#: Value of ``layout_cost``: estimated seconds of a node in each of these ways.
Cost = Callable[[Node, Sequence[Way], Machine], Sequence[float]]


def padded(channels: int, block: int) -> int:
    """Channels with those that fill the last block."""
    return -(-channels // block) * block


def channels_of(shape: Shape) -> int:
    """Extent of axis 1 as a number."""
    return count(shape[1:2])


def count(shape: Sequence[Dim]) -> int:
    """Product of extents, named sizes estimated."""
    total = 1
    for d in shape:
        total *= estimate(d, _ESTIMATE)
    return total


def keeps_order(shape: Shape, block: int) -> bool:
    """Whether that block leaves all elements where they are: one position per channel, no partial block."""
    if block == 1:
        return True
    channels = shape[1]
    return isinstance(channels, int) and channels % block == 0 and all(d == 1 for d in shape[2:])


def plan_layouts(graph: Graph, fixed: Fixed, machine: Machine) -> Mapping[Node, Way]:
    """The way of each node that has several or is to be rewritten; all others run as they are, on plain values."""
    ways = _ways(graph, fixed, machine)
    plan = {n: options[0] for n, options in ways.items() if len(options) == 1 and n.op.attr("layout_rule").always}
    ways = {n: options for n, options in ways.items() if len(options) > 1}
    costs = {n: _costs(n, options, machine) for n, options in ways.items()}
    costs = _gaining(ways, costs)
    if costs:
        plan.update(_Planner(graph, ways, costs, fixed, machine).plan())
    return plan


def _ways(graph: Graph, fixed: Fixed, machine: Machine) -> dict[Node, list[Way]]:
    """The ways of all nodes with a layout rule that depend on inputs and run on the host, the plain one first."""
    ways: dict[Node, list[Way]] = {}
    for node in graph.nodes:
        rule = node.op.attr("layout_rule")
        if rule is None or node.types is None or fixed(node) or device_of(node) != CPU:
            continue
        plain = Way((1,) * len(node.inputs), 1)
        ways[node] = [plain, *(w for w in rule.ways(node, fixed, machine) if w != plain)]
    return ways


def _costs(node: Node, ways: Sequence[Way], machine: Machine) -> Sequence[float]:
    cost: Cost | None = node.op.attr("layout_cost")
    return [_APART if w.block == 1 else 0.0 for w in ways] if cost is None else cost(node, ways, machine)


def _gaining(ways: Mapping[Node, list[Way]], costs: Mapping[Node, Sequence[float]]) -> dict[Node, Sequence[float]]:
    """Only those in a connected region with a node that is faster in blocks."""
    near: dict[Node, list[Node]] = {n: [] for n in ways}
    for node in ways:
        for e in node.inputs:
            if e.node in near:
                near[node].append(e.node)
                near[e.node].append(node)
    seen: set[Node] = set()
    stack = [n for n, c in costs.items() if n.op.has("layout_cost") and min(c) < c[0]]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += near[node]
    return {n: c for n, c in costs.items() if n in seen}


class _Planner:
    """Builds the problem and reads its solution."""

    def __init__(self, graph: Graph, ways: Mapping[Node, list[Way]], costs: Mapping[Node, Sequence[float]],
                 fixed: Fixed, machine: Machine) -> None:  # fmt: skip
        self.graph, self.fixed, self.machine = graph, fixed, machine
        self.ways = {n: ways[n] for n in costs}
        self.problem = Problem()
        self.number = {node: self.problem.variable(c) for node, c in costs.items()}

    def plan(self) -> dict[Node, Way]:
        users: dict[NodeEntry, list[tuple[Node, int]]] = {}
        for node in self.graph.nodes:
            if not self.fixed(node):
                for i, e in enumerate(node.inputs):
                    users.setdefault(e, []).append((node, i))
        for e in self.graph.outputs:
            users.setdefault(e, [])
        outputs = set(self.graph.outputs)
        for e, found in users.items():
            if not self.fixed(e.node):
                self._connect(e, found, e in outputs)
        choices = self.problem.solve().choices
        return {node: options[choices[self.number[node]]] for node, options in self.ways.items()}

    def _connect(self, e: NodeEntry, users: Sequence[tuple[Node, int]], returned: bool) -> None:
        """The costs between a value's producer and its users."""
        choosing = [(n, i) for n, i in users if n in self.ways]
        plain = returned or len(choosing) < len(users)
        if not choosing:
            if e.node in self.ways:
                self.problem.add(self.number[e.node], self._transforms(e, [1])[:, 0])
        elif len(choosing) == 1 and not plain:
            ((node, i),) = choosing
            self._link(e, self.number[node], self._transforms(e, [w.inputs[i] for w in self.ways[node]]))
        else:
            wanted = tuple(dict.fromkeys(w.inputs[i] for n, i in choosing for w in self.ways[n]))
            sets = _subsets(wanted, plain)
            shared = self.problem.variable(np.zeros(len(sets)))
            self._link(e, shared, self._transforms(e, (*wanted, 1)) @ _indicators(sets, (*wanted, 1)))
            for node, i in choosing:
                taken = tuple(w.inputs[i] for w in self.ways[node])
                self.problem.edge(shared, self.number[node], _members(sets, taken))

    def _transforms(self, e: NodeEntry, wanted: Sequence[int]) -> Array:
        """Seconds by the producer's way and the block that is wanted."""
        given = [w.block for w in self.ways[e.node]] if e.node in self.ways else [1]
        sources, results = sorted(set(given)), sorted(set(wanted))
        table = np.array(self.machine.transforms(e.type, sources, results))
        return table[[sources.index(b) for b in given]][:, [results.index(b) for b in wanted]]

    def _link(self, e: NodeEntry, reader: int, costs: Array) -> None:
        if e.node in self.ways:
            self.problem.edge(self.number[e.node], reader, costs)
        else:
            self.problem.add(reader, costs[0])


@lru_cache(maxsize=256)
def _subsets(blocks: tuple[int, ...], plain: bool) -> tuple[frozenset[int], ...]:
    """The sets of layouts that a value may be in; with the plain one where that is needed."""
    every = chain.from_iterable(combinations(blocks, k) for k in range(len(blocks) + 1))
    base = frozenset([1]) if plain else frozenset[int]()
    return tuple(dict.fromkeys(s for s in (base | frozenset(c) for c in every) if s))


@lru_cache(maxsize=256)
def _indicators(sets: tuple[frozenset[int], ...], blocks: tuple[int, ...]) -> Array:
    """1 where a layout is in a set, [blocks, sets]; each layout counts at its first place."""
    return np.array([[float(b in s and b not in blocks[:k]) for s in sets] for k, b in enumerate(blocks)])


@lru_cache(maxsize=1024)
def _members(sets: tuple[frozenset[int], ...], wanted: tuple[int, ...]) -> Array:
    """0 where a set of layouts has the one that is wanted, else infinite; [sets, wanted]."""
    return np.array([[0.0 if b in s else np.inf for b in wanted] for s in sets])
