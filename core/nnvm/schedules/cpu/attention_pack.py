"""What attention reads again and again, copied once to where register tiles read it in order.

    k [keys, depth]    ->  panels of `width` keys, each [depth, width]: the columns of q kᵀ
    v [keys, columns]  ->  panels of `width` columns, each [keys, width]

Heads often lie behind each other in one projection, thousands of bytes from row to row: read in place, each row is a
page of its own and most of them share a few sets of the first cache. Half types are converted on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnvm.dim import Dim
from nnvm.schedules.access import At, Source, parts
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.cpu.injective import nest, stores
from nnvm.schedules.cpu.loops import loop
from nnvm.schedules.cpu.transpose import transposed
from nnvm.schedules.emit import Emitter, Lanes, dim_value, lane_mask
from nnvm.target import Target
from nnvm.te.expr import INDEX, Buffer, Const, Expr, Var, binary
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import If, Stmt, Store, seq

__all__ = ["Element", "pack_columns", "pack_keys"]

#: The element at a row and a column.
Element = Callable[[Affine, Affine], Expr]


def pack_keys(
    panels: Buffer, keys: Dim, depth: int, width: int, value: Element, space: Space, target: Target, lanes: Lanes
) -> Stmt:
    """Rows as panels of `width` rows, each [depth][width]; the vectors of the last one are filled with its last row.

    What lies there is multiplied too, slowly were it what another kernel left there: denormal numbers."""
    if not _along_rows(value, space, lanes):
        return _copied_keys(panels, keys, depth, width, value, space, target)
    p = Axis(Var("p"), keys // width).bind(space)
    source = _Panels(panels, keys, depth, width, value, space, lanes)
    out: list[Stmt] = []
    if p.extent != 0:
        out.append(loop(p, source.pack(atom_affine(p.var) if p.extent != 1 else affine(0), width)))
    rest = keys % width
    if rest != 0:
        last = source.pack(affine(p.extent), rest if isinstance(rest, int) else None)
        out.append(last if isinstance(rest, int) else If(binary("gt", dim_value(rest), 0), last))
    return seq(out)


def _along_rows(value: Element, space: Space, lanes: Lanes) -> bool:
    """Whether neighbours along a row are neighbours in memory."""
    row = Axis(Var("j"), 2).bind(space)
    steps = [e.address.terms.get(lanes.lane, 0) for e in parts(value(atom_affine(row.var), atom_affine(lanes.lane)))
             if isinstance(e, At)]  # fmt: skip
    return 1 in steps and all(s in (0, 1) for s in steps)


@dataclass(frozen=True, eq=False)
class _Panels:
    """What `pack_keys` packs: squares of vectors, transposed in registers."""

    panels: Buffer
    keys: Dim
    depth: int
    width: int
    value: Element
    space: Space
    lanes: Lanes

    def pack(self, panel: Affine, rows: int | None) -> Stmt:
        """A panel of `rows` rows; None: of what is left, which only the call knows."""
        n, steps = self.lanes.count, self.depth % self.lanes.count
        out: list[Stmt] = []
        for half in range(0, self.width if rows is None else rows, n):
            known = None if rows is None else min(n, rows - half)
            d = Axis(Var("d"), self.depth // n).bind(self.space)
            if d.extent != 0:
                block = atom_affine(d.var) * n if d.extent != 1 else affine(0)
                out.append(loop(d, self._square(panel, half, known, block, n)))
            if steps:
                out.append(self._square(panel, half, known, affine(self.depth - steps), steps))
        return seq(out)

    def _square(self, panel: Affine, half: int, rows: int | None, first: Affine, steps: int) -> Stmt:
        """Steps `first`, ... of a vector's rows, `rows` of which there are."""
        n, lane = self.lanes.count, atom_affine(self.lanes.lane)
        emitter = Emitter(self.lanes, None if steps == n else lane_mask(n, Const(steps, INDEX)))

        def row(number: int) -> Expr:
            key = panel * self.width + (half + (number if rows is None else min(number, rows - 1)))
            if rows is None:
                key = self.space.minimum(key, affine(self.keys) - 1)
            return emitter.vector(self.value(key, first + lane))

        def store(columns: list[Expr]) -> Stmt:
            address = panel * (self.depth * self.width) + first * self.width + half + lane
            return seq([Store(self.panels, (emitter.index(address + c * self.width),), e)
                        for c, e in enumerate(columns[:steps])])  # fmt: skip

        return transposed([row(r) for r in range(n)], store)


def _copied_keys(
    panels: Buffer, keys: Dim, depth: int, width: int, value: Element, space: Space, target: Target
) -> Stmt:
    """`pack_keys` where rows are read with a stride; the last panel is filled with zeros."""
    whole, rest = keys // width, keys % width
    pieces: list[tuple[Dim, Dim, Dim, Dim]] = [(whole, width, 0, 0)]  # panels, their rows, the first of each
    if rest != 0:
        pieces += [(1, rest, whole, 0), (1, width - rest, whole, rest)]
    out: list[Stmt] = []
    for number, (count, size, first, inside) in enumerate(pieces):
        if count == 0:
            continue
        p, d, j = (Axis(Var(n), e).bind(space) for n, e in (("p", count), ("d", depth), ("j", size)))
        panel, step, key = (atom_affine(x.var) if x.extent != 1 else affine(0) for x in (p, d, j))
        panel, key = panel + first, key + inside
        element = value(panel * width + key, step)
        write = Write(Source(panels, (1,)), panel * (depth * width) + step * width + key,
                      Const(0.0, element.dtype) if number == 2 else element)  # fmt: skip
        out.append(nest([write], [p, d, j], space, target, 0))
    if len(pieces) == 3 and not isinstance(rest, int):
        out[-1] = If(binary("gt", dim_value(rest), 0), out[-1])
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
