"""Layered drawing of a directed acyclic graph, from top to bottom.

Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures" (1981): layers by
longest path, long edges bent at every layer, order within a layer by barycentres. Positions then minimise the squared
distance to the neighbours, layer by layer, under the order and the gaps (pool adjacent violators).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Drawing", "layered"]

#: Space between boxes of a layer, between layers, and the width of an edge that passes a layer; in pixels.
_GAP, _LAYER_GAP, _EDGE_WIDTH = 18.0, 26.0, 8.0
#: Sweeps down and up, for the order and for the positions.
_ORDER_SWEEPS, _PLACE_SWEEPS = 8, 30

Point = tuple[float, float]


@dataclass(frozen=True)
class Drawing:
    """Where things go, in pixels.

    Attributes:
        centers: of each box.
        paths: points of each edge, from the lower side of one box to the upper side of another.
    """

    width: float
    height: float
    centers: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]


def layered(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Drawing:
    """The drawing of boxes of these (width, height) and edges between their numbers.

    Every edge goes from a lower to a higher number (topological order); ValueError where one does not.
    """
    for u, v in edges:
        if not 0 <= u < v < len(sizes):
            raise ValueError(f"edge {u} -> {v} among {len(sizes)} boxes: edges go from lower to higher numbers")
    if not sizes:
        return Drawing(0.0, 0.0, (), ())
    net = _Net(sizes, edges)
    net.order_layers()
    net.place()
    return net.drawing()


class _Net:
    """Boxes and the bends of long edges, all called points here; the boxes come first."""

    def __init__(self, sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> None:
        self.sizes = sizes
        self.layer_of = _layers(len(sizes), edges)
        self.widths = [w for w, _ in sizes]
        self.up: list[list[int]] = [[] for _ in sizes]
        self.down: list[list[int]] = [[] for _ in sizes]
        self.chains: list[list[int]] = []
        bend_of: dict[tuple[int, int], int] = {}  # edges from one box share their way as far as it goes
        for u, v in edges:
            chain = [u]
            for layer in range(self.layer_of[u] + 1, self.layer_of[v]):
                if (u, layer) not in bend_of:
                    bend_of[u, layer] = self._bend(layer)
                    self._link(chain[-1], bend_of[u, layer])
                chain.append(bend_of[u, layer])
            self._link(chain[-1], v)
            self.chains.append([*chain, v])
        self.layers: list[list[int]] = [[] for _ in range(max(self.layer_of) + 1)]
        for point in self._depth_first():
            self.layers[self.layer_of[point]].append(point)
        self.x = [0.0] * len(self.widths)

    def _bend(self, layer: int) -> int:
        self.layer_of.append(layer)
        self.widths.append(_EDGE_WIDTH)
        self.up.append([])
        self.down.append([])
        return len(self.widths) - 1

    def _link(self, above: int, below: int) -> None:
        self.down[above].append(below)
        self.up[below].append(above)

    def _depth_first(self) -> list[int]:
        """All points, so that what hangs together stands together at first."""
        seen = [False] * len(self.widths)
        order: list[int] = []
        for root in (p for p in range(len(self.widths)) if not self.up[p]):
            stack = [root]
            while stack:
                point = stack.pop()
                if not seen[point]:
                    seen[point] = True
                    order.append(point)
                    stack.extend(reversed(self.down[point]))
        return order

    def order_layers(self) -> None:
        """Sorts each layer by the mean position of the neighbours above, then below; keeps the order with the fewest
        crossings."""
        best, fewest = [list(layer) for layer in self.layers], self._crossings()
        for sweep in range(_ORDER_SWEEPS):
            if fewest == 0:
                break
            downwards = sweep % 2 == 0
            near = self.up if downwards else self.down
            rank = {p: i for layer in self.layers for i, p in enumerate(layer)}
            for layer in self.layers if downwards else reversed(self.layers):
                key = {p: _mean([rank[q] for q in near[p]], rank[p]) for p in layer}
                layer.sort(key=lambda p, key=key: key[p])  # type: ignore[misc]
                rank.update((p, i) for i, p in enumerate(layer))
            if (crossings := self._crossings()) < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _crossings(self) -> int:
        """Pairs of edges between neighbouring layers that cross (counted by insertion into a sorted list)."""
        total = 0
        rank = {p: i for layer in self.layers for i, p in enumerate(layer)}
        for layer in self.layers:
            seen: list[int] = []
            for p in layer:
                ends = sorted(rank[q] for q in self.down[p])
                total += sum(len(seen) - bisect_right(seen, e) for e in ends)
                for e in ends:
                    insort(seen, e)
        return total

    def place(self) -> None:
        """x of every point."""
        for layer in self.layers:
            self._settle(layer, [0.0] * len(layer))
        for sweep in range(_PLACE_SWEEPS):
            downwards = sweep % 2 == 0
            for layer in self.layers if downwards else reversed(self.layers):
                near = [[*self.up[p], *self.down[p]] if sweep > 1 else (self.up if downwards else self.down)[p]
                        for p in layer]  # fmt: skip
                self._settle(layer, [_mean([self.x[q] for q in n], self.x[p]) for p, n in zip(layer, near)])
        left = min(x - w / 2 for x, w in zip(self.x, self.widths))
        self.x = [x - left for x in self.x]

    def _settle(self, layer: Sequence[int], wanted: Sequence[float]) -> None:
        """Puts a layer as near to `wanted` as the widths allow: least squares, order kept."""
        offset, offsets = 0.0, []
        for i, p in enumerate(layer):
            if i:
                offset += (self.widths[layer[i - 1]] + self.widths[p]) / 2 + _GAP
            offsets.append(offset)
        blocks: list[tuple[float, int]] = []  # (mean, count) of points that touch
        for target, o in zip(wanted, offsets):
            mean, count = target - o, 1
            while blocks and blocks[-1][0] >= mean:
                m, c = blocks.pop()
                mean, count = (mean * count + m * c) / (count + c), count + c
            blocks.append((mean, count))
        means = (m for m, c in blocks for _ in range(c))
        for p, o, m in zip(layer, offsets, means):
            self.x[p] = m + o

    def drawing(self) -> Drawing:
        tops, y = [], 0.0
        heights = [max([self.sizes[p][1] for p in layer if p < len(self.sizes)], default=0.0) for layer in self.layers]
        for h in heights:
            tops.append(y)
            y += h + _LAYER_GAP
        middle = [tops[layer] + heights[layer] / 2 for layer in self.layer_of]
        paths = []
        for chain in self.chains:
            u, v = chain[0], chain[-1]
            points = [(self.x[u], middle[u] + self.sizes[u][1] / 2)]
            for p in chain[1:-1]:
                top = tops[self.layer_of[p]]
                points += [(self.x[p], top), (self.x[p], top + heights[self.layer_of[p]])]
            paths.append((*points, (self.x[v], middle[v] - self.sizes[v][1] / 2)))
        width = max(x + w / 2 for x, w in zip(self.x, self.widths))
        centers = tuple((self.x[p], middle[p]) for p in range(len(self.sizes)))
        return Drawing(width, y - _LAYER_GAP, centers, tuple(paths))


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Longest path from the sources. What reads at most one box then sinks to just above its first reader: edges from
    one box share their way, so that a box with many readers takes one line down instead of a layer full of them."""
    layer, reads = [0] * count, [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for u, v in sorted(edges, key=lambda e: e[1]):
        layer[v] = max(layer[v], layer[u] + 1)
        reads[v] += 1
        readers[u].append(v)
    for i in reversed(range(count)):
        if readers[i] and reads[i] <= 1:
            layer[i] = min(layer[v] for v in readers[i]) - 1
    return layer


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
