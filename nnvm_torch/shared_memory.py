"""Memory that arguments of a call share and that the call writes to.

A compiled graph takes its arguments to share none: otherwise what it writes to one would have to show in another.
Dynamo asks at each call whether two arguments are one object, and not whether they overlap (`x[:-1]` and `x[1:]`), so
that calls of graphs that write to arguments are asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from nnvm_torch.tensors import copy_elements, extent, span

__all__ = ["SharedMemory", "apart", "overlap", "written_inputs"]

Pairs = frozenset[tuple[int, int]]
Ints = tuple[int, ...]
#: Candidates for a common element that are tried, some nanoseconds each.
MAX_WORK = 10_000
_SOMEWHERE = 1 << 50


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

    def pairs(self, args: Sequence[Any], exact: bool = True) -> Pairs:
        """Positions of two arguments each. O(n log n) of those looked at, by the addresses of their first and last
        elements; with `exact`, a closer look at those of which one begins before the other ends."""
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
                if (i in self._written or j in self._written) and (not exact or overlap(args[i], args[j])):
                    pairs.add((min(i, j), max(i, j)))
        return frozenset(pairs)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Does an element of `a` share memory with one of `b`, where their extents do?

    Exact for any strides (`numpy.shares_memory`, a bounded search for a solution of a linear Diophantine equation);
    what is not found out in `MAX_WORK` steps counts as sharing."""
    if a.numel() == span(a) and b.numel() == span(b):
        return True
    return _meet(a.shape, a.stride(), a.element_size(), b.shape, b.stride(), b.element_size(),
                 b.data_ptr() - a.data_ptr())  # fmt: skip


@lru_cache(maxsize=1024)
def _meet(
    shape: Ints, strides: Ints, size: int, other: Ints, other_strides: Ints, other_size: int, distance: int
) -> bool:
    """`overlap` of tensors that begin `distance` bytes from each other."""
    first = _lies(_SOMEWHERE, shape, strides, size)
    second = _lies(_SOMEWHERE + distance, other, other_strides, other_size)
    try:
        return np.shares_memory(first, second, max_work=cast(Any, MAX_WORK))
    except np.exceptions.TooHardError:
        return True


def _lies(address: int, shape: Ints, strides: Ints, size: int) -> Any:
    """An array for numpy to look at, of elements that are not there."""
    return np.asarray(SimpleNamespace(__array_interface__={
        "version": 3, "shape": tuple(shape), "typestr": f"|V{size}", "data": (address, True),
        "strides": tuple([s * size for s in strides]),
    }))  # fmt: skip


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


def _copied(t: torch.Tensor) -> torch.Tensor:
    """A copy with the strides and the offset of `t`, in memory of its own; no leaf of autograd's graph where `t` is
    none."""
    with torch.no_grad():
        memory = torch.empty(t.storage_offset() + span(t), dtype=t.dtype, device=t.device)
        copy = memory.as_strided(t.shape, t.stride(), t.storage_offset()).data
        copy_elements(copy, t.detach())
    if t.is_leaf:
        return copy.requires_grad_(t.requires_grad)
    with torch.enable_grad():
        derived = cast(Any, _Derived).apply(torch.empty((), requires_grad=True), lambda: copy)
        return cast("torch.Tensor", derived)


class _Derived(torch.autograd.Function):
    """A tensor as the result of something, and as no view."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, tensor: Callable[[], torch.Tensor]) -> torch.Tensor:
        return tensor()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.sum(), None
