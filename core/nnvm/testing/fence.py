"""Arrays that a read or a write too far does not survive: they end, or begin, where a page must not be touched."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

__all__ = ["fenced"]

_LIBC = ctypes.CDLL(None, use_errno=True)


def fenced(a: np.ndarray[Any, Any], before: bool = False) -> np.ndarray[Any, Any]:
    """A contiguous copy of `a` that ends (or begins) where the next (or previous) page must not be touched.

    Raises:
        OSError: the system protects no pages.
    """
    page = mmap.PAGESIZE
    room = -(-max(a.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + 2 * page)  # the array keeps it
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (base, base + page + room):
        if _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = page if before else page + room - a.nbytes
    out: np.ndarray[Any, Any] = np.frombuffer(memory, a.dtype, a.size, offset).reshape(a.shape)
    out[...] = a
    return out
