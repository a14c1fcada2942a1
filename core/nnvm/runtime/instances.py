"""What a compiled model keeps between calls: itself for given sizes, and memory for calls to come."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from nnvm.runtime.fork_lock import fork_safe
from nnvm.runtime.memory import ALIGNMENT, Memory, aligned

__all__ = ["MAX_INSTANCES", "Arena", "ArenaPool", "Instances"]

#: Instances (one per set of values of the symbolic sizes) that are kept.
MAX_INSTANCES = 64
#: Arenas that are kept for calls to come; more calls at a time make their own.
MAX_FREE = 16
_T = TypeVar("_T")
#: One for all, so that a fork has one to wait for.
_making = fork_safe(threading.RLock())


class Instances(Generic[_T]):
    """Instances by the sizes they are for; the oldest go when there are too many."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, _T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The instance of `key`, made where there is none, once whoever asks at the same time."""
        found = self._found.get(key)
        if found is not None:
            return found
        with _making:
            if key not in self._found:
                self._found[key] = make()
                while len(self._found) > MAX_INSTANCES:
                    self._found.popitem(last=False)
            return self._found[key]

    def values(self) -> list[_T]:
        """All that there are."""
        return list(self._found.values())

    def clear(self) -> None:
        """Forgets those that no call is using; they take their memory with them."""
        with _making:
            self._found.clear()


class Arena(NamedTuple):
    """Memory of one call.

    Attributes:
        capacity: bytes that it has.
        tensor: of the `Memory`.
        address: of its first byte.
        workspace: address of the first thread's workspace.
    """

    capacity: int
    tensor: Any
    address: int
    workspace: int


class ArenaPool:
    """Arenas of one instance: activations, then a workspace for each thread. A call takes one and gives it back.

    Attributes:
        arena_bytes, workspace_bytes: of activations, and of one thread's workspace.
        free: arenas that no call is using.
    """

    def __init__(self, memory: Memory, arena_bytes: int, workspace_bytes: int, free: list[Arena] | None = None) -> None:
        """`arena_bytes`: of activations; `workspace_bytes`: of one thread; `free`: arenas that several instances share,
        so that a model called with many sizes keeps one for each call at a time, as large as the largest."""
        self._memory = memory
        self.arena_bytes, self.workspace_bytes = aligned(arena_bytes), aligned(workspace_bytes)
        self.free = free if free is not None else []  # its operations are atomic

    def take(self, threads: int) -> Arena:
        """An arena with workspaces for so many threads. MemoryError says how many bytes cannot be had."""
        size = self.arena_bytes + self.workspace_bytes * threads + ALIGNMENT
        while True:
            try:
                arena = self.free.pop()
            except IndexError:  # none is free, or another thread took it
                break
            if arena.capacity >= size:
                workspace = arena.address + self.arena_bytes
                return arena if arena.workspace == workspace else arena._replace(workspace=workspace)
        try:
            tensor = self._memory.arena(size)
        except (MemoryError, ValueError) as error:
            raise MemoryError(f"a call needs {size} bytes, which cannot be had") from error
        address = self._memory.pointer(tensor)
        return Arena(size, tensor, address, address + self.arena_bytes)

    def give(self, arena: Arena) -> None:
        if self._memory.keeps_arenas and len(self.free) < MAX_FREE:
            self.free.append(arena)
