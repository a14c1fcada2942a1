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
from dataclasses import replace

from nnvm.dim import Shape, numel
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.passes.fuse_groups import ELEM, MASTER, REDUCE, SINGLE, FuseLimits, Group, Groups, pattern_of
from nnvm.graph.passes.fused_graph import build_fused_graph
from nnvm.graph.views import is_view

__all__ = ["FuseLimits", "fuse_graph"]

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
    for node in fuser.groups.order:
        fuser.place(node)
    if fuser.limits.siblings:
        fuser.join_siblings()
    fuser.split_epilogues()
    fuser.duplicate_cheap()
    groups = [g.nodes for g in fuser.groups]
    return build_fused_graph(graph, groups, fuser.groups.index).with_attrs(fused=True)


class _Fuser:
    """Which groups are made.

    Attributes:
        strided: inputs that the caller gives with strides.
        received: groups that have copies of others' nodes.
    """

    def __init__(self, graph: Graph, limits: FuseLimits) -> None:
        self.limits, self.groups = limits, Groups(graph, limits)
        given = graph.attrs.get("input_strides") or ()
        self.strided = {v for v, strides in zip(graph.inputs, given) if strides is not None}
        self.received: set[Group] = set()

    def place(self, node: Node) -> None:
        """Puts the node in a group: one of its producers', or a new one."""
        if node.is_variable or node.is_constant or not self._is_compiled(node):
            return
        pattern = pattern_of(node)
        if pattern <= OpPattern.INJECTIVE and node.num_outputs == 1 and node.op.has("compute"):
            if not (self._join_master(node) or self._join_elementwise(node)):
                self.groups.add(ELEM, node)
        elif pattern in (OpPattern.REDUCE, OpPattern.OUT_FUSABLE) and node.op.has("compute"):
            group = self.groups.add(REDUCE if pattern == OpPattern.REDUCE else MASTER, node)
            group.post.add(node)
            self._take_prologue(group, node)
        else:
            self.groups.add(SINGLE, node)

    # Epilogues

    def _join_master(self, node: Node) -> bool:
        """Adds an elementwise node to the master that it follows: the one that runs last of those that it could."""
        if pattern_of(node) > OpPattern.BROADCAST:
            return False
        producers = self.groups.producers(node)
        masters = [g for g in producers if self._takes_epilogue(g, node) and self._saves_traffic(g, node)]
        for group in sorted(masters, key=lambda g: -g.last):
            side = [g for g in self.groups.producers(node) if g.kind == ELEM and self._is_side_operand(g, node)]
            if (side and self.groups.merge(group, side, node)) or self.groups.merge(group, [], node):
                group.post.add(node)
                return True
        return False

    def _takes_epilogue(self, group: Group, node: Node) -> bool:
        return (
            group.kind in (MASTER, REDUCE)
            and node.outputs[0].type.shape == group.shape
            and any(e.node in group.post for e in node.inputs)
            and all(n.num_outputs == 1 for n in group.post)
        )

    def _is_side_operand(self, group: Group, node: Node) -> bool:
        """Whether an elementwise group serves `node` alone and may be computed in the epilogue that `node` joins."""
        if group.injective or not self.groups.only_used_in(group, node):
            return False
        same = group.shape == node.outputs[0].type.shape
        return same or (not group.expensive and len(group.nodes) <= self.limits.broadcast_nodes)

    def split_epilogues(self) -> None:
        """Leaves a master that is computed tile by tile one epilogue: nodes that its last node needs.

        Others, which only the outside needs, would be ends of their own, and no tile is made of two ends. They become
        elementwise groups that read what the master's group stores; reductions after them take them as prologue.
        """
        for group in self.groups:
            if group.kind != MASTER or any(n.op.has("prologue") for n in group.post):
                continue
            inside = set(group.nodes)
            ends = [n for n in group.nodes if not any(u in inside for u in self.groups.users.get(n, ()))]
            if len(ends) > 1:
                self._evict(group, inside - self._needed_by_all(ends, inside))

    def _needed_by_all(self, ends: list[Node], inside: set[Node]) -> set[Node]:
        """The nodes of the group that lead to its last node that every end needs, that node included."""
        needed = [self._ancestors(n, inside) for n in ends]
        shared = set.intersection(*needed)
        last = max(shared, key=self.groups.index.__getitem__)
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

    def _evict(self, group: Group, gone: set[Node]) -> None:
        """Gives the nodes `gone` groups of their own; none that stay read them."""
        self.groups.shrink(group, gone)
        order = sorted(gone, key=self.groups.index.__getitem__)
        for n in order:
            if not self._join_elementwise(n):
                self.groups.add(ELEM, n)
        for n in order:
            for user in self.groups.users.get(n, ()):
                taker = self.groups.of.get(user)
                if taker is not None and taker.kind == REDUCE and self.groups.of[n].kind == ELEM:
                    self._take_prologue(taker, user)

    # Reductions side by side

    def join_siblings(self) -> None:
        """Makes one group of reductions of one tensor over the same axes, each of which would read it."""
        first: dict[object, Group] = {}
        for group in self.groups:
            reduced = [n for n in group.nodes if pattern_of(n) == OpPattern.REDUCE]
            if group.kind != REDUCE or len(reduced) != 1:
                continue
            (node,) = reduced
            # a position (of the greatest element) cannot be put together from parts of a row, as others can
            key = node.inputs[0], node.attrs.get("axis"), node.outputs[0].type.dtype.is_float
            other = first.setdefault(key, group)
            if other is not group and self.groups.merge(other, [group], None):
                other.post |= group.post

    # Elementwise chains

    def _join_elementwise(self, node: Node) -> bool:
        joined = [g for g in self.groups.producers(node) if g.kind == ELEM and self._takes_elementwise(g, node)]
        joined.sort(key=lambda g: -g.last)
        if len(joined) > 1 and self.groups.merge(joined[0], joined[1:], node):
            return True
        return any(self.groups.merge(g, [], node) for g in joined)

    def _takes_elementwise(self, group: Group, node: Node) -> bool:
        shape = node.outputs[0].type.shape
        injective = pattern_of(node) == OpPattern.INJECTIVE
        if not injective and shape == group.shape:
            return self._saves_traffic(group, node)
        if not self.groups.only_used_in(group, node):
            return False
        if not group.expensive:
            return injective or len(group.nodes) <= self.limits.broadcast_nodes
        # computed once per element only where each element is read at most once
        reads = sum(e.node in set(group.nodes) for e in node.inputs)
        return injective and reads == 1 and not _may_grow(group.shape, node)

    def _saves_traffic(self, group: Group, node: Node) -> bool:
        """Whether computing `node` in the group is better than where its result is used.

        It is where what `node` reads stays inside, or where `node`, or what follows from it with operands that are
        already there, has to be stored anyway. It is not where one stored value would only become two.
        """
        inside = set(group.nodes)
        if not any(self.groups.is_stored(e.node) for e in node.inputs if e.node in inside):
            return True
        limit = self.groups.index[node]
        closure, pending = {node}, [node]
        while pending and len(closure) <= self.limits.nodes:
            n = pending.pop()
            if self.groups.is_stored(n):
                continue
            for user in self.groups.users.get(n, ()):
                if user in closure:
                    continue
                if pattern_of(user) > OpPattern.BROADCAST or user.outputs[0].type.shape != group.shape:
                    return False
                if any(self._is_later(e.node, limit) and e.node not in closure for e in user.inputs):
                    return False
                closure.add(user)
                pending.append(user)
        return True

    def _is_later(self, node: Node, limit: int) -> bool:
        """Whether a value is computed after that place in the order: what is given, or a view of it, never is."""
        while self.groups.index[node] > limit and is_view(node) and len(node.inputs) == 1:
            node = node.inputs[0].node
        return self.groups.index[node] > limit and not (node.is_variable or node.is_constant)

    # Prologues

    def _take_prologue(self, group: Group, node: Node) -> None:
        """Moves elementwise producers into the group of a reduction or row master."""
        positions = range(len(node.inputs)) if group.kind == REDUCE else node.op.attr("prologue", ())
        for position in positions:
            if position >= len(node.inputs):
                continue
            entry = node.inputs[position]
            producer = self.groups.of.get(entry.node)
            if producer is None or producer.kind != ELEM or producer.injective or producer is group:
                continue
            if producer.shape != entry.type.shape or len(producer.nodes) > self.limits.prologue_nodes:
                continue
            if group.kind == REDUCE:
                fits = self.groups.only_used_in(producer, node) and not self._serialises(group, producer)
            else:
                fits = not producer.expensive and producer.shape == group.shape
            if fits:
                self.groups.merge(group, [producer], None)

    def _serialises(self, reduction: Group, producer: Group) -> bool:
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

    # Recomputation

    def duplicate_cheap(self) -> None:
        """Copies cheap groups into all their consumers, where each of these can take them."""
        for group in self.groups:
            if group.kind != ELEM or not self._is_cheap(group) or any(n in self.groups.outputs for n in group.nodes):
                continue
            inside = set(group.nodes)
            users = [u for n in group.nodes for u in self.groups.users.get(n, ()) if u not in inside]
            consumers = list(dict.fromkeys(self.groups.of.get(u) for u in users))
            if all(c is not None and self._takes_copy(c, group) for c in consumers):
                self._copy(group, [c for c in consumers if c is not None])

    def _is_cheap(self, group: Group) -> bool:
        return (
            group not in self.received
            and len(group.nodes) <= self.limits.recompute_nodes
            and not group.expensive
            and (not group.inputs or (len(group.inputs) == 1 and not group.injective))
        )

    def _takes_copy(self, consumer: Group, group: Group) -> bool:
        if consumer.kind not in (ELEM, REDUCE) or consumer.device != group.device:
            return False
        if len(consumer.nodes) + len(group.nodes) > self.limits.nodes:
            return False
        inside = set(group.nodes)
        readers = [n for n in consumer.nodes if any(e.node in inside for e in n.inputs)]
        if any(pattern_of(n) == OpPattern.REDUCE for n in readers) and group.injective:
            return False
        source = {s.node for s in group.inputs}
        if any(self.groups.of.get(s) is consumer for s in source):
            return False  # the consumer would read its own output
        return not group.inputs or all(_same_shape(n, group.shape) for n in readers)

    def _copy(self, group: Group, consumers: list[Group]) -> None:
        """The nodes are listed in every consumer; building the fused graph makes a copy in each."""
        for n in group.nodes:
            del self.groups.of[n]
        self.received.update(consumers)
        for consumer in consumers:
            consumer.nodes += group.nodes
            consumer.inputs.update(group.inputs)


def _same_shape(reader: Node, shape: Shape) -> bool:
    """Whether the node reads values of that shape without broadcasting them."""
    return pattern_of(reader) == OpPattern.REDUCE or reader.outputs[0].type.shape == shape


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
