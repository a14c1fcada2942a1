"""ElideCopies: concatenations, slices and transposes that move no data.

```
%a = conv2d(%x, %w); %b = conv2d(%x, %v)           each convolution writes its part of %c, where PlanMemory
%c = concatenate(%a, %b, axis=1)             ->    %c = concatenate(%a, %b, axis=1, in_place=True)      puts it
%s = slice(%c, begin, end); %y = conv2d(%s)        %s = slice(..., in_place=True): %y reads %c through strides
%t = transpose(%y); %z = dense(%t)                 %t = transpose(..., in_place=output): %y is written in that order
```
A node is worth it where its value is stored in any case: it is returned, or read by something that does not compute it
along (a convolution), or by several. A value is written in place where a kernel computes it and it has no other place
to be: it is not returned, not an input, not a part already (nor the same part twice). Where rows do not follow each
other (parts of a batch or of the last axis, transposes), kernels write and read through strides; whatever wants the
data contiguous, as most views or a node that the host runs, prevents that. Parts that cannot be in place are copied, if
they are the smaller half. So it is for what is interleaved. What a longer concatenation has in common with a shorter
one is made once:

    %d = concatenate(%a, %b, %e)             ->    %d = concatenate(%c, %e)

Dense blocks then grow in one piece of memory. (Pleiss et al., "Memory-efficient implementation of DenseNets", 2017.)
"""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim, row_major
from nnvm.graph.aliases import covered, is_contiguous, viewed
from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.views import is_view, view_offset

__all__ = ["elide_copies"]

Strides = tuple[Dim, ...]

#: Bytes that have to lie side by side for kernels to read or write a part through strides.
_RUN_BYTES = 64


