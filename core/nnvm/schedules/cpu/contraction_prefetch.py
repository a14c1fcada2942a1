"""Fetching weights ahead: while the row tiles of a block work on one panel of `w`, the next panel is asked for.

    for the parts of the reduction, the column tiles:
      for the row tiles:
        for the steps of the reduction:
          prefetch the next of the lines of the panel that the next iteration of the loop outside reads
          acc[R rows][V vectors] += ...

A panel is read from memory by the first row tile and from the caches by the others, so that memory is idle most of the
time and the first row tile waits for it. Weights are rarely in a cache when a layer begins: those of others are. The
hints are spread evenly over all the work that a panel serves: a core has few lines on their way at a time, and what
misses the first cache waits behind a burst of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from nnvm.te.expr import INDEX, Binary, Buffer, Const, Expr, Ramp, Var, binary, is_size
from nnvm.tir.stmt import Allocate, For, If, Prefetch, PrimFunc, Seq, Stmt, seq
from nnvm.tir.visitor import StmtMutator, free_vars, loads, substitute

__all__ = ["FETCHED", "LINE", "Panel", "prefetch_panels"]

#: Bytes of a cache line.
LINE = 64
#: Bytes of a weight from which on it is fetched ahead.
FETCHED = 1 << 17
#: Row tiles that a panel is shared by where only the call knows.
USUAL_TILES = 16


@dataclass(frozen=True, eq=False)
class Panel:
    """What a register tile reads of a matrix, or of matrices one after the other, in one part of the reduction.

    Attributes:
        w: its last axis are columns; those before it are steps of the reduction.
        steps: of the part.
        width: columns of one matrix.
        tiles: full row tiles that share it, if blocks of rows differ; None: only the call knows.
        matrices: as many steps of the first axis of `w`.
    """

    w: Buffer
    steps: int
    width: int
    tiles: int | None
    matrices: int = 1

    @property
    def lines(self) -> tuple[int, int]:
        """Cache lines of a step, and steps of a cache line; one of them is 1."""
        width = self.width * self.w.dtype.bytes
        return max(1, width // LINE), max(1, LINE // width) if self.side_by_side else 1

    @property
    def side_by_side(self) -> bool:
        """Do the steps of a matrix follow on each other without a gap?"""
        return self.w.shape[-1] == self.width

    @property
    def count(self) -> int:
        """Cache lines of one matrix."""
        per_step, per_line = self.lines
        return -(-self.steps * per_step // per_line)


def prefetch_panels(func: PrimFunc, panel: Panel) -> PrimFunc:
    """`func` with hints for the panels; the same object where no loop over row tiles that share one is found."""
    body = _Hints(panel).stmt(func.body)
    if body is func.body:
        return func
    return PrimFunc(func.name, func.params, func.outputs, func.symbols, body, func.attrs)


def _is_tile(s: Stmt) -> bool:
    """Does the body of a loop begin with accumulators in registers, where it does anything?"""
    while isinstance(s, (If, Seq)):
        s = s.then if isinstance(s, If) else s.body[0]
    return isinstance(s, Allocate) and s.buffer.scope == "local"


class _Hints(StmtMutator):
    """Hints for the row tiles of each panel: those that are full, which are the first."""

    def __init__(self, panel: Panel) -> None:
        super().__init__()
        self.panel = panel
        self.loops: list[For] = []
        #: Loops over panels that have hints already.
        self.done: set[Var] = set()

    def expr(self, e: Expr) -> Expr:
        return e

    def visit_for(self, s: For) -> Stmt:
        self.loops.append(s)
        body = self._tile(s.body) if s.kind == "serial" and _is_tile(s.body) else None
        out: Stmt = self._for(s) if body is None else For(s.var, s.extent, body, s.kind)
        self.loops.pop()
        return out

    def _tile(self, body: Stmt) -> Stmt | None:
        """The body of the row tiles with hints; None where they share no panel."""
        first = self._first_access(body)
        if first is None:
            return None
        depends = {v for e in first for v in free_vars(e)}
        inside = next((i for i, s in enumerate(reversed(self.loops)) if s.var in depends), len(self.loops))
        rows, panels = self.loops[len(self.loops) - inside :], self.loops[: len(self.loops) - inside]
        if not rows or not panels or any(not isinstance(s.extent, Const) for s in rows[1:]):
            return None
        if panels[-1].var in self.done:
            return None
        self.done.add(panels[-1].var)
        return _Spread(self, [s for s in panels if s.var in depends], rows, first).stmt(body)

    def _first_access(self, tile: Stmt) -> tuple[Expr, ...] | None:
        """Where the tiles begin to read the panel."""
        read = next((x for x in loads(tile) if x.buffer is self.panel.w), None)
        if read is None:
            return None
        kept = {s.var for s in self.loops}
        inside = {v for i in read.indices for v in free_vars(i) if v not in kept and not is_size(v)}
        start: dict[Var, Expr] = {v: Const(0, INDEX) for v in inside}
        *lead, column = (substitute(i, start) for i in read.indices)
        return (*lead, column.base) if isinstance(column, Ramp) else None


class _Spread(StmtMutator):
    """Puts the hints in a row tile: in the outermost of its loops that has no more than one to give at a time."""

    def __init__(self, hints: _Hints, panels: Sequence[For], rows: Sequence[For], first: Sequence[Expr]) -> None:
        super().__init__()
        self.panel, self.rows, self.first = hints.panel, rows, first
        self.next = _next_iteration(panels)
        self.lines = self.panel.count * self.panel.matrices
        self.steps: list[For] = []
        self.placed = False

    def expr(self, e: Expr) -> Expr:
        return e

    def stmt(self, s: Stmt) -> Stmt:
        return s if self.placed else super().stmt(s)

    def visit_allocate(self, s: Allocate) -> Stmt:
        if not self.steps and self._times() >= self.lines:
            self.placed = True
            return seq([self._here(), s])
        return self._allocate(s)

    def visit_for(self, s: For) -> Stmt:
        if s.kind != "serial" or _most(s) is None:
            return s
        self.steps.append(s)
        if self._times() < self.lines:
            inner = self.stmt(s.body)
            if self.placed:
                return For(s.var, s.extent, inner, s.kind)
        self.placed = True
        return self._seldom(s)

    def _seldom(self, s: For) -> Stmt:
        """The loop `s`, the last of the steps, with hints before each of its parts, of which there are just enough."""
        if not isinstance(s.extent, Const):
            here = self._here()
            self.steps.pop()
            return For(s.var, s.extent, seq([here, s.body]), s.kind)
        extent = int(s.extent.value)
        part = max(n for n in range(1, extent + 1) if extent % n == 0 and (self._times() // n >= self.lines or n == 1))
        outer, inner = Var(s.var.name), Var(s.var.name)
        self.steps[-1] = For(outer, Const(extent // part, INDEX), s.body)
        body = substitute(s.body, {s.var: binary("add", binary("mul", outer, part), inner)})
        body = For(inner, Const(part, INDEX), body, s.kind) if part > 1 else substitute(s.body, {s.var: outer})
        body = seq([self._here(), body])
        self.steps.pop()
        return For(outer, Const(extent // part, INDEX), body, s.kind)

    def _times(self) -> int:
        """How often what stands here is done for one panel."""
        usual = self.panel.tiles or USUAL_TILES
        tiles = [int(s.extent.value) if isinstance(s.extent, Const) else usual for s in self.rows]
        return prod([*tiles, *(_most(s) or 1 for s in self.steps)])

    def _here(self) -> Stmt:
        times = self._times()
        now: Expr = Const(0, INDEX)
        for s in (*self.rows, *self.steps):
            now = binary("add", binary("mul", now, _most(s) or 0), s.var)
        start = binary("floordiv", binary("mul", now, self.lines), times)
        if not isinstance(self.rows[0].extent, Const):
            start = binary("min", start, self.lines)
        i, count = Var("line"), -(-self.lines // times)
        return For(i, Const(count, INDEX), self._hint(binary("add", start, i)), "unrolled")

    def _hint(self, line: Expr) -> Prefetch:
        """The hint for one line of the next panel."""
        panel = self.panel
        per_step, per_line = panel.lines
        *lead, k, j = (substitute(e, self.next) for e in self.first)
        if panel.matrices > 1:
            lead[0] = binary("add", lead[0], binary("floordiv", line, panel.count))
            line = binary("floormod", line, panel.count)
        size = panel.w.dtype.bytes
        if panel.side_by_side:
            return Prefetch(panel.w, (*lead, k, binary("add", j, binary("mul", line, LINE // size))))
        step = binary("mul", binary("floordiv", line, per_step), per_line)
        column = binary("mul", binary("floormod", line, per_step), LINE // size)
        return Prefetch(panel.w, (*lead, binary("add", k, step), binary("add", j, column)))


def _most(s: For) -> int | None:
    """Steps of a loop at most (the last part of a reduction has fewer); None where it is not known."""
    ends = [s.extent.a, s.extent.b] if isinstance(s.extent, Binary) and s.extent.op == "min" else [s.extent]
    return min((int(e.value) for e in ends if isinstance(e, Const)), default=None)


def _next_iteration(loops: Sequence[For]) -> dict[Var, Expr]:
    """The variables of the loops when the innermost of them has moved on."""
    env: dict[Var, Expr] = {}
    carry: Expr = Const(1, INDEX)
    for loop in reversed(loops):
        after = binary("add", loop.var, carry)
        if loop is loops[0] or not isinstance(loop.extent, Const):
            env[loop.var] = after
            break
        env[loop.var], carry = binary("floormod", after, loop.extent), binary("floordiv", after, loop.extent)
    return env
