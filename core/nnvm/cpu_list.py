"""Sets of processors: those that this process may use, and lists of them as Linux and users write them (``0-3,8``)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["count_usable_cpus", "parse_cpu_list", "read_cpu_list"]

#: No machine has more; a list such as ``0-999999999`` is a slip.
_MOST = 1 << 16


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """``0-3,8`` as (0, 1, 2, 3, 8), in the order of the text; ValueError where it is no such list."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        low, dash, high = part.strip().partition("-")
        first, last = int(low), int(high) if dash else int(low)
        if not 0 <= first <= last < _MOST:
            raise ValueError(f"{part.strip()!r} is no range of processors")
        cpus.extend(range(first, last + 1))
    return tuple(cpus)


def read_cpu_list(path: Path) -> tuple[int, ...]:
    """The list in a file of Linux's /sys; empty where there is no such file or no list in it."""
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return ()


def count_usable_cpus() -> int:
    """Processors that this process may use, which affinity can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
