"""Fetching weights ahead: while the row tiles of a block work on one panel of `w`, the next panel is asked for.

    for the parts of the reduction, the column tiles:
      for the row tiles:
        for the steps of the reduction:
          prefetch the next of the lines of the panel that the next iteration of the loop outside reads
          acc[R rows][V vectors] += ...

A panel is read from memory by the first row tile and from the caches by the others, so that memory is idle most of the
time and the first row tile waits for it. Weights are rarely in a cache when a layer begins: those of others are. The
hints are spread evenly over all the work that a panel serves (`hints`).

Where a panel serves one row tile, that waits for memory itself. The processor fetches ahead what is read in order, but
not far enough for steps of several multiply-adds, so each step asks for what lies `AHEAD` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from nnvm.schedules.cpu.hints import LINE, hints, next_iteration
from nnvm.te.expr import INDEX, Binary, Buffer, Const, Expr, Load, Ramp, Var, binary
from nnvm.tir.stmt import Allocate, For, If, Prefetch, PrimFunc, Seq, Stmt, seq
from nnvm.tir.visitor import StmtMutator, free_vars, loads, stmts, substitute

__all__ = ["AHEAD", "Panel", "prefetch_panels"]

#: How far ahead a weight that few rows use is asked for, in bytes: memory takes as long as some 40 steps of a tile.
AHEAD = 1 << 14
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
        alone: whether one full row tile reads it.
    """

    w: Buffer
    steps: int
    width: int
    tiles: int | None
    matrices: int = 1
    alone: bool = False

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
    """`func` with hints for the panels; the same object where nothing is found that they belong to."""
    body = (_InOrder(panel) if panel.alone else _Hints(panel)).stmt(func.body)
    if body is func.body:
        return func
    return PrimFunc(func.name, func.params, func.outputs, func.symbols, body, func.attrs)


def _is_tile(s: Stmt) -> bool:
    """Does the body of a loop begin with accumulators in registers, where it does anything?"""
    while isinstance(s, (If, Seq)):
        s = s.then if isinstance(s, If) else s.body[0]
    return isinstance(s, Allocate) and s.buffer.scope == "local"


