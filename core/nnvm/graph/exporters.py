"""Formats that graphs are written in by layers above: they register what writes them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["exporter", "register_exporter"]

_EXPORTERS: dict[str, Callable[..., Any]] = {}


def register_exporter(name: str, write: Callable[..., Any]) -> None:
    """Registers ``write(graph, params)`` as what writes the format `name`."""
    _EXPORTERS[name] = write


def exporter(name: str, module: str) -> Callable[..., Any]:
    """What writes a format; RuntimeError where `module`, which registers it, is not imported."""
    if name not in _EXPORTERS:
        raise RuntimeError(f"nothing here writes the format {name}: import {module} first")
    return _EXPORTERS[name]
