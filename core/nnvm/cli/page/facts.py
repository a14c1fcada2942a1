"""What the page tells of a graph: its kernels with their work, what the passes took, and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nnvm.compiler.lower_group import group_bytes, group_flops
from nnvm.dim import Dim, evaluate, symbols
from nnvm.graph import Graph, Node
from nnvm.graph.memory_report import MemoryReport
from nnvm.graph.structural import structural_key
from nnvm.target import Target

__all__ = ["Kernel", "PassRecord", "Recorder", "Roof", "Shown", "kernels_of", "size_names"]


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass.

    Attributes:
        seconds: what it took, with the passes that it ran itself.
        before, after: nodes.
        changed: False where it gave the same graph.
        depth: 0, and one more inside of another pass.
    """

    name: str
    seconds: float
    before: int
    after: int
    changed: bool
    depth: int = 0


class Recorder:
    """An instrument that keeps a `PassRecord` of each pass in `passes`, in the order in which they began."""

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []
        self._open: list[int] = []  # positions in `passes` of those that run

    def before_pass(self, name: str, graph: Graph) -> None:
        self._open.append(len(self.passes))
        count = len(graph.nodes)
        self.passes.append(PassRecord(name, 0.0, count, count, False, len(self._open) - 1))

    def after_pass(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        i = self._open.pop()
        began = self.passes[i]
        self.passes[i] = replace(began, seconds=seconds, after=len(after.nodes), changed=after is not before)


@dataclass(frozen=True)
class Roof:
    """What one core is taken to reach, for estimates: operations and bytes per nanosecond."""

    flops: float
    bytes: float

    @staticmethod
    def of(target: Target) -> Roof:
        """Two vector units with fused multiply-add at 3 GHz (one where there is none), and memory at 10 GB/s."""
        return Roof(target.lanes() * 2 * (2 if target.has_fma else 1) * 3.0, 10.0)

    def nanoseconds(self, flops: int, nbytes: int) -> float:
        """The roofline (Williams, Waterman and Patterson, 2009): the longer of computing and moving."""
        return max(flops / self.flops, nbytes / self.bytes)


@dataclass(frozen=True)
class Kernel:
    """One step of a plan.

    Attributes:
        name: of the group, or of the op that the host runs.
        ops: of the operators fused into it.
        outputs: their types as text.
        flops, nbytes: operations, and bytes of everything it reads and writes.
        estimate: nanoseconds by the roofline; None for what the host runs.
        measured: nanoseconds, None where they were not measured.
        code: kernels with equal numbers share machine code; None for what the host runs.
        members: names of the nodes in it.
    """

    name: str
    ops: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int
    nbytes: int
    estimate: float | None
    measured: float | None
    code: int | None
    members: tuple[str, ...]


@dataclass(frozen=True)
class Shown:
    """Everything that the page shows.

    Attributes:
        before, after: the graph as it came in, and the fused and planned one.
        kernels, prepare: steps of the main graph, and of the part that depends on parameters only.
        memory: of the main graph.
        sizes: the values that named sizes were given.
        measured: how the kernels' times were measured, "" where they were not.
        fallbacks: calls that the frontend runs itself, with the reason.
    """

    name: str
    target: Target
    before: Graph
    after: Graph
    kernels: tuple[Kernel, ...]
    prepare: tuple[Kernel, ...]
    memory: MemoryReport
    passes: tuple[PassRecord, ...]
    sizes: Mapping[str, int]
    measured: str = ""
    fallbacks: tuple[str, ...] = ()


def kernels_of(
    graph: Graph, roof: Roof, sizes: Mapping[str, int], measured: Mapping[Node, float] | None = None
) -> tuple[Kernel, ...]:
    """The steps of a planned graph in order. `measured`: nanoseconds of the nodes of `graph`."""
    code: dict[str, int] = {}
    kernels = []
    for node in graph.attrs["memory_plan"].steps:
        inner = node.attrs.get("graph")
        outputs = tuple(str(e.type) for e in node.outputs)
        if not isinstance(inner, Graph):
            kernels.append(Kernel(node.name, (node.op.name,), outputs, 0, 0, None, None, None, (node.name,)))
            continue
        work = [n for n in inner.nodes if not n.is_variable and not n.is_constant]
        flops, nbytes = (_known(d, sizes) for d in (group_flops(work), group_bytes(inner)))
        number = code.setdefault(structural_key(inner), len(code))
        kernels.append(Kernel(node.name, tuple(n.op.name for n in work), outputs, flops, nbytes,
                              roof.nanoseconds(flops, nbytes), (measured or {}).get(node), number,
                              tuple(n.name for n in work)))  # fmt: skip
    return tuple(kernels)


def size_names(graph: Graph) -> list[str]:
    """Names of the symbolic sizes in the types of a graph's values."""
    return sorted({name for n in graph.nodes for t in n.types or () for d in t.shape for name in symbols(d)})


def _known(d: Dim, sizes: Mapping[str, int]) -> int:
    return evaluate(d, sizes)
