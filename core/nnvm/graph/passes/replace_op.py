"""ReplaceOp: algebra that is exact, and known functions recognised in the ops they were taken apart into.

```
multiply(%x, 1.0)                    ->   %x
power(%x, 2.0)                       ->   multiply(%x, %x)
multiply(%x, sigmoid(%x))            ->   silu(%x)
softmax(matmul(%q, %k) * s) @ %v     ->   attention(%q, %k, %v, scale=s)
```
The rules are a table (`replace_rules`, `attention_rule`): a pattern and what replaces it. Algebraic rules give equal
values bit for bit, -0.0 and NaN included, or need the option ``fast_math``; recognised functions compute the same
formula. What is expensive and has readers outside a pattern stays, as it would be computed twice.
"""

from __future__ import annotations

from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.passes.attention_rule import attention, grouped_attention
from nnvm.graph.passes.replace_rules import RULES, Rule
from nnvm.graph.rewrite import match, roots

__all__ = ["replace_op"]

#: A replacement may make another one possible (a recognised norm, its scale, its shift).
_ROUNDS = 3


@register_pass("ReplaceOp", requires=["typed"], opt_level=2)
def replace_op(graph: Graph, context: PassContext) -> Graph:
    """Applies the table until nothing changes. requires: ``typed``. Option ``fast_math``: inexact algebra too."""
    fast = bool(context.options.get("fast_math"))
    by_root: dict[str, list[Rule]] = {}
    for rule in RULES:
        if fast or rule.exact:
            for name in roots(rule.pattern):
                by_root.setdefault(name, []).append(rule)
    for _ in range(_ROUNDS):
        after = _Replacer(graph, by_root, fast).run()
        if after is graph:
            break
        graph = after
    return graph


class _Replacer:
    def __init__(self, graph: Graph, by_root: dict[str, list[Rule]], fast: bool) -> None:
        self.graph = graph
        self.by_root = by_root
        self.fast = fast
        self.uses = Uses(graph)
        self.origin: dict[NodeEntry, NodeEntry] = {}  # new value -> the old one that it stands for

    def run(self) -> Graph:
        return rebuild(self.graph, self._rewrite)

    def _rewrite(self, node: Node, inputs: tuple[NodeEntry, ...]) -> Node | NodeEntry | None:
        self.origin.update(zip(inputs, node.inputs))
        if node.types is None or len(node.types) != 1:
            return None
        rules = self.by_root.get(node.op.name)
        if rules is None and not node.op.attr("is_matmul") and not node.op.attr("is_attention"):
            return None
        here = Node(node.op, inputs, node.attrs, node.name, node.types, node.source)
        for rule in rules or ():
            found = match(rule.pattern, here[0])
            if found is None or not self._interior_is_private(here, set(found.values())):
                continue
            made = self._checked(rule.build(found, here), node)
            if made is not None:
                return made
        if node.op.attr("is_matmul"):
            return self._checked(attention(here, self._is_read_once, self.fast), node)
        if node.op.attr("is_attention"):
            return self._checked(grouped_attention(here), node)
        return None

    def _checked(self, made: NodeEntry | None, node: Node) -> NodeEntry | None:
        """The replacement, under the node's name, where it has the same type."""
        if made is None or node.types is None or made.type != node.types[0]:
            return None
        n = made.node
        if made in self.origin or not n.inputs or n.num_outputs != 1:
            return made
        return Node(n.op, n.inputs, n.attrs, node.name, n.types, node.source)[0]

    def _interior_is_private(self, root: Node, bound: set[NodeEntry]) -> bool:
        """Whether no expensive node between the root and the bound values is read from elsewhere."""
        stack, seen = list(root.inputs), set()
        while stack:
            e = stack.pop()
            if e in bound or e in seen or e.node.is_variable or e.node.is_constant:
                continue
            seen.add(e)
            if e.node.op.attr("pattern", OpPattern.OPAQUE) >= OpPattern.OUT_FUSABLE and not self._is_read_once(e):
                return False
            stack.extend(e.node.inputs)
        return True

    def _is_read_once(self, e: NodeEntry) -> bool:
        old = self.origin.get(e, e)
        return len(self.uses.of(old)) <= 1 and not self.uses.is_output(old)
