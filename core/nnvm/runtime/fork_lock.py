"""Locks that a fork waits for, so that the child finds nothing half done and no lock held by a thread it lacks."""

from __future__ import annotations

import os
from typing import Protocol, TypeVar

__all__ = ["fork_safe"]


class _Lock(Protocol):
    def acquire(self) -> bool: ...

    def release(self) -> None: ...


_L = TypeVar("_L", bound=_Lock)


def fork_safe(lock: _L) -> _L:
    """The lock, which from now on every fork takes and both processes release.

    Forks take the lock that was registered last first: whoever holds two took that one first too.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
