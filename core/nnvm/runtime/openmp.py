"""Parallel loops on the OpenMP runtime that is already in the process: there is never a second pool of threads.

`nnvm_parallel` (see `nnvm.codegen.llvm.module`) is a few lines of LLVM IR around GOMP_parallel or __kmpc_fork_call. The
runtime is found by name lookup in the process, as PyTorch's own calls are bound, or in PyTorch's library; it need not
be there yet when a kernel is compiled. Without one, parallel loops run on the calling thread.

The extent is cut into one contiguous chunk a thread, always the same: data stays in the cache it was written to.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

__all__ = ["IR", "Pool", "cores", "describe", "max_threads", "pool"]

#: Cells of @nnvm_omp: GOMP_parallel, __kmpc_fork_call, omp_get_thread_num, omp_get_num_threads, omp_in_parallel.
IR = """
@nnvm_omp = global [5 x ptr] zeroinitializer, align 8
%work = type { ptr, ptr, i64, i32 }

define internal void @share(ptr %data) {
  %me.at = load ptr, ptr getelementptr ([5 x ptr], ptr @nnvm_omp, i64 0, i64 2)
  %team.at = load ptr, ptr getelementptr ([5 x ptr], ptr @nnvm_omp, i64 0, i64 3)
  %me32 = call i32 %me.at()
  %team32 = call i32 %team.at()
  %me = sext i32 %me32 to i64
  %team = sext i32 %team32 to i64
  %body = load ptr, ptr %data
  %closure.at = getelementptr %work, ptr %data, i64 0, i32 1
  %closure = load ptr, ptr %closure.at
  %extent.at = getelementptr %work, ptr %data, i64 0, i32 2
  %extent = load i64, ptr %extent.at
  %chunk = sdiv i64 %extent, %team
  %rest = srem i64 %extent, %team
  %early = icmp slt i64 %me, %rest
  %extra = select i1 %early, i64 %me, i64 %rest
  %start = mul i64 %me, %chunk
  %begin = add i64 %start, %extra
  %one = zext i1 %early to i64
  %size = add i64 %chunk, %one
  %end = add i64 %begin, %size
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %run, label %done
run:
  %code = call i32 %body(ptr %closure, i64 %begin, i64 %end, i64 %me)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %fail, label %done
fail:
  %code.at = getelementptr %work, ptr %data, i64 0, i32 3
  %old = cmpxchg ptr %code.at, i32 0, i32 %code monotonic monotonic
  br label %done
done:
  ret void
}

define internal void @share_kmpc(ptr %global, ptr %bound, ptr %data) {
  call void @share(ptr %data)
  ret void
}

define i32 @nnvm_parallel(ptr %body, ptr %closure, i64 %extent, i64 %threads) {
entry:
  %work = alloca %work, align 8
  %gomp = load ptr, ptr @nnvm_omp
  %kmpc = load ptr, ptr getelementptr ([5 x ptr], ptr @nnvm_omp, i64 0, i64 1)
  %in.at = load ptr, ptr getelementptr ([5 x ptr], ptr @nnvm_omp, i64 0, i64 4)
  %none = icmp eq ptr %in.at, null
  br i1 %none, label %alone, label %ask
ask:
  %in = call i32 %in.at()
  %nested = icmp ne i32 %in, 0
  br i1 %nested, label %alone, label %several
several:
  %fewer = icmp slt i64 %extent, %threads
  %team = select i1 %fewer, i64 %extent, i64 %threads
  %team32 = trunc i64 %team to i32
  store ptr %body, ptr %work
  %closure.at = getelementptr %work, ptr %work, i64 0, i32 1
  store ptr %closure, ptr %closure.at
  %extent.at = getelementptr %work, ptr %work, i64 0, i32 2
  store i64 %extent, ptr %extent.at
  %code.at = getelementptr %work, ptr %work, i64 0, i32 3
  store i32 0, ptr %code.at
  %has = icmp ne ptr %gomp, null
  br i1 %has, label %gnu, label %intel
gnu:
  call void %gomp(ptr @share, ptr %work, i32 %team32, i32 0)
  br label %joined
intel:
  %tid.at = load ptr, ptr @nnvm_omp_tid
  %tid = call i32 %tid.at(ptr @nnvm_ident)
  %push.at = load ptr, ptr @nnvm_omp_push
  call void %push.at(ptr @nnvm_ident, i32 %tid, i32 %team32)
  call void (ptr, i32, ptr, ...) %kmpc(ptr @nnvm_ident, i32 1, ptr @share_kmpc, ptr %work)
  br label %joined
joined:
  %code = load i32, ptr %code.at
  ret i32 %code
alone:
  %only = call i32 %body(ptr %closure, i64 0, i64 %extent, i64 0)
  ret i32 %only
}

