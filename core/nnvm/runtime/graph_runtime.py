"""Runs a built graph by the names of its inputs, on numpy arrays: ``create``, then ``set_input``, ``run``,
``get_output``.

>>> graph, lib, params = nnvm.compiler.build(net, "llvm", shape={"data": (1, 3, 8, 8)}, params=params)
>>> module = create(graph, lib)
>>> module.set_input("data", image, **params)
>>> module.run()
>>> module.get_output(0)

What depends on parameters only was computed when the graph was built. A parameter that is set again, by the name that
it had before the build, is computed with anew at the next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import evaluate, is_static
from nnvm.dtype import f32_to_bf16
from nnvm.graph.devices import CPU
from nnvm.graph.evaluate import bind_symbols
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node
from nnvm.runtime.device import runtime_of
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.runtime.plan import KernelStep, Plan
from nnvm.runtime.triton_interpret import is_interpreting
from nnvm.runtime.triton_launch import TritonKernel
from nnvm.target import Target

__all__ = ["GraphModule", "Library", "create", "on_host", "run_prepare"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Library:
    """The machine code of a built graph.

    Attributes:
        plan: of the main graph.
        prepare: of the part that depends on parameters only; None where there is none.
        params: the parameters that `prepare` was built with, by name.
        target: what it was built for.
    """

    plan: Plan
    prepare: Plan | None
    params: Mapping[str, Array]
    target: Target

    def machine_code(self) -> dict[str, bytes]:
        """The code of each launch by its name, for a GPU (a cubin or hsaco); {} where the library is for a CPU.

        Raises:
            RuntimeError: Triton interprets in this process (TRITON_INTERPRET=1), so that it compiles nothing.
        """
        code: dict[str, bytes] = {}
        for kernel in _gpu_kernels(self.plan):
            code.update((launch.func.name, launch.binary()) for launch in kernel.steps)
        return code


def _gpu_kernels(plan: Plan) -> list[TritonKernel]:
    kernels = (s.kernel for s in plan.steps if isinstance(s, KernelStep))
    return [k for k in kernels if isinstance(k, TritonKernel)]


def create(graph: Graph, lib: Library, ctx: object = None) -> GraphModule:
    """A module that runs what `nnvm.compiler.build` gave.

    Args:
        ctx: where it runs: ``cpu``, or None for the same.

    Raises:
        ValueError: `lib` is of another graph, or `ctx` is no CPU.
    """
    return GraphModule(graph, lib, ctx)


class GraphModule:
    """A built graph with the values of its inputs. Not for several threads at once."""

    def __init__(self, graph: Graph, lib: Library, ctx: object = None) -> None:
        if ctx is not None and str(ctx).partition("(")[0].partition(":")[0] != "cpu":
            raise ValueError(f"the graph is built for the CPU and cannot run on {ctx!r}; give 'cpu', or build it anew")
        if _gpu_kernels(lib.plan) and not is_interpreting():
            raise ValueError("the library is for a GPU, whose memory numpy's arrays are not: run the model on tensors, "
                             'with torch.compile(model.cuda(), backend="nnvm"), or set TRITON_INTERPRET=1')  # fmt: skip
        built = lib.plan.graph
        if graph is not built and _signature(graph) != _signature(built):
            raise ValueError("the library was built from another graph: their inputs or outputs differ")
        self.graph = built
        self._lib = lib
        self._executor = _executor(lib.plan)
        self._prepare = None if lib.prepare is None else _executor(lib.prepare)
        early = [] if lib.prepare is None else list(lib.prepare.graph.inputs)
        self._params: dict[str, Array] = {v.name: lib.params[v.name] for v in early if v.name in lib.params}
        read = set(built.nodes)
        #: Inputs by name that a run needs; further names are parameters that only the early part reads.
        self._inputs = {v.name: v for v in built.inputs if v in read or v.attrs["kind"] == "input"}
        self._early = {v.name: v for v in early}
        self._values: dict[str, Array] = {}
        self._stale = False
        self._outputs: list[Array] | None = None

    def set_input(self, key: str | int | None = None, value: Any = None, **params: Any) -> None:
        """Gives inputs their values, by name or position; the arrays are copied.

        An array must have the input's element type and, where that is known, its shape; Python's numbers and lists
        take the type. Arrays of bfloat16 are given as float32 or as uint16 bits.

        Raises:
            KeyError: no such input; the message lists them.
            ValueError: shape or element type differ.
        """
        if key is not None:
            if value is None:
                raise ValueError(f"no value is given for the input {key!r}")
            self._set(self._name(key), value)
        for name, array in params.items():
            self._set(name, array)

    def load_params(self, params: bytes | bytearray) -> None:
        """Sets what `nnvm.compiler.save_param_dict` wrote, as far as the graph has inputs of these names."""
        from nnvm.runtime.param_dict import load_param_dict

        known = {**self._inputs, **self._early}
        for name, array in load_param_dict(params).items():
            if name in known:
                self._set(name, array)

    def run(self, **inputs: Any) -> None:
        """Runs the graph, after setting `inputs`. ValueError lists the inputs that were never set."""
        self.set_input(**inputs)
        if self._stale:
            self._run_prepare()
        if missing := [n for n in self._inputs if n not in self._values]:
            raise ValueError(f"the inputs {', '.join(missing)} are not set; set_input gives them their values")
        arrays = [self._values[v.name] if v.name in self._values else _unread(v) for v in self.graph.inputs]
        read = [(v, a) for v, a in zip(self.graph.inputs, arrays)
                if v.name in self._inputs and v[0].type.device == CPU]  # fmt: skip
        bind_symbols(Graph((), tuple(v for v, _ in read)), [a for _, a in read])
        self._outputs = self._executor.run(arrays)

    def get_num_inputs(self) -> int:
        return len(self._inputs)

    def get_num_outputs(self) -> int:
        return len(self.graph.outputs)

    def get_input(self, key: str | int) -> Array:
        """The value of an input. KeyError: no such input; ValueError: it is not set."""
        name = self._name(key)
        values = {**self._params, **self._values}
        if name not in values:
            raise ValueError(f"the input {name} is not set")
        return on_host(self._inputs.get(name) or self._early[name], values[name])

    def get_output(self, index: int, out: Array | None = None) -> Array:
        """Output `index` of the last run (bfloat16 as uint16 bits), copied to `out` where one is given.

        RuntimeError before the first run; IndexError where there is no such output.
        """
        if self._outputs is None:
            raise RuntimeError("there is no output yet: call run() first")
        if not 0 <= index < len(self._outputs):
            raise IndexError(f"output {index} of {len(self._outputs)}")
        result = self._outputs[index]
        if out is None:
            return result
        if out.shape != result.shape or out.dtype != result.dtype:
            raise ValueError(f"out is {out.dtype}{list(out.shape)}, the output {result.dtype}{list(result.shape)}")
        np.copyto(out, result)
        return out

    def _name(self, key: str | int) -> str:
        names = list(self._inputs)
        if isinstance(key, int):
            if not 0 <= key < len(names):
                raise KeyError(f"input {key} of {len(names)}")
            return names[key]
        if key not in self._inputs and key not in self._early:
            also = [n for n in self._early if n not in self._inputs]
            more = f"; parameters used in building: {', '.join(also)}" if also else ""
            raise KeyError(f"no input {key!r}; there are {', '.join(names)}{more}")
        return key

    def _set(self, key: str, value: Any) -> None:
        name = self._name(key)
        array = _fitting(self._inputs.get(name) or self._early[name], value)
        if name in self._inputs:
            self._values[name] = _there(self._inputs[name], array)
        if name in self._early:
            self._params[name] = array
            self._stale = True

    def _run_prepare(self) -> None:
        assert self._prepare is not None and self._lib.prepare is not None, "only its parameters make it stale"
        if missing := [n for n in self._early if n not in self._params]:
            raise ValueError(f"the parameters {', '.join(missing)} are not set, which are computed with others")
        prepared = [v for v in self.graph.inputs if v.attrs["kind"] == "prepared"]
        results = run_prepare(self._lib.prepare, self._params, self._prepare)
        self._values.update((v.name, a) for v, a in zip(prepared, results, strict=True))
        self._stale = False


def run_prepare(plan: Plan, params: Mapping[str, Array], executor: Executor | None = None) -> list[Array]:
    """What depends on parameters only, in the order of the main graph's prepared inputs."""
    return (executor or _executor(plan)).run([np.ascontiguousarray(params[v.name]) for v in plan.graph.inputs])


