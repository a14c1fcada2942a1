"""A sequence of kernel calls run by one native call: no Python between kernels.

The interpreter loop `nnvm_run` is LLVM IR, compiled once a machine (object cache); Python calls it as a function of its
own (`nnvm.runtime.native_function`), which releases the GIL while it runs. A program is a flat int64 array::

    [most buffers of any step]
    then for each step: [kernel address, n_bufs, n_syms, (base index, byte offset) * n_bufs, size * n_syms]

A buffer's pointer is ``bases[base index] + byte offset``.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence, Sized
from functools import lru_cache
from typing import Any, Protocol

from nnvm.kernel_error import failure
from nnvm.runtime.loaded_code import load_ir
from nnvm.runtime.native_function import NativeFunction, context_of, python_api

__all__ = ["NativeKernel", "Program"]

#: `{run}` runs the steps until one fails; 0 or (step + 1) << 32 | code. The timed one writes nanoseconds as well.
_LOOP = """
define i64 @{run}(ptr %program, i64 %steps, ptr %bases, ptr %workspace, i64 %threads{times_parameter}) nounwind {{
entry:
  {clock_slot}
  %most = load i64, ptr %program, align 8
  %pointers = alloca ptr, i64 %most, align 16
  %first = getelementptr i8, ptr %program, i64 8
  %any = icmp sgt i64 %steps, 0
  br i1 %any, label %step, label %finished
step:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %at = phi ptr [ %first, %entry ], [ %following, %next ]
  %kernel.bits = load i64, ptr %at, align 8
  %kernel = inttoptr i64 %kernel.bits to ptr
  %bufs.at = getelementptr i8, ptr %at, i64 8
  %bufs = load i64, ptr %bufs.at, align 8
  %syms.at = getelementptr i8, ptr %at, i64 16
  %syms = load i64, ptr %syms.at, align 8
  %refs = getelementptr i8, ptr %at, i64 24
  %refs.bytes = shl i64 %bufs, 4
  %sizes = getelementptr i8, ptr %refs, i64 %refs.bytes
  %sizes.bytes = shl i64 %syms, 3
  %following = getelementptr i8, ptr %sizes, i64 %sizes.bytes
  %some = icmp sgt i64 %bufs, 0
  br i1 %some, label %fill, label %call
fill:
  %k = phi i64 [ 0, %step ], [ %k.next, %fill ]
  %ref = getelementptr {{ i64, i64 }}, ptr %refs, i64 %k
  %base.index = load i64, ptr %ref, align 8
  %offset.at = getelementptr i8, ptr %ref, i64 8
  %offset = load i64, ptr %offset.at, align 8
  %base.at = getelementptr i64, ptr %bases, i64 %base.index
  %base = load ptr, ptr %base.at, align 8
  %pointer = getelementptr i8, ptr %base, i64 %offset
  %pointer.at = getelementptr ptr, ptr %pointers, i64 %k
  store ptr %pointer, ptr %pointer.at, align 8
  %k.next = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %k.next, %bufs
  br i1 %more, label %fill, label %call
call:
  {before}
  %code = call i32 %kernel(ptr %pointers, ptr %sizes, ptr %workspace, i64 %threads)
  {after}
  %bad = icmp ne i32 %code, 0
  %i.next = add nuw nsw i64 %i, 1
  br i1 %bad, label %failed, label %next
next:
  %again = icmp slt i64 %i.next, %steps
  br i1 %again, label %step, label %finished
failed:
  %high = shl i64 %i.next, 32
  %low = zext i32 %code to i64
  %both = or i64 %high, %low
  ret i64 %both
finished:
  ret i64 0
}}
"""

_CLOCK = """
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now(ptr %slot) nounwind {{
  call i32 @clock_gettime(i32 {clock}, ptr %slot)
  %seconds = load i64, ptr %slot, align 8
  %part.at = getelementptr i8, ptr %slot, i64 8
  %part = load i64, ptr %part.at, align 8
  %scaled = mul i64 %seconds, 1000000000
  %all = add i64 %scaled, %part
  ret i64 %all
}}
"""

#: Both release the GIL while the program runs. `nnvm_program`: context [steps, the program], arguments: addresses of
#: the bases and of the workspace, threads. `nnvm_call`: context [address of the program, steps, number of bases, number
#: of addresses to come, the base that each of these is, the bases], arguments: workspace, threads, addresses.
_CALL = """
declare ptr @PyByteArray_AsString(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @run_released(ptr %program, i64 %steps, ptr %bases, ptr %workspace, i64 %threads) nounwind {
  %thread = call ptr @PyEval_SaveThread()
  %code = call i64 @nnvm_run(ptr %program, i64 %steps, ptr %bases, ptr %workspace, i64 %threads)
  call void @PyEval_RestoreThread(ptr %thread)
  %result = call ptr @PyLong_FromLongLong(i64 %code)
  ret ptr %result
}

define internal ptr @pointer_of(ptr %args, i64 %i) nounwind {
  %at = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %at, align 8
  %pointer = call ptr @PyLong_AsVoidPtr(ptr %object)
  ret ptr %pointer
}

define internal i64 @number_of(ptr %args, i64 %i) nounwind {
  %at = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %at, align 8
  %number = call i64 @PyLong_AsLongLong(ptr %object)
  ret i64 %number
}

define ptr @nnvm_program(ptr %self, ptr %args, i64 %count) nounwind {
  %context = call ptr @PyByteArray_AsString(ptr %self)
  %steps = load i64, ptr %context, align 8
  %program = getelementptr i64, ptr %context, i64 1
  %bases = call ptr @pointer_of(ptr %args, i64 0)
  %workspace = call ptr @pointer_of(ptr %args, i64 1)
  %threads = call i64 @number_of(ptr %args, i64 2)
  %result = call ptr @run_released(ptr %program, i64 %steps, ptr %bases, ptr %workspace, i64 %threads)
  ret ptr %result
}

define ptr @nnvm_call(ptr %self, ptr %args, i64 %count) nounwind {
entry:
  %context = call ptr @PyByteArray_AsString(ptr %self)
  %program = load ptr, ptr %context, align 8
  %steps.at = getelementptr i64, ptr %context, i64 1
  %steps = load i64, ptr %steps.at, align 8
  %size.at = getelementptr i64, ptr %context, i64 2
  %size = load i64, ptr %size.at, align 8
  %given.at = getelementptr i64, ptr %context, i64 3
  %given = load i64, ptr %given.at, align 8
  %places = getelementptr i64, ptr %context, i64 4
  %kept = getelementptr i64, ptr %places, i64 %given
  %bytes = shl i64 %size, 3
  %bases = alloca i64, i64 %size, align 16
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %bases, ptr align 8 %kept, i64 %bytes, i1 false)
  %workspace = call ptr @pointer_of(ptr %args, i64 0)
  %threads = call i64 @number_of(ptr %args, i64 1)
  %addresses = getelementptr ptr, ptr %args, i64 2
  %some = icmp sgt i64 %given, 0
  br i1 %some, label %fill, label %run
fill:
  %k = phi i64 [ 0, %entry ], [ %k.next, %fill ]
  %place.at = getelementptr i64, ptr %places, i64 %k
  %place = load i64, ptr %place.at, align 8
  %address = call ptr @pointer_of(ptr %addresses, i64 %k)
  %base = getelementptr ptr, ptr %bases, i64 %place
  store ptr %address, ptr %base, align 8
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %given
  br i1 %more, label %fill, label %run
run:
  %result = call ptr @run_released(ptr %program, i64 %steps, ptr %bases, ptr %workspace, i64 %threads)
  ret ptr %result
}
"""
_API = ("PyByteArray_AsString", "PyLong_AsVoidPtr", "PyLong_AsLongLong", "PyLong_FromLongLong", "PyEval_SaveThread",
        "PyEval_RestoreThread")  # fmt: skip


@lru_cache(maxsize=1)
def _loops() -> tuple[NativeFunction, NativeFunction, Any]:
    """(what runs a program, what runs it on addresses, the timed form for ctypes)."""
    plain = _LOOP.format(run="nnvm_run", times_parameter="", clock_slot="", before="", after="")
    timed = _LOOP.format(
        run="nnvm_run_timed",
        times_parameter=", ptr %times",
        clock_slot="%clock = alloca [2 x i64], align 8",
        before="%start = call i64 @now(ptr %clock)",
        after="""%stop = call i64 @now(ptr %clock)
  %taken = sub i64 %stop, %start
  %time.at = getelementptr i64, ptr %times, i64 %i
  store i64 %taken, ptr %time.at, align 8""",
    )
    text = plain + timed + _CLOCK.format(clock=time.CLOCK_MONOTONIC) + _CALL
    code = load_ir(text, ("nnvm_program", "nnvm_call", "nnvm_run_timed"), python_api(*_API))
    arguments = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    run_timed = ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(code["nnvm_run_timed"])
    return NativeFunction(code, "nnvm_program"), NativeFunction(code, "nnvm_call"), run_timed


class NativeKernel(Protocol):
    """What a step needs of a kernel; holding it keeps its code loaded."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> int: ...
    @property
    def messages(self) -> Sequence[str]: ...
    @property
    def params(self) -> Sized: ...
    @property
    def symbols(self) -> Sized: ...


