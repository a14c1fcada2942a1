"""What was compiled, what was not and why: `nnvm_torch.report()`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nnvm.compiler.build import CompiledGraph, KernelInfo
from nnvm.compiler.choose_library import Choice
from nnvm.dim import Dim
from nnvm.runtime.fork_lock import fork_safe
from nnvm_torch.faults import runtime_faults
from nnvm_torch.imported import Fallback, Imported
from nnvm_torch.mapped_weights import mapped_bytes
from nnvm_torch.weights import drop_prepared, prepared_bytes

__all__ = ["GraphRecord", "Memory", "Report", "calling_owner", "number_of", "owner_of", "record", "record_of",
           "report", "reset"]  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Bytes of a graph's intermediate values (an expression of sizes where they are symbolic).

    Attributes:
        planned: of the arena, in which values share memory.
        unplanned: what the values would take without sharing.
        bound: the most that is alive at one time; None where sizes are symbolic.
    """

    planned: Dim
    unplanned: Dim
    bound: Dim | None


@dataclass(frozen=True)
class GraphRecord:
    """One compiled graph.

    Attributes:
        kind: ``inference``, ``forward`` or ``backward``.
        native, total: compute nodes compiled, and all.
        fallbacks: calls that ATen runs.
        kernels: one per kernel call, with the operators fused into it.
        seconds: compile time by phase.
        failure: why the graph as a whole runs in ATen, "" where it does not.
        owner: identity of the `torch.compile` result it was compiled for, 0 where that is not known.
        faults: exceptions inside the compiler, and what it did without.
        library: products of which our kernel or the vendor's library was chosen: (group, operator, choice).
        cuda_graph: of an inference graph on a GPU: since when its calls are captured in a CUDA graph, or why not.
    """

    kind: str
    native: int
    total: int
    fallbacks: tuple[Fallback, ...] = ()
    kernels: tuple[KernelInfo, ...] = ()
    memory: Memory = Memory(0, 0, 0)
    seconds: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    owner: int = 0
    faults: tuple[str, ...] = ()
    cuda_graph: str = ""
    library: tuple[tuple[str, str, Choice], ...] = ()


@dataclass(frozen=True)
class Report:
    """What was compiled since the start or `nnvm_torch.reset()`, or for one compiled callable.

    Attributes:
        graphs: one record per compiled graph.
        graph_breaks: reason -> how often Dynamo broke a graph for it (of the whole process).
        recompiles: why code was compiled again, one reason each.
        prepared_bytes: bytes of prepared weights that are alive (of the whole process).
        runtime_faults: why compiled graphs run in ATen since a call of theirs failed (of the whole process).
        mapped_bytes: bytes of original parameters that `keep_original=False` moved to files (of the whole process).
    """

    graphs: tuple[GraphRecord, ...]
    graph_breaks: Mapping[str, int]
    recompiles: tuple[str, ...]
    prepared_bytes: int
    mapped_bytes: int = 0
    runtime_faults: tuple[str, ...] = ()

    @property
    def native_fraction(self) -> float:
        """Compiled compute nodes over all compute nodes; views and other free nodes do not count. 1.0 for none."""
        total = sum(g.total for g in self.graphs)
        return sum(g.native for g in self.graphs) / total if total else 1.0

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """Calls that ATen runs, with the reason and the user's source line."""
        return tuple(f for g in self.graphs for f in g.fallbacks)

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        return tuple(k for g in self.graphs for k in g.kernels)

    @property
    def memory(self) -> tuple[Memory, ...]:
        """Of each graph."""
        return tuple(g.memory for g in self.graphs)

    @property
    def compile_seconds(self) -> dict[str, float]:
        """Seconds by phase, of all graphs together."""
        total: dict[str, float] = {}
        for g in self.graphs:
            for phase, seconds in g.seconds.items():
                total[phase] = total.get(phase, 0.0) + seconds
        return total

    def __str__(self) -> str:
        graphs, kernels = _count(len(self.graphs), "graph"), _count(len(self.kernels), "kernel")
        nodes = _count(sum(g.total for g in self.graphs), "compute node")
        lines = [f"nnvm: {graphs}, {kernels}, {self.native_fraction:.1%} of {nodes} native"]
        seconds = self.compile_seconds
        if seconds:
            phases = ", ".join(f"{phase} {s:.2f}" for phase, s in seconds.items())
            lines.append(f"compile seconds: {sum(seconds.values()):.2f} ({phases})")
        for i, g in enumerate(self.graphs):
            lines += _describe(i, g)
        lines += _section("failed at a call, and runs in ATen since", list(self.runtime_faults))
        lines += _section("graph breaks", [f"{n} x {why}" for why, n in self.graph_breaks.items()])
        lines += _section("recompiled", list(self.recompiles))
        if self.prepared_bytes:
            moved = f", originals in files: {_bytes(self.mapped_bytes)}" if self.mapped_bytes else ""
            lines.append(f"prepared weights: {_bytes(self.prepared_bytes)}{moved}")
        return "\n".join(lines)

    __repr__ = __str__


