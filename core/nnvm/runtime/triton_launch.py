"""Kernels in Triton: from the launches of a group to compiled code, and programs of them that an Executor runs.

Source is written to the kernel cache as a Python file, one a launch, and compiled when it is first launched. With
TRITON_INTERPRET=1 Triton's interpreter runs it on the host's memory instead, which needs no GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnvm import config
from nnvm.atomic_write import atomic_write
from nnvm.codegen.triton import TritonSource, triton_source
from nnvm.dim import Dim, ceildiv, evaluate, numel
from nnvm.kernel_error import failure
from nnvm.runtime import object_cache
from nnvm.runtime.memory import ALIGNMENT, Memory
from nnvm.runtime.triton_interpret import interpret, is_interpreting
from nnvm.target import Target
from nnvm.te.expr import Buffer
from nnvm.tir.stmt import GridKernel, PrimFunc

__all__ = ["LaunchProgram", "TritonKernel", "compile_launch", "load_source"]

#: Elements from which on 32 bits do not count those of a buffer.
WIDE = 1 << 31
#: Bytes of disk that sources of kernels may take; those not written for longest go.
SOURCES_BYTES = 64 << 20


@dataclass(eq=False)
class TritonKernel:
    """The launches of a group for one target; an Executor calls it as it does a `Kernel`.

    Attributes:
        name, params, outputs, symbols: of the group.
        workspace: bytes of memory between the launches.
        steps: a `Launch` each.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: int
    symbols: tuple[str, ...]
    workspace: Dim
    steps: tuple[Launch, ...]
    target: Target
    parallel: bool = False

    @staticmethod
    def of(group: GridKernel, target: Target, comment: str = "") -> TritonKernel:
        """Raises ValueError where the group uses a function that Triton does not have."""
        offsets: dict[Buffer, Dim] = {}
        total: Dim = 0
        for b in group.scratch:
            offsets[b] = total
            total = total + ceildiv(numel(b.shape) * b.dtype.bytes, ALIGNMENT) * ALIGNMENT
        steps = []
        for step in group.steps:
            arguments = tuple(Argument(group.params.index(b), 0) if b in group.params else Argument(-1, offsets[b])
                              for b in step.params)  # fmt: skip
            steps.append(Launch(step, arguments, target, comment))
        return TritonKernel(group.name, group.params, group.outputs, group.symbols, total, tuple(steps), target)

    @property
    def sources(self) -> tuple[TritonSource, ...]:
        """The source of each launch."""
        return tuple(s.source(False) for s in self.steps)


@dataclass(frozen=True)
class Argument:
    """Where a pointer comes from: a parameter of the group, or (-1) its workspace, from byte `offset` on."""

    param: int
    offset: Dim


