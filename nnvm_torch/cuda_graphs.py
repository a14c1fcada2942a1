"""Calls on a GPU as CUDA graphs: all launches of a call are captured once, and then replayed as one.

A captured graph reads and writes the addresses that it was captured with. So inputs are copied to tensors of its own,
unless a call comes with addresses that came before: then the graph is captured for these, and nothing is copied. Its
outputs are copied to new tensors at each call, as the next replay overwrites them and the caller keeps what it was
given. Everything is captured and replayed on the caller's stream, and each stream has graphs of its own.

Where sizes are known at the call only, each size that comes again has graphs of its own. They are few, those not used
for longest go; once many had to go, sizes without a graph run launch by launch.

The memory of all graphs of one stream comes from one pool: they run one after the other, so that their arenas may lie
in the same place; outputs are kept, and so are never overwritten by another graph.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nnvm.dtype import BOOL
from nnvm.garbage import no_garbage_collection
from nnvm.kernel_error import KernelError
from nnvm.runtime.executor import Executor
from nnvm.runtime.plan import HostStep, KernelStep, Plan
from nnvm.runtime.triton_launch import TritonKernel
from nnvm_torch.faults import text_of, warn_once
from nnvm_torch.partition import AtenCall
from nnvm_torch.tensors import HANDLE

__all__ = ["CudaGraphs", "why_not_captured"]

#: Where streams and graphs come from.
cuda: Any = torch.cuda
#: Sets of input addresses that a stream has graphs of its own for, and sets that are remembered to see whether they
#: come again.
MAX_ADDRESSES, MAX_SEEN = 4, 32
#: Sets of sizes that a stream has graphs for, that are remembered to see whether they come again, and that may lose
#: their graphs to others before no further ones are captured.
MAX_SIZES, MAX_SIZES_SEEN, MAX_LOST = 16, 256, 64
#: Streams that have graphs; calls on further ones run launch by launch.
MAX_STREAMS = 8
#: ATen's operators that wait for the GPU, which a capture does not allow, though no tag says so.
_WAITS = ("linalg_", "_linalg_", "cholesky", "lu_", "geqrf", "ormqr", "orgqr", "triangular_solve", "_embedding_bag",
          "embedding_bag", "ctc_loss", "_ctc_loss", "masked_scatter", "put", "histc", "bincount")  # fmt: skip
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)

Addresses = tuple[int, ...]
Sizes = tuple[int, ...]
Env = Mapping[str, int]
#: One capture at a time: those of one stream share a pool, which takes one.
_capturing = threading.Lock()


def serves(device: torch.device) -> bool:
    """Whether there are graphs on that device."""
    return device.type == "cuda"


def why_not_captured(plan: Plan) -> str:
    """Why the calls of a plan are not captured, as a reason; empty where they are."""
    launches = sum(len(getattr(getattr(s, "kernel", None), "steps", (s,))) for s in plan.steps)
    if launches <= 1 + len(plan.graph.outputs):
        return f"it has {launches} launches, and copying its outputs would take as many"
    for step in plan.steps:
        if isinstance(step, KernelStep) and isinstance(step.kernel, TritonKernel):
            continue
        if not isinstance(step, HostStep):
            return f"{step.node.name} does not run on the GPU"
        call = step.node.attrs.get("call")
        if isinstance(call, AtenCall) and (reason := _why_not_called(call, step.node.inputs)):
            return reason
        if any(e.type.dtype == HANDLE for e in (*step.node.inputs, *step.node.outputs)):
            return f"{step.node.name} has tensors of another device or kind"
    return ""


def when_captured(plan: Plan) -> str:
    """Which calls of a plan that is captured are replayed, for the report."""
    return f"captured from the second call {'of a size ' if plan.symbols else ''}on"


def _why_not_called(call: AtenCall, inputs: Sequence[Any]) -> str:
    target = call.target
    if not isinstance(target, torch._ops.OpOverload):
        return f"{getattr(target, '__name__', target)} is no operator of ATen's"
    if call.effect:
        return f"{target} has an effect or draws random numbers"
    if any(tag in target.tags for tag in _TAGS) or getattr(torch.Tag, "cudagraph_unsafe", None) in target.tags:
        return f"{target} gives sizes or numbers that depend on values"
    name = target._schema.name.partition("::")[2]
    if target.namespace != "aten":
        return f"{target} is no operator of ATen's"
    if name.startswith(_WAITS) or (name.startswith("index") and any(e.type.dtype == BOOL for e in inputs[1:])):
        return f"{target} waits for the GPU"
    return ""


class CudaGraphs:
    """The calls of one compiled graph, whose plan `why_not_captured` has no reason against. Safe for several threads.

    Attributes:
        failure: why captures are given up, "" while they are not.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._lock = threading.RLock()
        self._of: weakref.WeakKeyDictionary[Executor, _OfExecutor] = weakref.WeakKeyDictionary()

    def run(self, executor: Executor, inputs: Sequence[torch.Tensor], env: Env | None = None) -> list[Any]:
        """As ``executor.run(inputs, env)``; the current device is the graph's."""
        if self.failure or cuda.is_current_stream_capturing():  # a graph of the caller's takes our launches as they are
            return executor.run(inputs, env)
        with self._lock:
            executor.raise_failures()
            place = self._of.get(executor)
            if place is None or place.binding is not executor.binding:  # bound to other weights: at other addresses
                place = self._of[executor] = _OfExecutor(executor.binding)
                if not executor.plan.symbols:
                    return executor.run(inputs, env)  # compiles what was not, and shows whether anything fails
            graphs = place.graphs(executor, cuda.current_stream(), env)
            if graphs is None:
                return executor.run(inputs, env)
            try:
                chosen = graphs.choose(executor, inputs, env)
            except KernelError:
                raise  # a check of an earlier call failed
            except Exception as error:  # whatever a capture does not allow: the calls go on without one
                self.failure = text_of(error)
                self._of.clear()
                warn_once(f"a graph cannot be captured in a CUDA graph and runs launch by launch: {self.failure}")
                return executor.run(inputs, env)
            return chosen.replay(inputs)

    def release(self) -> None:
        """Forgets all captured graphs; they take their memory with them."""
        with self._lock:
            self._of = weakref.WeakKeyDictionary()