def _describe(i: int, g: GraphRecord) -> list[str]:
    lines = [f"graph {i} ({g.kind}): {g.native} of {g.total} compute nodes native, {_count(len(g.kernels), 'kernel')}"]
    if g.failure:
        lines.append(f"  runs in ATen: {g.failure}")
    lines += [f"  {k.name}: {' + '.join(k.ops)}" + (" (code shared)" if k.shared else "") for k in g.kernels]
    lines += [f"  ATen: {f}" for f in g.fallbacks]
    lines += [f"  fault: {f}" for f in g.faults]
    lines += [f"  {group}: {_chosen(op, choice)}" for group, op, choice in g.library]
    lines += [f"  CUDA graph: {g.cuda_graph}"] if g.cuda_graph else []
    m = g.memory
    if m.planned != 0:
        bound = "" if m.bound is None else f", at least {_bytes(m.bound)}"
        lines.append(f"  memory: {_bytes(m.planned)} planned, {_bytes(m.unplanned)} without sharing{bound}")
    return lines


def _chosen(op: str, c: Choice) -> str:
    """Which way a product goes, and why."""
    where = f"{op} in the vendor's library" if c.takes_library else f"{op} in our kernel"
    how = "measured" if c.measured else "by rule"
    return f"{where} ({how}: {c.library * 1e6:.1f} us there, {c.ours * 1e6:.1f} us here)"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _bytes(n: Dim) -> str:
    if not isinstance(n, int):
        return f"{n} bytes"
    for unit in ("bytes", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"
        n = n / 1024  # type: ignore[assignment]
    return f"{n:.1f} GiB"


# records of this process

_records: list[GraphRecord] = []
_lock = fork_safe(threading.Lock())
_breaks_before: dict[str, int] = {}
_recompiles_before = 0


def record(r: GraphRecord) -> None:
    with _lock:
        _records.append(r)


def reset() -> None:
    """Forgets everything compiled so far, and what prepared weights are shared."""
    global _breaks_before, _recompiles_before
    with _lock:
        _records.clear()
        runtime_faults.clear()
        _breaks_before = _graph_breaks()
        _recompiles_before = len(_recompiles())
    drop_prepared()


def report(compiled: Any = None) -> Report:
    """The report of one compiled callable, or of everything compiled since the start or `nnvm_torch.reset()`.

    Args:
        compiled: what `torch.compile` or `nnvm_torch.compile` gave. TypeError where it is neither.
    """
    with _lock:
        graphs = list(_records)
        breaks = {k: n - _breaks_before.get(k, 0) for k, n in _graph_breaks().items() if n > _breaks_before.get(k, 0)}
        recompiles = tuple(_recompiles()[_recompiles_before:])
    if compiled is not None:
        owner = owner_of(compiled)
        graphs = [g for g in graphs if g.owner == owner]
    return Report(tuple(graphs), breaks, recompiles, prepared_bytes(), mapped_bytes(), tuple(runtime_faults))


def record_of(
    kind: str, compiled: CompiledGraph, imported: Imported, seconds: Mapping[str, float], owner: int,
    faults: tuple[str, ...] = (),
) -> GraphRecord:  # fmt: skip
    """The record of a graph that was compiled."""
    plan = compiled.plan.memory
    memory = Memory(plan.arena_bytes, plan.unplanned_bytes, plan.lower_bound_bytes)
    return GraphRecord(kind, imported.native, imported.total, imported.fallbacks, compiled.kernels, memory, seconds,
                       owner=owner, faults=faults, library=compiled.graph.attrs.get("library_choices", ()))  # fmt: skip


# who a graph was compiled for

_next_owner = 1


def owner_of(compiled: Any) -> int:
    """A number for what `torch.compile` or `nnvm_torch.compile` gave; TypeError for anything else."""
    key = compiled if hasattr(compiled, "_nnvm_number") else _wrapper_of(compiled)
    if key is None:
        raise TypeError(f"expected what torch.compile or nnvm_torch.compile gave, got {type(compiled).__name__}")
    return number_of(key)


def number_of(key: Any) -> int:
    """The number of an object that stands for one compiled callable; kept as an attribute of it."""
    global _next_owner
    with _lock:
        number: int = getattr(key, "_nnvm_number", 0)
        if not number:
            number = key._nnvm_number = _next_owner
            _next_owner += 1
        return number


def calling_owner() -> int:
    """The number of the `torch.compile` result that the backend is being called for, 0 where there is none to be
    found: Dynamo's wrapper of the backend stands for it, and is among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if type(candidate).__name__ == _WRAPPER:
            return number_of(candidate)
        frame = frame.f_back  # type: ignore[assignment]
    return 0


_WRAPPER = "_TorchCompileWrapper"


def _wrapper_of(compiled: Any) -> Any:
    """Dynamo's wrapper of the backend inside what `torch.compile` gave; None where there is none."""
    context = getattr(compiled, "dynamo_ctx", None)
    callback = getattr(context, "callback", None)
    if callback is None and getattr(compiled, "__closure__", None):
        cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__))
        callback = cells["callback"].cell_contents if "callback" in cells else None
    for _ in range(10):
        if callback is None or type(callback).__name__ == _WRAPPER:
            return callback
        below = getattr(callback, "_torchdynamo_orig_backend", None)
        callback = below or getattr(callback, "_torchdynamo_orig_callable", None)
    return None


def _graph_breaks() -> dict[str, int]:
    from torch._dynamo.utils import counters

    return {str(k).strip().splitlines()[0]: n for k, n in counters["graph_break"].items()}


def _recompiles() -> list[str]:
    """Reasons for recompilations that Dynamo has on record."""
    from torch._dynamo import utils

    metrics = getattr(utils, "get_compilation_metrics", None)
    if metrics is None:
        return []
    return [str(m.recompile_reason) for m in metrics() if getattr(m, "recompile_reason", None)]
