"""What a memory plan comes to in bytes: planned, without sharing, the least possible, and what is alive when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnvm.dim import Dim, evaluate, symbols

if TYPE_CHECKING:
    from nnvm.graph.passes.plan_memory import MemoryPlan

__all__ = ["Life", "MemoryReport", "byte_text", "memory_report"]

#: Eighths of a character cell, for bars finer than a line of text.
_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Life:
    """One value in the arena: bytes `offset` to `offset + size`, from step `first` to step `last` included."""

    name: str
    first: int
    last: int
    offset: int
    size: int


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of a plan's arena; inputs, weights and outputs have memory of their own and are not counted.

    Attributes:
        planned: of the arena.
        unplanned: what its values take together, without sharing.
        lower_bound: the most that is alive at one step.
        timeline: live bytes at each step.
        steps: what runs at each step.
        lives: the values in the arena, in the order in which they are computed.
        sizes: the values that the named sizes were given.
    """

    planned: int
    unplanned: int
    lower_bound: int
    timeline: tuple[int, ...]
    steps: tuple[str, ...]
    lives: tuple[Life, ...]
    sizes: Mapping[str, int]

    def draw(self, width: int = 72, height: int = 10) -> str:
        """The timeline as a bar chart in text, `width` bars at most, each the greatest of the steps it stands for."""
        if not self.timeline or not self.lower_bound:
            return "nothing lives in the arena"
        bars = _shrunk(self.timeline, width)
        lines = []
        for row in reversed(range(height)):
            label = byte_text(self.lower_bound) if row == height - 1 else "0" if row == 0 else ""
            cells = (min(8, max(0, round(b * height * 8 / self.lower_bound) - 8 * row)) for b in bars)
            lines.append(f"{label:>11} |{''.join(_BLOCKS[c] for c in cells)}")
        lines.append(f"{'':>11} +{'-' * len(bars)}")
        last = f"step {len(self.timeline) - 1}"
        lines.append(f"{'':>12} 0{last:>{max(len(last) + 1, len(bars) - 1)}}")
        return "\n".join(lines)

    def __str__(self) -> str:
        saved = f" ({1 - self.planned / self.unplanned:.0%} less than without sharing)" if self.unplanned else ""
        above = f" (planned is {self.planned / self.lower_bound:.3f} x it)" if self.lower_bound else ""
        sizes = [f"sizes            {', '.join(f'{n} = {v}' for n, v in self.sizes.items())}"] if self.sizes else []
        at = [f"most is alive at step {(i := self.timeline.index(self.lower_bound))}, {self.steps[i]}"] * bool(above)
        return "\n".join([*sizes, f"planned          {byte_text(self.planned)}{saved}",
                          f"without sharing  {byte_text(self.unplanned)}",
                          f"lower bound      {byte_text(self.lower_bound)}{above}", *at])  # fmt: skip


def memory_report(plan: MemoryPlan, sizes: Mapping[str, int] | None = None) -> MemoryReport:
    """The report of a plan. `sizes`: values of the named sizes; KeyError names the one that is missing."""
    dims = (plan.arena_bytes, plan.unplanned_bytes, *plan.timeline)
    names = sorted({name for d in dims for name in symbols(d)})
    given = dict(sizes or {})
    if missing := [n for n in names if n not in given]:
        raise KeyError(f"the plan depends on the sizes {', '.join(missing)}: give report() a value for each")

    def known(d: Dim) -> int:
        return evaluate(d, given)

    timeline = tuple(map(known, plan.timeline))
    lives = []
    for e, (first, last) in plan.lives.items():
        place, extra = plan.locate(e)
        lives.append(Life(str(e), first, last, known(place.offset + extra), known(e.type.nbytes)))
    return MemoryReport(known(plan.arena_bytes), known(plan.unplanned_bytes), max(timeline, default=0), timeline,
                        tuple(n.name for n in plan.steps), tuple(lives), {n: given[n] for n in names})  # fmt: skip


def byte_text(n: float) -> str:
    """A number of bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"


def _shrunk(values: Sequence[int], width: int) -> list[int]:
    """At most `width` values, each the greatest of a stretch."""
    n = len(values)
    if n <= width:
        return list(values)
    return [max(values[i * n // width : max(i * n // width + 1, (i + 1) * n // width)]) for i in range(width)]
