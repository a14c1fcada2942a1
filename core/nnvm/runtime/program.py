"""A sequence of kernel calls run by one native call: no Python between kernels.

The interpreter loop `nnvm_run` is LLVM IR, compiled once a machine (object cache). A program is a flat int64 array::

    [most buffers of any step]
    then for each step: [kernel address, n_bufs, n_syms, (base index, byte offset) * n_bufs, size * n_syms]

A buffer's pointer is ``bases[base index] + byte offset``.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence, Sized
from functools import lru_cache
from typing import Any, Protocol

from nnvm.kernel_error import failure
from nnvm.runtime.loaded_code import load_ir

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


@lru_cache(maxsize=1)
def _loops() -> tuple[Any, Any, Any]:
    """(run, timed run, the loaded code they live in)."""
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
    code = load_ir(plain + timed + _CLOCK.format(clock=time.CLOCK_MONOTONIC), ("nnvm_run", "nnvm_run_timed"))
    arguments = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    run = ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(code["nnvm_run"])
    run_timed = ctypes.CFUNCTYPE(ctypes.c_int64, *arguments, ctypes.c_void_p)(code["nnvm_run_timed"])
    return run, run_timed, code


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

    `run` may be called by several threads at once, each with bases and a workspace of its own.
    """

    __slots__ = ("_address", "_array", "_kernels", "_run", "_steps")

    def __init__(self, steps: Sequence[tuple[NativeKernel, Sequence[tuple[int, int]], Sequence[int]]]) -> None:
        """`steps`: (kernel, (base index, byte offset) of each parameter, value of each symbol)."""
        words = [max((len(bufs) for _, bufs, _ in steps), default=0)]
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
        self._array = (ctypes.c_int64 * len(words))(*words)
        self._address = ctypes.addressof(self._array)
        self._run = _loops()[0]

    def __len__(self) -> int:
        return self._steps

    def run(self, bases: Any, workspace: int, threads: int) -> None:
        """Run all steps, the GIL released; `KernelError` of the first check that fails, after which nothing runs.

        Args:
            bases: array of addresses (a ctypes array of int64, or its address).
            workspace: address, 64-byte aligned, with room for `threads` times the largest kernel's workspace.
            threads: most threads that a parallel loop may use.
        """
        code = self._run(self._address, self._steps, bases, workspace, threads)
        if code:
            self._fail(code)

    def profile(self, bases: Any, workspace: int, threads: int) -> list[int]:
        """`run`, and the nanoseconds that each step took."""
        times = (ctypes.c_int64 * max(1, self._steps))()
        code = _loops()[1](self._address, self._steps, bases, workspace, threads, times)
        if code:
            self._fail(code)
        return list(times[: self._steps])

    def _fail(self, code: int) -> None:
        kernel = self._kernels[(code >> 32) - 1]
        raise failure(kernel.messages[(code & 0xFFFFFFFF) - 1])