class _InOrder(StmtMutator):
    """Hints for what lies ahead of what is read of the panel, in the loops that read it."""

    def __init__(self, panel: Panel) -> None:
        super().__init__()
        self.panel = panel

    def expr(self, e: Expr) -> Expr:
        return e

    def visit_for(self, s: For) -> Stmt:
        inner = [x for x in stmts(s.body) if isinstance(x, For)]
        if s.kind != "serial" or any(x.kind == "serial" for x in inner):
            return self._for(s)
        panel = self.panel
        read = _first_read(s.body, panel.w)
        if read is None:
            return s
        *lead, k, column = _beginning(s.body, read)
        start = (*lead, binary("add", k, AHEAD // (panel.width * panel.w.dtype.bytes)), column)
        steps = prod(_known(x) or 1 for x in inner if x.var in free_vars(read.indices[-2]))
        per_step, per_line = panel.lines
        asked = [_hint(panel, start, Const(matrix * panel.count + line, INDEX))
                 for matrix in range(panel.matrices) for line in range(-(-steps * per_step // per_line))]  # fmt: skip
        return For(s.var, s.extent, seq([*asked, s.body]), s.kind)


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
        read = _first_read(body, self.panel.w)
        if read is None or not isinstance(read.indices[-1], Ramp):
            return None
        first = _beginning(body, read)
        depends = {v for e in first for v in free_vars(e)}
        inside = next((i for i, s in enumerate(reversed(self.loops)) if s.var in depends), len(self.loops))
        rows, panels = self.loops[len(self.loops) - inside :], self.loops[: len(self.loops) - inside]
        if not rows or not panels or any(not isinstance(s.extent, Const) for s in rows[1:]):
            return None
        if panels[-1].var in self.done:
            return None
        self.done.add(panels[-1].var)
        following = next_iteration([(s.var, _known(s)) for s in panels if s.var in depends])
        start = [substitute(e, following) for e in first]
        work = [(s.var, _known(s) or self.panel.tiles or USUAL_TILES) for s in rows]
        return _spread(body, self.panel, start, work, beyond=_known(rows[0]) is None)


def _first_read(s: Stmt, w: Buffer) -> Load | None:
    return next((x for x in loads(s) if x.buffer is w), None)


def _beginning(s: Stmt, read: Load) -> tuple[Expr, ...]:
    """The element that `read`, in `s`, reads first of all."""
    zero: dict[Var, Expr] = {x.var: Const(0, INDEX) for x in stmts(s) if isinstance(x, For)}
    *lead, column = (substitute(i, zero) for i in read.indices)
    return (*lead, column.base if isinstance(column, Ramp) else column)


#: Loops around a piece of work, outermost first, each with its number of steps.
_Work = list[tuple[Var, int]]


def _spread(tile: Stmt, panel: Panel, start: Sequence[Expr], work: _Work, beyond: bool) -> Stmt:
    """A row tile with hints for the panel at `start`: in the outermost of its loops that has no more than one to give
    at a time. `work` are the loops over row tiles, of which there may be more (`beyond`)."""
    lines = panel.count * panel.matrices

    def here(work: _Work) -> Stmt:
        number: Expr = Const(0, INDEX)
        for var, steps in work:
            number = binary("add", binary("mul", number, steps), var)
        return hints(number, _times(work), lines, lambda line: _hint(panel, start, line), beyond)

    if _times(work) >= lines:
        sums = next(s for s in stmts(tile) if isinstance(s, Allocate))
        return _Replace(sums, seq([here(work), sums])).stmt(tile)
    loop = _step_loop(tile)
    while loop is not None:
        around, work = work, [*work, (loop.var, _most(loop) or 1)]
        inner = _step_loop(loop.body) if _times(work) < lines else None
        if inner is None:
            return _Replace(loop, _in_parts(loop, around, lines, here)).stmt(tile)
        loop = inner
    return tile


def _times(work: _Work) -> int:
    """How often what stands inside the loops is done for one panel."""
    return prod(steps for _, steps in work)


def _step_loop(s: Stmt) -> For | None:
    """The first loop in `s` over steps of which it is known how many there are at most; not one inside another."""
    if isinstance(s, For):
        return s if s.kind == "serial" and _most(s) is not None else None
    inside = s.body if isinstance(s, Seq) else (s.then, s.orelse) if isinstance(s, If) else (getattr(s, "body", None),)
    return next((found for x in inside if x is not None and (found := _step_loop(x)) is not None), None)


def _in_parts(loop: For, around: _Work, lines: int, here: Callable[[_Work], Stmt]) -> Stmt:
    """`loop` with hints before each of its parts, of which there are just enough."""
    if not isinstance(loop.extent, Const):
        hint = here([*around, (loop.var, _most(loop) or 1)])
        return For(loop.var, loop.extent, seq([hint, loop.body]), loop.kind)
    extent, before = int(loop.extent.value), _times(around)
    part = max(n for n in range(1, extent + 1) if extent % n == 0 and (before * extent // n >= lines or n == 1))
    outer, inner = Var(loop.var.name), Var(loop.var.name)
    if part > 1:
        at = binary("add", binary("mul", outer, part), inner)
        body: Stmt = For(inner, Const(part, INDEX), substitute(loop.body, {loop.var: at}), loop.kind)
    else:
        body = substitute(loop.body, {loop.var: outer})
    hint = here([*around, (outer, extent // part)])
    return For(outer, Const(extent // part, INDEX), seq([hint, body]), loop.kind)


class _Replace(StmtMutator):
    """One statement by another."""

    def __init__(self, old: Stmt, new: Stmt) -> None:
        super().__init__()
        self.old, self.new = old, new

    def expr(self, e: Expr) -> Expr:
        return e

    def stmt(self, s: Stmt) -> Stmt:
        return self.new if s is self.old else super().stmt(s)


def _hint(panel: Panel, start: Sequence[Expr], line: Expr) -> Prefetch:
    """The hint for one line of the panel at `start`."""
    per_step, per_line = panel.lines
    *lead, k, j = start
    if panel.matrices > 1:
        lead[0] = binary("add", lead[0], binary("floordiv", line, panel.count))
        line = binary("floormod", line, panel.count)
    size = panel.w.dtype.bytes
    if panel.side_by_side:
        return Prefetch(panel.w, (*lead, k, binary("add", j, binary("mul", line, LINE // size))))
    step = binary("mul", binary("floordiv", line, per_step), per_line)
    column = binary("mul", binary("floormod", line, per_step), LINE // size)
    return Prefetch(panel.w, (*lead, binary("add", k, step), binary("add", j, column)))


def _known(s: For) -> int | None:
    return int(s.extent.value) if isinstance(s.extent, Const) else None


def _most(s: For) -> int | None:
    """Steps of a loop at most (the last part of a reduction has fewer); None where it is not known."""
    ends = [s.extent.a, s.extent.b] if isinstance(s.extent, Binary) and s.extent.op == "min" else [s.extent]
    return min((int(e.value) for e in ends if isinstance(e, Const)), default=None)
