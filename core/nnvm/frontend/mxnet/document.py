"""MXNet's symbols as JSON: nodes in topological order, with attributes as text.

Newer files have all attributes of a node under ``attrs``; older ones those of the operator under ``param``, those that
the user set under ``attr`` (and for a while all under ``attr``).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Attributes", "SymbolError", "SymbolNode", "SymbolText", "is_symbol", "read_symbol"]


class SymbolError(ValueError):
    """The text is no symbol, or an attribute has no meaning."""


class Attributes:
    """Attributes of a node, read as what they are. SymbolError names one that cannot be."""

    def __init__(self, text: Mapping[str, str]) -> None:
        self.text = text

    def _value(self, name: str, default: Any) -> Any:
        if name not in self.text:
            if default is ...:
                raise SymbolError(f"the attribute {name} is missing")
            return default
        text = self.text[name].strip()
        if text in ("true", "false"):
            return text == "true"
        if text in ("", "None", "none"):
            return None
        try:  # (3L, 3L) is how Python 2 wrote sizes
            return ast.literal_eval(re.sub(r"(?<=\d)L\b", "", text))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise SymbolError(f"the attribute {name} is {text[:60]!r}") from None

    def has(self, name: str) -> bool:
        return self._value(name, None) is not None

    def integer(self, name: str, default: Any = ...) -> Any:
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise SymbolError(f"the attribute {name} is {value!r}, which is no integer")
        return value

    def number(self, name: str, default: Any = ...) -> Any:
        value = self._value(name, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, (int, float))):
            text = self.text[name].strip().lower()
            if text in ("inf", "-inf", "nan"):
                return float(text)
            raise SymbolError(f"the attribute {name} is {value!r}, which is no number")
        return value if value is None else float(value)

    def flag(self, name: str, default: Any = ...) -> bool:
        value = self._value(name, default)
        if value not in (0, 1, False, True):
            raise SymbolError(f"the attribute {name} is {value!r}, which is neither True nor False")
        return bool(value)

    def integers(self, name: str, default: Any = ...) -> Any:
        """A tuple of integers, of which some may be None; one integer stands for a tuple of one."""
        value = self._value(name, default)
        if value is default or value is None:
            return value
        items = value if isinstance(value, (tuple, list)) else (value,)
        if any(isinstance(v, bool) or not isinstance(v, (int, type(None))) for v in items):
            raise SymbolError(f"the attribute {name} is {value!r}, which is no tuple of integers")
        return tuple(items)

    def word(self, name: str, default: Any = ...) -> Any:
        if name not in self.text and default is ...:
            raise SymbolError(f"the attribute {name} is missing")
        text = self.text.get(name, default)
        return text.strip() if isinstance(text, str) else text

    def choice(self, name: str, known: Sequence[Any], default: Any = ...) -> Any:
        value = self.word(name, default)
        if value not in known:
            raise SymbolError(f"the attribute {name} is {value!r}; known: {', '.join(map(str, known))}")
        return value


@dataclass(frozen=True)
class SymbolNode:
    """A node: `inputs` are (position of a node before it, which of its outputs)."""

    op: str
    name: str
    attrs: Attributes
    inputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SymbolText:
    """A symbol: its nodes, and the values that it gives."""

    nodes: tuple[SymbolNode, ...]
    heads: tuple[tuple[int, int], ...]


def is_symbol(data: Any, ops: Mapping[str, Any]) -> bool:
    """Whether a JSON document is MXNet's rather than NNVM's own: it says so, or has an operator of MXNet's `ops`."""
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        return False
    attrs = data.get("attrs")
    if isinstance(attrs, dict) and "mxnet_version" in attrs:
        return True
    names = {n.get("op") for n in data["nodes"] if isinstance(n, dict)}
    return any(isinstance(n, str) and n in ops for n in names)


def read_symbol(text: str) -> SymbolText:
    """The symbol that the JSON text describes. SymbolError where it describes none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise SymbolError(f"no JSON: {e}") from None
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list) or not isinstance(data.get("heads"), list):
        raise SymbolError("no symbol in JSON: nodes or heads are missing")
    nodes = tuple(_node(i, n) for i, n in enumerate(data["nodes"]))
    heads = tuple(_entry(h, len(nodes), "heads") for h in data["heads"])
    if not heads:
        raise SymbolError("the symbol gives nothing: heads is empty")
    return SymbolText(nodes, heads)


def _node(i: int, node: Any) -> SymbolNode:
    if not isinstance(node, dict) or not isinstance(node.get("op"), str) or not isinstance(node.get("name"), str):
        raise SymbolError(f"node {i} has no op or no name")
    merged: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        found = node.get(key) or {}
        if not isinstance(found, dict):
            raise SymbolError(f"node {i} ({node['name']}): {key} is no object")
        merged.update((k, v if isinstance(v, str) else json.dumps(v)) for k, v in found.items())
    inputs = node.get("inputs", [])
    if not isinstance(inputs, list):
        raise SymbolError(f"node {i} ({node['name']}): inputs is no list")
    entries = tuple(_entry(e, i, f"node {i} ({node['name']})") for e in inputs)
    return SymbolNode(node["op"], node["name"], Attributes(merged), entries)


def _entry(entry: Any, before: int, what: str) -> tuple[int, int]:
    """[node, output] or [node, output, version], of a node among the first `before`."""
    is_pair = isinstance(entry, list) and len(entry) in (2, 3) and all(type(v) is int and v >= 0 for v in entry[:2])
    if not is_pair or entry[0] >= before:
        raise SymbolError(f"{what}: {str(entry)[:60]} is no output of a node before it")
    return entry[0], entry[1]