@nnvm_omp_tid = global ptr null
@nnvm_omp_push = global ptr null
@nnvm_where = private constant [23 x i8] c";unknown;unknown;0;0;;\\00"
@nnvm_ident = private global { i32, i32, i32, i32, ptr } { i32 0, i32 2, i32 0, i32 22, ptr @nnvm_where }
"""

_NEEDED = ("omp_get_thread_num", "omp_get_num_threads", "omp_in_parallel", "omp_get_max_threads")


@dataclass(frozen=True)
class _Found:
    """An OpenMP runtime: the library it was found through and the addresses of its functions by name."""

    source: str
    functions: dict[str, int]

    @property
    def is_gnu(self) -> bool:
        return "__kmpc_fork_call" not in self.functions


def _lookup(library: Any, source: str) -> _Found | None:
    names = (*_NEEDED, "GOMP_parallel", "__kmpc_fork_call", "__kmpc_global_thread_num", "__kmpc_push_num_threads")
    found: dict[str, int] = {}
    for name in names:
        try:
            found[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    entry = "GOMP_parallel" in found or {"__kmpc_fork_call", "__kmpc_global_thread_num",
                                         "__kmpc_push_num_threads"} <= found.keys()  # fmt: skip
    return _Found(source, found) if entry and found.keys() >= set(_NEEDED) else None


def _loaded_libraries() -> list[str]:
    """Paths of the shared libraries in the process, where the system lists them."""
    if sys.platform == "darwin":
        system = ctypes.CDLL(None)
        system._dyld_get_image_name.restype = ctypes.c_char_p
        return [system._dyld_get_image_name(i).decode() for i in range(system._dyld_image_count())]
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = (line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines())
    return list(dict.fromkeys(p for p in paths if p.startswith("/") and ".so" in p))


def _find() -> _Found | None:
    """The runtime that PyTorch's calls are bound to: the global scope first, then its own dependencies, then any."""
    if (found := _lookup(ctypes.CDLL(None), "process")) is not None:
        return found
    paths = _loaded_libraries()
    names = ("libtorch_cpu.", "libgomp", "libomp", "libiomp5")
    ranked = [p for name in names for p in paths if name in p.rpartition("/")[2]]
    for path in ranked:
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        if (found := _lookup(library, path)) is not None:
            return found
    return None