@register_pass("ElideCopies", requires=["typed"], opt_level=2)
def elide_copies(graph: Graph, context: PassContext) -> Graph:
    """Sets ``in_place`` on the nodes whose data need not move. requires: ``typed``; reads ``output_strides``."""
    if not context.target.has_kernels or not any(n.op.has("places") or n.op.attr("strided_view") for n in graph.nodes):
        return graph
    graph = _shared_runs(graph)
    chosen = _Chooser(graph, context.target.is_gpu)
    chosen.choose()
    if not chosen.nodes:
        return graph

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> Node | None:
        if node not in chosen.nodes:
            return None
        how, copied = chosen.nodes[node], chosen.copied.get(node, frozenset())
        parts = [apply("identity", [e], name=f"{node.name}.part{i}", source=node.source)[0] if i in copied else e
                 for i, e in enumerate(inputs)]  # fmt: skip
        return apply(node.op, parts, {**node.attrs, "in_place": how}, node.name, node.source)

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
    """Decides for each node whether it moves data. `is_gpu`: there the frontend may run ops that have no compute, whose
    results lie where it made them."""

    def __init__(self, graph: Graph, is_gpu: bool) -> None:
        self.graph, self.is_gpu = graph, is_gpu
        self.uses = Uses(graph)
        strides = graph.attrs.get("output_strides") or (None,) * len(graph.outputs)
        self.strided_outputs = {covered(e) for e, s in zip(graph.outputs, strides) if s is not None}
        self.returned = {covered(e) for e in graph.outputs}
        given = graph.attrs.get("input_strides") or ()
        self.strided_inputs = {v[0] for v, s in zip(graph.inputs, given) if s is not None}
        #: The value of ``in_place`` by node, and the positions of the inputs that are to be copied first.
        self.nodes: dict[Node, bool | str] = {}
        self.copied: dict[Node, frozenset[int]] = {}
        #: Strides of the values that are written into others; None: contiguous.
        self.placed: dict[NodeEntry, Strides | None] = {}

    def choose(self) -> None:
        for node in reversed(self.graph.nodes):
            if node.types is None or any(e.type.device != "cpu" for e in (*node.inputs, *node.outputs)):
                continue
            if node.op.has("places"):
                self._join(node)
            elif node.op.attr("strided_view") and view_offset(node) is None and self._moves(node):
                if node.op.attr("permutation") and self._is_written_in_order(node):
                    self.nodes[node] = "output"
                elif self._is_read_through_strides(node):
                    self.nodes[node] = "input" if node.op.attr("permutation") else True

    def _strides(self, e: NodeEntry) -> Strides:
        return self.placed.get(e) or row_major(e.type.shape)

    # Concatenations

    def _join(self, node: Node) -> None:
        whole = node[0]
        if whole in self.strided_outputs or not self._is_stored(whole):
            return
        shapes = [e.type.shape for e in node.inputs]
        places = [own for _, own in node.op.attr("places")(node.attrs, shapes, self._strides(whole))]
        strided = not all(is_contiguous(*place) for place in zip(shapes, places))
        if strided and not all(_run_bytes(*place) >= _RUN_BYTES for place in zip(node.inputs, shapes, places)):
            return
        parts: dict[NodeEntry, int] = {}
        for i, e in enumerate(node.inputs):
            part = covered(e)
            if part not in parts and self._can_lie_in(part, e, node, places[i] if strided else None):
                parts[part] = i
        copied = frozenset(range(len(node.inputs))) - frozenset(parts.values())
        if not parts or not _is_most(node.inputs, copied):
            return
        self.nodes[node], self.copied[node] = True, copied
        self.placed.update({part: places[i] if strided else None for part, i in parts.items()})

    def _is_stored(self, whole: NodeEntry) -> bool:
        """Whether a value is written to memory in any case."""
        users = self.uses.of(whole)
        if self.uses.is_output(whole) or len(users) != 1:
            return True
        user = users[0][0]
        return user in self.nodes or is_view(user) or _pattern(user) > OpPattern.INJECTIVE

    def _can_lie_in(self, part: NodeEntry, e: NodeEntry, node: Node, strides: Strides | None) -> bool:
        """Whether a part may be written where the whole lies."""
        made = part.node
        if part in self.placed or part in self.returned or not self._is_computed(made) or part.type.numel == 0:
            return False
        if strides is None:
            return True
        return part == e and made.op.has("compute") and self._all_take(e, strides, node)

    def _all_take(self, e: NodeEntry, strides: Strides, besides: Node | None = None) -> bool:
        """Whether all who read a value can read it through strides."""
        if self.uses.is_output(e):
            return False
        for user, _ in self.uses.of(e):
            if user is besides:
                continue
            if user in self.nodes:
                if self.nodes[user] == "output" or user.op.has("places"):
                    return False
            elif is_view(user):
                shown = viewed(user, strides)
                if shown is None or not self._all_take(user[0], shown[1]):
                    return False
            elif user.op.attr("strided_view") or not user.op.has("compute"):
                return False
        return True

    # Slices and transposes

    def _moves(self, node: Node) -> bool:
        """Whether a kernel of its own would move the data, as something reads it that does not compute it along."""
        data, out = node.inputs[0], node[0]
        if data.node.is_constant or data in self.strided_inputs or out.type.numel == 0:
            return False
        if self.uses.is_output(out):
            return True
        return any(u in self.nodes or is_view(u) or _pattern(u) > OpPattern.INJECTIVE for u, _ in self.uses.of(out))

    def _is_written_in_order(self, node: Node) -> bool:
        """Whether the kernel before a transpose can write its output in the order of that."""
        data, out = node.inputs[0], node[0]
        is_kept = data in self.placed or data in self.returned
        if is_kept or out in self.strided_outputs or not self._is_computed(data.node):
            return False
        if not data.node.op.has("compute") or _pattern(data.node) <= OpPattern.INJECTIVE:
            return False
        permutation, strides = node.op.attr("permutation")(node.attrs, out.type.rank), self._strides(out)
        own = tuple(strides[permutation.index(i)] for i in range(len(strides)))
        if _run_bytes(data, data.type.shape, own) < _RUN_BYTES or not self._all_take(data, own, node):
            return False
        self.placed[data] = own
        return True

    def _is_read_through_strides(self, node: Node) -> bool:
        """Whether all who read a slice or transpose can read it where the data lies."""
        data, out = node.inputs[0], node[0]
        if data.node.op.attr("permutation") is None and _pattern(data.node) <= OpPattern.INJECTIVE:
            alone = self.uses.sole_user(data) is node and not is_view(data.node) and not data.node.is_variable
            if alone and node.op.attr("permutation") and not data.node.op.attr("strided_view"):
                return False  # computed along by what makes the data
        _, strides = node.op.attr("strided_view")(node.attrs, data.type, row_major(data.type.shape))
        return _run_bytes(out, out.type.shape, strides) >= _RUN_BYTES and self._all_take(out, strides)

    def _is_computed(self, node: Node) -> bool:
        """Whether a kernel writes the value, of this node's own or through its parts."""
        if node.is_variable or node.is_constant or is_view(node):
            return False
        return bool(node.op.has("compute") or (node.op.has("build_tir") and not self.is_gpu))


def _run_bytes(e: NodeEntry, shape: Sequence[Dim], strides: Sequence[Dim]) -> int:
    """Bytes of a value that lie side by side; named sizes count as long."""
    run, step = e.type.dtype.bytes, 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent == 1:
            continue
        if stride != step:
            break
        if not isinstance(extent, int):
            return max(run, _RUN_BYTES)
        run, step = run * extent, step * extent
    return run


def _pattern(node: Node) -> OpPattern:
    return node.op.attr("pattern", OpPattern.OPAQUE)  # type: ignore[no-any-return]


def _is_most(parts: Sequence[NodeEntry], copied: frozenset[int]) -> bool:
    """Whether less than half of the data is copied; where sizes have names, of the parts."""
    sizes = [e.type.numel for e in parts]
    known = [n for n in sizes if isinstance(n, int)]
    weights = known if len(known) == len(sizes) else [1] * len(sizes)
    return 2 * sum(weights[i] for i in copied) < sum(weights)
