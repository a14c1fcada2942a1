"""What the machine itself reaches, measured: the two lines of a roofline (Williams, Waterman, Patterson, 2009)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from nnvm.runtime.loaded_code import load_ir
from nnvm.target import Target

__all__ = ["MeasuredRoof", "measure_roof"]

#: Independent sums: enough to hide the latency of a multiply-add on two units, few enough for 16 registers.
_SUMS = 12
_STEPS = 200_000
_COPY_BYTES = 64 << 20
_REPEATS = 5


@dataclass(frozen=True)
class MeasuredRoof:
    """Of so many threads together.

    Attributes:
        flops: float32 operations per nanosecond, multiply-adds on registers (a multiply-add counts as two).
        bytes: bytes read and written per nanosecond, copying what is larger than the caches.
    """

    threads: int
    flops: float
    bytes: float


def measure_roof(threads: int) -> MeasuredRoof:
    """The best of a few short runs, a fifth of a second in all."""
    lanes = Target.host().lanes(32)
    code = load_ir(_multiply_adds(lanes), ("nnvm_roof",))
    run = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(code["nnvm_roof"])
    work = 2.0 * _SUMS * lanes * _STEPS * threads
    with ThreadPoolExecutor(threads) as pool:
        flops = max(work / _nanoseconds(lambda: list(pool.map(run, [_STEPS] * threads))) for _ in range(_REPEATS))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        source, target = (torch.ones(_COPY_BYTES, dtype=torch.uint8) for _ in range(2))
        moved = max(2.0 * _COPY_BYTES / _nanoseconds(lambda: target.copy_(source)) for _ in range(_REPEATS))
    finally:
        torch.set_num_threads(before)
    return MeasuredRoof(threads, flops, moved)


def _nanoseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    work()
    return float(max(1, time.perf_counter_ns() - start))


def _multiply_adds(lanes: int) -> str:
    """A loop of fused multiply-adds, each on a sum of its own."""
    vector, names = f"<{lanes} x float>", range(_SUMS)
    phis = [f"  %s{n} = phi {vector} [ zeroinitializer, %entry ], [ %t{n}, %loop ]" for n in names]
    adds = [f"  %t{n} = call {vector} @llvm.fma.v{lanes}f32({vector} %s{n}, {vector} %x, {vector} %x)" for n in names]
    total = [f"  %r{n} = fadd {vector} %{'t0' if n == 1 else f'r{n - 1}'}, %t{n}" for n in names if n]
    return "\n".join([
        f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})",
        "define float @nnvm_roof(i64 %steps) nounwind {", "entry:",
        "  %small = sitofp i64 %steps to float", "  %tiny = fdiv float 1.0, %small",
        f"  %one = insertelement {vector} poison, float %tiny, i32 0",
        f"  %x = shufflevector {vector} %one, {vector} poison, <{lanes} x i32> zeroinitializer",
        "  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]", *phis, *adds,
        "  %next = add nuw nsw i64 %i, 1", "  %more = icmp slt i64 %next, %steps",
        "  br i1 %more, label %loop, label %end", "end:", *total,
        f"  %first = extractelement {vector} %r{_SUMS - 1}, i32 0", "  ret float %first", "}", "",
    ])  # fmt: skip
