"""Graphs as SVG: a box for each node, or for each fused group with its operators inside."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from html import escape

from nnvm.cli.page.layout import Point, layered
from nnvm.graph import Graph, Node
from nnvm.graph.views import is_view

__all__ = ["color_of", "graph_svg"]

#: Pixels: height of a line of text, width of a letter, inner margin, margin of the whole.
_LINE, _LETTER, _PAD, _MARGIN = 14.0, 6.7, 7.0, 14.0
#: Operators of a group that are listed before it says how many more there are.
_LISTED = 8


def color_of(group: int) -> str:
    """A light colour for a group; neighbours in number are far apart in hue."""
    return f"hsl({group * 137.508 % 360:.0f} 70% {82 - 6 * (group % 3)}%)"


def graph_svg(graph: Graph, group_of: Mapping[str, int], label: str) -> str:
    """The graph as an `<svg>`. Parameters and constants are left out: every weight would be a box.

    Args:
        group_of: name of a node -> number of its group, which decides its colour and its ``data-group``.
        label: what the picture is, for those who cannot see it.
    """
    outputs = list(dict.fromkeys(graph.outputs))
    shown = _drawn(graph)
    number = {n: i for i, n in enumerate(shown)}
    lines = [_lines(n) for n in shown] + [[f"output {i}", str(e.type) if e.node.types else ""]
                                          for i, e in enumerate(outputs)]  # fmt: skip
    edges = dict.fromkeys((number[e.node], number[n]) for n in shown for e in n.inputs if e.node in number)
    edges.update(dict.fromkeys((number[e.node], len(shown) + i) for i, e in enumerate(outputs) if e.node in number))
    sizes = [(max(map(len, text)) * _LETTER + 2 * _PAD, len(text) * _LINE + 2 * _PAD - 2) for text in lines]
    drawing = layered(sizes, list(edges))
    parts = [_path(points) for points in drawing.paths]
    for i, (text, size, center) in enumerate(zip(lines, sizes, drawing.centers)):
        parts.append(_box(shown[i] if i < len(shown) else None, text, size, center, group_of))
    nl = "\n"
    width, height = drawing.width + 2 * _MARGIN, drawing.height + 2 * _MARGIN
    return (f'<svg role="img" aria-label="{escape(label)}" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="{-_MARGIN:.0f} {-_MARGIN:.0f} {width:.0f} {height:.0f}">{nl.join(parts)}</svg>')  # fmt: skip


def _drawn(graph: Graph) -> list[Node]:
    """All nodes but weights, constants, and views of them."""
    hidden: set[Node] = set()
    returned = {e.node for e in graph.outputs}
    for n in dict.fromkeys((*graph.inputs, *graph.nodes)):
        weight = n.is_variable and n.attrs["kind"] != "input"
        if n.is_constant or weight or (is_view(n) and n.inputs[0].node in hidden and n not in returned):
            hidden.add(n)
    return [n for n in dict.fromkeys((*graph.inputs, *graph.nodes)) if n not in hidden]


def _lines(node: Node) -> list[str]:
    types = node.types or ()
    shapes = [str(types[0]) if len(types) == 1 else f"{len(types)} outputs"] if types else []
    inner = node.attrs.get("graph")
    if isinstance(inner, Graph):
        ops = [f"{op} ×{n}" if (n := len(list(run))) > 1 else op for op, run in itertools.groupby(
            n.op.name for n in inner.nodes if not n.is_variable and not n.is_constant)]  # fmt: skip
        more = [f"… and {len(ops) - _LISTED + 1} more"] if len(ops) > _LISTED else []
        return [*(ops[: _LISTED - 1] if more else ops), *more, *shapes]
    return [node.name if node.is_variable else node.op.name, *shapes]


def _box(node: Node | None, text: list[str], size: Point, center: Point, group_of: Mapping[str, int]) -> str:
    (w, h), (x, y) = size, center
    group = group_of.get(node.name) if node is not None else None
    kind = "io" if node is None or node.is_variable else "view" if is_view(node) else "op"
    fill = f' style="fill:{color_of(group)}"' if group is not None else ""
    data = f' data-group="{group}"' if group is not None else ""
    title = f"<title>{escape(_tooltip(node))}</title>" if node is not None else ""
    rows = "".join(
        f'<text x="{x:.1f}" y="{y - h / 2 + _PAD + 9 + i * _LINE:.1f}"'
        f"{' class=type' if i and i == len(text) - 1 else ''}>{escape(row)}</text>"
        for i, row in enumerate(text)
    )
    rect = f'<rect x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}" rx="5"{fill}/>'
    return f'<g class="node {kind}"{data}>{title}{rect}{rows}</g>'


def _tooltip(node: Node) -> str:
    inner = node.attrs.get("graph")
    first = str(node) if not isinstance(inner, Graph) else f"{node.name}\n{inner.ir()}"
    return first + (f"\n{node.source}" if node.source else "")


def _path(points: tuple[Point, ...]) -> str:
    """A line that leaves and enters boxes vertically."""
    (x, y), rest = points[0], points[1:]
    steps = [f"M{x:.1f} {y:.1f}"]
    for px, py in rest:
        if abs(px - x) < 0.5:
            steps.append(f"L{px:.1f} {py:.1f}")
        else:
            middle = (y + py) / 2
            steps.append(f"C{x:.1f} {middle:.1f} {px:.1f} {middle:.1f} {px:.1f} {py:.1f}")
        x, y = px, py
    return f'<path class="edge" d="{"".join(steps)}"/>'
