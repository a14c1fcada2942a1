"""A register tile of a matrix product: rows x vectors of accumulators, one pass over the reduced axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnvm.dtype import DType
from nnvm.schedules.access import At, Source
from nnvm.schedules.emit import Emitter, Lanes, broadcast
from nnvm.te.expr import INDEX, Buffer, Const, Expr, Fma, Load, Ramp, Var
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, For, Stmt, Store, seq

__all__ = ["Tile", "matmul_tile"]


@dataclass(frozen=True, eq=False)
class Tile:
    """`rows` x `vectors` accumulators of type `dtype`; in the last vector only the lanes of `mask` count."""

    rows: int
    vectors: int
    lanes: Lanes
    dtype: DType
    mask: Expr | None = None


def matmul_tile(
    tile: Tile, steps: Affine, left: Callable[[Affine, Affine], Expr], right: Callable[[Affine, Affine], Expr],
    store: Callable[[Affine, Affine, Expr, Emitter], Stmt], space: Space,
    hints: Callable[[Affine], Stmt] | None = None, together: int = 1,
) -> Stmt:  # fmt: skip
    """sum over k < steps of left(row, k) * right(k, column), handed to `store(row, column, element, emitter)`.

    `row` counts from 0 to rows - 1; `column` is that of a whole vector, with the lane in it. Of the steps, `together`
    (which divides their number) are written out one after the other, `hints(n)` before those from `n * together` on.
    """
    count = tile.lanes.count
    acc = Buffer("acc", (tile.rows * tile.vectors * count,), tile.dtype, None, "local")
    source = Source(acc, (1,))
    k, ki, r, v = Var("k"), Var("ki"), Var("r"), Var("v")
    lane = atom_affine(tile.lanes.lane)
    count_k = space.floordiv(steps, affine(together)) if together > 1 else steps
    space.bind(k, affine(0), count_k - 1)
    space.bind(ki, affine(0), affine(together - 1))
    step = atom_affine(k) if together == 1 else atom_affine(k) * together + atom_affine(ki)
    row = atom_affine(r) if tile.rows > 1 else affine(0)
    vector = atom_affine(v) if tile.vectors > 1 else affine(0)
    column = vector * count + lane
    place = (row * tile.vectors + vector) * count + lane
    emitter = Emitter(tile.lanes, tile.mask)
    at = (emitter.index(place),)
    product = Fma(emitter.vector(left(row, step)), emitter.vector(right(step, column)), Load(acc, at))

    def all_tile(body: Stmt) -> Stmt:
        body = For(v, Const(tile.vectors, INDEX), body, "unrolled") if tile.vectors > 1 else body
        return For(r, Const(tile.rows, INDEX), body, "unrolled") if tile.rows > 1 else body

    zero = broadcast(Const(0.0, tile.dtype), count)
    start = seq([Store(acc, (Ramp(Const(i * count, INDEX), 1, count),), zero) for i in range(tile.rows * tile.vectors)])
    body = all_tile(Store(acc, at, product))
    body = body if together == 1 else For(ki, Const(together, INDEX), body, "unrolled")
    main = For(k, emitter.index(count_k), body if hints is None else seq([hints(atom_affine(k)), body]))
    end = all_tile(store(row, column, At(source, place), Emitter(tile.lanes, tile.mask)))
    return Allocate(acc, seq([start, main, end]))
