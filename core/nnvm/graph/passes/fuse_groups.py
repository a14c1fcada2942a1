"""Groups of nodes that become one kernel each: what is a legal group, and putting two together.

Two groups become one where no other group would then depend on what depends on it, where the result stays within
`FuseLimits`, and where nothing expensive would be computed more than once an element. Which of the legal ones are made
is up to GraphFuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nnvm.dim import Shape
from nnvm.graph.devices import device_of
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.op_attrs import OpPattern

__all__ = ["ELEM", "MASTER", "REDUCE", "SINGLE", "FuseLimits", "Group", "Groups", "is_scalar_constant", "near_users",
           "pattern_of"]  # fmt: skip

ELEM, REDUCE, MASTER, SINGLE = "elem", "reduce", "master", "single"


@dataclass(frozen=True)
class FuseLimits:
    """How far fusion may go.

    Attributes:
        nodes: nodes of one group; very long kernels compile slowly and spill registers.
        inputs: tensors one group reads; each needs an address register and a cache stream.
        outputs: tensors one group writes for nodes that can never join it.
        prologue_nodes: nodes before a row master, computed once per pass over the row.
        broadcast_nodes: cheap nodes that are computed again for every element they are broadcast to.
        recompute_nodes: cheap nodes of one chain that are computed again in each consumer instead of being stored.
        serial_rows, serial_elements: a reduction to fewer results than `serial_rows` runs on one thread; it takes no
            expensive nodes over more than `serial_elements` elements, which threads share among them.
        search: groups looked at to exclude a cycle; where that does not suffice, nothing is fused.
        loop_nests: whether an op that builds its own loop nest is a kernel; on a GPU the frontend runs it,
        any_order: but for those whose loops may run in any order (setting ``deterministic``: those too).
        siblings: whether reductions of one tensor become one group.
    """

    nodes: int = 64
    inputs: int = 16
    outputs: int = 4
    prologue_nodes: int = 8
    broadcast_nodes: int = 4
    recompute_nodes: int = 2
    serial_rows: int = 4
    serial_elements: int = 1 << 24
    search: int = 256
    loop_nests: bool = True
    any_order: bool = False
    siblings: bool = False


@dataclass(eq=False, slots=True)
class Group:
    """Nodes that run together.

    Attributes:
        shape: of every output of the group.
        post: the master and what follows it; () in elementwise groups.
        inputs: values from outside, constants of one element excepted.
        first, last: least and greatest topological index of its nodes.
        device: where they run.
    """

    kind: str
    shape: Shape
    nodes: list[Node]
    inputs: dict[NodeEntry, None]
    first: int
    last: int
    device: str
    post: set[Node] = field(default_factory=set)
    injective: bool = False
    expensive: bool = False


def pattern_of(node: Node) -> OpPattern:
    """How a node may be fused: not at all where it moves no data."""
    if node.attrs.get("in_place"):
        return OpPattern.OPAQUE
    return node.op.attr("pattern", OpPattern.OPAQUE)  # type: ignore[no-any-return]


def near_users(graph: Graph, far: int) -> list[Node]:
    """The graph's nodes in order, those that move or compute single elements of its inputs just before who needs them
    first, where that is more than `far` nodes later: between a mask of what the forward pass kept and its use lies most
    of a gradient's graph otherwise."""
    order = graph.nodes
    index = {n: i for i, n in enumerate(order)}
    returned = {e.node for e in graph.outputs}
    given = {n for n in order if n.is_variable or n.is_constant}
    users: dict[Node, list[Node]] = {}  # of the nodes that move
    for node in order:
        for e in node.inputs:
            if e.node in users:
                users[e.node].append(node)
        is_single = node not in given and node not in returned and pattern_of(node) <= OpPattern.INJECTIVE
        if is_single and all(e.node in given for e in node.inputs):
            given.add(node)
            users[node] = []
    at = dict(index)
    for node in reversed(users):
        first = min((at[u] for u in users[node]), default=at[node])
        at[node] = first if first - at[node] > far else at[node]
    return sorted(order, key=lambda n: (at[n], index[n]))


