"""ElideCopies: concatenations and slices that move no data.

```
%a = conv2d(%x, %w); %b = conv2d(%x, %v)           each convolution writes its part of %c, where PlanMemory
%c = concatenate(%a, %b, axis=1)             ->    %c = concatenate(%a, %b, axis=1, in_place=True)      puts it
%s = slice(%c, begin, end); %y = conv2d(%s)        %s = slice(..., in_place=True): %y reads %c through strides
```
A concatenation is worth it where its value is stored in any case: it is returned, or read by something that does not
compute it along (a convolution), or by several. A part is written in place where a kernel computes it and it has no
other place to be: it is not returned, not an input, not a part already (nor the same part twice). Where rows of the
parts do not follow each other (a batch, the last axis), kernels write and read them through strides; whatever wants
them contiguous, as a view or a node that the host runs, prevents that. Parts that cannot be in place are copied, if
they are the smaller half. What a longer concatenation has in common with a shorter one is made once:

    %d = concatenate(%a, %b, %e)             ->    %d = concatenate(%c, %e)

Dense blocks then grow in one piece of memory. (Pleiss et al., "Memory-efficient implementation of DenseNets", 2017.)
"""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim, numel
from nnvm.graph.aliases import contiguous, covered
from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.views import is_view, view_offset

__all__ = ["elide_copies"]

#: Bytes that have to lie side by side for kernels to read or write a part through strides.
_RUN_BYTES = 64


@register_pass("ElideCopies", requires=["typed"], opt_level=2)
def elide_copies(graph: Graph, context: PassContext) -> Graph:
    """Sets ``in_place`` on the nodes whose data need not move. requires: ``typed``; reads ``output_strides``."""
    if context.target.kind != "llvm" or not any(n.op.attr("joins") or n.op.attr("is_slice") for n in graph.nodes):
        return graph
    graph = _shared_runs(graph)
    chosen = _Chooser(graph)
    chosen.choose()
    if not chosen.nodes:
        return graph

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
        if node not in chosen.nodes:
            return None
        copied = chosen.nodes[node]
        parts = [apply("identity", [e], name=f"{node.name}.part{i}", source=node.source)[0] if i in copied else e
                 for i, e in enumerate(inputs)]  # fmt: skip
        return apply(node.op, parts, {**node.attrs, "in_place": True}, node.name, node.source)

    return rebuild(graph, rewrite)


def _shared_runs(graph: Graph) -> Graph:
    """Concatenations of what begins with all parts of another one, from that one."""
    known: dict[tuple[object, ...], Node] = {}
    begins: dict[Node, tuple[int, Node]] = {}
    for node in sorted((n for n in graph.nodes if n.op.attr("joins")), key=lambda n: len(n.inputs)):
        axis = node.op.attr("joins")(node.attrs, node.outputs[0].type.rank)
        runs = ((k, known.get((axis, *node.inputs[:k]))) for k in range(len(node.inputs) - 1, 1, -1))
        if (found := next(((k, n) for k, n in runs if n is not None), None)) is not None:
            begins[node] = found
        known.setdefault((axis, *node.inputs), node)
    if not begins:
        return graph
    shared = {n for _, n in begins.values()}
    made: dict[Node, Node] = {}

    def make(node: Node, inputs: tuple[NodeEntry, ...]) -> Node:
        if node not in made:
            if node in begins:
                k, first = begins[node]
                inputs = (make(first, inputs[:k])[0], *inputs[k:])
            made[node] = apply(node.op, inputs, node.attrs, node.name, node.source)
        return made[node]

    return rebuild(graph, lambda node, inputs: make(node, inputs) if node in begins or node in shared else None)


