"""Runs an artifact on numpy arrays and whatever speaks DLPack.

>>> module = nnvm.runtime.load("model.nnvm")
>>> module.run(x=image)["y"]
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import SymDim, evaluate
from nnvm.dtype import U8
from nnvm.runtime import openmp
from nnvm.runtime.artifact.container import ArtifactError, Container
from nnvm.runtime.artifact.plan import KernelSpec, Level, Ref, Spec, TensorSpec, load_spec
from nnvm.runtime.artifact.tensors import read_tensors
from nnvm.runtime.llvm_jit import Kernel, LoadedCode
from nnvm.runtime.memory import ALIGNMENT, NumpyMemory
from nnvm.runtime.program import Program
from nnvm.target import Target
from nnvm.te.expr import Buffer

__all__ = ["ArtifactError", "Module", "load", "read_spec"]

Array = np.ndarray[Any, Any]
_Shapes = tuple[tuple[int, ...], ...]
#: Shapes of the inputs of which a module keeps programs and arenas.
MAX_INSTANCES = 64


def load(path: str | os.PathLike[str], *, level: str | None = None, verify: bool = True) -> Module:
    """The model in a file that ``nnvm compile`` wrote, for this processor.

    The file is mapped into memory and code is linked, nothing is compiled. Code and plan are checked against their
    checksums now, weights before the first run. Replace the file, as ``nnvm compile`` does, rather than write to it
    while a module uses it.

    Args:
        level: name of the code to use, as ``x86-64-v2``; by default the last of the file's that this processor runs.
        verify: False: take the weights as they are.

    Raises:
        OSError: the file cannot be read.
        ArtifactError: it is no artifact, it is damaged, or it has no code for this machine; the message says which.
    """
    return Module(path, level=level, verify=verify)


def read_spec(container: Container) -> Spec:
    """What an artifact says of itself; ArtifactError where that is damaged."""
    try:
        return load_spec(bytes(container.read("plan")))
    except ArtifactError:
        raise
    except ValueError as error:
        raise container.error(str(error)) from error


class Module:
    """A compiled model. `run` may be called from several threads at once, each call with memory of its own.

    Attributes:
        inputs, outputs: names, element types and shapes, in the model's order.
        name: the model's.
        level: the code in use, as ``x86-64-v3``.
    """

    def __init__(self, path: str | os.PathLike[str], *, level: str | None = None, verify: bool = True) -> None:
        """See `load`."""
        self._container = container = Container(path)
        spec = read_spec(container)
        self.name, self.inputs, self.outputs = spec.model, spec.inputs, spec.outputs
        self._level = _choose(container, spec.levels, level)
        self.level = self._level.name
        self._sizes = spec.sizes
        self._positions = {t.name: i for i, t in enumerate(self.inputs)}
        self._digests = spec.digests
        self._verify = verify
        self._lock = threading.Lock()
        self._instances: OrderedDict[_Shapes, _Instance] = OrderedDict()  # by the shapes of the inputs
        self._weights = self._open_weights()
        self._kernels = _link(container, self._level)
        self._first_output = 1 + len(self.inputs)
        first_weight = self._first_output + len(self.outputs)
        self._template = (ctypes.c_int64 * (first_weight + len(self._weights)))()
        for i, array in enumerate(self._weights):
            self._template[first_weight + i] = array.ctypes.data

    def __repr__(self) -> str:
        shown = [", ".join(f"{t.name}: {t}" for t in side) for side in (self.inputs, self.outputs)]
        return f"Module({self.name}, {self.level}: {shown[0]} -> {shown[1]})"

    def run(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Array]:
        """The outputs by name, fresh arrays (which speak DLPack too).

        Args:
            inputs: arrays by name, also for names that are no Python identifiers.
            named: the same as keywords. Arrays of numpy, or anything with ``__dlpack__`` in the host's memory, of the
                input's element type: contiguous ones are read in place, others are copied first. bfloat16 comes as
                its uint16 bits.

        Raises:
            KeyError: no such input, or one is missing; the message lists them.
            TypeError: another element type, or no array at all.
            ValueError: another shape, or sizes of one name that differ.
            KernelError: the model checks something that is not so (an index out of range).
            ArtifactError: the weights are damaged (at the first run).
        """
        arrays = self._arrays({**inputs, **named} if inputs else named)
        instance = self._instance(arrays)
        if self._verify:
            self._verify_weights()
        bases = (ctypes.c_int64 * len(self._template)).from_buffer_copy(self._template)
        for i, array in enumerate(arrays):
            bases[1 + i] = array.ctypes.data
        outputs = [np.empty(shape, dtype) for shape, dtype in instance.outputs]
        for i, array in enumerate(outputs):
            bases[self._first_output + i] = array.ctypes.data
        threads = openmp.max_threads() if instance.parallel else 1
        arena = self._take_arena(instance, threads)
        bases[0] = arena.address
        try:
            instance.program.run(bases, arena.address + instance.arena_bytes, threads)
            for output, ref, offset in instance.copies:
                target = outputs[output]
                ctypes.memmove(target.ctypes.data, bases[ref.base] + offset, target.nbytes)
        finally:
            instance.arenas.append(arena)
        return {t.name: array for t, array in zip(self.outputs, outputs)}

    __call__ = run

    # -- inputs

    def _arrays(self, given: Mapping[str, Any]) -> list[Array]:
        if given.keys() != self._positions.keys():
            names = ", ".join(f"{t.name}: {t}" for t in self.inputs) or "none"
            if unknown := [n for n in given if n not in self._positions]:
                raise KeyError(f"{self.name} has no input {unknown[0]!r}; its inputs are {names}")
            missing = next(n for n in self._positions if n not in given)
            raise KeyError(f"the input {missing} of {self.name} is not given; its inputs are {names}")
        return [_array(t, given[t.name]) for t in self.inputs]

    def _bound(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Values of the named sizes; ValueError where a shape does not fit."""
        for t, a in zip(self.inputs, arrays):
            if a.ndim != len(t.shape):
                raise ValueError(f"input {t.name} is {t}, got {a.dtype}{list(a.shape)}: {a.ndim} dimensions, "
                                 f"not {len(t.shape)}")  # fmt: skip
        env = {name: int(arrays[position].shape[axis]) for name, (position, axis) in self._sizes.items()}
        for t, a in zip(self.inputs, arrays):
            for axis, (d, n) in enumerate(zip(t.shape, a.shape)):
                wanted = evaluate(d, env) if isinstance(d, SymDim) else d
                if wanted != n:
                    known = {k: v for k, v in env.items() if isinstance(d, SymDim)}
                    more = f" with {', '.join(f'{k} = {v}' for k, v in known.items())}" if known else ""
                    raise ValueError(f"input {t.name} is {t}, got {a.dtype}{list(a.shape)}: axis {axis} must be "
                                     f"{wanted}{more}")  # fmt: skip
        return env

    # -- what a call runs

    def _instance(self, arrays: Sequence[Array]) -> _Instance:
        key = tuple(array.shape for array in arrays)
        found = self._instances.get(key)
        if found is not None:
            return found
        env = self._bound(arrays)
        with self._lock:
            if key not in self._instances:
                self._instances[key] = self._instantiate(env)
                while len(self._instances) > MAX_INSTANCES:
                    self._instances.popitem(last=False)
            return self._instances[key]

    def _instantiate(self, env: Mapping[str, int]) -> _Instance:
        level = self._level
        try:
            calls, workspace = [], 0
            for step in level.steps:
                kernel = self._kernels[step.kernel]
                sizes = [evaluate(d, env) for d in step.sizes]
                calls.append((kernel, [(r.base, evaluate(r.offset, env)) for r in step.buffers], sizes))
                workspace = max(workspace, evaluate(kernel.workspace, dict(zip(kernel.symbols, sizes))))
            copies = [(c.output, c.source, evaluate(c.source.offset, env)) for c in level.copies]
            outputs = [(tuple(evaluate(d, env) for d in t.shape), t.dtype.numpy) for t in self.outputs]
            arena = evaluate(level.arena, env)
            used = {step.kernel for step in level.steps}
        except ArithmeticError as error:
            raise self._container.error(f"a size of its plan has no value ({error})") from error
        if arena < 0 or workspace < 0 or any(n < 0 for shape, _ in outputs for n in shape):
            raise self._container.error("a size of its plan is negative")
        return _Instance(Program(calls), _aligned(arena), _aligned(workspace), outputs, copies,
                         any(level.kernels[k].parallel for k in used), [])  # fmt: skip

    def _take_arena(self, instance: _Instance, threads: int) -> _Arena:
        while instance.arenas:
            try:
                arena = instance.arenas.pop()
            except IndexError:  # another thread took it
                break
            if arena.threads >= threads:
                return arena
        size = instance.arena_bytes + instance.workspace_bytes * threads + ALIGNMENT
        try:
            made: Array = NumpyMemory().arena(size)
        except (MemoryError, ValueError) as error:
            raise MemoryError(f"{self.name} needs {size} bytes for a call, which cannot be had") from error
        return _Arena(threads, made, made.ctypes.data)

    def release(self) -> None:
        """Frees the memory that is kept for calls to come."""
        with self._lock:
            self._instances.clear()

    # -- weights

    def _open_weights(self) -> list[Array]:
        try:
            tensors = read_tensors(self._container.read("weights", verify=False))
            return [tensors[name] for name in self._level.weights]
        except (KeyError, RecursionError) as error:
            raise self._container.error(f"the weight {error} is missing") from error
        except ArtifactError:
            raise
        except ValueError as error:
            raise self._container.error(str(error)) from error

    def _verify_weights(self) -> None:
        with self._lock:
            if not self._verify:
                return
            for name, array in zip(self._level.weights, self._weights):
                if hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest() != self._digests[name]:
                    raise self._container.error(f"its section 'weights' is damaged (the checksum of {name!r} differs); "
                                                "make the file again")  # fmt: skip
            self._verify = False


