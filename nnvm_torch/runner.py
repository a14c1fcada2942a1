"""Runs a compiled graph as AOTAutograd calls it: a flat list of arguments in, a list of results out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nnvm.compiler.build import CompiledGraph
from nnvm.dim import Dim, evaluate
from nnvm.runtime import openmp
from nnvm.runtime.executor import Executor
from nnvm.runtime.plan import KernelStep, Plan
from nnvm_torch import cuda_graphs
from nnvm_torch.cuda_graphs import CudaGraphs
from nnvm_torch.imported import FromGraph, Imported, Plain, Result, View
from nnvm_torch.tensors import HANDLE, TorchMemory, constant_tensor, laid_out
from nnvm_torch.weights import Weights

__all__ = ["Runner"]

Env = Mapping[str, int]

openmp.pool.count_by(torch.get_num_threads)  # in threads that are new to OpenMP too
Taker = Callable[[Sequence[Any], Sequence[Any], Env], Any]


class Runner:
    """The callable for one imported and compiled graph. `compiled` None: nothing is computed, only handed through.
    `keep_original`, `freeze`: see `nnvm_torch.Options`; `captures`: capture calls in CUDA graphs where that can be.

    AOTAutograd's boxed convention: the argument list is emptied, so that arguments are freed as early as may be.
    """

    def __init__(self, imported: Imported, compiled: CompiledGraph | None, keep_original: bool = True,
                 freeze: bool = False, captures: bool = False) -> None:  # fmt: skip
        self.keep_original, self.freeze = keep_original, freeze
        self.imported, self.compiled = imported, compiled
        self.takers = [_taker(r) for r in imported.results]
        self.writes = [(position, _taker(r)) for position, r in imported.writes]
        self.weights: Weights | None = None
        self.executor: Executor | None = None
        self.function: Callable[[Sequence[Any]], list[Any]] | None = None  # `Executor.function`, where nothing is bound
        self.graphs: CudaGraphs | None = None
        #: why there are none, on a device that has them
        self.why_not_captured = ""
        #: the results are the outputs, in order
        self.direct = not imported.writes and all(
            isinstance(r, FromGraph) and r.index == i and r.view is None and not r.copy
            for i, r in enumerate(imported.results)
        )
        self.keep = len(imported.results)
        self.run = self._run if imported.device.type == "cpu" else self._run_on_gpu
        self.args: list[int] = []  # positions of the arguments that the executor takes at each call
        self.fixes: list[tuple[int, tuple[Dim, ...] | None]] = []
        if compiled is not None:
            self._prepare_run(imported, compiled)
            if captures and cuda_graphs.serves(imported.device):
                self.why_not_captured = cuda_graphs.why_not_captured(compiled.plan)
                self.graphs = None if self.why_not_captured else CudaGraphs()

    def _prepare_run(self, imported: Imported, compiled: CompiledGraph) -> None:
        graph = compiled.graph
        inputs = [v for v in graph.inputs if v.attrs["kind"] != "prepared"]
        names = [v.name for v in imported.graph.inputs]
        if [v.name for v in inputs] != names:
            raise RuntimeError(f"the compiled graph takes {[v.name for v in inputs]}, not {names}")
        position = dict(zip(names, imported.positions))
        params = [v.name for v in inputs if v.attrs["kind"] == "param"]
        self.args = [position[v.name] for v in inputs if v.attrs["kind"] != "param"]
        is_plain = imported.device.type == "cpu" and all(p >= 0 for p in self.args)
        given = self.args if is_plain else None
        memory = TorchMemory(imported.device)
        constants = _constants(compiled.plan, imported.device)

        def make() -> Executor:
            return Executor(compiled.plan, memory, constants)

        if params:
            prepare = compiled.prepare.plan if compiled.prepare is not None else None
            kept = _constants(prepare, imported.device) if prepare is not None else []
            places = [p if p >= 0 else imported.constants[-1 - p] for p in (position[n] for n in params)]
            self.weights = Weights(make, params, places, given, graph, prepare, kept, self.keep_original, memory,
                                   self.freeze)  # fmt: skip
        else:
            self.executor = make()
            self.function = self.executor.function(given) if given is not None else None
        self.symbols = tuple(compiled.plan.symbols.items())
        self.symbol_args = {name: (imported.positions[i], axis) for name, (i, axis) in self.symbols if i >= 0}
        self.fixes = _fixes(imported, compiled)
        self.direct = self.direct and not self.fixes

    @property
    def is_pure(self) -> bool:
        """Does a call do no more than native code on the arguments, which gives new tensors? It depends on no state of
        PyTorch then, and changes none."""
        if self.compiled is None or not self.direct or self.imported.device.type != "cpu":
            return False
        whole = len(self.compiled.graph.outputs) == self.keep
        return whole and all(isinstance(s, KernelStep) for s in self.compiled.plan.steps)

    def outputs(self, args: Sequence[Any]) -> Sequence[Any]:
        """The graph's outputs, which are the results where the runner `is_pure`."""
        return self.run(args, self.imported.sizes_in(args))

    def __call__(self, args: list[Any]) -> Any:
        env = self.imported.sizes_in(args)
        outputs: Sequence[Any] = ()
        if self.compiled is not None:
            outputs = self.run(args, env)
        if self.direct:
            args.clear()
            return outputs if len(outputs) == self.keep else outputs[: self.keep]
        if self.fixes:
            outputs = _fixed(outputs, self.fixes, env)
        for position, take in self.writes:
            args[position].copy_(take(args, outputs, env))
        results = [take(args, outputs, env) for take in self.takers]
        args.clear()
        return results

    def _run(self, args: Sequence[Any], env: dict[str, int]) -> Sequence[Any]:
        constants = self.imported.constants
        executor, function = self.executor, self.function
        if self.weights is not None:
            state = self.weights.state(args)
            executor, function = state.executor, state.run
        if function is not None:
            return function(args)
        assert executor is not None
        inputs = [args[p] if p >= 0 else constants[-1 - p] for p in self.args]
        if not self.symbols:
            return executor.run(inputs) if self.graphs is None else self.graphs.run(executor, inputs)
        for name, (position, axis) in self.symbol_args.items():
            if name not in env:
                env[name] = args[position].shape[axis]
        return executor.run(inputs, env) if self.graphs is None else self.graphs.run(executor, inputs, env)

    def _run_on_gpu(self, args: Sequence[Any], env: dict[str, int]) -> Sequence[Any]:
        """Launches go to the current stream of the graph's own device, whichever is current."""
        with torch.cuda.device(self.imported.device):
            return self._run(args, env)


