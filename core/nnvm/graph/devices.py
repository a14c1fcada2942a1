"""Devices, and what each kind of them can run.

A device is a name in a `TensorType`: ``cpu`` is the memory of the process, computed on by the main target; the others
are called after their kind, with a number where there are several (``reference``, ``cuda:0``). A kind is made known
here (what it can run, a fact about ops) and in `nnvm.runtime.device` (how it runs it):

>>> register_device_kind("npu", lambda node: None if node.op.has("compute") else "the op has no compute")
"""

from __future__ import annotations

from collections.abc import Callable

from nnvm.graph.evaluate import can_evaluate
from nnvm.graph.node import Node
from nnvm.graph.views import is_view

__all__ = ["CPU", "computes", "device_of", "kind_of", "known_kinds", "register_device_kind", "why_not"]

#: The device of the caller's memory and of the main target.
CPU = "cpu"
#: By kind: why it cannot run a node; None: it can.
Reason = Callable[[Node], "str | None"]
_KINDS: dict[str, Reason] = {}


def register_device_kind(kind: str, why_not: Reason) -> None:
    """Makes a kind of device known; `why_not(node)` says why it cannot run a node, None where it can."""
    if kind in _KINDS:
        raise ValueError(f"the kind of device {kind!r} is registered already")
    _KINDS[kind] = why_not


def known_kinds() -> list[str]:
    return sorted(_KINDS)


def kind_of(device: str) -> str:
    """Kind of a device: ``cuda`` of ``cuda:0``."""
    return device.partition(":")[0]


def device_of(node: Node) -> str:
    """Where a typed node runs and its outputs live."""
    assert node.types, f"{node.name} has no types"
    return node.types[0].device


def why_not(node: Node, device: str) -> str | None:
    """Why a device cannot run a node, as a sentence; None where it can."""
    kind = kind_of(device)
    targets = node.op.attr("targets")
    if targets is not None and kind not in targets and not (device == CPU and "llvm" in targets):
        return f"{node.op.name} is for the targets {', '.join(sorted(targets))} only"
    return None if is_view(node) else _KINDS[kind](node)


def computes(node: Node) -> bool:
    """Whether a node does anything: not a view, a copy, a variable or a constant."""
    return not (node.is_variable or node.is_constant or node.op.attr("is_copy") or is_view(node))


def _cpu(node: Node) -> str | None:
    able = any(node.op.has(a) for a in ("compute", "build_tir", "host_call"))
    return None if able else f"{node.op.name} has neither compute nor build_tir nor host_call"


def _reference(node: Node) -> str | None:
    return None if can_evaluate(node) else f"{node.op.name} has no reference in numpy"


register_device_kind(CPU, _cpu)
register_device_kind("reference", _reference)
