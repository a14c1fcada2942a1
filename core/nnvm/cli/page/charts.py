"""Charts of a memory plan as SVG: live bytes over time, and where in the arena each value lies when."""

from __future__ import annotations

from html import escape

from nnvm.cli.page.drawing import color_of
from nnvm.graph.memory_report import MemoryReport, byte_text

__all__ = ["arena_svg", "comparison_html", "timeline_svg"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1000, 240, 78, 26, 14


def timeline_svg(memory: MemoryReport) -> str:
    """Live bytes at each step, with lines at the lower bound and at the planned size; "" where nothing is planned."""
    top = max(memory.planned, memory.lower_bound)
    if not memory.timeline or not top:
        return ""
    count = len(memory.timeline)
    bars = []
    for i, live in enumerate(memory.timeline):
        x0, x1, y = _x(i, count), _x(i + 1, count), _y(live, top)
        tip = f"step {i}: {memory.steps[i]}\n{byte_text(live)} alive"
        bars.append(f'<rect class="live" x="{x0:.2f}" y="{y:.2f}" width="{max(0.5, x1 - x0 - 0.4):.2f}" '
                    f'height="{_HEIGHT - _BOTTOM - y:.2f}"><title>{escape(tip)}</title></rect>')  # fmt: skip
    lines = [_level(memory.lower_bound, top, "bound")]
    if memory.planned > memory.lower_bound:
        lines.append(_level(memory.planned, top, "planned"))
    return _frame("Live bytes at each step", "".join((*bars, *lines)), top, count)


def arena_svg(memory: MemoryReport) -> str:
    """A rectangle for each value: its steps from left to right, its bytes from bottom to top."""
    if not memory.lives or not memory.planned:
        return ""
    count, top = len(memory.steps), memory.planned
    rects = []
    for i, v in enumerate(memory.lives):
        x0, x1 = _x(v.first, count), _x(v.last + 1, count)
        y0, y1 = _y(v.offset + v.size, top), _y(v.offset, top)
        tip = f"{v.name}\nsteps {v.first} to {v.last}\n{byte_text(v.size)} at offset {v.offset}"
        box = f'x="{x0:.2f}" y="{y0:.2f}" width="{x1 - x0:.2f}" height="{max(0.3, y1 - y0):.2f}"'
        rects.append(f'<rect class="life" style="fill:{color_of(i)}" {box}><title>{escape(tip)}</title></rect>')
    return _frame("Where each value lies in the arena, and when", "".join(rects), top, count)


def comparison_html(memory: MemoryReport) -> str:
    """Bars for planned, unplanned and least possible bytes."""
    most = max(1, memory.unplanned, memory.planned)
    rows = (("without sharing", memory.unplanned, "unplanned"), ("planned", memory.planned, "planned"),
            ("lower bound", memory.lower_bound, "bound"))  # fmt: skip
    return "<table class=bars>" + "".join(
        f"<tr><th>{name}</th><td class=number>{byte_text(n)}</td>"
        f'<td class=wide><div class="bar {kind}" style="width:{100 * n / most:.2f}%"></div></td></tr>'
        for name, n, kind in rows
    ) + "</table>"  # fmt: skip


def _frame(label: str, inside: str, top: int, count: int) -> str:
    marks = "".join(
        f'<text class="mark" x="{_LEFT - 6}" y="{_y(n, top) + 4:.1f}">{byte_text(n)}</text>' + _level(n, top, "grid")
        for n in (top * k / 4 for k in range(5))
    )
    steps = "".join(
        f'<text class="step" x="{_x(s + 0.5, count):.1f}" y="{_HEIGHT - 8}">{s}</text>'
        for s in dict.fromkeys(round(k * (count - 1) / 8) for k in range(9))
    )
    return (f'<svg class="chart" role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
            f"{marks}{inside}{steps}</svg>")  # fmt: skip


def _level(n: float, top: int, kind: str) -> str:
    y = _y(n, top)
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _x(step: float, count: int) -> float:
    return _LEFT + step * (_WIDTH - _LEFT) / count


def _y(n: float, top: int) -> float:
    return _HEIGHT - _BOTTOM - n * (_HEIGHT - _BOTTOM - _TOP) / top
