"""Where users wish nodes to run, from all the places in which they may say so.

In this order, the first that speaks of a node wins:

- the node's attribute ``__device__`` (a device), or ``__device_group__`` (a group), which
  ``with AttrScope(device_group="encoder")`` gives to all nodes made in it;
- ``device_wishes``, pairs of a node's name, or a pattern such as ``layer3*``, and a device or group: an option of the
  compilation, or an attribute of the graph;
- the main target, where it is no processor of the host: all nodes wish to be on its device.

Groups have their devices from ``device_groups`` (option or graph attribute).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from nnvm.graph.devices import CPU, computes, kind_of, known_kinds
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node
from nnvm.graph.pass_manager import PassContext

__all__ = ["PlacementError", "Wishes", "read_wishes"]


class PlacementError(ValueError):
    """A node that no device can run, or a wish for what there is not."""


@dataclass(frozen=True)
class Wishes:
    """What is wished.

    Attributes:
        of_node: by the name of a node the device, and who wishes it.
        devices: those that are wished, and those of the option ``devices``.
    """

    of_node: Mapping[str, tuple[str, str]]
    devices: tuple[str, ...]


def read_wishes(graph: Graph, context: PassContext) -> Wishes:
    """All wishes; PlacementError names a device or group that is not known, or a name that no node has."""
    groups = {**_pairs(graph.attrs.get("device_groups")), **_pairs(context.options.get("device_groups"))}
    named = [*_pairs(context.options.get("device_wishes")).items(), *_pairs(graph.attrs.get("device_wishes")).items()]
    further = tuple(context.options.get("devices", ()))
    for device in further:
        _check(device, "the option devices")
    found: dict[str, tuple[str, str]] = {}
    matched: set[str] = set()
    noted = False
    nodes = [n for n in graph.nodes if not n.is_variable and not n.is_constant]
    if named or groups or any("__device__" in n.attrs or "__device_group__" in n.attrs for n in nodes):
        noted = True
        for node in nodes:
            wish = next(_said(node, named, matched), None)
            if wish is not None:
                found[node.name] = (_device(wish[0], groups, f"{wish[1]} of {node.name}"), wish[1])
    if noted and (unmatched := [p for p, _ in named if p not in matched and not any(_fits(n, p) for n in nodes)]):
        raise PlacementError(f"the wish for {unmatched[0]!r} fits no node of the graph, whose nodes are "
                             f"{', '.join(n.name for n in nodes)}")  # fmt: skip
    kind = context.target.kind
    if not context.target.has_kernels:
        _check(kind, f"the target {context.target}")
        for node in nodes:
            if computes(node):
                found.setdefault(node.name, (kind, f"the target is {kind}"))
    return Wishes(found, tuple(dict.fromkeys((*(d for d, _ in found.values()), *further))))


def _said(node: Node, named: list[tuple[str, str]], matched: set[str]) -> Iterator[tuple[str, str]]:
    """(device or group, who says so) of a node, what wins first."""
    for note in ("__device__", "__device_group__"):
        if note in node.attrs:
            yield node.attrs[note], f"its attribute {note}"
    for pattern, wish in sorted(named, key=lambda pair: pair[0] != node.name):
        if _fits(node, pattern):
            matched.add(pattern)
            yield wish, f"the wish for {pattern!r}"


def _fits(node: Node, pattern: str) -> bool:
    return node.name == pattern or fnmatchcase(node.name, pattern)


def _device(wish: str, groups: Mapping[str, str], who: str) -> str:
    """The device of a wish for a device or a group."""
    device = groups.get(wish, wish)
    if wish not in groups and kind_of(device) not in known_kinds():
        listed = ", ".join(f"{g}: {d}" for g, d in groups.items()) or "none"
        raise PlacementError(f"{who} names {wish!r}, which is neither a group (known: {listed}) nor on a known kind of "
                             f"device ({', '.join(known_kinds())})")  # fmt: skip
    _check(device, f"{who}, through the group {wish!r}," if wish in groups else who)
    return device


def _check(device: str, who: str) -> None:
    kind = kind_of(device)
    if kind not in known_kinds() or (kind == CPU and device != CPU):
        raise PlacementError(f"{who} names the device {device!r}; known kinds of devices: {', '.join(known_kinds())}")


def _pairs(value: Any) -> dict[str, str]:
    """A mapping, or pairs, as a mapping."""
    return dict(value or ())
