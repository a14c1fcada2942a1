"""How nodes are called that the user gives no name: ``relu0``, ``relu1``, ...

>>> with Prefix("stage1_"):
...     sym.relu(x).name
'stage1_relu0'
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Iterator

__all__ = ["NameManager", "Prefix"]


class NameManager:
    """Counts names by op; in a ``with`` block it is the one in use."""

    def __init__(self) -> None:
        self._counts: dict[str, Iterator[int]] = {}
        self._tokens: list[contextvars.Token[NameManager | None]] = []

    @staticmethod
    def current() -> NameManager:
        """The innermost one in use."""
        return _current.get() or _default

    def get(self, name: str | None, hint: str) -> str:
        """`name`, or where it is None the next name that begins with `hint`."""
        return name or f"{hint}{next(self._counts.setdefault(hint, itertools.count()))}"

    def __enter__(self) -> NameManager:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._tokens.pop())


class Prefix(NameManager):
    """Puts a prefix before all names, the given ones included."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)


_default = NameManager()
_current: contextvars.ContextVar[NameManager | None] = contextvars.ContextVar("nnvm_name_manager", default=None)
