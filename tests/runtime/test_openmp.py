"""Parallel loops on the process's own OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from nnvm.dtype import BOOL, F32, I32, I64
from nnvm.kernel_error import KernelError
from nnvm.runtime import openmp
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.te.expr import Binary, Broadcast, Buffer, Cast, Check, Load, Ramp, Var, const, load
from nnvm.tir.stmt import Allocate, For, If, Let, PrimFunc, Seq, Store

torch = pytest.importorskip("torch")


def scaled(n: int) -> PrimFunc:
    x, y, i = Buffer("x", (n, 8), F32), Buffer("y", (n, 8), F32), Var("i")
    at = (i, Ramp(const(0), 1, 8))
    body = Store(y, at, Binary("add", Load(x, at), Broadcast(Cast(i, F32), 8)))
    return PrimFunc("scaled", (x, y), 1, (), For(i, const(n), body, "parallel"))


@pytest.mark.parametrize("threads", (1, 2, 3, 8))
@pytest.mark.parametrize("n", (1, 2, 3, 7, 100))
def test_every_iteration_runs_once(n: int, threads: int) -> None:
    x, y = np.random.default_rng(0).random((n, 8), np.float32), np.zeros((n, 8), np.float32)
    compile_funcs([scaled(n)])[0](x, y, threads=threads)
    np.testing.assert_array_equal(y, x + np.arange(n, dtype=np.float32)[:, None])


def test_loops_in_sequence_see_each_other() -> None:
    n = 64
    x, y, z = Buffer("x", (n,), I32), Buffer("y", (n,), I32), Buffer("z", (n,), I32)
    i, j = Var("i"), Var("j")
    body = Seq((For(i, const(n), Store(y, (i,), load(x, (i,)) + 1), "parallel"),
                For(j, const(n), Store(z, (j,), load(y, (const(n - 1) - j,)) * 2), "parallel")))  # fmt: skip
    a, b, c = np.arange(n, dtype=np.int32), np.zeros(n, np.int32), np.zeros(n, np.int32)
    compile_funcs([PrimFunc("seq", (x, y, z), 2, (), body)])[0](a, b, c, threads=2)
    assert (c == 2 * (a[::-1] + 1)).all()


def test_what_the_body_takes_from_outside() -> None:
    """Sizes, lets of several types, a branch and an array on the stack around a parallel loop."""
    x, y = Buffer("x", (4, 10), F32), Buffer("y", (4, 10), F32)
    table = Buffer("table", (4,), I64, scope="local")
    o, i, t, flag, number = Var("o"), Var("i"), Var("t"), Var("flag", BOOL), Var("v", F32)
    inner = For(i, Var("n"), Store(y, (o, i), load(x, (o, i)) * number + Cast(load(table, (o,)), F32)), "parallel")
    branch = If(flag, inner, Store(y, (o, const(0)), const(-1.0, F32)))
    row = Let(number, load(x, (o, const(0))) + 1.0, Let(flag, Binary("gt", Var("n"), o), branch))
    body = Allocate(table, Seq((For(t, const(4), Store(table, (t,), t * 100)), For(o, const(4), row))))
    (kernel,) = compile_funcs([PrimFunc("f", (x, y), 1, ("n",), body)])
    a = np.random.default_rng(0).random((4, 10), np.float32)
    for n in (10, 2, 0):
        for threads in (1, 2):
            out = np.zeros((4, 10), np.float32)
            kernel(a, out, symbols={"n": n}, threads=threads)
            expected = np.zeros((4, 10), np.float32)
            for row in range(4):
                if n > row:
                    expected[row, :n] = a[row, :n] * (a[row, 0] + 1) + 100 * row
                else:
                    expected[row, 0] = -1
            np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_a_failure_in_any_thread_fails_the_kernel() -> None:
    n = 64
    index, y, i = Buffer("index", (n,), I64), Buffer("y", (n,), I64), Var("i")
    k = load(index, (i,))
    body = Store(y, (i,), Check(k, Binary("lt", k, const(10)), "too large"))
    (kernel,) = compile_funcs([PrimFunc("c", (index, y), 1, (), For(i, const(n), body, "parallel"))])
    for position in (0, 31, 32, 63):
        values, out = np.zeros(n, np.int64), np.ones(n, np.int64)
        values[position] = 10
        for threads in (1, 2):
            with pytest.raises(KernelError, match="too large"):
                kernel(values, out, threads=threads)
            assert (out == 0).all()


def test_scratch_outside_of_the_loop_is_shared_and_inside_is_not() -> None:
    from nnvm.te.expr import binary

    n = 32
    x, y = Buffer("x", (n,), I32), Buffer("y", (n,), I32)
    shared, own = Buffer("shared", (n,), I32, scope="scratch"), Buffer("own", (n,), I32, scope="scratch")
    i, j, k = Var("i"), Var("j"), Var("k")
    second = Allocate(own, Seq((For(k, const(n), Store(own, (k,), load(shared, (k,)))),
                                Store(y, (j,), load(own, (binary("sub", n - 1, j),))))))  # fmt: skip
    body = Allocate(shared, Seq((For(i, const(n), Store(shared, (i,), load(x, (i,)) * 3), "parallel"),
                                 For(j, const(n), second, "parallel"))))  # fmt: skip
    (kernel,) = compile_funcs([PrimFunc("s", (x, y), 1, (), body)])
    assert kernel.workspace == 256
    a = np.arange(n, dtype=np.int32)
    for threads in (1, 2):
        out = np.zeros(n, np.int32)
        kernel(a, out, threads=threads)
        assert (out == 3 * a[::-1]).all()


def test_threads_follow_torch() -> None:
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            assert openmp.max_threads() == min(n, len(os.sched_getaffinity(0)))
    finally:
        torch.set_num_threads(before)
    assert "OpenMP through" in openmp.describe()


def isolated(code: str) -> str:
    """Output of a fresh process."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "NNVM_CACHE": "0"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