@dataclass
class _Instance:
    """A level with every size known. List operations on `arenas` are atomic."""

    program: Program
    arena_bytes: int
    workspace_bytes: int  # of one thread
    outputs: list[tuple[tuple[int, ...], Any]]  # (shape, numpy's element type)
    copies: list[tuple[int, Ref, int]]
    parallel: bool
    arenas: list[_Arena]  # those that are free


@dataclass(frozen=True)
class _Arena:
    """Memory of one call, with room for so many threads' workspaces."""

    threads: int
    memory: Array
    address: int


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _choose(container: Container, levels: Sequence[Level], wanted: str | None) -> Level:
    """The last level that this machine runs, or the one asked for."""
    host = Target.host()
    lacks = {level.name: _lacks(level, host) for level in levels}
    if wanted is not None:
        if wanted not in lacks:
            raise container.error(f"it has no code for {wanted!r}, only for {', '.join(lacks)}")
        if lacks[wanted]:
            raise container.error(f"this machine cannot run its code for {wanted}: it lacks {lacks[wanted]}")
        return next(level for level in levels if level.name == wanted)
    able = [level for level in levels if not lacks[level.name]]
    if not able:
        why = "; ".join(f"{name} needs {what}" for name, what in lacks.items())
        raise container.error(f"it has no code for this machine ({host.cpu}, {host.triple}): {why}; compile it with "
                              f"--target")  # fmt: skip
    return able[-1]


