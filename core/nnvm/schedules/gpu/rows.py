"""Row programs on a GPU: tiles of rows, in one of three ways.

*Persistent*: a whole row in the tile; what several passes need stays in registers (softmax, norms).
*Looped*: rows too long for that are walked in blocks, once for each pass, with a tile of partial results that is
reduced when the row is done. A mean and the deviations from it take one pass (`moments`).
*Window*: few elements a row, and neighbouring rows near each other in memory (pooling, depthwise convolution): one row
per lane, its elements one after the other.

The sources of reductions are guarded by the length of the row, with the neutral value outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nnvm.dim import ceildiv
from nnvm.dtype import DType
from nnvm.schedules.access import At, Held, all_affines, parts, rewrite_affine
from nnvm.schedules.axes import Axis, Write, collapse
from nnvm.schedules.emit import Emitter, dim_value
from nnvm.schedules.gpu.moments import with_moments, without_unused
from nnvm.schedules.gpu.tiles import PERSISTENT, Body, Cut, digits, guarded, next_power, warps, written
from nnvm.schedules.row_program import DEVIATIONS, Pass, Reduction, RowProgram, collapse_kept
from nnvm.te.expr import INDEX, Binary, Buffer, Cast, Const, Expr, Load, Reduce, Select, Var, binary, const
from nnvm.te.tensor import IterVar, Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.lower_reduce import combine, neutral, take
from nnvm.tir.stmt import Allocate, For, If, Let, Stmt, Store, seq

__all__ = ["rows_body"]

#: Elements of a tile.
TILE = 1024
#: Rows of a tile whose lanes lie along the rows' neighbours, and elements of each.
ACROSS_ROWS, ACROSS_STEP = 64, 32
#: Elements of a row that is a window, and how far apart in memory its neighbours are at most.
WINDOW, NEAR = 64, 4
#: Elements of a block of a long row.
LONG = 2048


def rows_body(program: RowProgram, space: Space) -> Body:
    """The launch of a row program without row buffers."""
    collapse_kept(program, space)
    _collapse_row(program, space)
    extent, length = program.kept_numel, program.row_numel
    across = _across(program)
    number = Var("program")
    if isinstance(length, int) and length <= WINDOW and _is_simple(program) and _near(program):
        size = min(256, next_power(extent)) if isinstance(extent, int) else 256
        x = Cut.of("x", extent, size, atom_affine(number), space)
        return Body(number, x.blocks, x.around(_Window(program, x, space).write()), 4)
    whole = next_power(length) if isinstance(length, int) else None
    most = TILE // (whole or LONG) or 1
    if across:
        most = ACROSS_ROWS
    size = min(most, next_power(extent)) if isinstance(extent, int) else most
    persistent = whole is not None and size * whole <= PERSISTENT
    step = whole if persistent and whole is not None else ACROSS_STEP if across else LONG
    if not persistent:
        program = without_unused(with_moments(program, space))
    x = Cut.of("x", extent, size, atom_affine(number), space)
    rows = (_Persistent if persistent else _Looped)(program, x, space, step)
    return Body(number, x.blocks, x.around(rows.write()), warps(size * step))


def _is_simple(program: RowProgram) -> bool:
    """One pass over whole rows, of reductions that combine elements."""
    (first, *more) = program.passes
    return not more and program.limit is None and all(r.op != DEVIATIONS for r in first.reductions)


def _collapse_row(program: RowProgram, space: Space) -> None:
    """Fewer row axes, where all passes allow it."""
    roots: list[Expr] = [e for p in program.passes for e in p.roots]
    forms = [*all_affines(roots), *(w.address for p in program.passes for w in p.writes)]
    row, env = collapse(program.row, forms, space)
    if env:
        memo: dict[int, Expr] = {}
        program.passes = [p.rewrite(space, env, memo) for p in program.passes]
        program.row = row


def _steps(program: RowProgram, axes: Sequence[Axis]) -> list[int]:
    """Elements between neighbours along any of `axes`, of all that the reductions read."""
    names = {a.var for a in axes}
    out: list[int] = []
    for e in parts(*(r.source for p in program.passes for r in p.reductions)):
        if isinstance(e, At):
            out += [abs(c) for a, c in e.address.terms.items() if a in names and isinstance(c, int)]
    return out


def _across(program: RowProgram) -> bool:
    """Are the inputs contiguous from row to row rather than along the row?"""
    return _steps(program, program.kept).count(1) > _steps(program, program.row).count(1)


def _near(program: RowProgram) -> bool:
    return min(_steps(program, program.kept), default=NEAR + 1) <= NEAR


@dataclass(eq=False)
class _Rows:
    """One tile of rows; `held` has the variable of each reduction's result."""

    program: RowProgram
    x: Cut
    space: Space
    step: int = 1
    held: dict[Tensor, Var] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.program
        for p in program.passes:
            self.held.update((r.tensor, Var(r.tensor.name, r.tensor.dtype)) for r in p.reductions)
        self.lane = Var("r")
        self.at = self.place()  # the position in the row
        self.space.bind(self.at, affine(0), affine(program.row_numel) - 1)
        self.emitter = Emitter(held=self._value)
        memo: dict[int, Expr] = {}
        env = {**digits(program.kept, atom_affine(self.x.index), self.space),
               **digits(program.row, atom_affine(self.at), self.space)}  # fmt: skip
        self.passes = [p.rewrite(self.space, env, memo) for p in program.passes]
        self.results = [w.rewrite(self.space, env, memo) for w in program.results]
        length = program.limit if program.limit is not None else affine(program.row_numel)
        self.length = rewrite_affine(self.space, length, env, memo)

    def _value(self, e: Held) -> Expr:
        return self.held[e.tensor]

    def place(self) -> Var:
        """The variable of the position in the row."""
        return self.lane

    def inside(self) -> Expr | None:
        """Whether the position is on the row; None where it always is."""
        length = self.program.row_numel
        if self.program.limit is None and length % self.step == 0 and length != 0:
            return None
        return binary("lt", self.at, self.emitter.index(self.length))

    def source(self, r: Reduction, inside: Expr | None) -> Expr:
        value = self.emitter.value(r.source)
        return value if inside is None else Select(inside, value, neutral(r.op, value.dtype))

    def stores(self, writes: Sequence[Write], inside: Expr | None) -> Stmt:
        body = written(writes, self.emitter)
        return body if inside is None else If(inside, body)

    def tile(self, body: Stmt) -> Stmt:
        """`body` for each lane along the row."""
        return For(self.lane, Const(self.step, INDEX), body, "tile")

    def axes(self) -> tuple[IterVar, ...]:
        return (IterVar(self.lane, self.step, "reduce"),)

    def number(self, count: Affine, dtype: DType) -> Expr:
        """A count as a float."""
        value = count.int
        return Cast(self.emitter.index(count), dtype) if value is None else const(float(value), dtype)

    def accumulator(self, r: Reduction, source: Expr, at: Expr, size: int) -> _Accumulator:
        """Partial results of a reduction, `size` of them, of which element `at` takes `source`."""
        value = Buffer(f"{r.tensor.name}_acc", (size,), source.dtype, None, "local")
        old = Load(value, (at,))
        start = Store(value, (at,), neutral(r.op, source.dtype))
        if r.index is None:
            return _Accumulator((value,), start, Store(value, (at,), combine(r.op, old, source)), old, None)
        place = Buffer(f"{r.tensor.name}_at", (size,), INDEX, None, "local")
        found = Load(place, (at,))
        best, index = take(r.op, (old, found), (source, self.emitter.value(r.index)))
        new, number = Var("best", source.dtype), Var("best_at")
        step = Let(new, best, Let(number, index, seq([Store(value, (at,), new), Store(place, (at,), number)])))
        return _Accumulator(
            (value, place), seq([start, Store(place, (at,), Const(INDEX.max, INDEX))]), step, old, found
        )


