"""What a compiled model keeps between calls: itself for given sizes, and memory for calls to come."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from nnvm.runtime.memory import ALIGNMENT, Memory, aligned

__all__ = ["MAX_INSTANCES", "Arena", "ArenaPool", "Instances"]

#: Instances (one per set of values of the symbolic sizes) that are kept.
MAX_INSTANCES = 64
_T = TypeVar("_T")


class Instances(Generic[_T]):
    """Instances by the sizes they are for; the oldest go when there are too many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, _T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The instance of `key`, made where there is none, once whoever asks at the same time."""
        found = self._found.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self._found:
                self._found[key] = make()
                while len(self._found) > MAX_INSTANCES:
                    self._found.popitem(last=False)
            return self._found[key]

    def clear(self) -> None:
        """Forgets those that no call is using; they take their memory with them."""
        with self._lock:
            self._found.clear()


class Arena(NamedTuple):
    """Memory of one call.

    Attributes:
        threads: those that it has workspaces for.
        tensor: of the `Memory`.
        address: of its first byte.
        workspace: address of the first thread's workspace.
    """

    threads: int
    tensor: Any
    address: int
    workspace: int


class ArenaPool:
    """Arenas of one instance: activations, then a workspace for each thread. A call takes one and gives it back."""

    def __init__(self, memory: Memory, arena_bytes: int, workspace_bytes: int) -> None:
        """`arena_bytes`: of activations; `workspace_bytes`: of one thread."""
        self._memory = memory
        self.arena_bytes, self.workspace_bytes = aligned(arena_bytes), aligned(workspace_bytes)
        self._free: list[Arena] = []  # its operations are atomic

    def take(self, threads: int) -> Arena:
        """An arena with workspaces for so many threads. MemoryError says how many bytes cannot be had."""
        while True:
            try:
                arena = self._free.pop()
            except IndexError:  # none is free, or another thread took it
                break
            if arena.threads >= threads:
                return arena
        size = self.arena_bytes + self.workspace_bytes * threads + ALIGNMENT
        try:
            tensor = self._memory.arena(size)
        except (MemoryError, ValueError) as error:
            raise MemoryError(f"a call needs {size} bytes, which cannot be had") from error
        address = self._memory.pointer(tensor)
        return Arena(threads, tensor, address, address + self.arena_bytes)

    def give(self, arena: Arena) -> None:
        self._free.append(arena)
