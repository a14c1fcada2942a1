"""PlaceDevice: which device each node runs on, with copies exactly at the borders.

```
wishes: %b on reference                        %a = relu(%x)
%a = relu(%x)                                  %a.to_reference = device_copy(%a, device='reference')
%b = exp(%a)                            ->     %b = exp(%a.to_reference): float32[4] @reference
%c = negative(%b)                              %c = negative(%b): float32[4] @reference
return %c                                      %c.to_cpu = device_copy(%c, device='cpu')
                                               return %c.to_cpu
```
Wishes come from nodes (the attributes ``__device__``, or ``__device_group__`` with a device for each group) and by name
from ``device_wishes``. A node that no wish speaks of takes the device with which fewest copies are made
(device_assignment.py); one whose wish its device cannot fulfil runs on another that can, and the attribute
``placement`` says why. What computes nothing (views, copies) goes with its neighbours whatever is wished.

A value is copied once for each device that reads it. Copies that are there already are taken out first: they only say
that what computes on them does so there. So a way there and back disappears where nothing computes in between, and the
pass may run again after a rewriting, when it keeps every node where it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from nnvm.dim import estimate
from nnvm.graph.dependence import parameter_dependence
from nnvm.graph.device_copy import device_copy, is_device_copy
from nnvm.graph.device_wishes import PlacementError, read_wishes
from nnvm.graph.devices import CPU, computes, device_of, why_not
from nnvm.graph.graph import Graph, with_inputs
from nnvm.graph.node import Node, NodeEntry, constant
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.passes.device_assignment import Flow, assign

__all__ = ["Placement", "place_device"]

#: Value that a named size is taken to have when bytes are compared.
_ESTIMATE = 64
#: Stands for the caller among the readers of values.
_CALLER = "caller"


@dataclass(frozen=True)
class Placement:
    """Where the nodes run, and why.

    Attributes:
        devices: in use, the caller's first.
        device_of: device of each node by name.
        reasons: of the nodes that are where they are for a reason of their own; the others go with their neighbours.
        moved: names of the nodes that do not run where it was wished.
        copies: copies at each call.
        once: copies that are made once a version of the parameters.
    """

    devices: tuple[str, ...]
    device_of: Mapping[str, str]
    reasons: Mapping[str, str] = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    copies: int = 0
    once: int = 0

    def __str__(self) -> str:
        lines = [f"{self.copies} copies a call, {self.once} once a version of the parameters"]
        for name, device in self.device_of.items():
            lines.append(f"{name}: {device} ({self.reasons.get(name, 'fewest copies')})")
        return "\n".join(lines)


@register_pass("PlaceDevice", requires=["typed"])
def place_device_pass(graph: Graph, context: PassContext) -> Graph:
    """Places the nodes where there are wishes, or values on several devices; else the same graph.

    requires: ``typed``. provides: ``placement`` where it places. Reads the graph attributes and options
    ``device_wishes`` and ``device_groups`` (what is given as an option wins); option ``devices``: further devices that
    may be used.
    """
    before: Placement | None = graph.attrs.get("placement")
    if before is not None:
        return place_device(graph, {}, before.devices)
    wishes = read_wishes(graph, context)
    there = [e.type.device for n in (*graph.inputs, *graph.nodes) for e in n.outputs]
    devices = tuple(dict.fromkeys((CPU, *wishes.devices, *there)))
    if len(devices) == 1 and not any(is_device_copy(n[0]) for n in graph.nodes):
        return graph
    return place_device(graph, wishes.of_node, devices)


def place_device(graph: Graph, wishes: Mapping[str, tuple[str, str]], devices: tuple[str, ...]) -> Graph:
    """`graph` with its nodes on `devices`, the first of them the caller's.

    `wishes`: by the name of a node its device and who wishes it. Where the graph has a ``placement``, its nodes stay
    where they are. PlacementError names a node that no device can run.
    """
    placer = _Placer(graph, wishes, devices)
    return placer.build(placer.choose())


class _Placer:
    def __init__(self, graph: Graph, wishes: Mapping[str, tuple[str, str]], devices: tuple[str, ...]) -> None:
        self.graph = graph
        self.wishes = wishes
        self.devices = devices
        self.before: Placement | None = graph.attrs.get("placement")
        self.nodes = [n for n in graph.nodes if not is_device_copy(n[0])]
        self.reasons: dict[str, str] = dict(self.before.reasons) if self.before else {}
        self.moved: list[str] = list(self.before.moved) if self.before else []
        self.copies: dict[bool, int] = {False: 0, True: 0}
        self.made: dict[tuple[NodeEntry, str], NodeEntry] = {}
        self.names = {n.name for n in (*graph.inputs, *graph.nodes)}

    def choose(self) -> dict[Hashable, str]:
        """The device of each node (constants excepted, which are wherever they are read)."""
        allowed: dict[Hashable, tuple[str, ...]] = {_CALLER: (CPU,)}
        allowed.update((v, (device_of(v),)) for v in self.graph.inputs)
        allowed.update((n, self._allowed(n)) for n in self.nodes if not n.is_constant and n not in allowed)
        return assign(allowed, self._flows(), self.devices)

    def _allowed(self, node: Node) -> tuple[str, ...]:
        """The devices that a node may be on: that of its wish, if it can, else all that can run it."""
        refusals = {d: self._refusal(node, d) for d in self.devices}
        able = tuple(d for d, reason in refusals.items() if reason is None)
        wish, who = self._wish(node)
        if not able:
            shown = "; ".join(f"{d}: {reason}" for d, reason in refusals.items())
            raise PlacementError(f"no device can run {node.op.name} {node.name} ({shown})"
                                 + (f"; it wishes to be on {wish} ({who})" if wish else ""))  # fmt: skip
        if wish in able:
            if self.before is None:
                self.reasons[node.name] = who
            return (wish,)
        if wish is not None:
            self.reasons[node.name] = f"wished on {wish} ({who}), but {refusals[wish]}"
            if node.name not in self.moved:
                self.moved.append(node.name)
        elif CPU not in able:
            self.reasons[node.name] = f"{CPU} cannot run it: {refusals[CPU]}"
        return able

    def _refusal(self, node: Node, device: str) -> str | None:
        """Why a node cannot be on a device; None where it can."""
        if not node.inputs and device != CPU:
            return f"{node.op.name} has no inputs and is made on {CPU}"
        return why_not(node, device)

    def _wish(self, node: Node) -> tuple[str | None, str]:
        """(device that the node is to be on, who says so)."""
        wish, who = self.wishes.get(node.name, (None, ""))
        if not computes(node):
            if wish is not None:
                self.reasons[node.name] = f"wished on {wish} ({who}), but it computes nothing and goes with the others"
            return None, ""
        stays = self.before is not None or device_of(node) != CPU or any(map(is_device_copy, node.inputs))
        if wish is None and stays:
            return device_of(node), "its inputs are there"
        return wish, who

    def _flows(self) -> list[Flow]:
        readers: dict[NodeEntry, dict[Hashable, None]] = {}
        for node in self.nodes:
            for e in node.inputs:
                readers.setdefault(_source(e), {})[node] = None
        for e in self.graph.outputs:
            readers.setdefault(_source(e), {})[_CALLER] = None
        self.depends = parameter_dependence(self.graph)
        return [Flow(e.node, tuple(found), _estimate(e), self._is_once(e)) for e, found in readers.items()
                if not e.node.is_constant]  # fmt: skip

    def _is_once(self, entry: NodeEntry) -> bool:
        return self.depends[entry.node] is not None

    def build(self, chosen: Mapping[Hashable, str]) -> Graph:
        """The graph with its nodes on their devices."""
        new: dict[Node, Node] = {}

        def on(e: NodeEntry, device: str) -> NodeEntry:
            source = _source(e)
            value = new[source.node][source.index] if source.node in new else source
            own = device if source.node.is_constant else chosen[source.node]
            if source.node.is_constant:
                return self._constant(value, device)
            return value if own == device else self._copy(e, source, value, device)

        for node in self.nodes:
            if node.is_variable or node.is_constant:
                continue
            inputs = tuple(on(e, chosen[node]) for e in node.inputs)
            new[node] = node if inputs == node.inputs else with_inputs(node, inputs)
        outputs = tuple(on(e, CPU) for e in self.graph.outputs)
        placement = self._placement(chosen)
        if outputs == self.graph.outputs and placement == self.before:
            return self.graph
        return self.graph.with_outputs(outputs).with_attrs(placement=placement)

    def _constant(self, entry: NodeEntry, device: str) -> NodeEntry:
        """A constant on a device."""
        if entry.type.device == device:
            return entry
        key = (entry, device)
        if key not in self.made:
            t = replace(entry.type, device=device)
            self.made[key] = constant(entry.node.attrs["value"], t, self._unique(f"{entry.node.name}.on_{device}"))
        return self.made[key]

    def _copy(self, read: NodeEntry, source: NodeEntry, value: NodeEntry, device: str) -> NodeEntry:
        """`value` on another device: the copy that was `read` there, where it is the same, else a new one."""
        key = (source, device)
        if key not in self.made:
            self.copies[self._is_once(source)] += 1
            there = is_device_copy(read) and read.type.device == device and read.node.inputs[0] == value
            name = str(source.node.name) + (f".{source.index}" if source.node.num_outputs > 1 else "")
            self.made[key] = read if there else device_copy(value, device, self._unique(f"{name}.to_{device}"))
        return self.made[key]

    def _unique(self, name: str) -> str:
        found, count = name, 0
        while found in self.names:
            count += 1
            found = f"{name}_{count}"
        self.names.add(found)
        return found

    def _placement(self, chosen: Mapping[Hashable, str]) -> Placement:
        device_of_node = {n.name: chosen[n] for n in self.nodes if not n.is_variable and not n.is_constant}
        reasons = {n: r for n, r in self.reasons.items() if n in device_of_node}
        moved = tuple(n for n in self.moved if n in device_of_node)
        return Placement(self.devices, device_of_node, reasons, moved, self.copies[False], self.copies[True])


def _source(entry: NodeEntry) -> NodeEntry:
    """The value that an entry is a copy of on some device."""
    while is_device_copy(entry):
        entry = entry.node.inputs[0]
    return entry


def _estimate(entry: NodeEntry) -> int:
    return estimate(entry.type.nbytes, _ESTIMATE)