@dataclass(frozen=True, eq=False)
class _Accumulator:
    """Memory for partial results, what sets it, what takes one more source, and how it is read."""

    buffers: tuple[Buffer, ...]
    start: Stmt
    step: Stmt
    value: Expr
    index: Expr | None


def _allocated(made: Sequence[_Accumulator], body: Stmt) -> Stmt:
    for b in (b for a in reversed(made) for b in a.buffers):
        body = Allocate(b, body)
    return body


class _Persistent(_Rows):
    def write(self) -> Stmt:
        inside = self.inside()
        body: list[Stmt] = [written(self.results, self.emitter)] if self.results else []
        for p in reversed(self.passes):
            # what the stores need of this pass's reductions is bound around them
            if p.writes:
                body.insert(0, self.tile(self.stores(p.writes, inside)))
            for r in reversed(p.reductions):
                body = [Let(self.held[r.tensor], self._reduced(r, inside), seq(body))]
        return seq(body)

    def _reduced(self, r: Reduction, inside: Expr | None) -> Expr:
        if r.op == DEVIATIONS:
            assert r.about is not None
            mean = Binary("div", self.held[r.about], self.number(self.length, r.source.dtype))
            apart = Binary("sub", self.emitter.value(r.source), mean)
            return Reduce("sum", guarded(Binary("mul", apart, apart), inside), self.axes())
        index = None if r.index is None else self.emitter.value(r.index)
        return Reduce(r.op, self.source(r, inside), self.axes(), index)


