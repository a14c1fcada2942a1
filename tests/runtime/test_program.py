"""Programs of kernels run by one native call."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from nnvm.dtype import F32, I32
from nnvm.kernel_error import KernelError, KernelIndexError
from nnvm.runtime.llvm_jit import Kernel, compile_funcs
from nnvm.runtime.program import Program
from nnvm.te.expr import Binary, Buffer, Var, const, load
from nnvm.tir.stmt import Allocate, Assert, For, PrimFunc, Seq, Store


def affine(scale: float, shift: float, size: int = 4) -> PrimFunc:
    x, y, i = Buffer("x", (size,), F32), Buffer("y", (size,), F32), Var("i")
    return PrimFunc("affine", (x, y), 1, (), For(i, const(size), Store(y, (i,), load(x, (i,)) * scale + shift)))


def addresses(*arrays: np.ndarray) -> ctypes.Array:  # type: ignore[type-arg]
    return (ctypes.c_int64 * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))


def filled(n: int = 4) -> Kernel:
    """y[0 .. s - 1] = s for a size s."""
    y, i = Buffer("y", (n,), F32), Var("i")
    from nnvm.te.expr import Cast

    return compile_funcs([PrimFunc("fill", (y,), 1, ("s",), For(i, Var("s"), Store(y, (i,), Cast(Var("s"), F32))))])[0]


def test_steps_run_in_order_on_offsets_of_bases() -> None:
    double, increase = compile_funcs([affine(2, 0), affine(1, 1)])
    x, memory = np.arange(4, dtype=np.float32), np.zeros(12, np.float32)
    program = Program(
        [(double, [(0, 0), (1, 0)], []), (increase, [(1, 0), (1, 16)], []), (double, [(1, 16), (1, 32)], [])]
    )
    program.run(addresses(x, memory), 0, 1)
    assert memory.tolist() == [*(2 * x), *(2 * x + 1), *(4 * x + 2)]
    assert len(program) == 3


def test_sizes_are_passed() -> None:
    kernel, memory = filled(), np.zeros(8, np.float32)
    Program([(kernel, [(0, 0)], [3]), (kernel, [(0, 16)], [1])]).run(addresses(memory), 0, 1)
    assert memory.tolist() == [3, 3, 3, 0, 1, 0, 0, 0]


def test_nothing_to_do() -> None:
    Program([]).run(addresses(), 0, 1)
    assert Program([]).profile(addresses(), 0, 1) == []


def test_wrong_steps_are_refused() -> None:
    (kernel,) = compile_funcs([affine(1, 0)])
    with pytest.raises(ValueError, match="takes 2 buffers and 0 sizes"):
        Program([(kernel, [(0, 0)], [])])
    with pytest.raises(ValueError, match="not 2 and 1"):
        Program([(kernel, [(0, 0), (0, 0)], [1])])


def checked(message: str) -> Kernel:
    x, y = Buffer("x", (1,), I32), Buffer("y", (1,), I32)
    body = Seq((Assert(Binary("lt", load(x, (const(0),)), const(9, I32)), "never"),
                Assert(Binary("gt", load(x, (const(0),)), const(0, I32)), message),
                Store(y, (const(0),), load(x, (const(0),)))))  # fmt: skip
    return compile_funcs([PrimFunc("checked", (x, y), 1, (), body)])[0]


def test_a_failed_check_stops_the_program_with_its_message() -> None:
    first, second = checked("must be positive"), checked("IndexError: second")
    values, out = np.array([1, 0], np.int32), np.zeros(3, np.int32)
    bases = addresses(values, out)
    program = Program([(first, [(0, 0), (1, 0)], []), (second, [(0, 4), (1, 4)], []), (first, [(0, 0), (1, 8)], [])])
    for run in (program.run, program.profile):
        out[:] = 7
        with pytest.raises(KernelIndexError, match="second"):
            run(bases, 0, 1)
        assert out.tolist() == [1, 0, 7]
    values[:] = [0, 1]
    with pytest.raises(KernelError, match="must be positive"):
        program.run(bases, 0, 1)
    values[:] = 1
    program.run(bases, 0, 1)
    assert out.tolist() == [1, 1, 1]


def test_profile_gives_nanoseconds_of_each_step() -> None:
    small, large = compile_funcs([affine(2, 0, 4), affine(2, 0, 1 << 16)])
    x, y = np.ones(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
    program = Program([(small, [(0, 0), (1, 0)], []), (large, [(0, 0), (1, 0)], [])])
    times = [program.profile(addresses(x, y), 0, 1) for _ in range(5)]
    assert all(t >= 0 for pair in times for t in pair)
    assert min(pair[1] for pair in times) > min(pair[0] for pair in times)
    assert (y == 2).all()


def test_the_gil_is_released_and_calls_are_independent() -> None:
    n = 1 << 20
    x, y, i, r = Buffer("x", (n,), F32), Buffer("y", (n,), F32), Var("i"), Var("r")
    slow = For(r, const(40), For(i, const(n), Store(y, (i,), load(x, (i,)) + load(y, (i,)))))
    (kernel,) = compile_funcs([PrimFunc("slow", (x, y), 1, (), slow)])
    program = Program([(kernel, [(0, 0), (1, 0)], [])])
    outs = [np.zeros(n, np.float32) for _ in range(2)]
    ones = np.ones(n, np.float32)
    done: list[float] = []

    def work(out: np.ndarray) -> None:
        program.run(addresses(ones, out), 0, 1)
        done.append(time.perf_counter())

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    start = time.perf_counter()
    for t in threads:
        t.start()
    started = time.perf_counter()  # reached while the kernels run: they do not hold the GIL
    for t in threads:
        t.join()
    assert started - start < min(done) - start
    assert all((out == 40).all() for out in outs)


def test_a_program_keeps_its_kernels_and_uses_the_workspace() -> None:
    x, y, s = Buffer("x", (4,), F32), Buffer("y", (4,), F32), Buffer("s", (4,), F32, scope="scratch")
    i, j = Var("i"), Var("j")
    body = Allocate(s, Seq((For(i, const(4), Store(s, (i,), load(x, (i,)))),
                            For(j, const(4), Store(y, (j,), load(s, (const(3) - j,)))))))  # fmt: skip
    program = Program([(compile_funcs([PrimFunc("w", (x, y), 1, (), body)])[0], [(0, 0), (1, 0)], [])])
    a, out, memory = np.arange(4, dtype=np.float32), np.zeros(4, np.float32), np.zeros(192, np.uint8)
    program.run(addresses(a, out), memory.ctypes.data + (-memory.ctypes.data) % 64, 1)
    assert out.tolist() == [3, 2, 1, 0] and memory.any()