def on_host(v: Node, value: Any) -> Array:
    """The value of an input as an array of the host's."""
    t = v[0].type
    if t.device == CPU or isinstance(value, np.ndarray):
        array: Array = value
        return array
    sent: Array = runtime_of(t.device).send(NumpyMemory(), value, tuple(evaluate(d, {}) for d in t.shape), t.dtype)
    return sent


def _there(v: Node, array: Array) -> Any:
    """An array as a value of the input's device."""
    t = v[0].type
    return array if t.device == CPU else runtime_of(t.device).receive(NumpyMemory(), array, array.shape, t.dtype)


def _executor(plan: Plan) -> Executor:
    return Executor(plan, NumpyMemory(), [np.array(e.node.attrs["value"], order="C") for e in plan.constants])


def _fitting(v: Node, value: Any) -> Array:
    """A contiguous copy of a value for the input `v`."""
    t = v[0].type
    if isinstance(value, (bool, int, float, list, tuple)):
        value = np.asarray(value, np.float32 if t.dtype.name == "bfloat16" else t.dtype.numpy)
    array = np.array(value.asnumpy() if hasattr(value, "asnumpy") else value, order="C")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if t.dtype.name == "bfloat16" and array.dtype == np.float32:
        array = f32_to_bf16(array)
    if array.dtype != t.dtype.numpy:
        raise ValueError(f"input {v.name} is {t}, got {array.dtype}{list(array.shape)}; use astype('{t.dtype.name}')")
    fits = array.ndim == t.rank and all(n == d for n, d in zip(array.shape, t.shape) if isinstance(d, int))
    if not fits:
        raise ValueError(f"input {v.name} is {t}, got {array.dtype}{list(array.shape)}")
    return array


def _unread(v: Node) -> Array:
    """A place holder for a parameter that the main graph does not read."""
    shape = v[0].type.shape
    static = is_static(shape)
    return np.empty([d for d in shape if isinstance(d, int)] if static else [1] * len(shape), v[0].type.dtype.numpy)


def _signature(graph: Graph) -> tuple[object, ...]:
    return tuple((v.name, v.types) for v in graph.inputs), tuple(e.node.types for e in graph.outputs)
