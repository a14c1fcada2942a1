"""Results of fx calls that are lists or tuples of tensors and other values: their leaves, in order, and back."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx

from nnvm.graph import NodeEntry
from nnvm_torch.imported import NotImportable
from nnvm_torch.tensors import dim_of

__all__ = ["leaves_of", "mapped", "rebuilt", "spread", "tensors_of", "used_leaves", "used_results"]


def mapped(a: Any, env: dict[fx.Node, Any]) -> Any:
    """fx arguments with nodes replaced by their values."""
    if isinstance(a, fx.Node):
        return env[a]
    if isinstance(a, (list, tuple)):
        return [mapped(x, env) for x in a] if isinstance(a, list) else tuple(mapped(x, env) for x in a)
    return a


def tensors_of(val: Any, keep_none: bool = False) -> list[Any]:
    """The tensors of a fake result, in order."""
    if isinstance(val, torch.Tensor) or (val is None and keep_none):
        return [val]
    if isinstance(val, (list, tuple)):
        return [t for v in val for t in tensors_of(v, keep_none)]
    return []


def leaves_of(val: Any) -> list[Any]:
    """All that is no list or tuple, in order."""
    return [t for v in val for t in leaves_of(v)] if isinstance(val, (list, tuple)) else [val]


def spread(leaves: list[Any], keep: tuple[int, ...], entries: tuple[NodeEntry, ...]) -> list[NodeEntry | None]:
    """For each leaf its entry, None where there is none."""
    of = dict(zip(keep, entries))
    return [of.get(i) for i in range(len(leaves))]


def used_leaves(node: fx.Node) -> Callable[[int], bool]:
    """Is the leaf of that number of a call's results used? All are where they are nested or used as a whole."""
    val = node.meta.get("val")
    if not isinstance(val, (list, tuple)) or any(isinstance(v, (list, tuple)) for v in val):
        return lambda i: True
    used = used_results(node, len(val))
    return lambda i: used[i]


def rebuilt(val: Any, entries: Any) -> Any:
    """The shape of `val` with entries for its leaves."""
    if isinstance(val, (list, tuple)):
        return tuple(rebuilt(v, entries) for v in val)
    entry = next(entries)
    if isinstance(val, torch.Tensor):
        return entry
    if isinstance(val, torch.SymInt):
        return dim_of(val)
    if isinstance(val, (torch.SymFloat, torch.SymBool)):
        raise NotImportable(f"a result of type {type(val).__name__}")
    return val


def used_results(node: fx.Node, count: int) -> list[bool]:
    """Which results anything uses; all of them where the tuple itself is used."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return [True]
    used = [False] * count
    for user in node.users:
        if user.target is not operator.getitem:
            return [True] * count
        if user.users:
            used[cast(int, user.args[1])] = True
    return used
