"""PrimFuncs to machine code in this process: compile, load, call."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from nnvm import config
from nnvm.codegen.llvm import assembly as ir_assembly
from nnvm.codegen.llvm import emit, object_code
from nnvm.dim import Dim, SymDim, evaluate
from nnvm.dim import symbols as names_in
from nnvm.kernel_error import failure
from nnvm.runtime import object_cache, openmp
from nnvm.runtime.loaded_code import LoadedCode
from nnvm.target import Target
from nnvm.te.expr import Buffer
from nnvm.tir.passes.expand_math import expand_math
from nnvm.tir.printer import structural_key
from nnvm.tir.stmt import PrimFunc

__all__ = ["Kernel", "KernelObject", "assembly", "compile_funcs", "compile_objects"]

_deep_lock = threading.Lock()
_T = TypeVar("_T")
_DEEP_STACK, _DEEP_LIMIT = 512 << 20, 200_000
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


# -- kernels


@dataclass(eq=False)
class Kernel:
    """A compiled PrimFunc (ABI: `nnvm.codegen.llvm.module`).

    Attributes:
        name: of the PrimFunc.
        address: of the function in memory.
        messages: failure messages by code - 1.
        params: its parameters, inputs first; `outputs` of them, the last, are written.
        symbols: sizes it takes, in order.
        workspace: bytes of scratch per thread.
        parallel: whether it has a parallel loop.
    """

    name: str
    address: int
    messages: tuple[str, ...]
    params: tuple[Buffer, ...]
    outputs: int
    symbols: tuple[str, ...]
    workspace: Dim
    parallel: bool
    code: Any = field(repr=False)

    def __post_init__(self) -> None:
        self._function = _PROTOTYPE(self.address)

    def __call__(self, *arrays: np.ndarray, symbols: Mapping[str, int] | None = None, threads: int = 1) -> None:  # type: ignore[type-arg]
        """Run on numpy arrays, one per parameter; outputs are written in place.

        Sizes that a parameter's shape names plainly need not be given. TypeError and ValueError say what does not fit a
        parameter; `KernelError` is a failed check.
        """
        sizes = self._check(arrays, dict(symbols or {}))
        if self.parallel and threads > 1:
            openmp.pool.connect()
        bufs = (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
        syms = (ctypes.c_int64 * max(1, len(self.symbols)))(*(sizes[s] for s in self.symbols))
        size = evaluate(self.workspace, sizes) * max(1, threads)
        memory = np.empty(size + 64, np.uint8)
        base = memory.ctypes.data + (-memory.ctypes.data) % 64
        code = self._function(bufs, syms, base, threads)
        if code:
            raise failure(self.messages[code - 1])

    def _check(self, arrays: Sequence[np.ndarray], sizes: dict[str, int]) -> dict[str, int]:  # type: ignore[type-arg]
        if len(arrays) != len(self.params):
            raise TypeError(f"{self.name} takes {len(self.params)} arrays, not {len(arrays)}")
        for p, a in zip(self.params, arrays):
            if a.dtype != p.dtype.numpy:
                raise TypeError(f"{self.name}: {p.name} must be {p.dtype.numpy}, not {a.dtype}")
            if a.ndim != len(p.shape):
                raise ValueError(f"{self.name}: {p.name} must have shape {list(p.shape)}, not {list(a.shape)}")
            for d, n in zip(p.shape, a.shape):
                if isinstance(d, SymDim) and len(names_in(d)) == 1 and str(d) in self.symbols:
                    sizes.setdefault(str(d), n)
        if missing := [s for s in self.symbols if s not in sizes]:
            raise ValueError(f"{self.name}: sizes {', '.join(missing)} have no value")
        for p, a in zip(self.params, arrays):
            shape = tuple(evaluate(d, sizes) for d in p.shape)
            strides = tuple(evaluate(p.stride_of(k), sizes) * a.itemsize for k in range(a.ndim))
            same = all(n <= 1 or s == t for n, s, t in zip(shape, strides, a.strides)) or 0 in shape
            if a.shape != shape or not same:
                raise ValueError(f"{self.name}: {p.name} must have shape {shape} and strides {strides} in bytes, "
                                 f"not {a.shape} and {a.strides}")  # fmt: skip
        for p in self.params[len(self.params) - self.outputs :]:
            if not arrays[self.params.index(p)].flags.writeable:
                raise ValueError(f"{self.name}: {p.name} is an output and must be writeable")
        return sizes


def compile_funcs(funcs: Sequence[PrimFunc], target: Target | None = None) -> list[Kernel]:
    """Compile PrimFuncs for `target` (default: `Target.current()`), equal ones once.

    ValueError where this machine cannot run code for the target (`assembly` can still show it).
    """
    target = target or Target.current()
    if missing := sorted(set(target.features) - set(Target.host().features)) or target.triple != Target.host().triple:
        lacks = ", ".join(missing) if isinstance(missing, list) else f"triple {target.triple}"
        raise ValueError(f"this machine cannot run code for {target}: it lacks {lacks}")
    keys = [_deep(structural_key, func) for func in funcs]
    first = dict(zip(reversed(keys), reversed(funcs)))
    objects: dict[str, KernelObject | Future[KernelObject]] = {}
    with _Workers(min(config.compile_threads(), len(first))) as workers:
        for key in dict.fromkeys(keys):
            objects[key] = _object(first[key], key, target, workers)
        kernels = {k: _loaded(first[k], o if isinstance(o, KernelObject) else o.result()) for k, o in objects.items()}
    return [_renamed(kernels[key], func) for key, func in zip(keys, funcs)]


def compile_objects(
    funcs: Sequence[PrimFunc], target: Target, progress: Callable[[int], None] = lambda done: None
) -> list[KernelObject]:
    """Object code of PrimFuncs, each under its own name, for any target: nothing is loaded into this process.

    `progress` is called with the number of those that are done.
    """
    made: list[KernelObject | Future[KernelObject]] = []
    with _Workers(min(config.compile_threads(), len(funcs))) as workers:
        for func in funcs:
            made.append(_object(func, f"{func.name} {_deep(structural_key, func)}", target, workers))
            progress(sum(isinstance(o, KernelObject) or o.done() for o in made))
        return [o if isinstance(o, KernelObject) else o.result() for o in made]


class _Workers:
    """Threads that LLVM runs on while this one makes the next kernel's IR; with a count of 1 all runs here.

    They end with the with block: a process that forks later has none of them.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, work: Callable[[], _T]) -> _T | Future[_T]:
        """`work()`, now or on a thread."""
        if self._count <= 1:
            return work()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, "nnvm-compile")
        return self._pool.submit(work)