class _Chooser:
    """Decides for each node whether it moves data."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.uses = Uses(graph)
        strides = graph.attrs.get("output_strides") or (None,) * len(graph.outputs)
        self.strided_outputs = {covered(e) for e, s in zip(graph.outputs, strides) if s is not None}
        self.returned = {covered(e) for e in graph.outputs}
        given = graph.attrs.get("input_strides") or ()
        self.strided_inputs = {v[0] for v, s in zip(graph.inputs, given) if s is not None}
        #: The nodes, each with the positions of the inputs that are to be copied.
        self.nodes: dict[Node, frozenset[int]] = {}
        self.placed: set[NodeEntry] = set()
        self.strided: set[NodeEntry] = set()

    def choose(self) -> None:
        for node in reversed(self.graph.nodes):
            if node.types is None or any(e.type.device != "cpu" for e in (*node.inputs, *node.outputs)):
                continue
            if node.op.attr("joins"):
                self._join(node)
            elif node.op.attr("is_slice") and self._reads_through_strides(node):
                self.nodes[node] = frozenset()
                self.strided.add(node[0])

    # Concatenations

    def _join(self, node: Node) -> None:
        whole = node[0]
        if whole in self.strided_outputs or not self._is_stored(whole):
            return
        axis = node.op.attr("joins")(node.attrs, whole.type.rank)
        strided = whole in self.strided or any(d != 1 for d in whole.type.shape[:axis])
        if strided and not _has_runs([e.type.shape[axis:] for e in node.inputs], whole.type.dtype.bytes):
            return
        parts: dict[NodeEntry, int] = {}
        for i, e in enumerate(node.inputs):
            part = covered(e)
            if part not in parts and self._can_lie_in(part, e, node, strided):
                parts[part] = i
        copied = frozenset(range(len(node.inputs))) - frozenset(parts.values())
        if not parts or not _is_most(node.inputs, copied):
            return
        self.nodes[node] = copied
        self.placed.update(parts)
        if strided:
            self.strided.update(parts)

    def _is_stored(self, whole: NodeEntry) -> bool:
        """Whether a value is written to memory in any case."""
        users = self.uses.of(whole)
        if self.uses.is_output(whole) or len(users) != 1:
            return True
        user = users[0][0]
        return user in self.nodes or is_view(user) or _pattern(user) > OpPattern.INJECTIVE

    def _can_lie_in(self, part: NodeEntry, e: NodeEntry, node: Node, strided: bool) -> bool:
        """Whether a part may be written where the whole lies."""
        made = part.node
        if part in self.placed or part in self.returned or not _is_computed(made) or part.type.numel == 0:
            return False
        if not strided:
            return True
        return part == e and made.op.has("compute") and self._all_take_strides(e, node)

    def _all_take_strides(self, e: NodeEntry, besides: Node | None = None) -> bool:
        """Whether all who read a value can read it through strides."""
        for user, _ in self.uses.of(e):
            if user is besides:
                continue
            if is_view(user) or user.op.attr("is_slice") or not user.op.has("compute") or user in self.nodes:
                return False
        return not self.uses.is_output(e)

    # Slices

    def _reads_through_strides(self, node: Node) -> bool:
        """Whether a slice that is no view is only read by kernels that would have it copied first."""
        data, out = node.inputs[0], node[0]
        if view_offset(node) is not None or data in self.strided_inputs or data.node.is_constant:
            return False
        users = self.uses.of(out)
        if out.type.numel == 0 or not any(_pattern(u) > OpPattern.INJECTIVE for u, _ in users):
            return False
        _, strides = node.op.attr("slice_strides")(node.attrs, data.type)
        return _run_bytes(data, out, strides) >= _RUN_BYTES and self._all_take_strides(out)


def _run_bytes(data: NodeEntry, out: NodeEntry, strides: Sequence[Dim]) -> int:
    """Bytes of a slice that lie side by side in the data; named sizes count as long."""
    run = data.type.dtype.bytes
    shapes = zip(
        reversed(data.type.shape), reversed(out.type.shape), reversed(strides), reversed(contiguous(data.type.shape))
    )
    for whole, extent, stride, step in shapes:
        if stride != step:
            break
        run *= extent if isinstance(extent, int) else _RUN_BYTES
        if whole != extent:
            break
    return run


def _is_computed(node: Node) -> bool:
    """Whether a kernel writes the value, of this node's own or through its parts."""
    if node.is_variable or node.is_constant or is_view(node):
        return False
    return bool(node.op.has("compute") or node.op.has("build_tir"))


def _pattern(node: Node) -> OpPattern:
    return node.op.attr("pattern", OpPattern.OPAQUE)  # type: ignore[no-any-return]


def _has_runs(shapes: Sequence[tuple[Dim, ...]], width: int) -> bool:
    sizes = [numel(s) for s in shapes]
    return all(not isinstance(n, int) or n * width >= _RUN_BYTES for n in sizes)


def _is_most(parts: Sequence[NodeEntry], copied: frozenset[int]) -> bool:
    """Whether less than half of the data is copied; where sizes have names, of the parts."""
    sizes = [e.type.numel for e in parts]
    known = [n for n in sizes if isinstance(n, int)]
    weights = known if len(known) == len(sizes) else [1] * len(sizes)
    return 2 * sum(weights[i] for i in copied) < sum(weights)
