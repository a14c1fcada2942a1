"""Mirror (gradient checkpointing): forward values that the backward pass computes again instead of keeping them.

```
%a = relu(%x)                           %a = relu(%x)
%b = exp(%a)                            %b = exp(%a)
%g = multiply(%b_grad, %b)       ->     %g = multiply(%b_grad, exp(%a))                       (%b is recomputed)
%d = multiply(%g, greater(%a, 0))       %d = multiply(%g, greater(%a, 0))
```
What is recomputed begins with an ``optimization_barrier`` on the values that are kept: it waits for the gradients that
come before, so that the work is done when it is needed and its results live no longer, and it keeps the copies apart
from the originals. Values are recomputed in connected pieces, in the reverse order of the forward pass.

Tianqi Chen, Bing Xu, Chiyuan Zhang, Carlos Guestrin: Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnvm.graph.dependence import Fixed, is_pure
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.passes.checkpoints import between_checkpoints

__all__ = ["POLICIES", "Policy", "mirror"]

#: Which nodes are recomputed: one of POLICIES, or a function that tells for each node.
Policy = str | Callable[[Node], bool]

POLICIES = {
    "sqrt": "all between about sqrt(N) checkpoints, chosen for the least memory (Chen et al.)",
    "cheap": "what is elementwise or moves elements only",
    "marked": "the nodes with the attribute mirror",
}


def mirror(forward: Graph, backward: Graph, heads: Sequence[NodeEntry], policy: Policy = "marked") -> Graph:
    """`backward` with forward values recomputed.

    A node's own attribute ``mirror`` (True or False, see `nnvm.attribute`) comes before the policy. Never recomputed
    are ops with effects or random numbers, values that the forward graph returns, what depends on parameters only, and
    what the backward pass wants before any gradient is computed.

    Args:
        forward: typed.
        backward: gradients that share nodes with `forward`.
        heads: the gradients of the outputs, where the backward pass begins.

    Raises:
        ValueError: no such policy.
    """
    chosen = _chosen(forward, backward, policy)
    while chosen:
        plan = _Mirror(forward, backward, heads, _pieces(forward, chosen))
        if plan.tokens[0]:
            return plan.rewrite()
        chosen -= plan.needed_at_once()
    return backward


def _chosen(forward: Graph, backward: Graph, policy: Policy) -> set[Node]:
    if isinstance(policy, str) and policy not in POLICIES:
        raise ValueError(f"no mirror policy {policy!r}; there are {', '.join(POLICIES)}, or a function of the node")
    fixed, returned = Fixed(), {e.node for e in forward.outputs}
    possible = [
        n for n in forward.nodes
        if not n.is_variable and not n.is_constant and is_pure(n) and n not in returned and not fixed(n)
    ]  # fmt: skip
    wanted = _wanted(possible, forward, backward, policy)
    return {n for n in possible if n.attrs.get("__mirror__", n in wanted)}


def _wanted(possible: Sequence[Node], forward: Graph, backward: Graph, policy: Policy) -> set[Node]:
    if callable(policy):
        return {n for n in possible if policy(n)}
    if policy == "cheap":
        return {n for n in possible if n.op.attr("pattern", OpPattern.OPAQUE) <= OpPattern.INJECTIVE}
    if policy == "sqrt":
        inside = set(forward.nodes)
        read = {e for n in backward.nodes if n not in inside for e in n.inputs if e.node in inside}
        return between_checkpoints(possible, forward, read)
    return set()


def _pieces(forward: Graph, chosen: set[Node]) -> list[list[Node]]:
    """Connected parts of the chosen nodes, the last of the forward pass first."""
    parent: dict[Node, Node] = {n: n for n in chosen}

    def root(n: Node) -> Node:
        while parent[n] is not n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    order = [n for n in forward.nodes if n in chosen]
    for n in order:
        for e in n.inputs:
            if e.node in chosen:
                parent[root(e.node)] = root(n)
    found: dict[Node, list[Node]] = {}
    for n in reversed(order):
        found.setdefault(root(n), []).append(n)
    return list(found.values())


class _Mirror:
    """The backward graph with its nodes sorted by the last piece that they need.

    Attributes:
        level: of each backward node, the greatest number of a piece that it depends on; -1: of none.
        tokens: what each piece waits for: gradients that need no later piece.
    """

    def __init__(self, forward: Graph, backward: Graph, heads: Sequence[NodeEntry], pieces: list[list[Node]]) -> None:
        self.backward = backward
        self.fixed = Fixed()
        self.barriers: dict[tuple[int, NodeEntry], NodeEntry] = {}
        self.pieces = pieces
        self.piece_of = {n: i for i, nodes in enumerate(pieces) for n in nodes}
        inside = {*forward.nodes, *forward.inputs}
        self.nodes = [n for n in backward.nodes if n not in inside and not n.is_variable and not n.is_constant]
        self.level: dict[Node, int] = {}
        # steps from a head; what does not depend on one (factors of the chain rule) is nothing to wait for
        self.depth: dict[Node, int] = {e.node: 0 for e in heads}
        for n in self.nodes:
            sources = [e.node for e in n.inputs]
            self.level[n] = max((self.piece_of.get(s, self.level.get(s, -1)) for s in sources), default=-1)
            if steps := [self.depth[s] for s in sources if s in self.depth]:
                self.depth[n] = 1 + max(steps)
        self.tokens = self._tokens()

    def _tokens(self) -> list[list[NodeEntry]]:
        """For each piece, what of the work before it is read after it or returned, in the order of its depth.

        What the piece before has waited for is not waited for again.
        """
        returned = set(self.backward.outputs)
        last: dict[NodeEntry, int] = dict.fromkeys(returned, len(self.pieces))
        for n in self.nodes:
            for e in n.inputs:
                if e.node in self.level:
                    last[e] = max(last.get(e, -1), self.level[n])
        gradients = (e for e in last if e.node in self.level and e.node in self.depth and not self.fixed(e.node))
        ready = sorted(gradients, key=lambda e: self.depth[e.node])
        tokens: list[list[NodeEntry]] = []
        for i in range(len(self.pieces)):
            here = [e for e in ready if self.level[e.node] == i - 1 and last[e] >= i]
            tokens.append(here or (tokens[-1] if tokens else []))
        return tokens

    def needed_at_once(self) -> set[Node]:
        """Nodes of the first piece that a gradient reads before there is anything to wait for, or that none reads."""
        for n in self.nodes:
            if found := {e.node for e in n.inputs if self.piece_of.get(e.node) == 0}:
                return found
        return set(self.pieces[0])

    def rewrite(self) -> Graph:
        new: dict[NodeEntry, NodeEntry] = {}
        copies: dict[NodeEntry, NodeEntry] = {}
        for n in sorted(self.nodes, key=self.level.__getitem__):  # stable: inputs stay before their readers
            inputs = tuple(self._copy(e, new, copies) if e.node in self.piece_of else new.get(e, e) for e in n.inputs)
            made = n if inputs == n.inputs else Node(n.op, inputs, n.attrs, n.name, n.types, n.source)
            new.update(zip(n.outputs, made.outputs))
        return self.backward.with_outputs([new.get(e, e) for e in self.backward.outputs])

    def _copy(
        self, entry: NodeEntry, new: Mapping[NodeEntry, NodeEntry], copies: dict[NodeEntry, NodeEntry]
    ) -> NodeEntry:
        """A forward value, recomputed. Iterative: pieces can be deep."""
        piece = self.piece_of[entry.node]
        after = [new[t] for t in self.tokens[piece]]
        stack = [entry.node]
        while stack:
            n = stack[-1]
            waiting = [e.node for e in n.inputs if e.node in self.piece_of and e not in copies]
            if n[0] in copies or not waiting:
                stack.pop()
                if n[0] not in copies:
                    inputs = tuple(copies[e] if e in copies else self._kept(e, piece, after) for e in n.inputs)
                    made = Node(n.op, inputs, n.attrs, f"{n.name}.mirror", n.types, n.source)
                    copies.update(zip(n.outputs, made.outputs))
            else:
                stack.extend(waiting)
        return copies[entry]

    def _kept(self, e: NodeEntry, piece: int, after: Sequence[NodeEntry]) -> NodeEntry:
        """A value that is kept, as a piece reads it."""
        if self.fixed(e.node):
            return e
        if (piece, e) not in self.barriers:
            name = f"{e}.kept{piece}"
            self.barriers[piece, e] = apply("optimization_barrier", [e, *after], None, name)[0]
        return self.barriers[piece, e]