class Pool:
    """The process's OpenMP runtime as seen from kernels."""

    def __init__(self) -> None:
        self._found: _Found | None = None
        self._max: Any = None
        self._lock = threading.Lock()
        self._forked = False
        self._modules_seen = -1
        self._count: Callable[[], int] | None = None

    def count_by(self, count: Callable[[], int]) -> None:
        """Asks `count` for the number of threads from now on: a library may keep one for threads that are new to
        OpenMP (PyTorch does)."""
        self._count = count

    @cached_property
    def _library(self) -> Any:
        from nnvm.runtime.loaded_code import load_ir

        return load_ir(IR, ("nnvm_parallel", "nnvm_omp", "nnvm_omp_tid", "nnvm_omp_push"))

    @property
    def address(self) -> int:
        """Address of nnvm_parallel; it stays the same."""
        with self._lock:
            return int(self._library["nnvm_parallel"])

    def connect(self) -> None:
        """Look for a runtime, unless one was found before, or nothing was imported since the last look."""
        if self._found is not None or self._forked or len(sys.modules) == self._modules_seen:
            return
        self._modules_seen = len(sys.modules)
        found = _find()
        if found is None:
            return
        with self._lock:
            library = self._library
        cells = (ctypes.c_void_p * 5).from_address(library["nnvm_omp"])
        ctypes.c_void_p.from_address(library["nnvm_omp_tid"]).value = found.functions.get("__kmpc_global_thread_num")
        ctypes.c_void_p.from_address(library["nnvm_omp_push"]).value = found.functions.get("__kmpc_push_num_threads")
        names = ("GOMP_parallel", "__kmpc_fork_call", "omp_get_thread_num", "omp_get_num_threads", "omp_in_parallel")
        for cell, name in enumerate(names):  # the last one, omp_in_parallel, switches it on
            cells[cell] = found.functions.get(name)
        self._max = ctypes.CFUNCTYPE(ctypes.c_int)(found.functions["omp_get_max_threads"])
        self._found = found

    def max_threads(self) -> int:
        """Threads a parallel loop may use now: what `torch.set_num_threads` set, and no more than the calling thread
        may run on; 1 without a runtime."""
        if self._max is None:
            self.connect()
            if self._max is None:
                return 1
        count = int(self._max()) if self._count is None else self._count()
        return min(count, cores()) if count > 1 else count

    def counting(self) -> tuple[Callable[[], int], Callable[[int], int]]:
        """`max_threads` in two steps, of which the second is for a count above 1: what is set, and its limit."""
        return (self._count, self._limited) if self._count is not None else (self.max_threads, int)

    def _limited(self, count: int) -> int:
        return min(count, cores()) if self._max is not None else self.max_threads()

    def after_fork(self) -> None:
        """In a forked child the GNU runtime's threads are gone and it would wait for them: run on one thread."""
        self._lock = threading.Lock()
        if self._found is not None and self._found.is_gnu:
            (ctypes.c_void_p * 5).from_address(self._library["nnvm_omp"])[4] = None
            self._found, self._max, self._forked = None, None, True

    def describe(self) -> str:
        """One line for `nnvm doctor`."""
        self.connect()
        if self._forked:
            return "one thread: this process was forked from one that may have used GNU OpenMP"
        if self._found is None:
            return "one thread: no OpenMP runtime in the process (import torch first)"
        entry = "GOMP_parallel" if "GOMP_parallel" in self._found.functions else "__kmpc_fork_call"
        return f"OpenMP through {entry} of {self._found.source}, up to {self.max_threads()} threads"


#: OpenMP runtimes as systems call them, in the order in which `set_threads` looks for them.
LIBRARIES = ("libgomp.so.1", "libomp.so", "libomp.so.5", "libiomp5.so", "libomp.dylib")


def set_threads(count: int) -> bool:
    """Has parallel loops use `count` threads of the system's OpenMP runtime, which is loaded where kernels find it.

    For programs without PyTorch, which has one. False where the system has none.
    """
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL).omp_set_num_threads(count)
        except (OSError, AttributeError):
            continue
        return True
    return False


#: Counts the bits of what the system says, which Python would make a set of.
_CORES = """
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i64 @llvm.ctpop.i64(i64)
declare ptr @PyLong_FromLongLong(i64)

define ptr @nnvm_cores(ptr %self, ptr %args, i64 %count) nounwind {
entry:
  %mask = alloca [16 x i64], align 8
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %got = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  %known = icmp sgt i32 %got, 0
  br i1 %known, label %word, label %unknown
word:
  %i = phi i64 [ 0, %entry ], [ %i.next, %word ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %word ]
  %at = getelementptr i64, ptr %mask, i64 %i
  %bits = load i64, ptr %at, align 8
  %set = call i64 @llvm.ctpop.i64(i64 %bits)
  %sum.next = add i64 %sum, %set
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, 16
  br i1 %more, label %word, label %done
done:
  %cores = call ptr @PyLong_FromLongLong(i64 %sum.next)
  ret ptr %cores
unknown:
  %none = call ptr @PyLong_FromLongLong(i64 0)
  ret ptr %none
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


@lru_cache(maxsize=1)
def _native_cores() -> Callable[[], int]:
    from nnvm.runtime.loaded_code import load_ir
    from nnvm.runtime.native_function import NativeFunction, python_api

    code = load_ir(_CORES, ["nnvm_cores"], python_api("PyLong_FromLongLong"))
    return NativeFunction(code, "nnvm_cores").bound(bytearray())


def cores() -> int:
    """Cores that the calling thread may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return _native_cores()() or len(os.sched_getaffinity(0))  # 0: of more than 1024 cores


pool = Pool()
max_threads = pool.max_threads
describe = pool.describe
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.after_fork)
