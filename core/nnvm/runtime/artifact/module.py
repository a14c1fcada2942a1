"""Runs an artifact on numpy arrays and whatever speaks DLPack.

>>> module = nnvm.runtime.load("model.nnvm")
>>> module.run(x=image)["y"]
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import Dim, SymDim, evaluate
from nnvm.runtime import cuda_driver, openmp
from nnvm.runtime.artifact.container import ArtifactError, Container
from nnvm.runtime.artifact.gpu import GpuCode, GpuInstance
from nnvm.runtime.artifact.plan import Level, Spec, Stage, TensorSpec, load_spec
from nnvm.runtime.artifact.tensors import read_tensors
from nnvm.runtime.instances import ArenaPool, Instances
from nnvm.runtime.loaded_code import LoadedCode
from nnvm.runtime.memory import NumpyMemory, address_of, aligned
from nnvm.runtime.program import Program
from nnvm.target import Target

__all__ = ["ArtifactError", "Module", "load", "read_spec"]

Array = np.ndarray[Any, Any]
#: How the triples of CUDA GPUs begin.
_CUDA = "nvptx64"


def load(path: str | os.PathLike[str], *, level: str | None = None, verify: bool = True) -> Module:
    """The model in a file that ``nnvm compile`` wrote, for this processor or this machine's GPU.

    The file is mapped into memory and code is linked, nothing is compiled. Code and plan are checked against their
    checksums now, weights before the first run; weights that the file holds as they are (``nnvm compile --weights
    original``, and by default where it has code for several processors) are packed then. Replace the file, as ``nnvm
    compile`` does, rather than write to it while a module uses it.

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
        self._verify, self._ready = verify, False
        self._lock = threading.Lock()
        self._instances: Instances[_Instance] = Instances()  # by the shapes of the inputs
        self._weights = self._open_weights()
        self._code = _load_code(container, self._level)
        self._first_output = 1 + len(self.inputs)
        self._template = self._bases(self._first_output + len(self.outputs), [])

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
        if not self._ready:
            self._make_ready()
        template = self._template
        bases = type(template).from_buffer_copy(template)
        for i, array in enumerate(arrays, 1):
            bases[i] = address_of(array)
        outputs = [np.empty(shape, dtype) for shape, dtype in instance.outputs]
        for i, array in enumerate(outputs, self._first_output):
            bases[i] = address_of(array)
        instance.stage.run(bases, self._first_output, [array.nbytes for array in outputs])
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
        return self._instances.get(tuple(array.shape for array in arrays), lambda: self._instantiate(arrays))

    def _instantiate(self, arrays: Sequence[Array]) -> _Instance:
        env = self._bound(arrays)
        shapes = [tuple(evaluate(d, env) for d in t.shape) for t in self.outputs]
        if any(n < 0 for shape in shapes for n in shape):
            raise self._container.error("a size of its plan is negative")
        outputs = [(shape, t.dtype.numpy) for shape, t in zip(shapes, self.outputs)]
        if isinstance(self._code, _Code):
            return _Instance(self._code.instance(env), outputs)
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in outputs]
        return _Instance(self._code.instance(env, [a.nbytes for a in arrays], sizes), outputs)

    def release(self) -> None:
        """Frees the memory that is kept for calls to come."""
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

    def _bases(self, prepared_at: int, prepared: Sequence[int]) -> Any:
        """A table of bases with what lasts: addresses of what was prepared, then of the weights."""
        lasting = [*(prepared or [0] * len(self._level.prepared)), *(array.ctypes.data for array in self._weights)]
        return (ctypes.c_int64 * (prepared_at + len(lasting)))(*[0] * prepared_at, *lasting)

    def _make_ready(self) -> None:
        """Before the first call: checks the weights and prepares what is to be prepared."""
        with self._lock:
            if self._ready:
                return
            if self._verify:
                self._verify_weights()
            if not isinstance(self._code, _Code):
                self._code.upload(self._weights)
            elif self._level.prepare is not None:
                self._template = self._bases(self._first_output + len(self.outputs), self._prepare(self._level.prepare))
            self._ready = True

    def _prepare(self, plan: Stage) -> list[int]:
        """Addresses of what the level prepares; `_prepared` keeps the memory."""
        starts, size = [], 0
        for nbytes in self._level.prepared:
            starts.append(size)
            size += aligned(nbytes)
        try:
            self._prepared: Array = NumpyMemory().arena(size)
        except (MemoryError, ValueError) as error:
            raise MemoryError(f"the weights of {self.name} take {size} bytes, which cannot be had") from error
        addresses = [self._prepared.ctypes.data + start for start in starts]
        stage = _Code(self._container, plan).instance({})
        stage.run(self._bases(1, addresses), 1, self._level.prepared)
        self._container.forget("weights")  # what only this read; the rest is read again where a call needs it
        return addresses

    def _verify_weights(self) -> None:
        for name, array in zip(self._level.weights, self._weights):
            if hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest() != self._digests[name]:
                raise self._container.error(f"its section 'weights' is damaged (the checksum of {name!r} differs); "
                                            "make the file again")  # fmt: skip


