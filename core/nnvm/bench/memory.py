"""Resident memory of this process, in bytes."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

__all__ = ["peak_bytes", "reset_peak", "resident_bytes"]

STATUS = Path("/proc/self/status")


def status_field(name: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def resident_bytes() -> int | None:
    return status_field("VmRSS:")


def peak_bytes() -> int | None:
    """The highest so far, or since ``reset_peak``.

    Not ``getrusage`` where it can be avoided: there, a child starts with its parent's peak.
    """
    found = status_field("VmHWM:")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> None:
    """Makes the present memory the peak, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
