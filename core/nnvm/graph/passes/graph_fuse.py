"""GraphFuse: which nodes become one kernel.

Nodes are visited in topological order, and each joins the groups of its producers where that is legal (no cycle between
groups), within `FuseLimits`, and saves memory traffic:

- elementwise, broadcasting and injective nodes chain up; a value that is needed outside becomes a further output of the
  group, as long as all outputs have one shape;
- a master (convolution, matmul, softmax, pooling, reduction) takes the elementwise nodes after it as epilogue where
  they keep its output's shape, with operands from elsewhere that are already there (residual adds);
- a reduction takes the elementwise nodes before it, and so does a row master (softmax, layer_norm) whose attribute
  ``prologue`` names the input: what else needs the prologue's value gets it as a further output;
- cheap nodes (casts, scalar ops, creation) are computed again in each consumer instead of being stored;
- on a GPU, reductions of one tensor over the same axes are one group: its rows are read once.

```
%c = conv2d(%x, %w)               %g = group(%x, %w, %b, %r):
%b1 = add(%c, %b)                     conv2d -> add -> add -> relu
%s = add(%b1, %r)           ->
%y = relu(%s)
```
Views (``view`` ops) stay outside as free nodes; nodes without compute stay as they are, for the host to run.
The idea of fusing by op pattern is NNVM's; grouping at the join of a diamond does what TVM's dominator tree does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nnvm.dim import Shape, numel
from nnvm.graph.devices import device_of
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.passes.fused_graph import build_fused_graph
from nnvm.graph.views import is_view

__all__ = ["FuseLimits", "fuse_graph", "near_users"]

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


#: Every node a group of its own.
ALONE = FuseLimits(nodes=1, prologue_nodes=0, recompute_nodes=0)


@register_pass(
    "GraphFuse", provides=["fused"], without=lambda graph, context: fuse_graph(graph, _limits(ALONE, context))
)
def graph_fuse(graph: Graph, context: PassContext) -> Graph:
    """Makes groups of the nodes that become one kernel. Below opt_level 2 every node is a group of its own.

    requires: types. provides: ``fused``; ``inplace`` on the graph of a group.
    """
    limits = context.options.get("fuse_limits") or FuseLimits()
    return fuse_graph(graph, _limits(limits if context.opt_level >= 2 else ALONE, context))


def _limits(limits: FuseLimits, context: PassContext) -> FuseLimits:
    if not context.target.is_gpu:
        return limits
    alone = limits.nodes == 1
    return replace(limits, loop_nests=False, any_order=not context.options.get("deterministic"), siblings=not alone)


def fuse_graph(graph: Graph, limits: FuseLimits | None = None) -> Graph:
    """`graph` with its nodes in groups; see the module."""
    fuser = _Fuser(graph, limits or FuseLimits())
    for node in fuser.order:
        fuser.place(node)
    if fuser.limits.siblings:
        fuser.join_siblings()
    fuser.split_epilogues()
    fuser.duplicate_cheap()
    groups = [g.nodes for g in fuser.groups()]
    return build_fused_graph(graph, groups, fuser.index).with_attrs(fused=True)


@dataclass(eq=False, slots=True)
class _Group:
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


def _pattern(node: Node) -> OpPattern:
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
        is_single = node not in given and node not in returned and _pattern(node) <= OpPattern.INJECTIVE
        if is_single and all(e.node in given for e in node.inputs):
            given.add(node)
            users[node] = []
    at = dict(index)
    for node in reversed(users):
        first = min((at[u] for u in users[node]), default=at[node])
        at[node] = first if first - at[node] > far else at[node]
    return sorted(order, key=lambda n: (at[n], index[n]))


class _Fuser:
    def __init__(self, graph: Graph, limits: FuseLimits) -> None:
        self.limits = limits
        self.order = near_users(graph, self.limits.nodes)
        self.index = {n: i for i, n in enumerate(self.order)}
        self.outputs = {e.node for e in graph.outputs}
        self.users: dict[Node, list[Node]] = {}
        for node in self.order:
            for producer in dict.fromkeys(e.node for e in node.inputs):
                self.users.setdefault(producer, []).append(node)
        self.group_of: dict[Node, _Group] = {}
        given = graph.attrs.get("input_strides") or ()
        self.strided = {v for v, strides in zip(graph.inputs, given) if strides is not None}
        self.received: set[_Group] = set()
        self.spans = [0] * (len(self.order) + 1)  # groups that have nodes on both sides of the border before a node

    def groups(self) -> list[_Group]:
        return list(dict.fromkeys(self.group_of.values()))

    def place(self, node: Node) -> None:
        """Puts the node in a group: one of its producers', or a new one."""
        if node.is_variable or node.is_constant or not self._is_compiled(node):
            return
        pattern = _pattern(node)
        if pattern <= OpPattern.INJECTIVE and node.num_outputs == 1 and node.op.has("compute"):
            if not (self._join_master(node) or self._join_elementwise(node)):
                self._add(ELEM, node)
        elif pattern in (OpPattern.REDUCE, OpPattern.OUT_FUSABLE) and node.op.has("compute"):
            group = self._add(REDUCE if pattern == OpPattern.REDUCE else MASTER, node)
            group.post.add(node)
            self._take_prologue(group, node)
        else:
            self._add(SINGLE, node)

    def _add(self, kind: str, node: Node) -> _Group:
        i = self.index[node]
        inputs = dict.fromkeys(e for e in node.inputs if not _is_scalar_constant(e))
        group = _Group(kind, node.outputs[0].type.shape, [node], inputs, i, i, device_of(node))
        group.injective = _pattern(node) == OpPattern.INJECTIVE
        group.expensive = bool(node.op.attr("expensive"))
        self.group_of[node] = group
        return group

    # Epilogues

    def _join_master(self, node: Node) -> bool:
        """Adds an elementwise node to the master that it follows: the one that runs last of those that it could."""
        if _pattern(node) > OpPattern.BROADCAST:
            return False
        masters = [g for g in self._producers(node) if self._takes_epilogue(g, node) and self._saves_traffic(g, node)]
        for group in sorted(masters, key=lambda g: -g.last):
            side = [g for g in self._producers(node) if g.kind == ELEM and self._is_side_operand(g, node)]
            if (side and self._merge(group, side, node)) or self._merge(group, [], node):
                group.post.add(node)
                return True
        return False

    def _takes_epilogue(self, group: _Group, node: Node) -> bool:
        return (
            group.kind in (MASTER, REDUCE)
            and node.outputs[0].type.shape == group.shape
            and any(e.node in group.post for e in node.inputs)
            and all(n.num_outputs == 1 for n in group.post)
        )

    def _is_side_operand(self, group: _Group, node: Node) -> bool:
        """Whether an elementwise group serves `node` alone and may be computed in the epilogue that `node` joins."""
        if group.injective or not self._only_used_in(group, node):
            return False
        same = group.shape == node.outputs[0].type.shape
        return same or (not group.expensive and len(group.nodes) <= self.limits.broadcast_nodes)

    def split_epilogues(self) -> None:
        """Leaves a master that is computed tile by tile one epilogue: nodes that its last node needs.

        Others, which only the outside needs, would be ends of their own, and no tile is made of two ends. They become
        elementwise groups that read what the master's group stores; reductions after them take them as prologue.
        """
        for group in self.groups():
            if group.kind != MASTER or any(n.op.has("prologue") for n in group.post):
                continue
            inside = set(group.nodes)
            ends = [n for n in group.nodes if not any(u in inside for u in self.users.get(n, ()))]
            if len(ends) > 1:
                self._evict(group, inside - self._needed_by_all(ends, inside))

    def _needed_by_all(self, ends: list[Node], inside: set[Node]) -> set[Node]:
        """The nodes of the group that lead to its last node that every end needs, that node included."""
        needed = [self._ancestors(n, inside) for n in ends]
        shared = set.intersection(*needed)
        last = max(shared, key=self.index.__getitem__)
        return self._ancestors(last, inside)

    def _ancestors(self, node: Node, inside: set[Node]) -> set[Node]:
        """The nodes of `inside` that `node` needs, itself included."""
        found, pending = {node}, [node]
        while pending:
            for e in pending.pop().inputs:
                if e.node in inside and e.node not in found:
                    found.add(e.node)
                    pending.append(e.node)
        return found

    def _evict(self, group: _Group, gone: set[Node]) -> None:
        """Gives the nodes `gone` groups of their own; none that stay read them."""
        kept = [n for n in group.nodes if n not in gone]
        group.nodes, group.post = kept, group.post - gone
        inside = set(kept)
        group.inputs = dict.fromkeys(
            e for n in kept for e in n.inputs if e.node not in inside and not _is_scalar_constant(e)
        )
        self._span(group, -1)
        group.first, group.last = min(map(self.index.__getitem__, kept)), max(map(self.index.__getitem__, kept))
        self._span(group, 1)
        group.injective = any(_pattern(n) == OpPattern.INJECTIVE for n in kept)
        group.expensive = any(n.op.attr("expensive") for n in kept)
        for n in gone:
            del self.group_of[n]
        order = sorted(gone, key=self.index.__getitem__)
        for n in order:
            if not self._join_elementwise(n):
                self._add(ELEM, n)
        for n in order:
            for user in self.users.get(n, ()):
                taker = self.group_of.get(user)
                if taker is not None and taker.kind == REDUCE and self.group_of[n].kind == ELEM:
                    self._take_prologue(taker, user)

    # Reductions side by side

    def join_siblings(self) -> None:
        """Makes one group of reductions of one tensor over the same axes, each of which would read it."""
        first: dict[object, _Group] = {}
        for group in self.groups():
            reduced = [n for n in group.nodes if _pattern(n) == OpPattern.REDUCE]
            if group.kind != REDUCE or len(reduced) != 1:
                continue
            (node,) = reduced
            # a position (of the greatest element) cannot be put together from parts of a row, as others can
            key = node.inputs[0], node.attrs.get("axis"), node.outputs[0].type.dtype.is_float
            other = first.setdefault(key, group)
            if other is not group and self._merge(other, [group], None):
                other.post |= group.post

    # Elementwise chains

    def _join_elementwise(self, node: Node) -> bool:
        joined = [g for g in self._producers(node) if g.kind == ELEM and self._takes_elementwise(g, node)]
        joined.sort(key=lambda g: -g.last)
        if len(joined) > 1 and self._merge(joined[0], joined[1:], node):
            return True
        return any(self._merge(g, [], node) for g in joined)

    def _takes_elementwise(self, group: _Group, node: Node) -> bool:
        shape = node.outputs[0].type.shape
        injective = _pattern(node) == OpPattern.INJECTIVE
        if not injective and shape == group.shape:
            return self._saves_traffic(group, node)
        if not self._only_used_in(group, node):
            return False
        if not group.expensive:
            return injective or len(group.nodes) <= self.limits.broadcast_nodes
        # computed once per element only where each element is read at most once
        reads = sum(e.node in set(group.nodes) for e in node.inputs)
        return injective and reads == 1 and not _may_grow(group.shape, node)

    def _saves_traffic(self, group: _Group, node: Node) -> bool:
        """Whether computing `node` in the group is better than where its result is used.

        It is where what `node` reads stays inside, or where `node`, or what follows from it with operands that are
        already there, has to be stored anyway. It is not where one stored value would only become two.
        """
        inside = set(group.nodes)
        if not any(self._is_stored(e.node) for e in node.inputs if e.node in inside):
            return True
        limit = self.index[node]
        closure, pending = {node}, [node]
        while pending and len(closure) <= self.limits.nodes:
            n = pending.pop()
            if self._is_stored(n):
                continue
            for user in self.users.get(n, ()):
                if user in closure:
                    continue
                if _pattern(user) > OpPattern.BROADCAST or user.outputs[0].type.shape != group.shape:
                    return False
                if any(self._is_later(e.node, limit) and e.node not in closure for e in user.inputs):
                    return False
                closure.add(user)
                pending.append(user)
        return True

    def _is_later(self, node: Node, limit: int) -> bool:
        """Whether a value is computed after that place in the order: what is given, or a view of it, never is."""
        while self.index[node] > limit and is_view(node) and len(node.inputs) == 1:
            node = node.inputs[0].node
        return self.index[node] > limit and not (node.is_variable or node.is_constant)

    # Prologues

    def _take_prologue(self, group: _Group, node: Node) -> None:
        """Moves elementwise producers into the group of a reduction or row master."""
        positions = range(len(node.inputs)) if group.kind == REDUCE else node.op.attr("prologue", ())
        for position in positions:
            if position >= len(node.inputs):
                continue
            entry = node.inputs[position]
            producer = self.group_of.get(entry.node)
            if producer is None or producer.kind != ELEM or producer.injective or producer is group:
                continue
            if producer.shape != entry.type.shape or len(producer.nodes) > self.limits.prologue_nodes:
                continue
            if group.kind == REDUCE:
                fits = self._only_used_in(producer, node) and not self._serialises(group, producer)
            else:
                fits = not producer.expensive and producer.shape == group.shape
            if fits:
                self._merge(group, [producer], None)

    def _serialises(self, reduction: _Group, producer: _Group) -> bool:
        """Whether much work that threads could share would be done by the one that reduces."""
        results, elements = numel(reduction.shape), numel(producer.shape)
        few = isinstance(results, int) and results < self.limits.serial_rows
        many = isinstance(elements, int) and elements > self.limits.serial_elements
        return producer.expensive and few and many

    # What all share

    def _is_compiled(self, node: Node) -> bool:
        """Whether a node becomes part of a kernel: it has compute or a loop nest and is no free view.

        A view of an input that the caller gives with strides is a copy.
        """
        if not (node.op.has("compute") or (node.op.has("build_tir") and self._takes_nest(node))):
            return False
        return not is_view(node) or node.inputs[0].node in self.strided

    def _takes_nest(self, node: Node) -> bool:
        """Whether a loop nest becomes a kernel: in its order, or where none is needed."""
        if self.limits.loop_nests:
            return True
        types = tuple(e.type for e in node.inputs)
        rule = node.op.attr("any_order") if self.limits.any_order else None
        if rule is None:
            rule = node.op.attr("running")
        return rule is not None and bool(rule(node.attrs, types))

    def _producers(self, node: Node) -> list[_Group]:
        found = (self.group_of.get(e.node) for e in node.inputs)
        return [g for g in dict.fromkeys(found) if g is not None]

    def _only_used_in(self, group: _Group, node: Node) -> bool:
        inside = {*group.nodes, node}
        return all(n not in self.outputs and all(u in inside for u in self.users.get(n, ())) for n in group.nodes)

    def _merge(self, group: _Group, others: list[_Group], node: Node | None) -> bool:
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
                self.group_of[n] = group
            group.nodes += other.nodes
            group.inputs.update(other.inputs)
            group.first, group.last = min(group.first, other.first), max(group.last, other.last)
            group.injective |= other.injective
            group.expensive |= other.expensive
        if node is not None:
            self.group_of[node] = group
            group.nodes.append(node)
            group.inputs.update((e, None) for e in node.inputs if not _is_scalar_constant(e))
            group.last = max(group.last, self.index[node])
            group.injective |= _pattern(node) == OpPattern.INJECTIVE
            group.expensive |= bool(node.op.attr("expensive"))
            group.shape = node.outputs[0].type.shape if group.kind == ELEM else group.shape
        self._span(group, 1)
        for e in [e for e in group.inputs if self.group_of.get(e.node) is group]:
            del group.inputs[e]
        return True

    def _within_limits(self, parts: list[_Group], node: Node | None) -> bool:
        if sum(len(p.nodes) for p in parts) + (node is not None) > self.limits.nodes:
            return False
        inside = {n for p in parts for n in p.nodes}
        inputs = {e for p in parts for e in p.inputs if e.node not in inside}
        if node is not None:
            inputs |= {e for e in node.inputs if e.node not in inside and not _is_scalar_constant(e)}
        if len(inputs) > self.limits.inputs:
            return False
        members = [*inside, node] if node is not None else list(inside)
        return sum(map(self._is_stored, members)) <= self.limits.outputs

    def _is_stored(self, node: Node) -> bool:
        """Whether something that never joins an elementwise group needs the node's value."""
        return node in self.outputs or any(_pattern(u) > OpPattern.INJECTIVE for u in self.users.get(node, ()))

    def _recomputes(self, parts: list[_Group]) -> bool:
        """Whether an expensive value of one part is read at other indices by another part."""
        for reader in parts:
            if not reader.injective:
                continue
            read = {self.group_of.get(e.node) for e in reader.inputs}
            if any(p is not reader and p.expensive and p in read for p in parts):
                return True
        return False

    def _cyclic(self, parts: list[_Group], node: Node | None) -> bool:
        """Whether the parts as one would depend on a group that depends on them; True also where the search gets long.

        The search stops at a border before the parts that no group spans: what lies before it depends on nothing
        behind. (A group may come before the parts, and depend on them through one that has nodes on both sides.)
        """
        members: set[_Group] = set(parts)
        starts: list[Node] = [e.node for e in node.inputs] if node is not None else []
        if len(parts) > 1:
            starts += [e.node for p in parts for e in p.inputs]
        border = min(p.first for p in parts)
        while self.spans[border]:
            border -= 1
        seen: set[object] = set()
        stack: list[Node] = [s for s in starts if self.group_of.get(s) not in members]
        while stack:
            start = stack.pop()
            found = self.group_of.get(start)
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

    def _span(self, group: _Group, count: int) -> None:
        """Counts a group that appears (1) or disappears (-1) at the borders between its nodes."""
        for i in range(group.first + 1, group.last + 1):
            self.spans[i] += count

    # Recomputation

    def duplicate_cheap(self) -> None:
        """Copies cheap groups into all their consumers, where each of these can take them."""
        for group in self.groups():
            if group.kind != ELEM or not self._is_cheap(group) or any(n in self.outputs for n in group.nodes):
                continue
            inside = set(group.nodes)
            users = [u for n in group.nodes for u in self.users.get(n, ()) if u not in inside]
            consumers = list(dict.fromkeys(self.group_of.get(u) for u in users))
            if all(c is not None and self._takes_copy(c, group) for c in consumers):
                self._copy(group, [c for c in consumers if c is not None])

    def _is_cheap(self, group: _Group) -> bool:
        return (
            group not in self.received
            and len(group.nodes) <= self.limits.recompute_nodes
            and not group.expensive
            and (not group.inputs or (len(group.inputs) == 1 and not group.injective))
        )

    def _takes_copy(self, consumer: _Group, group: _Group) -> bool:
        if consumer.kind not in (ELEM, REDUCE) or consumer.device != group.device:
            return False
        if len(consumer.nodes) + len(group.nodes) > self.limits.nodes:
            return False
        inside = set(group.nodes)
        readers = [n for n in consumer.nodes if any(e.node in inside for e in n.inputs)]
        if any(_pattern(n) == OpPattern.REDUCE for n in readers) and group.injective:
            return False
        source = {s.node for s in group.inputs}
        if any(self.group_of.get(s) is consumer for s in source):
            return False  # the consumer would read its own output
        return not group.inputs or all(_same_shape(n, group.shape) for n in readers)

    def _copy(self, group: _Group, consumers: list[_Group]) -> None:
        """The nodes are listed in every consumer; building the fused graph makes a copy in each."""
        for n in group.nodes:
            del self.group_of[n]
        self.received.update(consumers)
        for consumer in consumers:
            consumer.nodes += group.nodes
            consumer.inputs.update(group.inputs)


def _same_shape(reader: Node, shape: Shape) -> bool:
    """Whether the node reads values of that shape without broadcasting them."""
    return _pattern(reader) == OpPattern.REDUCE or reader.outputs[0].type.shape == shape


def _is_scalar_constant(e: NodeEntry) -> bool:
    return e.node.is_constant and e.type.numel == 1


def _may_grow(shape: Shape, node: Node) -> bool:
    """Whether the node may have more elements than that (so that some are read more than once)."""
    before, after = _count(shape), _count(node.outputs[0].type.shape)
    return before is None or after is None or after > before


def _count(shape: Iterable[object]) -> int | None:
    total = 1
    for d in shape:
        if not isinstance(d, int):
            return None
        total *= d
    return total
