"""Instruments that watch passes: the IR written to files, and what each pass took.

`NNVM_DUMP=dir` makes of every pass ``dir/NN/003_GraphFuse.txt`` (the graph after it), beside ``000_input.txt``, and a
diff ``003_GraphFuse.diff`` that says "(unchanged)" where there is none. NN counts the compilations of the process.
"""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Iterable
from pathlib import Path

from nnvm import config
from nnvm.graph.graph import Graph
from nnvm.graph.pass_manager import Instrument
from nnvm.graph.printer import print_graph

__all__ = ["DumpInstrument", "TimingInstrument", "default_instruments"]

_compilations = itertools.count()


class DumpInstrument:
    """Writes the graph before the first pass and after every one, with a diff to the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._last: list[str] | None = None

    def before_pass(self, name: str, graph: Graph) -> None:
        if self._last is None:
            self._last = self._write("input", graph)

    def after_pass(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        assert self._last is not None, "before_pass comes first"
        self._count += 1
        old = self._last
        self._last = self._write(name, after)
        diff = (
            [] if after is before else list(difflib.unified_diff(old, self._last, "before", "after", lineterm="", n=1))
        )
        self._path(name, "diff").write_text("\n".join(diff or ["(unchanged)"]) + "\n")

    def _write(self, name: str, graph: Graph) -> list[str]:
        text = print_graph(graph)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(name, "txt").write_text(text + "\n")
        return text.splitlines()

    def _path(self, name: str, suffix: str) -> Path:
        return self.folder / f"{self._count:03}_{name}.{suffix}"


class TimingInstrument:
    """Prints a line for each pass to the standard error: milliseconds, nodes before and after."""

    def before_pass(self, name: str, graph: Graph) -> None:
        pass

    def after_pass(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        size = f"{len(before.nodes)} -> {len(after.nodes)} nodes" if after is not before else "(unchanged)"
        print(f"nnvm: {seconds * 1e3:8.1f} ms  {name:22} {size}", file=sys.stderr)


def default_instruments() -> Iterable[Instrument]:
    """What the environment asks for: a dump (NNVM_DUMP), timings (NNVM_DEBUG from 2 on)."""
    folder = config.dump_dir()
    if folder is not None:
        yield DumpInstrument(folder / f"{next(_compilations):02}")
    if config.debug_level() >= 2:
        yield TimingInstrument()
