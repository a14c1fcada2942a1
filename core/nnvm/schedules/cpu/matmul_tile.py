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
) -> Stmt:  # fmt: skip
    """sum over k < steps of left(row, k) * right(k, column), handed to `store(row, column, element, emitter)`.

    `row` counts from 0 to rows - 1; `column` is that of a whole vector, with the lane in it.
    """
    count = tile.lanes.count
    acc = Buffer("acc", (tile.rows * tile.vectors * count,), tile.dtype, None, "local")
    source = Source(acc, (1,))
    k, r, v = Var("k"), Var("r"), Var("v")
    lane = atom_affine(tile.lanes.lane)
    space.bind(k, affine(0), steps - 1)
    row = atom_affine(r) if tile.rows > 1 else affine(0)
    vector = atom_affine(v) if tile.vectors > 1 else affine(0)
    column = vector * count + lane
    place = (row * tile.vectors + vector) * count + lane
    emitter = Emitter(tile.lanes, tile.mask)
    at = (emitter.index(place),)
    product = Fma(
        emitter.vector(left(row, atom_affine(k))), emitter.vector(right(atom_affine(k), column)), Load(acc, at)
    )

    def all_tile(body: Stmt) -> Stmt:
        body = For(v, Const(tile.vectors, INDEX), body, "unrolled") if tile.vectors > 1 else body
        return For(r, Const(tile.rows, INDEX), body, "unrolled") if tile.rows > 1 else body

    zero = broadcast(Const(0.0, tile.dtype), count)
    start = seq([Store(acc, (Ramp(Const(i * count, INDEX), 1, count),), zero) for i in range(tile.rows * tile.vectors)])
    main = For(k, emitter.index(steps), all_tile(Store(acc, at, product)))
    end = all_tile(store(row, column, At(source, place), Emitter(tile.lanes, tile.mask)))
    return Allocate(acc, seq([start, main, end]))
