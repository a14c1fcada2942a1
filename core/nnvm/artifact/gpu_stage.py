"""From a fused graph with a memory plan to a `Stage` for a GPU: a cubin for each launch, made without the GPU.

A launch is compiled for what is known of its pointers: which are multiples of 16 bytes decides how wide its accesses
are, so steps that differ in that have kernels of their own. Where sizes are named, a second cubin has 64-bit indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnvm.artifact.stage import PlacedGraph, ops_of
from nnvm.compiler.build import GroupCall, group_calls
from nnvm.compiler.lower_group import lower_group_for_gpu
from nnvm.dim import Dim, numel
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node
from nnvm.runtime.artifact.plan import Binary, KernelSpec, LaunchSpec, Ref, Stage
from nnvm.runtime.triton_binary import launch_binary
from nnvm.runtime.triton_launch import WIDE, Launch, TritonKernel
from nnvm.target import Target

__all__ = ["build_gpu_stage"]

#: Bytes of which an address is a multiple where accesses are wide.
_ALIGNED = 16


def build_gpu_stage(
    graph: Graph, target: Target, section: str, first_output: int, base_of: Callable[[Node], int],
    progress: Callable[[int, int], None],
) -> tuple[Stage, bytes, list[dict[str, Any]]]:  # fmt: skip
    """The stage, its code, and where each piece of that came from: the function's ``symbol``, where its code begins
    (``start``), Triton's ``signature`` and ``source``.

    The arguments are `nnvm.artifact.stage.build_stage`'s; all memory begins at multiples of 64 bytes.

    Raises:
        RuntimeError: Triton interprets in this process, so that it compiles nothing.
        ModuleNotFoundError: Triton is not installed.
        ValueError: a group uses a function that Triton does not have.
    """
    placed = PlacedGraph(graph, first_output, base_of)
    calls = [(call, _aligned(placed.buffers[call.node])) for call in group_calls(graph)]
    count = len({(call.key, aligned) for call, aligned in calls})
    numbers: dict[tuple[object, ...], int] = {}
    kernels: list[KernelSpec] = []
    kernel_of: dict[Node, int] = {}
    code = _Code()
    for call, aligned in calls:
        key = (call.key, aligned)
        if key not in numbers:
            progress(len(kernels), count)
            numbers[key] = len(kernels)
            kernels.append(_kernel(call, aligned, target, f"k{len(kernels)}_{ops_of(call)}", code))
        kernel_of[call.node] = numbers[key]
    return placed.stage(section, kernels, kernel_of), code.data, code.sources


class _Code:
    """Cubins one after the other, and the source of each."""

    def __init__(self) -> None:
        self.data = b""
        self.sources: list[dict[str, Any]] = []

    def add(self, launch: Launch, wide: bool, aligned: Sequence[bool]) -> Binary:
        made, source = launch_binary(launch, wide, aligned), launch.source(wide)
        start = len(self.data)
        self.data += made.code + bytes(-len(made.code) % 64)
        self.sources.append({"symbol": made.symbol, "start": start, "signature": source.signature,
                             "source": source.text})  # fmt: skip
        return Binary(start, len(made.code), made.symbol, made.threads, made.shared, made.hidden)


def _aligned(refs: Sequence[Ref]) -> tuple[bool, ...]:
    return tuple(_is_multiple(r.offset) for r in refs)


def _is_multiple(offset: Dim) -> bool:
    return offset % _ALIGNED == 0


def _kernel(call: GroupCall, aligned: Sequence[bool], target: Target, name: str, code: _Code) -> KernelSpec:
    group = lower_group_for_gpu(call.node.attrs["graph"], name, call.input_strides, call.output_strides)
    comment = ", ".join(str(op) for op in group.attrs["ops"])  # type: ignore[attr-defined]
    kernel = TritonKernel.of(group, target, comment)
    buffers = len(kernel.params)
    launches = tuple(_launch(launch, (*aligned, True), buffers, code) for launch in kernel.steps)
    return KernelSpec(name, 0, 0, (), buffers, kernel.symbols, kernel.workspace, False, launches)


def _launch(launch: Launch, aligned: Sequence[bool], buffers: int, code: _Code) -> LaunchSpec:
    """`aligned`: of the kernel's buffers, then of its workspace."""
    pointers = tuple(Ref(a.param if a.param >= 0 else buffers, a.offset) for a in launch.arguments)
    flags = tuple(aligned[p.base] and _is_multiple(p.offset) for p in pointers)
    sizes = [numel(b.shape) for b in launch.func.params]
    known = max((n for n in sizes if isinstance(n, int)), default=0)
    named = tuple(dict.fromkeys(n for n in sizes if not isinstance(n, int)))
    messages = launch.source(False).messages
    flags = (*flags, True) if messages else flags
    narrow = None if known >= WIDE else code.add(launch, False, flags)
    wide = code.add(launch, True, flags) if known >= WIDE or named else None
    grid = launch.func.attrs["programs"]
    return LaunchSpec(grid, pointers, launch.func.symbols, named, messages, narrow, wide)  # type: ignore[arg-type]
