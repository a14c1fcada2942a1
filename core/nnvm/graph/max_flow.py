"""Maximum flow and minimum cut (Dinic, "Algorithm for solution of a problem of maximum flow in a network with power
estimation", 1970). Capacities are integers of any size."""

from __future__ import annotations

from collections import deque

__all__ = ["FlowNetwork"]


class FlowNetwork:
    """A network whose vertices are numbers; 0 is the source and 1 the sink.

    >>> network = FlowNetwork()
    >>> v = network.vertex()
    >>> network.edge(network.SOURCE, v, 3)
    >>> network.edge(v, network.SINK, 2)
    >>> network.source_side()                 # the cut of least capacity runs before the sink
    {0, 2}
    """

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # of each vertex: numbers of the edges that leave it
        self._to: list[int] = []
        self._room: list[int] = []  # capacity that is left; edge e ^ 1 runs against edge e

    def vertex(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: int, back: int = 0) -> None:
        """An edge from a to b, with the capacity `back` in the other direction."""
        for start, end, room in ((a, b, capacity), (b, a, back)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._room.append(room)

    def source_side(self) -> set[int]:
        """The vertices on the source's side of a least cut, as few as possible."""
        while (level := self._levels())[self.SINK] >= 0:
            self._block(level)
        return {v for v, depth in enumerate(level) if depth >= 0}

    def _levels(self) -> list[int]:
        """Distance of each vertex from the source over edges with room; -1 where there is no way."""
        level = [-1] * len(self._edges)
        level[self.SOURCE] = 0
        queue = deque([self.SOURCE])
        while queue:
            v = queue.popleft()
            for e in self._edges[v]:
                if self._room[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[v] + 1
                    queue.append(self._to[e])
        return level

    def _block(self, level: list[int]) -> None:
        """Sends flow along shortest ways until each has a full edge."""
        following = [0] * len(self._edges)
        path: list[int] = []
        v = self.SOURCE
        while True:
            if v == self.SINK:
                flow = min(self._room[e] for e in path)
                for e in path:
                    self._room[e] -= flow
                    self._room[e ^ 1] += flow
                full = next(i for i, e in enumerate(path) if not self._room[e])
                v = self._to[path[full] ^ 1]
                del path[full:]
                continue
            edges = self._edges[v]
            while following[v] < len(edges):
                e = edges[following[v]]
                if self._room[e] and level[self._to[e]] == level[v] + 1:
                    break
                following[v] += 1
            if following[v] < len(edges):
                path.append(edges[following[v]])
                v = self._to[path[-1]]
            elif path:
                v = self._to[path.pop() ^ 1]
                following[v] += 1
            else:
                return
