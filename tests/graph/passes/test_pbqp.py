"""PBQP reduction: the least cost on trees and series-parallel graphs, a feasible and good one elsewhere."""

import itertools

import numpy as np
import pytest

from nnvm.graph.passes.pbqp import Problem


def least(p: Problem, sizes):
    return min(p.cost(x) for x in itertools.product(*map(range, sizes)))


def problem(rng, edges, count, most=4, forbidden=0.0):
    sizes = [int(rng.integers(1, most + 1)) for _ in range(count)]
    p = Problem()
    for n in sizes:
        p.variable(rng.random(n))
    for u, v in edges:
        costs = rng.random((sizes[u], sizes[v]))
        # the last choice of each variable goes with everything, so that there is a way
        costs[:-1, :-1][rng.random((sizes[u] - 1, sizes[v] - 1)) < forbidden] = np.inf
        p.edge(u, v, costs)
    return p, sizes


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_solved_exactly(seed):
    rng = np.random.default_rng(seed)
    p, sizes = problem(rng, [(int(rng.integers(0, v)), v) for v in range(1, 8)], 8, forbidden=0.3)
    found = p.solve()
    assert found.optimal and found.cost == pytest.approx(least(p, sizes))
    assert p.cost(found.choices) == found.cost


@pytest.mark.parametrize("seed", range(20))
def test_series_parallel_graphs_are_solved_exactly(seed):
    rng = np.random.default_rng(seed)
    edges, count = [(0, 1)], 2
    while count < 8:  # each edge may get a second way, or a node in its middle
        u, v = edges[int(rng.integers(0, len(edges)))]
        if rng.random() < 0.5:
            edges.remove((u, v))
        edges += [(u, count), (count, v)]
        count += 1
    p, sizes = problem(rng, edges, count, forbidden=0.3)
    found = p.solve()
    assert found.optimal and found.cost == pytest.approx(least(p, sizes))


@pytest.mark.parametrize("seed", range(10))
def test_other_graphs_get_a_good_way_and_say_so(seed):
    rng = np.random.default_rng(seed)
    p, sizes = problem(rng, list(itertools.combinations(range(6), 2)), 6, most=3)
    found = p.solve()
    best = least(p, sizes)
    assert not found.optimal and best <= found.cost <= best + 1.0
    assert found.cost == pytest.approx(p.cost(found.choices))


def test_parallel_edges_add_up():
    p = Problem()
    a, b = p.variable([0.0, 0.0]), p.variable([0.0, 0.0])
    p.edge(a, b, np.array([[0.0, 3.0], [2.0, 5.0]]))
    p.edge(b, a, np.array([[4.0, 0.0], [0.0, 1.0]]))
    assert p.solve().choices == (1, 0) and p.solve().cost == 2.0
    p.add(a, [0.0, 2.5])
    assert p.solve().choices == (0, 1)


def test_what_cannot_be_is_an_error():
    p = Problem()
    a, b = p.variable([1.0]), p.variable([1.0])
    p.edge(a, b, np.array([[np.inf]]))
    with pytest.raises(ValueError, match="every choice is forbidden"):
        p.solve()
    with pytest.raises(ValueError, match="do not fit"):
        p.edge(a, b, np.zeros((2, 1)))
    with pytest.raises(ValueError, match="at least one choice"):
        p.variable([])