class Groups:
    """The nodes of a graph in groups, as far as they have been placed.

    Attributes:
        order: the nodes as they are visited, `index` the place of each.
        outputs: nodes that the graph returns.
        users: by node; those of one that nobody reads are missing.
        of: the group of a node.
    """

    def __init__(self, graph: Graph, limits: FuseLimits) -> None:
        self.limits = limits
        self.order = near_users(graph, limits.nodes)
        self.index = {n: i for i, n in enumerate(self.order)}
        self.outputs = {e.node for e in graph.outputs}
        self.users: dict[Node, list[Node]] = {}
        for node in self.order:
            for producer in dict.fromkeys(e.node for e in node.inputs):
                self.users.setdefault(producer, []).append(node)
        self.of: dict[Node, Group] = {}
        self._spans = [0] * (len(self.order) + 1)  # groups that have nodes on both sides of the border before a node

    def __iter__(self) -> Iterator[Group]:
        """Each group once, those of now: they may be changed meanwhile."""
        return iter(list(dict.fromkeys(self.of.values())))

    def add(self, kind: str, node: Node) -> Group:
        """Gives the node a group of its own."""
        i = self.index[node]
        inputs = dict.fromkeys(e for e in node.inputs if not is_scalar_constant(e))
        group = Group(kind, node.outputs[0].type.shape, [node], inputs, i, i, device_of(node))
        group.injective = pattern_of(node) == OpPattern.INJECTIVE
        group.expensive = bool(node.op.attr("expensive"))
        self.of[node] = group
        return group

    def producers(self, node: Node) -> list[Group]:
        """The groups whose values the node reads."""
        found = (self.of.get(e.node) for e in node.inputs)
        return [g for g in dict.fromkeys(found) if g is not None]

    def only_used_in(self, group: Group, node: Node) -> bool:
        """Whether nothing but the group itself and `node` needs a value of it."""
        inside = {*group.nodes, node}
        return all(n not in self.outputs and all(u in inside for u in self.users.get(n, ())) for n in group.nodes)

    def merge(self, group: Group, others: list[Group], node: Node | None) -> bool:
        """Makes one group of `group`, `others` and `node`, where that is legal and within the limits."""
        parts = [group, *others]
        devices = {p.device for p in parts} | ({device_of(node)} if node is not None else set())
        if len(devices) > 1:
            return False
        if not self._within_limits(parts, node) or self._recomputes(parts) or self._cyclic(parts, node):
            return False
        for part in parts:
            self._span(part, -1)
        for other in others:
            for n in other.nodes:
                self.of[n] = group
            group.nodes += other.nodes
            group.inputs.update(other.inputs)
            group.first, group.last = min(group.first, other.first), max(group.last, other.last)
            group.injective |= other.injective
            group.expensive |= other.expensive
        if node is not None:
            self.of[node] = group
            group.nodes.append(node)
            group.inputs.update((e, None) for e in node.inputs if not is_scalar_constant(e))
            group.last = max(group.last, self.index[node])
            group.injective |= pattern_of(node) == OpPattern.INJECTIVE
            group.expensive |= bool(node.op.attr("expensive"))
            group.shape = node.outputs[0].type.shape if group.kind == ELEM else group.shape
        self._span(group, 1)
        for e in [e for e in group.inputs if self.of.get(e.node) is group]:
            del group.inputs[e]
        return True

    def shrink(self, group: Group, gone: set[Node]) -> None:
        """Takes the nodes `gone` out of the group, which leaves them in none; no node that stays reads them."""
        kept = [n for n in group.nodes if n not in gone]
        group.nodes, group.post = kept, group.post - gone
        inside = set(kept)
        group.inputs = dict.fromkeys(
            e for n in kept for e in n.inputs if e.node not in inside and not is_scalar_constant(e)
        )
        self._span(group, -1)
        group.first, group.last = min(map(self.index.__getitem__, kept)), max(map(self.index.__getitem__, kept))
        self._span(group, 1)
        group.injective = any(pattern_of(n) == OpPattern.INJECTIVE for n in kept)
        group.expensive = any(n.op.attr("expensive") for n in kept)
        for n in gone:
            del self.of[n]

    def _within_limits(self, parts: list[Group], node: Node | None) -> bool:
        if sum(len(p.nodes) for p in parts) + (node is not None) > self.limits.nodes:
            return False
        inside = {n for p in parts for n in p.nodes}
        inputs = {e for p in parts for e in p.inputs if e.node not in inside}
        if node is not None:
            inputs |= {e for e in node.inputs if e.node not in inside and not is_scalar_constant(e)}
        if len(inputs) > self.limits.inputs:
            return False
        members = [*inside, node] if node is not None else list(inside)
        return sum(map(self.is_stored, members)) <= self.limits.outputs

    def is_stored(self, node: Node) -> bool:
        """Whether something that never joins an elementwise group needs the node's value."""
        return node in self.outputs or any(pattern_of(u) > OpPattern.INJECTIVE for u in self.users.get(node, ()))

    def _recomputes(self, parts: list[Group]) -> bool:
        """Whether an expensive value of one part is read at other indices by another part."""
        for reader in parts:
            if not reader.injective:
                continue
            read = {self.of.get(e.node) for e in reader.inputs}
            if any(p is not reader and p.expensive and p in read for p in parts):
                return True
        return False

    def _cyclic(self, parts: list[Group], node: Node | None) -> bool:
        """Whether the parts as one would depend on a group that depends on them; True also where the search gets long.

        The search stops at a border before the parts that no group spans: what lies before it depends on nothing
        behind. (A group may come before the parts, and depend on them through one that has nodes on both sides.)
        """
        members: set[Group] = set(parts)
        starts: list[Node] = [e.node for e in node.inputs] if node is not None else []
        if len(parts) > 1:
            starts += [e.node for p in parts for e in p.inputs]
        border = min(p.first for p in parts)
        while self._spans[border]:
            border -= 1
        seen: set[object] = set()
        stack: list[Node] = [s for s in starts if self.of.get(s) not in members]
        while stack:
            start = stack.pop()
            found = self.of.get(start)
            unit: object = start if found is None else found
            if unit in seen:
                continue
            seen.add(unit)
            if len(seen) > self.limits.search:
                return True
            if found is not None and found in members:
                return True
            if (self.index[start] if found is None else found.last) < border:
                continue
            stack.extend(e.node for e in (start.inputs if found is None else found.inputs))
        return False

    def _span(self, group: Group, count: int) -> None:
        """Counts a group that appears (1) or disappears (-1) at the borders between its nodes."""
        for i in range(group.first + 1, group.last + 1):
            self._spans[i] += count


def is_scalar_constant(e: NodeEntry) -> bool:
    return e.node.is_constant and e.type.numel == 1