@dataclass(eq=False)
class Launch:
    """One launch, compiled when it is first needed, for 32-bit and for 64-bit indices apart."""

    func: PrimFunc
    arguments: tuple[Argument, ...]
    target: Target
    comment: str
    _sources: dict[bool, TritonSource] = field(default_factory=dict)
    _compiled: dict[tuple[object, ...], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def source(self, wide: bool) -> TritonSource:
        found = self._sources.get(wide)
        if found is None:
            made = triton_source(self.func, self.comment, wide, self.target.has("tf32"))
            found = self._sources.setdefault(wide, made)
        return found

    def programs(self, env: Mapping[str, int]) -> int:
        return evaluate(self.func.attrs["programs"], env)  # type: ignore[arg-type]

    def is_wide(self, env: Mapping[str, int]) -> bool:
        """Whether some buffer has too many elements for 32-bit indices."""
        return any(evaluate(numel(b.shape), env) >= WIDE for b in self.func.params)

    def binary(self) -> bytes:
        """Machine code for 32-bit indices and aligned pointers."""
        if is_interpreting():
            raise RuntimeError("Triton interprets in this process (TRITON_INTERPRET=1): it compiles nothing")
        compiled = compile_launch(self.source(False), self.func, self.target)
        code: bytes = compiled.asm["cubin" if self.target.kind == "cuda" else "hsaco"]
        return code

    def compiled(self, wide: bool, aligned: tuple[bool, ...]) -> Any:
        """Machine code for this process's GPU; `aligned`: which pointers are multiples of 16."""
        key = (wide, aligned)
        found = self._compiled.get(key)
        if found is None:
            with self._lock:
                found = self._compiled.get(key)
                if found is None:
                    found = compile_launch(self.source(wide), self.func, self.target, aligned)
                    self._compiled[key] = found
        return found


def load_source(source: TritonSource) -> Any:
    """The function of a source, from its file in the kernel cache."""
    digest = hashlib.sha256(source.text.encode()).hexdigest()[:24]
    path = config.cache_dir() / "triton" / f"{source.name[:80]}_{digest}.py"
    name = f"nnvm_triton_{digest}"
    if name not in sys.modules:
        _write(path, source.text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return getattr(sys.modules[name], source.name)


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())
    if path.stem.endswith("0"):  # one write in sixteen
        object_cache.evict(path.parent, SOURCES_BYTES)


def compile_launch(source: TritonSource, func: PrimFunc, target: Target, aligned: Sequence[bool] | None = None) -> Any:
    """Triton's compiled kernel of a launch, for any GPU, which need not be in this machine.

    Args:
        aligned: which of the pointers are multiples of 16 bytes; None: all.
    """
    import triton
    from triton.compiler import ASTSource

    fn = load_source(source)
    signature = dict(source.signature)
    pointers = [i for i, (_, t) in enumerate(source.signature) if t.startswith("*")]
    flags = aligned if aligned is not None else [True] * len(pointers)
    attrs = {(i,): [["tt.divisibility", 16]] for i, ok in zip(pointers, flags) if ok}
    ast = ASTSource(fn, signature, {}, attrs)
    options = {"num_warps": func.attrs.get("warps", 4), "num_stages": func.attrs.get("stages", 2),
               "enable_fp_fusion": False}  # fmt: skip
    return triton.compile(ast, target=gpu_target(target), options=options)


def gpu_target(target: Target) -> Any:
    """Triton's name of a target."""
    from triton.backends.compiler import GPUTarget

    if target.kind == "cuda":
        return GPUTarget("cuda", int(target.cpu.removeprefix("sm_").rstrip("a")), 32)
    return GPUTarget("hip", target.cpu, 64)


class LaunchProgram:
    """Launches in order, on the stream that is current; the counterpart of `Program`.

    `run` may be called by several threads at once, each with bases and a workspace of its own.
    """

    def __init__(self, steps: Sequence[tuple[TritonKernel, Sequence[tuple[int, int]], Sequence[int]]],
                 memory: Memory | None = None) -> None:  # fmt: skip
        """`steps`: (kernel, (base index, byte offset) of each parameter, value of each symbol).

        `memory`: what the buffers are made of; its flags tell of checks that failed. None for the interpreter.
        """
        self._steps = [
            _Step(launch, [_place(a, bufs, dict(zip(kernel.symbols, syms))) for a in launch.arguments],
                  dict(zip(kernel.symbols, syms)))
            for kernel, bufs, syms in steps for launch in kernel.steps
        ]  # fmt: skip
        self._checked = [s for s in self._steps if s.messages()]
        self._flags = memory.flags(len(self._checked)) if memory is not None and self._checked else None
        for i, step in enumerate(self._checked):
            step.flag = self._flags.address + 4 * i if self._flags is not None else 0

    def run(self, bases: Any, workspace: int, threads: int) -> None:
        """Launches all; with the interpreter a failed check raises `KernelError`, after which nothing runs."""
        self.raise_failure()
        run = _Step.interpret if is_interpreting() else _Step.launch
        for step in self._steps:
            if step.programs:
                run(step, [(workspace if base < 0 else bases[base]) + offset for base, offset in step.places])

    def raise_failure(self) -> None:
        """Raises the failure of a launch that is done, if there was one; of one that is not, a later call does."""
        if self._flags is None:
            return
        for step in self._checked:
            if code := ctypes.c_int32.from_address(step.flag).value:
                ctypes.c_int32.from_address(step.flag).value = 0
                raise failure(step.messages()[code - 1])


def _place(a: Argument, bufs: Sequence[tuple[int, int]], env: Mapping[str, int]) -> tuple[int, int]:
    """(base index, byte offset); base -1 is the workspace."""
    return bufs[a.param] if a.param >= 0 else (-1, evaluate(a.offset, env))


class _Step:
    """A launch with sizes known. `flag`: address of its failure flag."""

    def __init__(self, launch: Launch, places: list[tuple[int, int]], env: Mapping[str, int]) -> None:
        self.of, self.places = launch, places
        self.flag = 0
        self.programs = launch.programs(env)
        self.wide = launch.is_wide(env)
        self.sizes = [env[s] for s in launch.func.symbols]
        self.nbytes = [evaluate(numel(b.shape), env) * b.dtype.bytes for b in launch.func.params]

    def messages(self) -> tuple[str, ...]:
        return self.of.source(self.wide).messages

    def interpret(self, pointers: list[int]) -> None:
        source = self.of.source(self.wide)
        arguments = [*pointers, *self.sizes]
        if code := interpret(load_source(source), source.signature, arguments, self.programs, self.nbytes):
            raise failure(source.messages[code - 1])

    def launch(self, pointers: list[int]) -> None:
        flags = [self.flag] if self.messages() else []
        kernel = self.of.compiled(self.wide, tuple(p % 16 == 0 for p in (*pointers, *flags)))
        kernel[(self.programs, 1, 1)](*pointers, *self.sizes, *flags)
