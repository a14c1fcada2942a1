"""The whole page: one file, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from nnvm.cli.page.charts import arena_svg, comparison_html, timeline_svg
from nnvm.cli.page.drawing import color_of, graph_svg
from nnvm.cli.page.facts import Kernel, Roof, Shown
from nnvm.graph import Graph
from nnvm.graph.memory_report import byte_text

__all__ = ["page_html"]


def page_html(shown: Shown) -> str:
    """The page as HTML text."""
    style, script = (resources.files("nnvm.cli.page").joinpath(f).read_text("utf-8") for f in ("page.css", "page.js"))
    sections = [
        _section("summary", "Summary", _summary(shown)),
        _section("graphs", "Graph before and after the passes", _graphs(shown)),
        _section("kernels", "Kernels", _kernels(shown)),
        _section("memory", "Memory", _memory(shown)),
        _section("passes", "Passes", _passes(shown)),
        _section("text", "Text", _text(shown)),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(shown.name)} in nnvm</title>\n<style>\n{style}</style></head>\n"
        f"<body><header><h1>{escape(shown.name)}</h1><nav>{_navigation()}</nav></header>\n<main>\n"
        + "\n".join(sections)
        + f"\n</main>\n<script>\n{script}</script></body></html>\n"
    )


def _navigation() -> str:
    names = ("summary", "graphs", "kernels", "memory", "passes", "text")
    return " ".join(f'<a href="#{n}">{n.capitalize()}</a>' for n in names)


def _section(name: str, title: str, inside: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>\n{inside}</section>'


def _summary(s: Shown) -> str:
    work = sum(k.flops for k in s.kernels)
    estimate = sum(k.estimate or 0.0 for k in s.kernels)
    facts = [
        ("target", str(s.target)),
        ("inputs", ", ".join(f"{v.name}: {v[0].type}" for v in s.after.inputs if v.attrs["kind"] == "input") or "none"),
        ("nodes", f"{_operators(s.before)} before, {len(s.kernels)} kernels after, "
                  f"{len({k.code for k in s.kernels if k.code is not None})} of them different"),
        ("once per weights", f"{len(s.prepare)} kernels prepare them" if s.prepare else "nothing to prepare"),
        ("work", f"{work / 1e9:.3g} GFLOP, {byte_text(sum(k.nbytes for k in s.kernels))} read and written by kernels"),
        ("time", f"{_time(estimate)} estimated" + (f", {_time(_measured(s.kernels))} measured" if s.measured else "")),
        ("arena", f"{byte_text(s.memory.planned)} ({byte_text(s.memory.unplanned)} without sharing)"),
        ("passes", f"{_time(1e9 * sum(p.seconds for p in s.passes if p.depth == 0))}"),
    ]  # fmt: skip
    if s.sizes:
        facts.append(("sizes", ", ".join(f"{n} = {v}" for n, v in s.sizes.items())))
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts)
    outside = "".join(f"<li>{escape(f)}</li>" for f in s.fallbacks)
    more = f"<p>Run by the frontend, not compiled:</p><ul>{outside}</ul>" if outside else ""
    return f'<table class="facts">{rows}</table>{more}'


def _graphs(s: Shown) -> str:
    after = {k.name: i for i, k in enumerate(s.kernels)}
    before = {member: i for i, k in enumerate(s.kernels) for member in k.members}
    panes = (("before", f"Before: {_operators(s.before)} operators", graph_svg(s.before, before, "before the passes")),
             ("after", f"After: {len(s.kernels)} kernels", graph_svg(s.after, after, "after the passes")))  # fmt: skip
    hint = ("<p>A colour is a fused group; on the left it marks the nodes that are still there under their name (grey "
            "ones were rewritten, folded or computed once per weights). Click a box to find it on the other side and "
            "in the table. Weights are not drawn; dashed boxes are views, which cost nothing.</p>")  # fmt: skip
    return hint + '<div class="panes">' + "".join(
        f'<div class="pane" id="{name}"><div class="bar-top"><b>{title}</b> <span class="zoom">'
        f'<button data-zoom="0.8" title="smaller">−</button><button data-zoom="1.25" title="larger">+</button>'
        f'<button data-zoom="width">width</button><button data-zoom="all">all</button></span></div>'
        f'<div class="canvas">{svg}</div></div>'
        for name, title, svg in panes
    ) + "</div>"  # fmt: skip


def _kernels(s: Shown) -> str:
    how = (f"<p>Estimates are a roofline of one core: {Roof.of(s.target).flops:.0f} GFLOP/s and "
           f"{Roof.of(s.target).bytes:.0f} GB/s. {escape(s.measured)}</p>")  # fmt: skip
    table = _table(s.kernels, bool(s.measured), colored=True)
    if not s.prepare:
        return how + table
    return (how + table + f"<details><summary>{len(s.prepare)} kernels that run once per version of the weights"
            f"</summary>{_table(s.prepare, False, colored=False)}</details>")  # fmt: skip


def _table(kernels: Sequence[Kernel], measured: bool, colored: bool) -> str:
    heads = ["#", "operators", "output", "MFLOP", "bytes", "estimate µs"]
    heads += ["measured µs", "share %", "GFLOP/s"] if measured else ["share %"]
    heads += ["code"]
    total = (_measured(kernels) if measured else sum(k.estimate or 0.0 for k in kernels)) or 1.0
    numeric = {"#", "MFLOP", "bytes", "estimate µs", "measured µs", "share %", "GFLOP/s", "code"}
    top = "".join(f'<th{" class=number" if h in numeric else ""} tabindex="0">{h}</th>' for h in heads)
    rows = []
    for i, k in enumerate(kernels):
        taken = k.measured if measured else k.estimate
        cells = [_number(i, f'<i style="background:{color_of(i)}"></i>{i}' if colored else str(i)),
                 f'<td title="{escape(k.name)}">{escape(_operator_text(k.ops))}</td>',
                 f"<td>{escape(', '.join(k.outputs))}</td>", _number(k.flops, _digits(k.flops / 1e6)),
                 _number(k.nbytes, byte_text(k.nbytes)), _optional(k.estimate, 1e-3)]  # fmt: skip
        if measured:
            cells.append(_optional(k.measured, 1e-3))
        cells.append(_optional(None if taken is None else 100 * taken / total))
        if measured:
            cells.append(_optional(k.flops / k.measured if k.measured else None))
        cells.append(_number(-1 if k.code is None else k.code, "host" if k.code is None else f"k{k.code}"))
        rows.append(f"<tr{f' data-group={i}' if colored else ''}>{''.join(cells)}</tr>")
    return f'<table class="kernels sortable"><thead><tr>{top}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _memory(s: Shown) -> str:
    m = s.memory
    chart = timeline_svg(m)
    if not chart:
        return comparison_html(m) + "<p>Nothing lives in the arena.</p>"
    at = m.timeline.index(m.lower_bound)
    return (comparison_html(m)
            + f"<h3>Live bytes at each step</h3><p>Most is alive at step {at}, {escape(m.steps[at])}. Red: the lower "
              f"bound; black: planned, where it is more.</p>{chart}"
            + f"<h3>The arena: what lies where, and when</h3>{arena_svg(m)}")  # fmt: skip


def _passes(s: Shown) -> str:
    longest = max((p.seconds for p in s.passes), default=0.0) or 1.0
    rows = "".join(
        f'<tr><td>{i}</td><td style="padding-left:{10 + 20 * p.depth}px">{p.name}</td>'
        f"{_number(p.seconds, f'{p.seconds * 1e3:.2f}')}"
        f'<td class=wide><div class="bar planned" style="width:{100 * p.seconds / longest:.2f}%"></div></td>'
        f"<td>{f'{p.before} → {p.after} nodes' if p.changed else 'unchanged'}</td></tr>"
        for i, p in enumerate(s.passes)
    )
    return (f'<table class="passes"><thead><tr><th>#</th><th>pass</th><th class=number>ms</th><th></th><th>nodes</th>'
            f"</tr></thead><tbody>{rows}</tbody></table>")  # fmt: skip


def _text(s: Shown) -> str:
    prepare = s.after.attrs.get("prepare")
    graphs = [("before", s.before), ("after", s.after)]
    if isinstance(prepare, Graph) and prepare.outputs:
        graphs.append(("once per version of the weights", prepare))
    return "".join(f"<details><summary>{n}</summary><pre>{escape(g.ir())}</pre></details>" for n, g in graphs)


def _operators(graph: Graph) -> int:
    return sum(not (n.is_variable or n.is_constant) for n in graph.nodes)


def _measured(kernels: Iterable[Kernel]) -> float:
    return sum(k.measured or 0.0 for k in kernels)


def _operator_text(ops: Sequence[str]) -> str:
    return " + ".join(ops) if len(ops) <= 10 else f"{' + '.join(ops[:9])} + … ({len(ops)} in all)"


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def _number(value: float, text: str) -> str:
    return f'<td class=number data-value="{value}">{text}</td>'


def _digits(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _optional(value: float | None, scale: float = 1.0) -> str:
    return _number(-1, "–") if value is None else _number(value * scale, _digits(value * scale))
