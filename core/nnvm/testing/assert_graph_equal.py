"""Graph equality for tests, with a readable difference."""

from __future__ import annotations

import difflib

from nnvm.graph.graph import Graph
from nnvm.graph.printer import print_graph
from nnvm.graph.structural import first_difference

__all__ = ["assert_graph_equal"]


def assert_graph_equal(actual: Graph, expected: Graph) -> None:
    """AssertionError, with a diff of the two texts, unless the graphs are structurally equal (names do not count)."""
    difference = first_difference(actual, expected)
    if difference is None:
        return
    a, b, why = difference
    at = f" at {a.name} / {b.name}" if a is not None and b is not None else ""
    wanted, found = (print_graph(g, canonical=True).splitlines() for g in (expected, actual))
    diff = "\n".join(difflib.unified_diff(wanted, found, "expected", "actual", lineterm=""))
    raise AssertionError(f"graphs differ{at}: {why}\n{diff or print_graph(actual)}")
