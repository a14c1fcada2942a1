"""Squares of as many vectors as a vector has lanes, transposed in registers.

    a0 a1 a2 a3        a0 b0 c0 d0
    b0 b1 b2 b3   ->   a1 b1 c1 d1
    c0 c1 c2 c3        a2 b2 c2 d2
    d0 d1 d2 d3        a3 b3 c3 d3

Processors shuffle within blocks of 16 bytes, or whole such blocks, so it is done in two parts: squares of a block's
side inside of all blocks (each stage interleaves two vectors: log2 of them are a transposition), then the blocks (each
stage takes the even ones of two vectors, and the odd ones). A vector costs log2(lanes) shuffles, where reading with a
stride costs a load and an insertion for each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnvm.te.expr import Expr, Shuffle, Var
from nnvm.tir.stmt import Let, Stmt

__all__ = ["transposed"]

#: Bytes of a block within which lanes are shuffled.
BLOCK = 16


def transposed(rows: Sequence[Expr], store: Callable[[list[Expr]], Stmt]) -> Stmt:
    """`store` of the columns of `rows`: n vectors of n lanes, n a power of 2."""
    n, first = len(rows), rows[0]
    inside = min(n, max(1, BLOCK // first.dtype.bytes))
    lets: list[tuple[Var, Expr]] = []

    def let(e: Expr) -> Expr:
        lets.append((Var(f"x{len(lets)}", e.dtype, e.lanes), e))
        return lets[-1][0]

    vectors = [let(r) for r in rows]
    low, high = _interleaved(n, inside)
    groups = [vectors[i : i + inside] for i in range(0, n, inside)]
    for i, group in enumerate(groups):
        for _ in range(inside.bit_length() - 1):
            pairs = list(zip(group[: inside // 2], group[inside // 2 :]))
            group = [let(Shuffle(a, b, order)) for a, b in pairs for order in (low, high)]
        groups[i] = group
    even, odd = _alternate(n, inside)
    columns: list[Expr] = [first] * n
    for j, column in enumerate(zip(*groups)):  # block b of the vector of group g holds rows of g, column b * inside + j
        blocks = list(column)
        for _ in range(len(groups).bit_length() - 1):
            pairs = list(zip(blocks[::2], blocks[1::2]))
            blocks = [let(Shuffle(a, b, order)) for order in (even, odd) for a, b in pairs]
        for b, value in enumerate(blocks):
            columns[b * inside + j] = value
    body = store(columns)
    for var, value in reversed(lets):
        body = Let(var, value, body)
    return body


def _interleaved(n: int, inside: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lower halves of all blocks of two vectors lane by lane, and the upper halves."""
    half = inside // 2
    orders = [[b + start + i // 2 + i % 2 * n for b in range(0, n, inside) for i in range(inside)]
              for start in (0, half)]  # fmt: skip
    return tuple(orders[0]), tuple(orders[1])


def _alternate(n: int, inside: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The blocks of even numbers of two vectors, one behind the other, and those of odd numbers."""
    orders = [[b + i for b in range(start, 2 * n, 2 * inside) for i in range(inside)] for start in (0, inside)]
    return tuple(orders[0]), tuple(orders[1])