def _lacks(level: Level, host: Target) -> str:
    """What this machine lacks to run a level; empty where it can."""
    if _platform(level.triple) != _platform(host.triple):
        return level.triple
    return ", ".join(f for f in level.features if not host.has(f))


def _platform(triple: str) -> tuple[str, str]:
    """Architecture and system of a triple."""
    system = next((s for s in ("linux", "darwin", "windows") if s in triple), "")
    arch = triple.partition("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(arch, arch), system


def _link(container: Container, level: Level) -> list[Kernel]:
    """The level's kernels, loaded into the process."""
    code = container.read(level.code)
    if any(k.start + k.size > len(code) for k in level.kernels):
        raise container.error("its plan is damaged: a kernel lies outside the code")
    if not level.kernels:
        return []
    imports = {"nnvm_parallel": openmp.pool.address} if any(k.parallel for k in level.kernels) else {}
    objects = [bytes(code[k.start : k.start + k.size]) for k in level.kernels]
    try:
        loaded = LoadedCode(objects, [k.name for k in level.kernels], imports)
    except RuntimeError as error:
        raise container.error(f"its code for {level.name} cannot be linked: {error}") from error
    return [_kernel(k, loaded) for k in level.kernels]


def _kernel(k: KernelSpec, loaded: LoadedCode) -> Kernel:
    params = tuple(Buffer(f"p{i}", (), U8) for i in range(k.buffers))  # the plan alone says what they are
    return Kernel(k.name, loaded[k.name], k.messages, params, 0, k.sizes, k.workspace, k.parallel, loaded)


def _array(t: TensorSpec, value: Any) -> Array:
    """A contiguous array for an input; TypeError where it is of another kind."""
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__dlpack__"):
        try:
            array = np.from_dlpack(value)
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            bits = "; give bfloat16 as its bits: x.view(torch.uint16)" if t.dtype.name == "bfloat16" else ""
            raise TypeError(f"input {t.name} is {t}, and numpy cannot take this {type(value).__name__} by DLPack: "
                            f"{error}{bits}") from error  # fmt: skip
    else:
        raise TypeError(f"input {t.name} is {t}: give an array of {t.dtype.numpy}, not {type(value).__name__} "
                        f"(numpy.asarray(value, numpy.{t.dtype.numpy}) makes one)")  # fmt: skip
    if t.dtype.name == "bfloat16" and array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    if array.dtype != t.dtype.numpy:
        raise TypeError(f"input {t.name} is {t}, got {array.dtype}{list(array.shape)}; astype({str(t.dtype.numpy)!r}) "
                        f"converts it")  # fmt: skip
    return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")
