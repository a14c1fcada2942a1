"""Between our kernels and the libraries that ATen calls (cuBLAS, cuDNN), by measurement on the GPU at hand.

Only what the rule finds close is measured: both ways run as they would in a model, captured in CUDA graphs, in turns;
the least time of each counts. What was measured is recorded (`nnvm.tuning.records`) by GPU, versions, operators, shapes
and types, in a file beside the kernel cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from nnvm import config
from nnvm.compiler.build import Clock, compile_fused
from nnvm.compiler.choose_library import Choice, ProductCase
from nnvm.graph.graph import Graph
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.structural import structural_key
from nnvm.runtime.executor import Executor
from nnvm.target import Target
from nnvm.tuning.records import Records
from nnvm_torch.faults import text_of, warn_once
from nnvm_torch.tensors import TorchMemory, constant_tensor, torch_dtype

__all__ = ["LibraryChoice", "records"]

#: Ratios of the estimates between which it is measured.
CLOSE = 4.0
#: Calls in a captured graph, and turns.
CALLS, TURNS = 10, 5

Run = Callable[[], Any]
#: Seconds that each of the calls takes.
Timer = Callable[[Sequence[Run]], list[float]]


@lru_cache(maxsize=1)
def records() -> Records:
    """Those of this user; of this process alone where NNVM_CACHE is 0."""
    return Records(config.cache_dir() / "tuning.jsonl" if config.object_cache_enabled() else None)


class LibraryChoice:
    """Decides for one GPU; a `Choose` of `nnvm.compiler.choose_library`."""

    def __init__(self, target: Target, device: torch.device, known: Records | None = None,
                 timer: Timer | None = None) -> None:  # fmt: skip
        self._target, self._device = target, device
        self._records = known if known is not None else records()
        self._timer = timer if timer is not None else seconds_of

    def __call__(self, case: ProductCase) -> Choice:
        """By a record, by measuring, or by the rule where that finds no doubt or the GPU cannot be measured now."""
        key = self._key(case)
        found = self._records.get(key)
        if found is None:
            rule = case.estimate
            if max(rule.ours, rule.library) > CLOSE * min(rule.ours, rule.library):
                return rule
            try:
                found = self._measured(case)
            except (RuntimeError, MemoryError) as error:
                warn_once(f"{case.name} could not be measured, so that a rule decides: {text_of(error)}")
                return rule
            self._records.put(key, found)
        return Choice(float(found["ours"]), float(found["library"]), True)

    def _key(self, case: ProductCase) -> dict[str, Any]:
        import triton

        inputs = [str(v[0].type) for v in case.whole.inputs]
        outputs = [str(e.type) for e in case.whole.outputs]
        gpu = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else str(self._device)
        return {"gpu": gpu, "target": str(self._target), "ops": case.ops, "inputs": inputs, "outputs": outputs,
                "graph": structural_key(case.whole), "torch": torch.__version__, "triton": triton.__version__,
                "tf32": [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]}  # fmt: skip

    def _measured(self, case: ProductCase) -> dict[str, float]:
        generator = torch.Generator().manual_seed(0)
        memory = TorchMemory(self._device)
        inputs = [_random(v[0].type, generator).to(self._device) for v in case.whole.inputs]
        runs = []
        for graph in (case.whole, case.apart):
            executor = self._executor(graph, memory)
            runs.append(lambda executor=executor: executor.run(inputs))
        ours, library = self._timer(runs)
        return {"ours": ours, "library": library}

    def _executor(self, graph: Graph, memory: TorchMemory) -> Executor:
        context = PassContext(target=self._target)
        plan = compile_fused(apply_passes(graph, ["EliminateDead", "PlanMemory"], context), self._target, Clock()).plan
        constants = [constant_tensor(e.node.attrs["value"], e.type).to(self._device) for e in plan.constants]
        return Executor(plan, memory, constants)


def _random(t: Any, generator: torch.Generator) -> torch.Tensor:
    dtype = torch_dtype(t.dtype)
    if dtype.is_floating_point:
        return torch.randn(t.shape, generator=generator).to(dtype)
    return torch.randint(0, 2, t.shape, generator=generator).to(dtype)


def seconds_of(runs: Sequence[Run]) -> list[float]:
    """The least seconds of each call, measured on the GPU in turns."""
    graphs = [_captured(run) for run in runs]
    best = [float("inf")] * len(runs)
    for _ in range(TURNS):
        for i, graph in enumerate(graphs):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            best[i] = min(best[i], float(start.elapsed_time(stop)) / 1e3 / CALLS)
    return best


def _captured(run: Run) -> Any:
    """`CALLS` calls as a CUDA graph, run once."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return graph
