"""Instruments for one's own tools: what passes did, in memory. (graph/dump.py has those that the environment asks for.)

An instrument is any object with two methods, ``before_pass(name, graph)`` and ``after_pass(name, before, after,
seconds)``; a pass that changed nothing gives the same graph, and one that runs others (FinishPrepare) comes after
them, with their time in its own. `nnvm.graph.pass_manager.instrument` lets it watch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnvm.graph.graph import Graph
from nnvm.graph.pass_manager import Instrument, instrument

__all__ = ["Callbacks", "Instrument", "PassRecord", "PassTimes", "instrument"]


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass.

    Attributes:
        nodes_before, nodes_after: sizes of the graph.
        changed: whether it gave another graph.
    """

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    changed: bool


class PassTimes:
    """Keeps a `PassRecord` of every pass; prints as a table, the slowest pass first."""

    def __init__(self) -> None:
        self.records: list[PassRecord] = []

    def before_pass(self, name: str, graph: Graph) -> None:
        pass

    def after_pass(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        self.records.append(PassRecord(name, seconds, len(before.nodes), len(after.nodes), after is not before))

    @property
    def seconds(self) -> dict[str, float]:
        """Total time by pass."""
        total: dict[str, float] = {}
        for r in self.records:
            total[r.name] = total.get(r.name, 0.0) + r.seconds
        return total

    def __str__(self) -> str:
        lines = ["     ms  runs  changed  pass"]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            runs = [r for r in self.records if r.name == name]
            lines.append(f"{seconds * 1e3:7.2f}  {len(runs):4}  {sum(r.changed for r in runs):7}  {name}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Callbacks:
    """Calls functions before and after each pass.

    >>> with instrument(Callbacks(after=lambda name, before, after, seconds: print(name, after))):
    """

    before: Callable[[str, Graph], None] | None = None
    after: Callable[[str, Graph, Graph, float], None] | None = None

    def before_pass(self, name: str, graph: Graph) -> None:
        if self.before is not None:
            self.before(name, graph)

    def after_pass(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        if self.after is not None:
            self.after(name, before, after, seconds)
