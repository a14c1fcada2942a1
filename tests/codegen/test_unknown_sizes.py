"""Code for sizes that only the call knows: what a condition has read is read once, and what a loop does not change is
computed ahead of it, as for known sizes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from nnvm import te
from nnvm.codegen.llvm import emit
from nnvm.dim import Dim, symbol
from nnvm.dtype import F32
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.schedules.select import lower_tensors
from nnvm.target import Target
from nnvm.te.expr import Expr, select, unary
from nnvm.te.tensor import Tensor, compute, placeholder, reduce_axis
from nnvm.tir.interpreter import run as interpret
from nnvm.tir.stmt import PrimFunc

RNG = np.random.default_rng(0)
TARGET = Target.parse("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu")


def lowered(x: Tensor, y: Tensor) -> PrimFunc:
    return lower_tensors([x], [y], TARGET, "f", {})


def exp(e: Expr) -> Expr:
    return unary("exp", e)


def two_branches(n: Dim) -> PrimFunc:
    """Costly both ways, the element being read for the condition too."""
    x = placeholder((n,), F32, "x")
    return lowered(x, compute((n,), lambda i: select(x[i] > 0.5, exp(x[i]), exp(x[i] * -1.0) * 2.0), "y"))


def beyond(n: Dim) -> PrimFunc:
    """The element that a branch reads, and it alone, does not exist for the last i."""
    x = placeholder((n,), F32, "x")

    def element(i: Expr) -> Expr:
        return select(x[i] > 0.5, x[i], select(i + 1 < te.const(n), x[i + 1], 7.0))

    return lowered(x, compute((n,), element, "y"))


def centred(m: Dim, n: Dim) -> PrimFunc:
    """(x - mean) / sqrt(mean of squares + 1): two divisions by a size, and a root, in each row."""
    x = placeholder((m, n), F32, "x")
    k, j = reduce_axis(n, "k"), reduce_axis(n, "j")
    total = compute((m,), lambda i: te.sum(x[i, k.var], [k]), "total")
    squares = compute((m,), lambda i: te.sum(x[i, j.var] * x[i, j.var], [j]), "squares")
    size = te.cast(te.const(n), F32)
    return lowered(x, compute((m, n), lambda i, c: (x[i, c] - total[i] / size)
                              * unary("rsqrt", squares[i] / size + 1.0), "y"))  # fmt: skip


def innermost_loops(ir: str) -> list[str]:
    """The text of the loops that have no loop inside."""
    found = []
    for m in re.finditer(r"^(loop\d+):$", ir, re.M):
        end = re.search(rf"^  br i1 .* label %{m[1]}, .*$", ir[m.end() :], re.M)
        assert end is not None
        body = ir[m.end() : m.end() + end.end()]
        if not re.search(r"^loop\d+:$", body, re.M):
            found.append(body)
    return found


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 37, 131])
def test_values(n: int) -> None:
    x = RNG.standard_normal(n).astype(np.float32)
    for func, want in ((two_branches(symbol("n")), np.where(x > 0.5, np.exp(x), 2 * np.exp(-x))),
                       (beyond(symbol("n")), np.where(x > 0.5, x, np.append(x[1:], np.float32(7))[:n]))):  # fmt: skip
        (kernel,) = compile_funcs([func], Target.host())
        for call in (kernel, lambda a, b, symbols, f=func: interpret(f, [a, b], symbols)):
            out = np.full(n, np.nan, np.float32)
            call(x, out, symbols={"n": n})
            np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.parametrize("m,n", [(0, 5), (3, 1), (2, 31), (5, 64), (1, 4099)])
def test_values_of_rows(m: int, n: int) -> None:
    x = RNG.standard_normal((m, n)).astype(np.float32)
    (kernel,) = compile_funcs([centred(symbol("m"), symbol("n"))], Target.host())
    out = np.full(m * n, np.nan, np.float32)
    kernel(x.reshape(-1), out, symbols={"m": m, "n": n})
    exact = x.astype(np.float64)
    want = (exact - exact.mean(1, keepdims=True)) / np.sqrt((exact**2).mean(1, keepdims=True) + 1)
    np.testing.assert_allclose(out.reshape(m, n), want, rtol=1e-5, atol=1e-6)


def test_an_element_that_the_condition_has_read_is_not_read_again_under_a_mask() -> None:
    known, unknown = (emit(two_branches(n), TARGET).ir for n in (64, symbol("n")))
    assert "masked.load" not in known
    assert unknown.count("= call <8 x float> @llvm.masked.load") == 1  # of the last vector, which is not full


def test_an_element_that_a_branch_alone_reads_stays_under_its_mask() -> None:
    assert emit(beyond(symbol("n")), TARGET).ir.count("= call <8 x float> @llvm.masked.load") > 1


def test_what_a_loop_that_may_be_empty_does_not_change_is_computed_ahead_of_it() -> None:
    ir = emit(centred(symbol("m"), symbol("n")), TARGET).ir
    assert "fdiv" in ir
    assert not any("fdiv" in body or "sqrt" in body for body in innermost_loops(ir))
