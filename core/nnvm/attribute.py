"""Attributes that users give to nodes, beside the params of the op: notes that passes and tools may read.

In a node they stand as ``__key__``, so that no param of an op is mistaken for one. The compiler itself reads
``__mirror__`` (recompute the node in the backward pass, `graph/passes/mirror.py`), ``__init__`` (how a parameter is
filled, `testing/init.py`), ``__dtype__`` (element type of a variable without a shape), ``__device__`` and
``__device_group__`` (where the node is to run, `graph/device_wishes.py`).

>>> with AttrScope(stage="1"):
...     y = sym.relu(x, attr={"mirror": True})
>>> y.attr("stage"), y.attr("mirror")
('1', True)
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any

__all__ = ["AttrScope", "is_note", "note", "notes_of"]

_scopes: contextvars.ContextVar[tuple[dict[str, Any], ...]] = contextvars.ContextVar("nnvm_attr_scopes", default=())


class AttrScope:
    """Nodes made inside the ``with`` block get these attributes; what a node says itself wins."""

    def __init__(self, **attrs: Any) -> None:
        self._attrs = {note(k): v for k, v in attrs.items()}
        self._tokens: list[contextvars.Token[tuple[dict[str, Any], ...]]] = []

    def __enter__(self) -> AttrScope:
        self._tokens.append(_scopes.set((*_scopes.get(), self._attrs)))
        return self

    def __exit__(self, *exc: object) -> None:
        _scopes.reset(self._tokens.pop())


def note(key: str) -> str:
    """The name under which a node holds the attribute `key`."""
    return key if is_note(key) else f"__{key}__"


def is_note(key: str) -> bool:
    """Whether the name of an attribute is that of a user's attribute and no param of an op."""
    return len(key) > 4 and key.startswith("__") and key.endswith("__")


def notes_of(attrs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The attributes of the scopes in use and `attrs`, as a node holds them."""
    found: dict[str, Any] = {}
    for scope in _scopes.get():
        found.update(scope)
    found.update((note(k), v) for k, v in (attrs or {}).items())
    return found