class _OfExecutor:
    """The graphs of an executor as it is bound, by stream."""

    def __init__(self, binding: object) -> None:
        self.binding = binding
        self._streams: dict[int, _OfStream] = {}

    def graphs(self, executor: Executor, stream: Any, env: Env | None) -> _OfSizes | None:
        """The graphs for calls on a stream with these sizes; None: there are none, and will not be at this call."""
        found = self._streams.get(stream.cuda_stream)
        if found is None:
            if len(self._streams) >= MAX_STREAMS:
                return None
            found = self._streams[stream.cuda_stream] = _OfStream(_pool(stream))
        return found.graphs(tuple((env or {})[n] for n in executor.plan.symbols))


class _OfStream:
    """The graphs of one executor on one stream, by sizes."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._by_sizes: OrderedDict[Sizes, _OfSizes] = OrderedDict()
        self._seen: OrderedDict[Sizes, None] = OrderedDict()
        self._lost = 0

    def graphs(self, sizes: Sizes) -> _OfSizes | None:
        """The graphs for calls of these sizes; None for such as come for the first time, or for which there is no
        place."""
        found = self._by_sizes.get(sizes)
        if found is not None:
            self._by_sizes.move_to_end(sizes)
            return found
        if sizes and not _comes_again(sizes, self._seen, MAX_SIZES_SEEN):
            return None
        if len(self._by_sizes) >= MAX_SIZES:
            if self._lost >= MAX_LOST:
                return None
            self._lost += 1
            self._by_sizes.popitem(last=False)
        made = self._by_sizes[sizes] = _OfSizes(self._pool)
        return made


def _comes_again(key: tuple[int, ...], seen: OrderedDict[tuple[int, ...], None], most: int) -> bool:
    """Whether `key` is among the last `most` that were asked for."""
    again = key in seen
    seen[key] = None
    seen.move_to_end(key)
    while len(seen) > most:
        seen.popitem(last=False)
    return again


class _OfSizes:
    """The graphs of one executor on one stream for one set of sizes."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._by_address: OrderedDict[Addresses, _Captured] = OrderedDict()
        self._seen: OrderedDict[Addresses, None] = OrderedDict()
        self._copying: _Captured | None = None

    def choose(self, executor: Executor, inputs: Sequence[torch.Tensor], env: Env | None) -> _Captured:
        """The graph for these inputs, captured where there is none."""
        addresses = tuple(t.data_ptr() for t in inputs)
        found = self._by_address.get(addresses)
        if found is not None:
            return found
        again = _comes_again(addresses, self._seen, MAX_SEEN)
        if again and len(self._by_address) < MAX_ADDRESSES:
            made = self._by_address[addresses] = _Captured(executor, inputs, env, False, self._pool)
            return made
        if self._copying is None:
            self._copying = _Captured(executor, inputs, env, True, self._pool)
        return self._copying


