"""What attention reads again and again, copied once to where register tiles read it in order.

    k [keys, depth]    ->  panels of `width` keys, each [depth, width]: the columns of q kᵀ
    v [keys, columns]  ->  panels of `width` columns, each [keys, width]

Heads often lie behind each other in one projection, thousands of bytes from row to row: read in place, each row is a
page of its own and most of them share a few sets of the first cache. Half types are converted on the way.
"""

from __future__ import annotations

from collections.abc import Callable

from nnvm.dim import Dim
from nnvm.schedules.access import Source
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.cpu.injective import nest, stores
from nnvm.schedules.cpu.loops import loop
from nnvm.schedules.emit import Lanes, lane_mask
from nnvm.target import Target
from nnvm.te.expr import INDEX, Buffer, Const, Expr, Var
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Stmt, seq

__all__ = ["Element", "pack_columns", "pack_keys"]

#: The element at a row and a column.
Element = Callable[[Affine, Affine], Expr]


def pack_keys(panels: Buffer, keys: Dim, depth: int, width: int, value: Element, space: Space, target: Target) -> Stmt:
    """Rows as panels of `width` rows, each [depth][width]; the last one may be narrower."""
    whole, rest = keys // width, keys % width
    out: list[Stmt] = []
    for count, size, first in ((whole, width, 0), (1, rest, whole)):
        if count == 0 or size == 0:
            continue
        p, d, j = (Axis(Var(n), e).bind(space) for n, e in (("p", count), ("d", depth), ("j", size)))
        panel, step, key = (atom_affine(x.var) if x.extent != 1 else affine(0) for x in (p, d, j))
        panel = panel + first
        address = panel * (depth * width) + step * width + key
        write = Write(Source(panels, (1,)), address, value(panel * width + key, step))
        out.append(nest([write], [p, d, j], space, target, 0))
    return seq(out)


def pack_columns(
    panels: Buffer, rows: Dim, columns: int, width: int, value: Element, space: Space, lanes: Lanes
) -> Stmt:
    """Columns as panels of `width`, each [rows][width]; each row is read once, in order."""
    r = Axis(Var("j"), rows).bind(space)
    row = atom_affine(r.var) if rows != 1 else affine(0)
    lane, count = atom_affine(lanes.lane), lanes.count

    def store(panel: Affine, inside: Affine, mask: Expr | None) -> Stmt:
        address = panel * (rows * width) + row * width + inside + lane
        write = Write(Source(panels, (1,)), address, value(row, panel * width + inside + lane))
        return stores([write], {}, space, lanes, mask)

    def vectors(panel: Affine, number: int) -> Stmt:
        return seq([store(panel, affine(n * count), None) for n in range(number)])

    whole, rest = divmod(columns, width)
    out: list[Stmt] = []
    if whole:
        p = Axis(Var("p"), whole).bind(space)
        out.append(loop(p, vectors(atom_affine(p.var) if whole > 1 else affine(0), width // count)))
    if rest >= count:
        out.append(vectors(affine(whole), rest // count))
    if rest % count:
        mask = lane_mask(count, Const(rest % count, INDEX))
        out.append(store(affine(whole), affine(rest // count * count), mask))
    return loop(r, seq(out))
