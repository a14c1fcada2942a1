"""PlanMemory: where every value of the fused graph lives, decided by liveness before anything runs.

Nodes run in topological order. A value in the arena occupies its block from the step that computes it to the last step
that reads it or a view of it; blocks whose lives do not meet share memory. A group whose graph says ``inplace`` writes
over an input that dies there. Outputs of the graph are written where the caller's fresh tensors are; views are another
name for what they show, and parts of a concatenation that is ``in_place`` for pieces of the whole, which lives from
the first of them on; nodes that the host runs bring their own memory.

```
%a = relu(%x)      %a: arena 0, offset 0
%b = dense(%a)     %b: arena 1, offset 4096
%c = dense(%b)     %c: arena 2, offset 0        (%a is dead)
%y = dense(%c)     %y: output 0
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nnvm.dim import Dim, dim_max
from nnvm.graph.aliases import aliases
from nnvm.graph.devices import CPU, device_of
from nnvm.graph.graph import Graph
from nnvm.graph.memory_report import MemoryReport, memory_report
from nnvm.graph.node import Node, NodeEntry
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.passes.storage import Block, aligned, assign_offsets, peak_bytes
from nnvm.graph.views import is_view

__all__ = ["MemoryPlan", "Place", "plan_memory"]


@dataclass(frozen=True)
class Place:
    """Where a value lives.

    Attributes:
        kind: ``input``, ``param``, ``prepared`` (index: position among the graph's inputs), ``constant``,
            ``output`` (index: position among the outputs), ``arena`` (index: storage id; offset: bytes from the start
            of the arena), ``host`` (memory of a node that the host runs), ``view`` (of the entry `base`, offset bytes
            into it).
    """

    kind: str
    index: int = 0
    offset: Dim = 0
    base: NodeEntry | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of one fused graph.

    Attributes:
        places: of every value.
        steps: the nodes that run, in order; variables, constants and views are not among them.
        storage_bytes: size of each storage id.
        arena_bytes: size of the whole arena; its start is to be aligned to 64 bytes.
        unplanned_bytes: what the arena's values take together, without sharing.
        lower_bound_bytes: the largest sum of live values; no plan of these values in this order is below it. None where
            sizes have names.
        timeline: live bytes at each step.
        copies: outputs that are not written in place: the executor copies them from where they are (an input handed
            through, a value that others read in another layout, a view).
        lives: of each value in the arena, the step that computes it (or the first of its parts) and the last one that
            needs it.
        strides: in elements, of the values that are not contiguous where they lie.
    """

    places: Mapping[NodeEntry, Place]
    steps: tuple[Node, ...]
    storage_bytes: tuple[Dim, ...]
    arena_bytes: Dim
    unplanned_bytes: Dim
    lower_bound_bytes: int | None
    timeline: tuple[Dim, ...]
    copies: tuple[int, ...]
    lives: Mapping[NodeEntry, tuple[int, int]]
    strides: Mapping[NodeEntry, tuple[Dim, ...]]

    def report(self, sizes: Mapping[str, int] | None = None) -> MemoryReport:
        """The plan in bytes, with the timeline. `sizes`: values of the named sizes, where there are any."""
        return memory_report(self, sizes)

    def locate(self, entry: NodeEntry) -> tuple[Place, Dim]:
        """The place that is no view where a value lies, and the offset in bytes from that place's start."""
        place = self.places[entry]
        offset: Dim = 0
        while place.kind == "view":
            assert place.base is not None
            offset = offset + place.offset
            place = self.places[place.base]
        return place, offset

    def root(self, entry: NodeEntry) -> NodeEntry:
        """The value whose memory an entry lies in: itself, or what it is a view of."""
        while (place := self.places[entry]).base is not None:
            entry = place.base
        return entry

    def __str__(self) -> str:
        bound = "" if self.lower_bound_bytes is None else f", lower bound {self.lower_bound_bytes}"
        return f"arena {self.arena_bytes} bytes, without sharing {self.unplanned_bytes}{bound}"


def _unshared(graph: Graph, context: PassContext) -> Graph:
    """Without PlanMemory: every value has memory of its own."""
    return graph.with_attrs(memory_plan=plan_memory(graph, inplace=False, share=False))


@register_pass("PlanMemory", requires=["fused"], provides=["memory_plan"], without=_unshared)
def plan_memory_pass(graph: Graph, context: PassContext) -> Graph:
    """Attaches the plan. requires: ``fused``. provides: ``memory_plan``. Option ``inplace`` False: no such reuse."""
    return graph.with_attrs(memory_plan=plan_memory(graph, inplace=bool(context.options.get("inplace", True))))


def plan_memory(graph: Graph, *, inplace: bool = True, share: bool = True) -> MemoryPlan:
    """The plan of a fused graph; see the module. `share` False: no two values share memory."""
    return _Planner(graph, inplace, share).plan()


def _brings_memory(node: Node) -> bool:
    """Whether the results of a node are tensors that it makes itself."""
    return device_of(node) != CPU or not (node.op.name == "group" or node.op.has("library_into"))


class _Planner:
    def __init__(self, graph: Graph, inplace: bool, share: bool) -> None:
        self.graph = graph
        self.share = share
        self.inplace = inplace
        self.order = graph.nodes
        self.aliases = aliases(graph)
        self.steps = [n for n in self.order if not (n.is_variable or n.is_constant or is_view(n))]
        self.step_of = {n: i for i, n in enumerate(self.steps)}
        self.root: dict[NodeEntry, NodeEntry] = {}
        for e in (*self.aliases, *(e for n in self.order for e in n.outputs)):
            root = e
            while root in self.aliases:
                root = self.root.get(root) or self.aliases[root].base
            self.root[e] = root
        self.places: dict[NodeEntry, Place] = {}

    def plan(self) -> MemoryPlan:
        self._place_fixed()
        copies = self._place_outputs()
        last = self._last_uses()
        blocks, block_of, unplanned = self._blocks(last)
        if not self.share:
            blocks = [Block(b.size, 0, len(self.steps) - 1) for b in blocks]
        layout = assign_offsets(blocks, len(self.steps))
        live = peak_bytes(blocks, len(self.steps))
        for e, b in block_of.items():
            self.places[e] = Place("arena", layout.storage[b], layout.offsets[b])
        sizes: dict[int, Dim] = {}
        for b, block in enumerate(blocks):
            s = layout.storage[b]
            sizes[s] = block.size if s not in sizes else dim_max(sizes[s], block.size)
        first: dict[NodeEntry, int] = {}
        for i, node in enumerate(self.steps):
            for e in node.outputs:
                first.setdefault(self.root[e], i)
        known = [x for x in live if isinstance(x, int)]
        bound = max(known, default=0) if len(known) == len(live) else None
        return MemoryPlan(self.places, tuple(self.steps), tuple(sizes[s] for s in sorted(sizes)), layout.total,
                          unplanned, bound, tuple(live), copies,
                          {e: (first[e], last[e]) for e in block_of},
                          {e: a.strides for e, a in self.aliases.items() if a.strides is not None})  # fmt: skip

    def _place_fixed(self) -> None:
        """Everything that is not in the arena or an output."""
        for i, v in enumerate(self.graph.inputs):
            self.places[v[0]] = Place(v.attrs["kind"], i)
        for node in self.order:
            if node.is_constant:
                self.places[node[0]] = Place("constant")
            elif node in self.step_of and _brings_memory(node):
                self.places.update((e, Place("host")) for e in node.outputs)
        self.places.update((e, Place("view", 0, a.offset, a.base)) for e, a in self.aliases.items())

    def _place_outputs(self) -> tuple[int, ...]:
        """Puts values that are returned into the caller's tensors; gives the outputs that are to be copied."""
        strides = self.graph.attrs.get("output_strides") or (None,) * len(self.graph.outputs)
        read = {self.root[e] for n in self.order for e in n.inputs}
        copies = []
        for i, e in enumerate(self.graph.outputs):
            root = self.root[e]
            strided = strides[i] is not None
            if root in self.places:
                # one value returned twice is one tensor, as in eager
                if self.places[root].kind not in ("output", "host") or strided:
                    copies.append(i)
            elif (strided and (root != e or e in read)) or not self._covers(e, root):
                copies.append(i)
            else:
                self.places[root] = Place("output", i)
        return tuple(copies)

    def _covers(self, e: NodeEntry, root: NodeEntry) -> bool:
        """Whether a returned value is all of the memory it is a view of."""
        return e.type.nbytes == root.type.nbytes

    def _last_uses(self) -> dict[NodeEntry, int]:
        """The last step at which each value that owns memory is read."""
        end = len(self.steps) - 1
        last: dict[NodeEntry, int] = {}
        for node, i in self.step_of.items():
            for e in node.outputs:
                last[self.root[e]] = i
            for e in node.inputs:
                last[self.root[e]] = i
        for e in self.graph.outputs:
            last[self.root[e]] = end
        return last

    def _blocks(self, last: Mapping[NodeEntry, int]) -> tuple[list[Block], dict[NodeEntry, int], Dim]:
        """Blocks of the arena, the block of each value, and the bytes of all values together."""
        blocks: list[Block] = []
        block_of: dict[NodeEntry, int] = {}
        unplanned: Dim = 0
        for i, node in enumerate(self.steps):
            for e in node.outputs:
                root = self.root[e]  # a part of a concatenation brings the memory of the whole
                if root in self.places or root in block_of:
                    continue
                size = aligned(root.type.nbytes)
                unplanned = unplanned + size
                reused = self._overwrites(node, e, i, last, block_of) if self.inplace and root == e else None
                if reused is None or blocks[reused].size != size:
                    block_of[root] = len(blocks)
                    blocks.append(Block(size, i, last[root]))
                else:
                    block_of[root] = reused
                    blocks[reused] = Block(size, blocks[reused].first, last[root])
        return blocks, block_of, unplanned

    def _overwrites(
        self, node: Node, out: NodeEntry, step: int, last: Mapping[NodeEntry, int], block_of: Mapping[NodeEntry, int]
    ) -> int | None:
        """The block of an input that dies at this step and that the group may write over."""
        inner = node.attrs.get("graph")
        if not isinstance(inner, Graph):
            return None
        taken = {block_of[o] for o in node.outputs if o in block_of}
        roots = [self.root[e] for e in node.inputs]
        for i, o in inner.attrs.get("inplace", ()):
            root = roots[i]
            block = block_of.get(root)
            if o != out.index or block is None or block in taken or last[root] != step or roots.count(root) > 1:
                continue
            alias = self.aliases.get(node.inputs[i])
            in_order = alias is None or alias.strides is None  # else what is written is not what was read there
            if in_order and node.inputs[i].type.nbytes == root.type.nbytes:
                return block
        return None
