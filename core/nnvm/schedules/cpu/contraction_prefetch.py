"""Fetching weights ahead: while the row tiles of a block work on one panel of `w`, the next panel is asked for.

    for the parts of the reduction, the column tiles:
      for the row tiles:
        prefetch this row tile's share of the panel that the next iteration of the loop outside reads
        acc[R rows][V vectors] += ...

Of few row tiles each has many lines to ask for: its hints stand inside of the loop over the steps of the reduction.

A panel is read from memory by the first row tile and from the caches by the others, so that memory is idle most of the
time and the first row tile waits for it. Weights are rarely in a cache when a layer begins: those of others are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.te.expr import INDEX, Buffer, Const, Expr, Ramp, Var, binary, is_size
from nnvm.tir.stmt import Allocate, For, If, Prefetch, PrimFunc, Stmt, seq
from nnvm.tir.visitor import StmtMutator, free_vars, loads, substitute

__all__ = ["Panel", "prefetch_panels"]

#: Bytes of a cache line.
LINE = 64
#: Hints of one row tile that are written out; row tiles below which they stand between the steps of the reduction.
UNROLLED, FEW_TILES = 16, 5
#: Row tiles that a panel is shared by where only the call knows.
USUAL_TILES = 16


@dataclass(frozen=True, eq=False)
class Panel:
    """What a register tile reads of a matrix in one part of the reduction.

    Attributes:
        w: the matrix, its last two axes the steps of the reduction and the columns.
        steps: of the part.
        width: columns.
        tiles: full row tiles that share it; None: only the call knows.
    """

    w: Buffer
    steps: int
    width: int
    tiles: int | None

    @property
    def lines(self) -> tuple[int, int]:
        """Cache lines of a step, and steps of a cache line; one of them is 1."""
        width = self.width * self.w.dtype.bytes
        side_by_side = self.w.shape[-1] == self.width
        return max(1, width // LINE), max(1, LINE // width) if side_by_side else 1


def prefetch_panels(func: PrimFunc, panel: Panel) -> PrimFunc:
    """`func` with hints for the panels; the same object where no loop over row tiles that share one is found."""
    if panel.tiles == 1:
        return func
    body = _Hints(panel).stmt(func.body)
    if body is func.body:
        return func
    return PrimFunc(func.name, func.params, func.outputs, func.symbols, body, func.attrs)


def _is_tile(s: Stmt) -> bool:
    """Does the body of a loop begin with accumulators in registers, where it does anything?"""
    while isinstance(s, If):
        s = s.then
    return isinstance(s, Allocate) and s.buffer.scope == "local"


class _Hints(StmtMutator):
    def __init__(self, panel: Panel) -> None:
        super().__init__()
        self.panel = panel
        self.loops: list[For] = []

    def expr(self, e: Expr) -> Expr:
        return e

    def visit_for(self, s: For) -> Stmt:
        if s.kind == "serial" and self.loops and _is_tile(s.body):
            first = self._first_access(s)
            if first is None:
                return s
            if self.panel.tiles is not None and self.panel.tiles < FEW_TILES:
                return For(s.var, s.extent, _InReduction(self, s.var, first).stmt(s.body), s.kind)
            return For(s.var, s.extent, seq([self._share(s, first), s.body]), s.kind)
        self.loops.append(s)
        out = self._for(s)
        self.loops.pop()
        return out

    def _first_access(self, rows: For) -> tuple[Expr, ...] | None:
        """Where the tiles of the loop `rows` begin to read the panel; None where that differs from tile to tile."""
        read = next((x for x in loads(rows.body) if x.buffer is self.panel.w), None)
        if read is None:
            return None
        kept = {rows.var, *(s.var for s in self.loops)}
        inside = {v for i in read.indices for v in free_vars(i) if v not in kept and not is_size(v)}
        start: dict[Var, Expr] = {v: Const(0, INDEX) for v in inside}
        *lead, column = (substitute(i, start) for i in read.indices)
        if not isinstance(column, Ramp) or any(rows.var in free_vars(i) for i in (*lead, column)):
            return None
        return (*lead, column.base)

    def _share(self, rows: For, first: Sequence[Expr]) -> Stmt:
        """The hints of one row tile: its share of the lines, after those of the tiles before it."""
        per_step, per_line = self.panel.lines
        lines = self.panel.steps * per_step // per_line
        share = -(-lines // (self.panel.tiles or USUAL_TILES))
        i = Var("line")
        before = binary("mul", rows.var, share)
        line = binary("add", before, i)
        hint = self.at(line, first)
        if self.panel.tiles is not None:
            return For(i, Const(share, INDEX), hint, "unrolled" if share <= UNROLLED else "serial")
        left = binary("max", binary("sub", lines, before), 0)
        return For(i, binary("min", left, share), hint)

    def at(self, line: Expr, first: Sequence[Expr]) -> Prefetch:
        """The hint for one line of the next panel."""
        per_step, per_line = self.panel.lines
        step = binary("mul", binary("floordiv", line, per_step), per_line)
        column = binary("mul", binary("floormod", line, per_step), LINE // self.panel.w.dtype.bytes)
        env = self._next_iteration()
        *lead, k, j = (substitute(e, env) for e in first)
        return Prefetch(self.panel.w, (*lead, binary("add", k, step), binary("add", j, column)))

    def _next_iteration(self) -> dict[Var, Expr]:
        """The variables of the loops around the row tiles when the innermost of them has moved on."""
        env: dict[Var, Expr] = {}
        carry: Expr = Const(1, INDEX)
        for loop in reversed(self.loops):
            after = binary("add", loop.var, carry)
            if loop is self.loops[0] or not isinstance(loop.extent, Const):
                env[loop.var] = after
                break
            env[loop.var], carry = binary("floormod", after, loop.extent), binary("floordiv", after, loop.extent)
        return env


class _InReduction(StmtMutator):
    """Hints inside of the loop over the steps of a row tile."""

    def __init__(self, hints: _Hints, tile: Var, first: Sequence[Expr]) -> None:
        super().__init__()
        self.hints, self.tile, self.first = hints, tile, first

    def expr(self, e: Expr) -> Expr:
        return e

    def visit_for(self, s: For) -> Stmt:
        panel = self.hints.panel
        if s.kind != "serial" or not isinstance(s.extent, Const) or panel.tiles is None:
            return self._for(s)
        per_step, per_line = panel.lines
        length = -(-panel.steps // int(s.extent.value)) * per_step
        share = -(-length // (per_line * panel.tiles))
        i = Var("line")
        before = binary("floordiv", binary("mul", s.var, length), per_line)
        before = binary("add", before, binary("mul", self.tile, share))
        line = binary("add", before, i)
        hint = self.hints.at(line, self.first)
        return For(s.var, s.extent, seq([For(i, Const(share, INDEX), hint, "unrolled"), s.body]), s.kind)
