"""Reductions with too few rows to keep a GPU busy: each row in parts, then the parts.

    sum over r of x[i, r]   ->   part[i, s] = sum over r' of x[i, s * c + r'];   sum over s of part[i, s]

Sums of squared deviations from a mean are combined by the formula of T. F. Chan, G. H. Golub and R. J. LeVeque (1983):
to those of each part come those of its mean. A row program of several passes goes pass by pass, with the results of
each in memory. A product with a small result and a long sum is split the same way (split-K).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nnvm.dim import numel
from nnvm.dtype import DType
from nnvm.schedules.access import At, Held, Index, Source, parts, rewrite
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.gpu.matmul import BUSY, Product, tile_shape
from nnvm.schedules.gpu.tiles import PERSISTENT, digits, next_power
from nnvm.schedules.row_program import DEVIATIONS, Pass, Reduction, RowProgram
from nnvm.te.expr import Binary, Buffer, Cast, Expr, Var, const
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine

__all__ = ["Stages", "part_of_product", "part_of_rows", "split", "stages_of"]

#: Elements of a part of a row, at least, and of a row of several passes, each of which becomes launches of its own.
PART, SEVERAL = 2048, 1 << 16
#: Steps of a part of a product, at least.
STEPS = 256


def part_of_rows(program: RowProgram) -> int | None:
    """How many elements of each row go into a part; None: rows stay whole."""
    rows, length = program.kept_numel, program.row_numel
    if not isinstance(rows, int) or not isinstance(length, int) or not _can_split(program):
        return None
    if length < SEVERAL and not _is_plain(program):
        return None
    parts = min(length // PART, -(-2 * BUSY // max(rows, 1)))
    if parts < 2:
        return None
    # as long as a tile, or some tiles of a loop: no lane is idle, and all parts begin where accesses are wide
    chunk = -(-length // parts)
    whole = next_power(chunk)
    return -(-chunk // PART) * PART if chunk > PERSISTENT else whole if chunk > whole * 3 // 4 else whole // 2


def part_of_product(product: Product, program: RowProgram) -> int | None:
    """How many steps of the sum go into a part, all as long; None: it stays whole."""
    m, n, k = product.sizes
    batch = numel(tuple(a.extent for a in product.batch))
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(batch, int)):
        return None
    if not _can_split(program) or not _is_plain(program):
        return None
    shape = tile_shape(m, n, batch, product.element, len(product.steps) > 1)
    programs = -(-m // shape.m) * -(-n // shape.n) * batch
    wanted = min(k // STEPS, BUSY // max(programs, 1))
    return next((k // s for s in range(wanted, 1, -1) if k % s == 0), None)


def _can_split(program: RowProgram) -> bool:
    """Whether parts can be combined by the reductions themselves."""
    return all(r.index is None for p in program.passes for r in p.reductions)


def _is_plain(program: RowProgram) -> bool:
    """One pass, with results once a row."""
    (first, *more) = program.passes
    return not more and not first.writes


@dataclass(eq=False)
class Stages:
    """A row program as launches of their own.

    Attributes:
        steps: in order: row programs of one pass with results once a row, and (writes, axes) over all elements.
        scratch: the memory in between.
    """

    steps: list[RowProgram | tuple[list[Write], list[Axis]]] = field(default_factory=list)
    scratch: list[Buffer] = field(default_factory=list)


def stages_of(program: RowProgram, space: Space) -> Stages:
    """`program` pass by pass, what a pass reduces in memory for those after it."""
    out, memo = Stages(), dict[int, Expr]()
    kept, row = program.kept, program.row
    rows = numel(tuple(a.extent for a in kept))
    last = max(i for i, p in enumerate(program.passes) if p.reductions)
    alive: list[Expr] = []  # their ids are in the memo
    for i, p in enumerate(program.passes):
        now = p.rewrite(space, {}, memo)
        if now.writes:
            out.steps.append((now.writes, [*kept, *row]))
        if not now.reductions:
            continue
        results = [w.rewrite(space, {}, memo) for w in program.results] if i == last else []
        roots = [e for q in program.passes[i + 1 :] for e in q.roots]
        roots += [] if i == last else [w.value for w in program.results]
        needed = [e for e in parts(*roots) if isinstance(e, Held)]
        for t in (r.tensor for r in now.reductions):
            uses = [e for e in needed if e.tensor is t]
            if not uses:
                continue
            place = Source(Buffer(f"stage{len(out.scratch)}", (rows,), uses[0].dtype), (1,))
            out.scratch.append(place.buffer)
            address = _position(kept)
            results.append(Write(place, address, Held(t, ())))
            memo.update((id(e), At(place, address)) for e in uses)
            alive += uses
        out.steps.append(RowProgram(kept, row, [Pass(now.reductions)], results, [], []))
    return out


def split(program: RowProgram, chunk: int, space: Space) -> tuple[RowProgram, RowProgram, list[Buffer]]:
    """The program that makes parts of `chunk` elements, the one that combines them, and the memory in between."""
    length = program.row_numel
    assert isinstance(length, int)
    parts = -(-length // chunk)
    s, r = Axis(Var("part"), parts).bind(space), Axis(Var("r"), chunk).bind(space)
    env = digits(program.row, atom_affine(s.var) * chunk + atom_affine(r.var), space)
    kept = [Axis(Var(a.var.name), a.extent).bind(space) for a in program.kept]
    again = {old.var: atom_affine(new.var) for old, new in zip(program.kept, kept)}
    t = Axis(Var("part"), parts).bind(space)
    first, second, third = Pass(), Pass(), Pass()
    results: list[Write] = []
    made: dict[Tensor, Expr] = {}
    scratch: list[Buffer] = []
    memo: dict[int, Expr] = {}
    for old in program.passes[0].reductions:
        source = rewrite(space, old.source, env, memo=memo)
        size = numel(tuple(a.extent for a in program.kept)) * parts
        place = Source(Buffer(f"part{len(scratch)}", (size,), source.dtype), (1,))
        scratch.append(place.buffer)
        first.reductions.append(Reduction(old.tensor, old.op, source, about=old.about))
        results.append(Write(place, _position([*program.kept, s]), Held(old.tensor, ())))
        part = made[old.tensor] = At(place, _position([*kept, t]))
        if old.op != DEVIATIONS:
            second.reductions.append(Reduction(old.tensor, old.op, part))
            continue
        assert old.about is not None
        count = _count(_length(t, chunk, length, space), source.dtype)
        mean = Binary("div", Held(old.about, ()), const(float(length), source.dtype))
        off = Binary("sub", Binary("div", made[old.about], count), mean)
        between = Binary("mul", count, Binary("mul", off, off))
        third.reductions.append(Reduction(old.tensor, "sum", Binary("add", part, between)))
    limit = None if chunk * parts == length else _length(s, chunk, length, space)
    making = RowProgram([*program.kept, s], [r], [first], results, [], [], limit)
    memo = {}
    final = [w.rewrite(space, dict(again), memo) for w in program.results]
    passes = [p for p in (second, third) if p.reductions]
    return making, RowProgram(kept, [t], passes, final, [], program.rest), scratch


def _length(part: Axis, chunk: int, length: int, space: Space) -> Affine:
    """Elements of a part; the last may have fewer than the others."""
    return space.minimum(affine(chunk), affine(length) - atom_affine(part.var) * chunk)


def _count(n: Affine, dtype: DType) -> Expr:
    return const(float(n.int), dtype) if n.int is not None else Cast(Index(n), dtype)


def _position(axes: list[Axis]) -> Affine:
    """Where a result lies: row by row, the parts of a row side by side."""
    total = affine(0)
    for a in axes:
        total = total * a.extent + atom_affine(a.var)
    return total
