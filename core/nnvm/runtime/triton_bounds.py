"""Accesses of interpreted kernels, held against the buffers that they were given.

On a GPU a lane that a mask forgets reads or writes whatever is there, mostly unnoticed; here it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from nnvm.kernel_error import KernelError

__all__ = ["OutsideError", "within"]

Array = np.ndarray[Any, Any]


class OutsideError(KernelError):
    """A kernel reads or writes outside of its buffers: a fault of the compiler."""


class _Buffers:
    """Where a kernel may read and write: (address, bytes) of each buffer; such as overlap or touch are one."""

    def __init__(self, name: str, buffers: Sequence[tuple[int, int]]) -> None:
        self.name = name
        merged: list[list[int]] = []
        for start, size in sorted(buffers):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], start + size)
            else:
                merged.append([start, start + size])
        self.starts, self.ends = (np.array([m[i] for m in merged], np.uint64) for i in range(2))

    def check(self, what: str, pointers: Any, mask: Any) -> None:
        """OutsideError where an element is outside whose lane the mask lets through."""
        bits = pointers.get_element_ty().primitive_bitwidth
        addresses: Array = pointers.data[np.broadcast_to(mask.data.astype(bool), pointers.data.shape)].reshape(-1)
        if not addresses.size:
            return
        place = np.searchsorted(self.starts, addresses, side="right").astype(np.int64) - 1
        wrong = place < 0
        wrong |= addresses + np.uint64(max(bits // 8, 1)) > self.ends[np.maximum(place, 0)]
        if not wrong.any():
            return
        first = int(np.argmax(wrong))
        buffer = max(int(place[first]), 0)
        start, end = int(self.starts[buffer]), int(self.ends[buffer])
        raise OutsideError(f"{self.name} {what} outside of its buffers: {int(wrong.sum())} of {addresses.size} "
                           f"elements, the first at byte {int(addresses[first]) - start} of {end - start}")  # fmt: skip


_current: list[_Buffers] = []


@contextmanager
def within(name: str, buffers: Sequence[tuple[int, int]] | None) -> Iterator[None]:
    """Inside, the kernel `name` may read and write these buffers, (address, bytes) each, only; None: all memory."""
    if buffers is None:
        yield
        return
    _watch()
    _current.append(_Buffers(name, buffers))
    try:
        yield
    finally:
        _current.pop()


@lru_cache(maxsize=1)
def _watch() -> None:
    """Makes the interpreter tell of its accesses."""
    from triton.runtime.interpreter import interpreter_builder as builder

    load, store, combine = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

    def checked_load(pointers: Any, mask: Any, *more: Any) -> Any:
        if _current:
            _current[-1].check("reads", pointers, mask)
        return load(pointers, mask, *more)

    def checked_store(pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        if _current:
            _current[-1].check("writes", pointers, mask)
        return store(pointers, value, mask, *more)

    def checked_combine(op: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        if _current:
            _current[-1].check("writes", pointers, mask)
        return combine(op, pointers, value, mask, *more)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    builder.create_atomic_rmw = checked_combine