@dataclass
class _Instance:
    """A model with every size known."""

    stage: _StageInstance | GpuInstance
    outputs: list[tuple[tuple[int, ...], Any]]  # (shape, numpy's element type)


@dataclass(frozen=True)
class _Kernel:
    """A loaded kernel, as `Program` wants it; the plan alone says what its parameters are."""

    name: str
    address: int
    messages: tuple[str, ...]
    params: range
    symbols: tuple[str, ...]
    workspace: Dim
    code: LoadedCode


class _Code:
    """A stage whose code is loaded."""

    def __init__(self, container: Container, stage: Stage) -> None:
        self._container, self._stage = container, stage
        self._kernels = _link(container, stage)

    def instance(self, env: Mapping[str, int]) -> _StageInstance:
        """The stage with these sizes; ArtifactError where a size of its plan is none."""
        stage = self._stage
        try:
            calls, workspace = [], 0
            for step in stage.steps:
                kernel = self._kernels[step.kernel]
                sizes = [evaluate(d, env) for d in step.sizes]
                calls.append((kernel, [(r.base, evaluate(r.offset, env)) for r in step.buffers], sizes))
                workspace = max(workspace, evaluate(kernel.workspace, dict(zip(kernel.symbols, sizes))))
            copies = [(c.output, c.source.base, evaluate(c.source.offset, env)) for c in stage.copies]
            arena = evaluate(stage.arena, env)
        except ArithmeticError as error:
            raise self._container.error(f"a size of its plan has no value ({error})") from error
        if arena < 0 or workspace < 0:
            raise self._container.error("a size of its plan is negative")
        parallel = any(stage.kernels[step.kernel].parallel for step in stage.steps)
        return _StageInstance(Program(calls), ArenaPool(NumpyMemory(), arena, workspace), copies, parallel)


@dataclass
class _StageInstance:
    """A stage with every size known."""

    program: Program
    arenas: ArenaPool
    copies: list[tuple[int, int, int]]  # (output, base, offset)
    parallel: bool

    def run(self, bases: Any, first_output: int, nbytes: Sequence[int]) -> None:
        """`bases`: all but the arena; `nbytes`: of each output, the first of which is at `first_output`."""
        threads = openmp.max_threads() if self.parallel else 1
        arena = self.arenas.take(threads)
        bases[0] = arena.address
        try:
            self.program.run(bases, arena.workspace, threads)
            for output, base, offset in self.copies:
                ctypes.memmove(bases[first_output + output], bases[base] + offset, nbytes[output])
        finally:
            self.arenas.give(arena)


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
    if level.triple.startswith(_CUDA):
        return cuda_driver.why_no_device(level.features[0] if level.features else "?") or ""
    if _platform(level.triple) != _platform(host.triple):
        return level.triple
    return ", ".join(f for f in level.features if not host.has(f))


def _load_code(container: Container, level: Level) -> _Code | GpuCode:
    """The code of a level that this machine runs."""
    if not level.triple.startswith(_CUDA):
        return _Code(container, level.main)
    return GpuCode(container, level.main, cuda_driver.find_device(level.features[0]))


def _platform(triple: str) -> tuple[str, str]:
    """Architecture and system of a triple."""
    system = next((s for s in ("linux", "darwin", "windows") if s in triple), "")
    arch = triple.partition("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(arch, arch), system


def _link(container: Container, stage: Stage) -> list[_Kernel]:
    """The stage's kernels, loaded into the process."""
    code = container.read(stage.code)
    if any(k.start + k.size > len(code) for k in stage.kernels):
        raise container.error("its plan is damaged: a kernel lies outside the code")
    if not stage.kernels:
        return []
    imports = {"nnvm_parallel": openmp.pool.address} if any(k.parallel for k in stage.kernels) else {}
    objects = [bytes(code[k.start : k.start + k.size]) for k in stage.kernels]
    try:
        loaded = LoadedCode(objects, [k.name for k in stage.kernels], imports)
    except RuntimeError as error:
        raise container.error(f"its section {stage.code!r} cannot be linked: {error}") from error
    return [_Kernel(k.name, loaded[k.name], k.messages, range(k.buffers), k.sizes, k.workspace, loaded)
            for k in stage.kernels]  # fmt: skip


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