class Program:
    """Kernel calls in order; keeps the kernels loaded.

    `run` and the functions of `on` may be called by several threads at once, each with memory of its own.
    """

    __slots__ = ("_address", "_context", "_kernels", "_run", "_steps")

    def __init__(self, steps: Sequence[tuple[NativeKernel, Sequence[tuple[int, int]], Sequence[int]]]) -> None:
        """`steps`: (kernel, (base index, byte offset) of each parameter, value of each symbol)."""
        words = [len(steps), max((len(bufs) for _, bufs, _ in steps), default=0)]
        for kernel, bufs, syms in steps:
            if len(bufs) != len(kernel.params) or len(syms) != len(kernel.symbols):
                raise ValueError(f"{kernel.name} takes {len(kernel.params)} buffers and {len(kernel.symbols)} sizes, "
                                 f"not {len(bufs)} and {len(syms)}")  # fmt: skip
            words += [kernel.address, len(bufs), len(syms)]
            for base, offset in bufs:
                words += [base, offset]
            words += syms
        self._kernels = tuple(kernel for kernel, _, _ in steps)
        self._steps = len(self._kernels)
        self._context = context_of(words)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._context)) + ctypes.sizeof(ctypes.c_int64)
        self._run = _loops()[0].bound(self._context)

    def __len__(self) -> int:
        return self._steps

    def run(self, bases: Any, workspace: int, threads: int) -> None:
        """Run all steps, the GIL released; `KernelError` of the first check that fails, after which nothing runs.

        Args:
            bases: array of addresses (a ctypes array of int64, or its address).
            workspace: address, 64-byte aligned, with room for `threads` times the largest kernel's workspace.
            threads: most threads that a parallel loop may use.
        """
        code = self._run(bases if isinstance(bases, int) else ctypes.addressof(bases), workspace, threads)
        if code:
            raise self.failed(code)

    def on(self, bases: Sequence[int], given: Sequence[int], keep: Any = None) -> Callable[..., int]:
        """A function (workspace, threads, address of each base in `given`) -> 0, or a code for `failed`: runs all steps
        with the other bases as they are in `bases`, the GIL released. It keeps the program, and `keep`."""
        words = (self._address, self._steps, len(bases), len(given), *given, *bases)
        return _loops()[1].bound(context_of(words), (self, keep))

    def profile(self, bases: Any, workspace: int, threads: int) -> list[int]:
        """`run`, and the nanoseconds that each step took."""
        times = (ctypes.c_int64 * max(1, self._steps))()
        code = _loops()[2](self._address, self._steps, bases, workspace, threads, times)
        if code:
            raise self.failed(code)
        return list(times[: self._steps])

    def failed(self, code: int) -> Exception:
        """The error of a check that failed, by the code that a function of `on` gave."""
        kernel = self._kernels[(code >> 32) - 1]
        return failure(kernel.messages[(code & 0xFFFFFFFF) - 1])
