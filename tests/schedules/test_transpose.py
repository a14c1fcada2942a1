"""Squares of vectors transposed in registers."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm.dtype import F32, F64, I8, DType
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.schedules.cpu.transpose import transposed
from nnvm.te.expr import INDEX, Buffer, Const, Expr, Load, Ramp, Shuffle
from nnvm.tir import interpreter, verify
from nnvm.tir.stmt import Let, PrimFunc, Stmt, Store, seq
from nnvm.tir.visitor import post_order, stmts


def square(n: int, dtype: DType) -> PrimFunc:
    x, y = Buffer("x", (n * n,), dtype), Buffer("y", (n * n,), dtype)

    def at(row: int) -> tuple[Expr]:
        return (Ramp(Const(row * n, INDEX), 1, n),)

    def store(columns: list[Expr]) -> Stmt:
        return seq([Store(y, at(i), c) for i, c in enumerate(columns)])

    return PrimFunc("square", (x, y), 1, (), transposed([Load(x, at(r)) for r in range(n)], store))


SQUARES = [(4, F32), (8, F32), (16, F32), (2, F64), (4, F64), (8, F64), (16, I8), (32, I8)]


@pytest.mark.parametrize(("n", "dtype"), SQUARES)
def test_squares(n: int, dtype: DType) -> None:
    func = square(n, dtype)
    verify.verify(func)
    x = (np.arange(n * n) % 120).astype(dtype.numpy)
    for run in (lambda *args: interpreter.run(func, args), compile_funcs([func])[0]):
        y = np.zeros_like(x)
        run(x, y)
        np.testing.assert_array_equal(y.reshape(n, n), x.reshape(n, n).T)
    lets = [s.value for s in stmts(func.body) if isinstance(s, Let)]
    shuffles = {e for value in lets for e in post_order(value) if isinstance(e, Shuffle)}
    assert len(shuffles) == n * (n.bit_length() - 1)


def test_shuffles_that_are_wrong() -> None:
    x = Buffer("x", (8,), F32)
    a = Load(x, (Ramp(Const(0, INDEX), 1, 4),))

    def of(e: Expr) -> list[str]:
        return verify.problems(PrimFunc("f", (x,), 1, (), Store(x, (Ramp(Const(0, INDEX), 1, 4),), e)))

    assert of(Shuffle(a, a, (0, 4, 1, 7))) == []
    assert "no lane 8" in of(Shuffle(a, a, (0, 8, 1, 2)))[0]
    assert "shuffle of float32x4 and float32" in of(Shuffle(a, Const(0.0, F32), (0, 1, 2, 3)))[0]
