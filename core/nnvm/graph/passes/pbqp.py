"""Partitioned boolean quadratic problems: one choice for each variable, so that a sum of costs is least.

    min  sum over variables u of c[u][x[u]]  +  sum over edges (u, v) of C[u, v][x[u], x[v]]

An infinite cost forbids. The problem is reduced variable by variable and solved backwards (Scholz and Eckstein,
"Register allocation for irregular architectures", 2002; Anderson and Gregg choose the kernels of neural networks this
way, "Optimal DNN primitive selection with partitioned boolean quadratic programming", 2018):

- R0: a variable without edges takes its cheapest choice;
- RI: a variable with one edge is folded into the costs of its neighbour;
- RII: a variable with two edges becomes an edge between its neighbours;
- RN: where every variable left has more edges, the one with most of them takes the choice that is cheapest together
  with the best answer of each neighbour alone.

R0, RI and RII lose nothing: trees and series-parallel graphs (residual blocks, dense blocks, squeeze-and-excitation)
are solved exactly. RN is a heuristic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Problem", "Solution"]

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Solution:
    """The choice of each variable, their cost, and whether no choices can cost less."""

    choices: tuple[int, ...]
    cost: float
    optimal: bool


class Problem:
    """Variables are numbered in the order of `variable`."""

    def __init__(self) -> None:
        self._costs: list[Array] = []
        self._edges: list[dict[int, Array]] = []

    def __len__(self) -> int:
        return len(self._costs)

    def variable(self, costs: Sequence[float] | Array) -> int:
        """A new variable with one choice per cost; gives its number."""
        if len(costs) == 0:
            raise ValueError("a variable needs at least one choice")
        self._costs.append(np.array(costs, np.float64))
        self._edges.append({})
        return len(self._costs) - 1

    def add(self, u: int, costs: Sequence[float] | Array) -> None:
        """Adds to the costs of a variable's choices."""
        self._costs[u] = self._costs[u] + np.asarray(costs, np.float64)

    def edge(self, u: int, v: int, costs: Array) -> None:
        """Adds costs of the pairs of choices of two variables, [choices of u, choices of v]."""
        if u == v or costs.shape != (len(self._costs[u]), len(self._costs[v])):
            raise ValueError(f"costs {costs.shape} do not fit variables {u} and {v}")
        before = self._edges[u].get(v)
        costs = costs if before is None else before + costs
        self._edges[u][v], self._edges[v][u] = costs, costs.T

    def cost(self, choices: Sequence[int]) -> float:
        """What these choices cost."""
        total = sum(float(c[x]) for c, x in zip(self._costs, choices, strict=True))
        for u, edges in enumerate(self._edges):
            total += sum(float(m[choices[u], choices[v]]) for v, m in edges.items() if u < v)
        return total

    def solve(self) -> Solution:
        """The choices. ValueError where all are forbidden (where RN was needed: or where it found no way)."""
        costs, edges = list(self._costs), [dict(e) for e in self._edges]
        steps: list[tuple[int, dict[int, Array], Array]] = []
        left, optimal = set(range(len(costs))), True
        easy = [u for u in left if len(edges[u]) <= 2]
        while left:
            while easy:
                u = easy.pop()
                if u in left and len(edges[u]) <= 2:
                    left.remove(u)
                    steps.append((u, edges[u], costs[u]))
                    easy += _fold(u, costs, edges)
            if left:
                optimal = False
                u = max(left, key=lambda v: (len(edges[v]), -v))
                left.remove(u)
                steps.append((u, {}, _best(u, costs, edges)))
                easy += edges[u]
        choices = [0] * len(costs)
        for u, neighbours, c in reversed(steps):
            choices[u] = int(np.argmin(sum((m[:, choices[v]] for v, m in neighbours.items()), c)))
        found = self.cost(choices)
        if found == np.inf:
            raise ValueError("every choice is forbidden" if optimal else "no choice was found that is not forbidden")
        return Solution(tuple(choices), found, optimal)


def _fold(u: int, costs: list[Array], edges: list[dict[int, Array]]) -> list[int]:
    """R0, RI and RII: takes `u` out of the graph; gives its neighbours, which lost an edge."""
    neighbours = edges[u]
    for v in neighbours:
        del edges[v][u]
    if len(neighbours) == 1:
        ((v, m),) = neighbours.items()
        costs[v] = costs[v] + (m + costs[u][:, None]).min(0)
    elif len(neighbours) == 2:
        (v, m), (w, n) = neighbours.items()
        both = ((m + costs[u][:, None])[:, :, None] + n[:, None, :]).min(0)
        if w in edges[v]:
            both = edges[v][w] + both
        edges[v][w], edges[w][v] = both, both.T
    return list(neighbours)


def _best(u: int, costs: list[Array], edges: list[dict[int, Array]]) -> Array:
    """RN: fixes `u`, adds what follows to its neighbours; gives costs that leave it this one choice."""
    alone = sum(((m + costs[v]).min(1) for v, m in edges[u].items()), costs[u])
    x = int(np.argmin(alone))
    for v, m in edges[u].items():
        costs[v] = costs[v] + m[x]
        del edges[v][u]
    fixed = np.full(len(costs[u]), np.inf)
    fixed[x] = 0.0
    return fixed
