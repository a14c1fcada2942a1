"""Memory that arguments of a call share and that the call writes to.

A compiled graph takes its arguments to share none: otherwise what it writes to one would have to show in another.
Dynamo asks at each call whether two arguments are one object, and not whether they overlap (`x[:-1]` and `x[1:]`), so
that calls of graphs that write to arguments are asked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nnvm_torch.tensors import extent, laid_out

__all__ = ["SharedMemory", "apart", "written_inputs"]

Pairs = frozenset[tuple[int, int]]


def written_inputs(context: Any, count: int, first: int = 0) -> tuple[int, ...]:
    """Positions, among `count` inputs of the graph that AOTAutograd is at in `context` (``TracingContext``), of those
    that it found written to; where it does not tell which, all from `first` on."""
    inputs = getattr(getattr(context, "fw_metadata", None), "input_info", None)
    if inputs is not None and len(inputs) == count:
        return tuple(i for i, info in enumerate(inputs) if info.mutates_data)
    if inputs is not None and not any(info.mutates_data for info in inputs):
        return ()
    return tuple(range(first, count))


class SharedMemory:
    """Which arguments share memory with one that is written to.

    Args:
        written: positions of arguments that are written to.
        looked: positions of those that may share memory with these; parameters are taken not to.
    """

    def __init__(self, written: Sequence[int], looked: Sequence[int]) -> None:
        self._written = frozenset(written)
        self._positions = sorted({*written, *looked})
        #: Is there anything to find out?
        self.matters = bool(written) and len(self._positions) > 1

    def pairs(self, args: Sequence[Any]) -> Pairs:
        """Positions of two arguments each. O(n log n) of those looked at, by the addresses of their first and last
        elements: tensors that lie between each other's elements count as sharing memory."""
        found = []
        for i in self._positions:
            t = args[i]
            if isinstance(t, torch.Tensor) and (here := extent(t)) is not None:
                found.append((*here, i))
        found.sort()
        pairs = set()
        for n, (_, end, i) in enumerate(found):
            for start, _, j in found[n + 1 :]:
                if start >= end:
                    break
                if i in self._written or j in self._written:
                    pairs.add((min(i, j), max(i, j)))
        return frozenset(pairs)


def apart(leaves: Sequence[Any], weights: Sequence[torch.Tensor] = ()) -> list[Any]:
    """The arguments; those that share memory with one before them, or with a weight, as copies: a trace would take
    them to be the same at every call."""
    taken = [overlap for t in weights if (overlap := extent(t)) is not None]
    out: list[Any] = []
    for x in leaves:
        here = extent(x) if isinstance(x, torch.Tensor) else None
        if here is not None:
            if any(low < here[1] and here[0] < high for low, high in taken):
                x = _copied(x)
            taken.append(here)
        out.append(x)
    return out


@torch.enable_grad()
def _copied(t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        copy = laid_out(t.detach().clone(), t.stride())
    if not t.requires_grad:
        return copy
    copy.requires_grad_()
    return copy if t.is_leaf else copy.view_as(copy).clone()