class _Looped(_Rows):
    """Positions are `block * step + lane`, so the row axes are divisions of that."""

    def place(self) -> Var:
        self.block = Axis(Var("r_block"), ceildiv(self.program.row_numel, self.step)).bind(self.space)
        return Var("r_at")

    def write(self) -> Stmt:
        body: list[Stmt] = [written(self.results, self.emitter)] if self.results else []
        for p in reversed(self.passes):
            body = [self._pass(p, seq(body))] if p.reductions else [self._walk([self._stores(p)]), *body]
        return seq(body)

    def _stores(self, p: Pass) -> Stmt:
        return self.stores(p.writes, self.inside())

    def _walk(self, body: Sequence[Stmt]) -> Stmt:
        """`body` for each position of the row, a block at a time."""
        place = self.emitter.index(atom_affine(self.block.var) * self.step + atom_affine(self.lane))
        return For(self.block.var, dim_value(self.block.extent), self.tile(Let(self.at, place, seq(body))), "serial")

    def _pass(self, p: Pass, rest: Stmt) -> Stmt:
        inside = self.inside()
        made = []
        for r in p.reductions:
            if r.op == DEVIATIONS:
                a, rest = self._deviations(r, inside, rest)
            else:
                a = self.accumulator(r, self.source(r, inside), self.lane, self.step)
                rest = Let(self.held[r.tensor], Reduce(r.op, a.value, self.axes(), a.index), rest)
            made.append(a)
        steps = [a.step for a in made]
        if p.writes:
            steps.append(self._stores(p))
        begin = self.tile(seq([a.start for a in made]))
        return _allocated(made, seq([begin, self._walk(steps), rest]))

    def _deviations(self, r: Reduction, inside: Expr | None, rest: Stmt) -> tuple[_Accumulator, Stmt]:
        """Each lane's mean and sum of squared deviations, which all lanes together give in `rest`.

        The k-th element of a lane, x, moves its mean by (x - mean) / k.
        """
        t, name = r.source.dtype, r.tensor.name
        means, squares = (Buffer(f"{name}_{what}", (self.step,), t, None, "local") for what in ("mean", "acc"))
        mean, square = Load(means, (self.lane,)), Load(squares, (self.lane,))
        start = seq([Store(b, (self.lane,), const(0.0, t)) for b in (means, squares)])
        k = self.number(atom_affine(self.block.var) + 1, t)
        apart, move = Var("apart", t), Var("move", t)
        step = Let(apart, guarded(Binary("sub", self.emitter.value(r.source), mean), inside),
                   Let(move, Binary("mul", apart, Binary("div", const(1.0, t), k)), seq([
                       Store(means, (self.lane,), Binary("add", mean, move)),
                       Store(squares, (self.lane,),
                             Binary("add", square, Binary("mul", apart, Binary("sub", apart, move))))])))  # fmt: skip
        count = self._lane_count(t)
        whole = Var(f"{name}_of", t)
        total = Reduce("sum", Binary("mul", count, mean), self.axes())
        off = Binary("sub", mean, whole)
        between = Binary("add", square, Binary("mul", count, Binary("mul", off, off)))
        rest = Let(whole, Binary("div", total, self.number(self.length, t)),
                   Let(self.held[r.tensor], Reduce("sum", between, self.axes()), rest))  # fmt: skip
        return _Accumulator((means, squares), start, step, square, None), rest

    def _lane_count(self, dtype: DType) -> Expr:
        """Elements of the row that a lane takes."""
        step = affine(self.step)
        full, left = self.space.floordiv(self.length, step), self.space.floormod(self.length, step)
        if left.int == 0:
            return self.number(full, dtype)
        more = binary("lt", self.lane, self.emitter.index(left))
        return Select(more, self.number(full + 1, dtype), self.number(full, dtype))


class _Window(_Rows):
    def inside(self) -> Expr | None:
        return None

    def write(self) -> Stmt:
        (p,) = self.passes
        body: Stmt = written(self.results, self.emitter)
        made = [self.accumulator(r, self.emitter.value(r.source), Const(0, INDEX), 1) for r in p.reductions]
        for r, a in zip(p.reductions, made):
            body = Let(self.held[r.tensor], a.value if a.index is None else a.index, body)
        steps = [a.step for a in made]
        if p.writes:
            steps.append(written(p.writes, self.emitter))
        walk = For(self.lane, dim_value(self.program.row_numel), seq(steps), "unrolled")
        return _allocated(made, seq([*(a.start for a in made), walk, body]))
