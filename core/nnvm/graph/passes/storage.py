"""Where blocks of known lifetime go in one arena.

Static sizes: greedy by size with best fit (Pisarchyk and Lee, "Efficient memory management for deep neural net
inference", 2020), from several orders; the best result counts. Sizes with names: who shares with whom is decided here,
on estimates; sizes and offsets are expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnvm.dim import Dim, dim_max, estimate

__all__ = ["ALIGNMENT", "Block", "Layout", "aligned", "assign_offsets", "peak_bytes"]

ALIGNMENT = 64
#: Value that a named size is taken to have when sharing is decided, where none is likely.
_ESTIMATE = 128
#: Orders tried in search of a smaller arena, and the blocks placed in all of them together.
_TRIES, _TRY_BLOCKS = 40, 6000
#: Times the lower bound: what chance is not asked to improve.
_GOOD_ENOUGH = 1.01


@dataclass(frozen=True)
class Block:
    """`size` bytes (a multiple of ALIGNMENT) that are needed from step `first` to step `last`, both included."""

    size: Dim
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """Offsets of the blocks in one arena of `total` bytes. Blocks with equal `storage` numbers share memory."""

    offsets: tuple[Dim, ...]
    storage: tuple[int, ...]
    total: Dim


def aligned(size: Dim) -> Dim:
    """`size` rounded up to a multiple of ALIGNMENT."""
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def peak_bytes(blocks: Sequence[Block], steps: int) -> list[Dim]:
    """Bytes of the blocks that are alive at each step; their maximum is a lower bound for any arena."""
    change: list[Dim] = [0] * (steps + 1)
    for b in blocks:
        change[b.first] = change[b.first] + b.size
        change[b.last + 1] = change[b.last + 1] - b.size
    live: list[Dim] = []
    total: Dim = 0
    for c in change[:steps]:
        total = total + c
        live.append(total)
    return live


def assign_offsets(blocks: Sequence[Block], steps: int) -> Layout:
    """Offsets such that blocks that are alive at one step do not overlap."""
    sizes = [b.size for b in blocks if isinstance(b.size, int)]
    if len(sizes) < len(blocks):
        return _share_storages(blocks)
    bound = max((x for x in peak_bytes(blocks, steps) if isinstance(x, int)), default=0)
    first = np.array([b.first for b in blocks], np.int64)
    last = np.array([b.last for b in blocks], np.int64)
    size = np.array(sizes, np.int64)
    span = last - first + 1
    orders = [np.lexsort((first, -size)), np.lexsort((-size, -span)), np.argsort(-size * span, kind="stable"),
              np.lexsort((-size, first)), np.lexsort((-size, -last))]  # fmt: skip
    best_total, best_order, best = np.iinfo(np.int64).max, orders[0], np.zeros(0, np.int64)
    for order in orders:
        offsets = _best_fit(order, first, last, size)
        total = int((offsets + size).max(initial=0))
        if total < best_total:
            best_total, best_order, best = total, order, offsets
        if total <= bound:
            break
    order, offsets, total = best_order, best, best_total
    tries = min(_TRIES, _TRY_BLOCKS // max(1, len(blocks)))
    for _ in range(tries):
        if best_total <= bound:
            break
        # what stands at the top is placed first the next time
        top = offsets + size == total
        order = np.concatenate((order[top[order]], order[~top[order]]))
        offsets = _best_fit(order, first, last, size)
        total = int((offsets + size).max(initial=0))
        if total < best_total:
            best_total, best = total, offsets
    rng = np.random.default_rng(0)
    weight = np.log(np.maximum(size * span, 1))
    for _ in range(tries):
        if best_total <= _GOOD_ENOUGH * bound:
            break
        # greedy with chance (Feo and Resende, "Greedy randomized adaptive search procedures", 1995)
        offsets = _best_fit(np.argsort(-weight - rng.normal(0, 0.7, len(blocks))), first, last, size)
        total = int((offsets + size).max(initial=0))
        if total < best_total:
            best_total, best = total, offsets
    return Layout(tuple(map(int, best)), tuple(range(len(blocks))), int(best_total))


def _best_fit(order: np.ndarray, first: np.ndarray, last: np.ndarray, size: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Places blocks in this order, each in the smallest gap that is free during its life."""
    offsets = np.zeros(len(order), np.int64)
    placed = np.zeros(len(order), bool)
    for b in order:
        clash = np.flatnonzero(placed & (first <= last[b]) & (last >= first[b]))
        if len(clash):
            begin = offsets[clash]
            rank = np.argsort(begin, kind="stable")
            begin, end = begin[rank], np.maximum.accumulate((begin + size[clash])[rank])
            gap_begin = np.concatenate(([0], end))
            gap = np.concatenate((begin, [np.iinfo(np.int64).max])) - gap_begin
            fits = gap >= size[b]
            offsets[b] = gap_begin[np.argmin(np.where(fits, gap, np.iinfo(np.int64).max))]
            if not fits[:-1].any():
                offsets[b] = gap_begin[-1]
        placed[b] = True
    return offsets


def _share_storages(blocks: Sequence[Block]) -> Layout:
    """Storages by a free list in order of time: one of equal size, or else the nearest by estimate, which grows."""
    order = sorted(range(len(blocks)), key=lambda i: (blocks[i].first, i))
    sizes: list[Dim] = []
    free_after: list[int] = []
    storage = [0] * len(blocks)
    for i in order:
        block = blocks[i]
        free = [s for s, until in enumerate(free_after) if until < block.first]
        chosen = _choose(block.size, free, sizes)
        if chosen is None:
            chosen = len(sizes)
            sizes.append(block.size)
            free_after.append(block.last)
        else:
            sizes[chosen] = dim_max(sizes[chosen], block.size)
            free_after[chosen] = block.last
        storage[i] = chosen
    starts: list[Dim] = []
    total: Dim = 0
    for s in sizes:
        starts.append(total)
        total = total + s
    return Layout(tuple(starts[s] for s in storage), tuple(storage), total)


def _choose(size: Dim, free: Sequence[int], sizes: Sequence[Dim]) -> int | None:
    for s in free:
        if sizes[s] == size:
            return s
    wanted = estimate(size, _ESTIMATE)
    likely = {s: estimate(sizes[s], _ESTIMATE) for s in free}
    near = [s for s in free if wanted <= 4 * likely[s] and likely[s] <= 16 * wanted]
    return min(near, key=lambda s: abs(likely[s] - wanted), default=None)