_KERNEL = """
import numpy as np
from nnvm.dtype import F32
from nnvm.runtime import openmp
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.te.expr import Buffer, Var, const, load
from nnvm.tir.stmt import For, PrimFunc, Store
x, y, i = Buffer("x", (64,), F32), Buffer("y", (64,), F32), Var("i")
loop = For(i, const(64), Store(y, (i,), load(x, (i,)) + 1.0), "parallel")
kernel = compile_funcs([PrimFunc("k", (x, y), 1, (), loop)])[0]
def check():
    out = np.zeros(64, np.float32)
    kernel(np.ones(64, np.float32), out, threads=openmp.max_threads())
    assert (out == 2).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no thread to cores")
def test_cores_are_those_that_the_thread_may_run_on() -> None:
    whole = os.sched_getaffinity(0)
    count, limited = openmp.pool.counting()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for cores in (whole, {min(whole)}, {max(whole)}, whole):
            os.sched_setaffinity(0, cores)
            assert openmp.cores() == len(cores)
            threads = count()
            assert (limited(threads) if threads > 1 else threads) == openmp.max_threads() == min(2, len(cores))
    finally:
        os.sched_setaffinity(0, whole)
        torch.set_num_threads(before)


def test_before_torch_after_it_and_in_a_forked_child() -> None:
    """One thread without a runtime; all of them once torch brings one; one in a child, whose threads are gone."""
    out = isolated(
        _KERNEL
        + """
check()
print(openmp.max_threads(), openmp.describe(), flush=True)
import torch
torch.set_num_threads(2)
check()
print(openmp.max_threads(), flush=True)
import os
pid = os.fork()
if pid == 0:
    check()
    print(openmp.max_threads(), openmp.describe(), flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
check()
print(openmp.max_threads())
"""
    )
    bare, with_torch, child, parent = out.strip().splitlines()
    usable = str(min(2, openmp.cores()))
    assert bare.startswith("1 one thread: no OpenMP runtime") and with_torch == usable
    assert child.startswith("1 one thread: this process was forked") and parent == usable


def test_kernels_called_from_several_threads_at_once() -> None:
    import threading

    (kernel,) = compile_funcs([scaled(100)])
    x = np.random.default_rng(0).random((100, 8), np.float32)
    outs = [np.zeros((100, 8), np.float32) for _ in range(4)]

    def work(out: np.ndarray) -> None:
        for _ in range(20):
            kernel(x, out, threads=2)

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all((out == outs[0]).all() for out in outs)
