"""nnvm: a compiler for networks. Its parts are imported by name, or when they are first used as attributes."""

from __future__ import annotations

import importlib
from typing import Any

_PARTS = ("artifact", "attribute", "compiler", "frontend", "graph", "name", "runtime", "symbol", "testing")


def __getattr__(name: str) -> Any:
    if name == "sym":
        return importlib.import_module("nnvm.symbol")
    if name in _PARTS:
        return importlib.import_module(f"nnvm.{name}")
    raise AttributeError(f"module nnvm has no attribute {name!r}")