def _constants(plan: Plan, device: torch.device) -> list[torch.Tensor]:
    return [constant_tensor(e.node.attrs["value"], e.type).to(device) for e in plan.constants]


def _taker(r: Result) -> Taker:
    """What gives one result from (arguments, graph outputs, sizes)."""
    if isinstance(r, Plain):
        value = r.value
        return lambda args, outs, env: value if value is None or isinstance(value, (bool, float)) else _size(value, env)
    view, copy = r.view, r.copy
    if isinstance(r, FromGraph):
        i = r.index
        source: Taker = lambda args, outs, env: outs[i]  # noqa: E731
    else:
        p = r.position
        source = lambda args, outs, env: args[p]  # noqa: E731
    if view is not None:
        look = _looker(view)
        return lambda args, outs, env: look(source(args, outs, env), env)
    if copy:
        return lambda args, outs, env: source(args, outs, env).clone(memory_format=torch.preserve_format)
    return source


def _size(value: Any, env: Env) -> Any:
    return value if isinstance(value, (int, str)) else evaluate(value, env)


def _looker(view: View) -> Callable[[torch.Tensor, Env], torch.Tensor]:
    if view.dtype is not None:
        dtype, look_as_before = view.dtype, _looker(replace(view, dtype=None))
        return lambda t, env: look_as_before(t, env).view(dtype)
    dims = (*view.shape, *view.strides, view.offset)
    if all(isinstance(d, int) for d in dims):
        shape, strides, offset = view.shape, view.strides, view.offset
        return lambda t, env: t.as_strided(shape, strides, t.storage_offset() + offset)  # type: ignore[arg-type]

    def look(t: torch.Tensor, env: Env) -> torch.Tensor:
        shape, strides = ([evaluate(d, env) for d in ds] for ds in (view.shape, view.strides))
        return t.as_strided(shape, strides, t.storage_offset() + evaluate(view.offset, env))

    return look


def _fixes(imported: Imported, compiled: CompiledGraph) -> list[tuple[int, tuple[Dim, ...] | None]]:
    """Outputs that need a look after the run, with their strides: what an ATen call gave lies as it likes, and equal
    values that passes made one must be tensors of their own."""
    seen: set[Any] = set()
    out: list[tuple[int, tuple[Dim, ...] | None]] = []
    for i, entry in enumerate(compiled.graph.outputs):
        if entry.type.dtype == HANDLE:
            continue
        root = entry
        while root.node.op.attr("view"):
            root = root.node.inputs[0]
        if root in seen or root.node.op.name.startswith("torch."):
            out.append((i, imported.strides[i]))
        seen.add(root)
    return out


def _fixed(outputs: Sequence[Any], fixes: Sequence[tuple[int, tuple[Dim, ...] | None]], env: Env) -> list[Any]:
    outs = list(outputs)
    wanted = {i for i, _ in fixes}
    storages = {t.untyped_storage()._cdata for i, t in enumerate(outs) if i not in wanted and t.layout == torch.strided}
    for i, strides in fixes:
        t = outs[i]
        want = t.stride() if strides is None else tuple(evaluate(s, env) for s in strides)
        if strides is None and not t.is_contiguous():
            t = t.contiguous()
        elif tuple(want) != t.stride():
            t = laid_out(t, tuple(want))
        elif t.untyped_storage()._cdata in storages:
            t = t.clone()
        storages.add(t.untyped_storage()._cdata)
        outs[i] = t
    return outs