def _renamed(kernel: Kernel, func: PrimFunc) -> Kernel:
    if kernel.params is func.params:
        return kernel
    return Kernel(func.name, kernel.address, kernel.messages, func.params, func.outputs, func.symbols,
                  kernel.workspace, kernel.parallel, kernel.code)  # fmt: skip


def _deep(function: Callable[..., _T], *arguments: Any) -> _T:
    """`function(*arguments)`, again with a large stack where expressions nest deeper than Python's limit."""
    try:
        return function(*arguments)
    except RecursionError:
        pass
    results: list[_T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as error:  # handed to the caller below
            errors.append(error)

    with _deep_lock:  # both settings are the process's
        limit, size = sys.getrecursionlimit(), threading.stack_size(_DEEP_STACK)
        sys.setrecursionlimit(_DEEP_LIMIT)
        try:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        finally:
            sys.setrecursionlimit(limit)
            threading.stack_size(size)
    if errors:
        raise errors[0]
    return results[0]


@dataclass(frozen=True)
class KernelObject:
    """Object code of a kernel, and what its IR said about it."""

    name: str
    messages: tuple[str, ...]
    parallel: bool
    code: bytes

    def stored(self) -> bytes:
        """For the cache."""
        facts = {"name": self.name, "messages": self.messages, "parallel": self.parallel}
        return json.dumps(facts).encode() + b"\n" + self.code

    @staticmethod
    def read(stored: bytes) -> KernelObject:
        head, _, code = stored.partition(b"\n")
        facts = json.loads(head)
        return KernelObject(facts["name"], tuple(facts["messages"]), facts["parallel"], code)


def _object(func: PrimFunc, key: str, target: Target, workers: _Workers) -> KernelObject | Future[KernelObject]:
    """The object code, from the cache or made by one of `workers`."""
    entry = object_cache.key_of(f"kernel {key}", target)
    debug = config.debug_level() >= 4
    stored = None if debug else object_cache.get(entry)
    if stored is not None:
        return KernelObject.read(stored)
    built = _deep(lambda: emit(_lowered(func, target), target))
    if debug:
        print(f"; ---- {func.name} for {target}\n{built.ir}\n{ir_assembly(built.ir, target)}", file=sys.stderr)

    def compile_ir() -> KernelObject:
        made = KernelObject(built.name, tuple(built.messages), built.parallel, object_code(built.ir, target))
        object_cache.put(entry, made.stored())
        return made

    return workers.run(compile_ir)


def _loaded(func: PrimFunc, made: KernelObject) -> Kernel:
    imports = {"nnvm_parallel": openmp.pool.address} if made.parallel else {}
    code = LoadedCode([made.code], [made.name], imports)
    return Kernel(func.name, code[made.name], made.messages, func.params, func.outputs, func.symbols,
                  func.workspace(), made.parallel, code)  # fmt: skip


def _lowered(func: PrimFunc, target: Target) -> PrimFunc:
    """Passes that code generation needs."""
    return expand_math(func, target.has_fma)


def assembly(func: PrimFunc, target: Target | None = None) -> str:
    """Assembly of a PrimFunc, for any target."""
    target = target or Target.current()
    return ir_assembly(emit(_lowered(func, target), target).ir, target)
