"""Reductions with too few rows to keep a GPU busy: each row in parts, then the parts.

    sum over r of x[i, r]   ->   part[i, s] = sum over r' of x[i, s * c + r'];   sum over s of part[i, s]

A product with a small result and a long sum is split the same way (split-K).
"""

from __future__ import annotations

from nnvm.dim import numel
from nnvm.schedules.access import At, Held, Index, Source, rewrite
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.gpu.matmul import BUSY, Product, tile_shape
from nnvm.schedules.gpu.tiles import digits
from nnvm.schedules.row_program import Pass, Reduction, RowProgram
from nnvm.te.expr import Binary, Buffer, Expr, Select, Var
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.lower_reduce import neutral

__all__ = ["parts_of_product", "parts_of_rows", "split"]

#: Elements of a part of a row, and steps of a part of a product, at least.
PART, STEPS = 2048, 256


def parts_of_rows(program: RowProgram) -> int:
    """Into how many parts each row goes; 1: it stays whole."""
    rows, length = program.kept_numel, program.row_numel
    if not isinstance(rows, int) or not isinstance(length, int) or not _can_split(program):
        return 1
    return max(1, min(length // PART, -(-2 * BUSY // max(rows, 1))))


def parts_of_product(product: Product, program: RowProgram) -> int:
    """Into how many parts of equal length the sum goes; 1: it stays whole."""
    m, n, k = product.sizes
    batch = numel(tuple(a.extent for a in product.batch))
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(batch, int)):
        return 1
    if not _can_split(program):
        return 1
    shape = tile_shape(m, n, batch, product.element, len(product.steps) > 1)
    programs = -(-m // shape.m) * -(-n // shape.n) * batch
    wanted = min(k // STEPS, BUSY // max(programs, 1))
    return next((s for s in range(wanted, 1, -1) if k % s == 0), 1)


def _can_split(program: RowProgram) -> bool:
    """Whether parts can be combined by the reductions themselves."""
    (first, *more) = program.passes
    return not more and not first.writes and all(r.index is None for r in first.reductions)


def split(program: RowProgram, parts: int, space: Space) -> tuple[RowProgram, RowProgram, list[Buffer]]:
    """The program that makes the parts, the one that combines them, and the memory in between."""
    length = program.row_numel
    assert isinstance(length, int)
    chunk = -(-length // parts)
    s, r = Axis(Var("part"), parts).bind(space), Axis(Var("r"), chunk).bind(space)
    position = atom_affine(s.var) * chunk + atom_affine(r.var)
    env = digits(program.row, position, space)
    kept = [Axis(Var(a.var.name), a.extent).bind(space) for a in program.kept]
    again = {old.var: atom_affine(new.var) for old, new in zip(program.kept, kept)}
    t = Axis(Var("part"), parts).bind(space)
    first, second = Pass(), Pass()
    results: list[Write] = []
    scratch: list[Buffer] = []
    memo: dict[int, Expr] = {}
    for old in program.passes[0].reductions:
        source = rewrite(space, old.source, env, memo=memo)
        if chunk * parts != length:
            inside = Binary("lt", Index(position), Index(affine(length)))
            source = Select(inside, source, neutral(old.op, source.dtype))
        size = numel(tuple(a.extent for a in program.kept)) * parts
        place = Source(Buffer(f"part{len(scratch)}", (size,), source.dtype), (1,))
        scratch.append(place.buffer)
        first.reductions.append(Reduction(old.tensor, old.op, source))
        results.append(Write(place, _position(program.kept, parts, s), Held(old.tensor, ())))
        second.reductions.append(Reduction(old.tensor, old.op, At(place, _position(kept, parts, t))))
    making = RowProgram([*program.kept, s], [r], [first], results, [], [])
    memo = {}
    final = [w.rewrite(space, dict(again), memo) for w in program.results]
    return making, RowProgram(kept, [t], [second], final, [], program.rest), scratch


def _position(kept: list[Axis], parts: int, part: Axis) -> Affine:
    """Where a part lies: row by row, the parts of a row side by side."""
    total = affine(0)
    for a in kept:
        total = total * a.extent + atom_affine(a.var)
    return total * parts + atom_affine(part.var)
