"""Patterns on graphs, for passes that look for shapes of several nodes.

>>> x = Any("x")
>>> silu = Op("multiply", x, Op("sigmoid", x))
>>> found = match(silu, entry)           # {"x": NodeEntry} or None

The same name twice stands for the same value. Inputs of commutative ops match in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any as AnyValue

import numpy as np

from nnvm.dtype import BF16, bf16_to_f32
from nnvm.graph.node import NodeEntry
from nnvm.graph.op import get

__all__ = ["Any", "Either", "Op", "Pattern", "Scalar", "match", "roots", "scalar_value"]

Found = Mapping[str, NodeEntry]


class Pattern:
    """Base of patterns; `name` binds what matches."""

    name: str = ""


@dataclass(frozen=True)
class Any(Pattern):
    """Any value; bound to `name`, which must be the same value wherever it stands again."""

    name: str = ""


@dataclass(frozen=True)
class Scalar(Pattern):
    """A constant of one element; near `value` (relative error up to `rtol`, by default some units in the last place of
    its type), where one is given."""

    name: str = ""
    value: float | None = None
    rtol: float | None = None


@dataclass(frozen=True, init=False)
class Op(Pattern):
    """Output 0 of one of the ops (names separated by ``|``) on the given inputs.

    `where` looks at the node's attributes; `optional` inputs at the end may be missing.
    """

    ops: tuple[str, ...]
    inputs: tuple[Pattern, ...]
    name: str = ""
    where: Callable[[AnyValue], bool] | None = field(default=None, compare=False)

    def __init__(
        self, ops: str, *inputs: Pattern, name: str = "", where: Callable[[AnyValue], bool] | None = None
    ) -> None:
        object.__setattr__(self, "ops", tuple(ops.split("|")))
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "where", where)


@dataclass(frozen=True, init=False)
class Either(Pattern):
    """The first of several patterns that matches (all are tried)."""

    choices: tuple[Pattern, ...]
    name: str = ""

    def __init__(self, *choices: Pattern, name: str = "") -> None:
        object.__setattr__(self, "choices", choices)
        object.__setattr__(self, "name", name)


def match(pattern: Pattern, entry: NodeEntry) -> dict[str, NodeEntry] | None:
    """What the names of the pattern stand for, or None."""
    found = next(_match(pattern, entry, {}), None)
    return None if found is None else dict(found)


def roots(pattern: Pattern) -> list[str]:
    """Names of the ops that the root of a pattern can be."""
    if isinstance(pattern, Op):
        return [get(name).name for name in pattern.ops]
    if isinstance(pattern, Either):
        return list(dict.fromkeys(r for c in pattern.choices for r in roots(c)))
    raise TypeError("the root of a pattern must be an Op")


def scalar_value(entry: NodeEntry) -> float | None:
    """The value of a constant of one element; None for anything else."""
    node = entry.node
    if not node.is_constant or node.attrs["value"].size != 1:
        return None
    value = node.attrs["value"].reshape(())
    return float(bf16_to_f32(value) if entry.type.dtype == BF16 else value)


def _rtol(pattern: Scalar, entry: NodeEntry) -> float:
    """Of half types less than their precision, as their constants are often computed in a wider one."""
    t = entry.type.dtype
    if pattern.rtol is not None or not t.is_float:
        return pattern.rtol or 0.0
    return 1e-3 if t.is_half else 8 * float(np.finfo(t.numpy).eps)


def _match(pattern: Pattern, entry: NodeEntry, found: Found) -> Iterator[Found]:
    if pattern.name and pattern.name in found:
        if found[pattern.name] == entry:
            yield found
        return
    bound = {**found, pattern.name: entry} if pattern.name else found
    if isinstance(pattern, Any):
        yield bound
    elif isinstance(pattern, Scalar):
        value, wanted = scalar_value(entry), pattern.value
        if value is not None and (wanted is None or abs(value - wanted) <= _rtol(pattern, entry) * abs(wanted)):
            yield bound
    elif isinstance(pattern, Either):
        for choice in pattern.choices:
            yield from _match(choice, entry, bound)
    elif isinstance(pattern, Op):
        node = entry.node
        if entry.index or node.op.name not in pattern.ops or (pattern.where and not pattern.where(node.attrs)):
            return
        if len(node.inputs) != len(pattern.inputs):
            return
        yield from _match_all(pattern.inputs, node.inputs, bound)
        if len(pattern.inputs) == 2 and node.op.attr("commutative"):
            yield from _match_all(pattern.inputs, node.inputs[::-1], bound)


def _match_all(patterns: Sequence[Pattern], entries: Iterable[NodeEntry], found: Found) -> Iterator[Found]:
    entries = tuple(entries)
    if not patterns:
        yield found
        return
    for first in _match(patterns[0], entries[0], found):
        yield from _match_all(patterns[1:], entries[1:], first)
