"""Memory on large pages, for weights and activations.

A core that streams through megabytes waits for the translation of addresses: from pages of 2 MB one reads up to 1.5
times as fast as from pages of 4 KB, most of all in virtual machines, where a translation looks through two tables.
Linux gives large pages where a program asks for them (``/sys/kernel/mm/transparent_hugepage/enabled`` says ``madvise``,
as is usual, or ``always``); elsewhere this is memory as any other.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from pathlib import Path

__all__ = ["LARGE", "large_memory"]

#: Bytes from which on memory is on large pages; a usual size of one.
LARGE = 2 << 20


@cache
def _page_bytes() -> int:
    """Bytes of a large page; 0 where there are none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return 0
    try:
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


def large_memory(nbytes: int) -> memoryview | None:
    """So many new bytes, which are 0, on large pages as far as these go; None where there are none or that is too
    little for one. The memory goes with the last object that looks at it.

    Raises:
        MemoryError: so many cannot be had.
    """
    page = _page_bytes()
    if not page or nbytes < max(page, LARGE):
        return None
    try:
        whole = mmap.mmap(-1, nbytes + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a child has its own
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes cannot be had") from error
    start = -ctypes.addressof(ctypes.c_char.from_buffer(whole)) % page
    try:
        whole.madvise(mmap.MADV_HUGEPAGE, start, nbytes)
    except OSError:
        return None  # a kernel without them
    return memoryview(whole)[start : start + nbytes]