class _Captured:
    """One captured graph. `copies`: it has inputs of its own, to which those of a call are copied."""

    def __init__(self, executor: Executor, inputs: Sequence[torch.Tensor], env: Env | None, copies: bool,
                 pool: Any) -> None:  # fmt: skip
        self._memory = executor.memory
        self._launched = executor.launched(inputs, env)
        self._inputs: list[torch.Tensor] | None = None
        given = [t.detach() for t in inputs]
        with torch.inference_mode(False), torch.no_grad():
            if copies:
                self._inputs = given = [_like(t) for t in inputs]
                self._fill(inputs)
            self._graph, self._outputs = _capture(executor, given, env, pool)

    def replay(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """The outputs for these inputs, in memory of their own."""
        self._launched.raise_failures()
        self._fill(inputs)
        self._graph.replay()
        with torch.no_grad():
            outputs = [_like(t) for t in self._outputs]
            for mine, theirs in zip(self._outputs, outputs, strict=True):
                self._memory.copy(theirs, mine)
        return outputs

    def _fill(self, inputs: Sequence[torch.Tensor]) -> None:
        if self._inputs is not None:
            with torch.no_grad():
                for mine, given in zip(self._inputs, inputs, strict=True):
                    self._memory.copy(mine, given)


def _like(t: torch.Tensor) -> torch.Tensor:
    """A tensor with the shape and the strides of `t`."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


def _capture(executor: Executor, inputs: Sequence[torch.Tensor], env: Env | None, pool: Any) -> tuple[Any, list[Any]]:
    """A graph of the executor's call, and its outputs. It is called once before on the same tensors, so that all code
    is loaded: while a graph is captured nothing may wait for the GPU."""
    stream = cuda.current_stream()
    side = cuda.Stream(device=stream.device)
    side.wait_stream(stream)
    graph = cuda.CUDAGraph()
    with cuda.stream(side), _capturing:
        executor.run(inputs, env)
        # No cycle with tensors or graphs of the GPU is to be freed meanwhile, which might wait for it.
        with no_garbage_collection():
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = executor.run(inputs, env)
            except BaseException:
                _abandon(graph)
                raise
            graph.capture_end()
    stream.wait_stream(side)
    return graph, outputs


def _abandon(graph: Any) -> None:
    """Ends a capture in which something failed, which fails as well."""
    try:
        graph.capture_end()
    except RuntimeError:
        return


_pools: dict[tuple[Any, int], Any] = {}


def _pool(stream: Any) -> Any:
    """The memory pool of the graphs of a stream."""
    key = (stream.device, stream.cuda_stream)
    return _pools.setdefault(key, cuda.graph_pool_handle())
