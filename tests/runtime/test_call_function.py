"""Calls of a program as functions written for them."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from nnvm.dtype import F32
from nnvm.kernel_error import KernelError
from nnvm.runtime import call_function as call_function_module
from nnvm.runtime.call_function import call_function, call_source
from nnvm.runtime.instances import ArenaPool
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.runtime.memory import NumpyMemory
from nnvm.runtime.program import Program
from nnvm.te.expr import Binary, Buffer, Var, const, load
from nnvm.tir.stmt import Assert, For, PrimFunc, Seq, Store

SIZE = 5


def add(checked: bool = False) -> PrimFunc:
    """z = x + y; `checked`: x[0] must be below 9."""
    x, y, z = (Buffer(name, (SIZE,), F32) for name in "xyz")
    i = Var("i")
    loop = For(i, const(SIZE), Store(z, (i,), load(x, (i,)) + load(y, (i,))))
    below = Assert(Binary("lt", load(x, (const(0),)), const(9.0, F32)), "x[0] is too large")
    return PrimFunc("add", (x, y, z), 2, (), Seq((below, loop)) if checked else loop)


def test_the_text() -> None:
    """It is the example that the module's documentation shows."""
    shown = textwrap.dedent(call_function_module.__doc__.partition("::\n\n")[2]).strip()
    assert call_source([1], 1, 768, 256) == shown


@pytest.mark.parametrize("checked", [False, True])
def test_a_function_of_the_arguments(checked: bool) -> None:
    """arena = args[2] + fixed; outputs are arena + args[0] and args[0] + fixed."""
    (kernel,) = compile_funcs([add(checked)])
    memory = NumpyMemory()
    rng = np.random.default_rng(3)
    fixed, a, b = (rng.random(SIZE, np.float32) for _ in range(3))
    # bases: arena, a, b, fixed, two outputs
    program = Program([
        (kernel, [(2, 0), (3, 0), (0, 64)], []), (kernel, [(0, 64), (1, 0), (4, 0)], []),
        (kernel, [(1, 0), (3, 0), (5, 0)], []),
    ])  # fmt: skip
    arenas = ArenaPool(memory, 128, 0)
    make = memory.maker((SIZE,), F32, None)
    bases = [0, 0, 0, memory.address(fixed), 0, 0]
    run = call_function(program, bases, [(2, 2), (0, 1)], [(4, make), (5, make)], arenas, memory, fixed)
    del program
    for _ in range(2):
        first, second = run([a, None, b])
        np.testing.assert_array_equal(first, b + fixed + a)
        np.testing.assert_array_equal(second, a + fixed)
        assert run([a, None, b])[0] is not first
    if checked:
        with pytest.raises(KernelError, match="too large"):
            run([a, None, b + 9])
        np.testing.assert_array_equal(run([a, None, b])[1], a + fixed)
