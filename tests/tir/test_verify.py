"""What verify accepts, and one function for each thing it refuses."""

from __future__ import annotations

import pytest

from nnvm.dim import symbol
from nnvm.dtype import BOOL, F32, I32, I64, U8
from nnvm.te.expr import (
    Binary,
    Bitcast,
    Broadcast,
    Buffer,
    Cast,
    Check,
    Const,
    Expr,
    Fma,
    Load,
    Ramp,
    Reduce,
    Select,
    Unary,
    Var,
    VectorReduce,
    binary,
    const,
    dim_expr,
)
from nnvm.te.tensor import Read, placeholder
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from nnvm.tir.verify import VerifyError, problems, verify

A, B = Buffer("a", (8,), F32), Buffer("b", (8,), F32)
I, J, ZERO, ONE = Var("i"), Var("j"), const(0), const(1.0, F32)  # noqa: E741
LANE = Ramp(ZERO, 1, 8)
N = symbol("n")


def func(body: Stmt, *params: Buffer, symbols: tuple[str, ...] = (), outputs: int = 1) -> PrimFunc:
    return PrimFunc("f", params or (A, B), outputs, symbols, body)


def put(value: Expr, index: Expr = ZERO) -> Stmt:
    return Store(B, (index,), value)


def test_legal_functions() -> None:
    wide = Buffer("w", (N, 8), F32)
    x = Load(A, (LANE,), binary("lt", LANE, 5))
    t = Buffer("t", (8,), F32, scope="local")
    verify(func(For(I, const(8), put(Load(A, (I,)), I), "parallel")))
    verify(func(For(I, dim_expr(N), Store(wide, (I, LANE), Fma(x, x, x)), "parallel"), A, wide, symbols=("n",)))
    inner = Seq((Store(t, (LANE,), x), For(J, const(8), put(VectorReduce("max", Load(t, (LANE,))), J), "unrolled")))
    verify(func(For(I, const(2), Allocate(t, inner), "parallel")))
    verify(func(Seq((For(I, const(8), put(ONE, I)), For(I, const(8), put(ONE, I))))))
    verify(func(Let(I, const(3), If(binary("lt", I, 4), put(Select(Const(True, BOOL), ONE, ONE), I)))))
    verify(func(put(Binary("add", ONE, Check(ONE, Const(False, BOOL), "no")))))


T = Buffer("t", (8,), F32, scope="local")
S = Buffer("s", (8,), F32, scope="scratch")
V8 = Broadcast(ONE, 8)
TENSOR = placeholder((8,), F32, "p")
CASES: dict[str, tuple[Stmt, str]] = {
    "dtypes of a binary": (put(Binary("add", ONE, Const(1, I32))), "add of float32 and int32"),
    "lanes of a binary": (put(VectorReduce("sum", Binary("add", V8, ONE))), "add of float32x8 and float32"),
    "unknown operator": (put(Binary("plus", ONE, ONE)), "unknown operator plus"),
    "bits of floats": (put(Binary("and", ONE, ONE)), "and of float32"),
    "true division of ints": (put(ONE, Binary("div", ZERO, ZERO)), "div of int64: only of floats"),
    "exp of an int": (put(ONE, Unary("exp", ZERO)), "exp of int64: cast to a float first"),
    "not of a float": (put(Unary("not", ONE)), "not of float32"),
    "unknown function": (put(Unary("sinc", ONE)), "unknown function sinc"),
    "fma of mixed lanes": (Store(B, (LANE,), Fma(ONE, ONE, V8)), "fma of float32, float32, float32x8"),
    "bitcast of other width": (put(Bitcast(const(1), F32)), "other widths"),
    "select of mixed types": (put(Select(Const(True, BOOL), ONE, Const(1, I32))), "select between float32 and int32"),
    "select on a number": (put(Select(ZERO, ONE, ONE)), "condition of a select is int64"),
    "index count": (put(Load(A, (ZERO, ZERO))), "a has 1 dimensions, indexed with 2"),
    "index type": (put(Load(A, (Const(0, I32),))), "index of a is int32"),
    "load mask": (Store(B, (LANE,), Load(A, (LANE,), Const(True, BOOL))), "mask of a load of a is bool, not bool of 8"),
    "store mask": (Store(B, (LANE,), V8, Const(True, BOOL)), "mask of a store to b"),
    "stored lanes": (Store(B, (LANE,), ONE), "float32 is stored to 8 element(s) of b"),
    "stored type": (put(Const(1, I32)), "int32 is stored to 1 element(s) of b, which is float32"),
    "ramp of a vector": (Store(B, (Ramp(LANE, 1, 8),), V8), "ramp of 8 lanes from int64x8"),
    "broadcast of a vector": (Store(B, (LANE,), Broadcast(V8, 8)), "broadcast of float32x8"),
    "reduction of a scalar": (put(VectorReduce("sum", ONE)), "no vector"),
    "any of floats": (put(VectorReduce("any", V8)), "any of float32"),
    "constant out of range": (put(ONE, Const(2**70, I64)), "constant 1180591620717411303424 of int64"),
    "int constant of a float": (put(Const(1, F32)), "constant 1 of float32"),
    "byte constant": (put(ONE, Cast(Const(300, U8), I64)), "constant 300 of uint8"),
    "check of a number": (put(Check(ONE, ZERO, "no")), "condition of a check is int64"),
    "read left": (put(Read(TENSOR, (ZERO,))), "Read has no place in a loop nest"),
    "reduce left": (put(Reduce("sum", ONE, ())), "Reduce has no place in a loop nest"),
    "unbound variable": (put(ONE, I), "variable i is not bound"),
    "bound too late": (Seq((For(I, const(2), put(ONE, I)), put(ONE, I))), "variable i is not bound"),
    "shadowed variable": (For(I, const(2), For(I, const(2), put(ONE, I))), "bound again inside its own scope"),
    "buffer not allocated": (put(Load(T, (ZERO,))), "buffer t is not allocated here"),
    "allocated global": (Allocate(Buffer("g", (8,), F32), put(ONE)), "of scope global is allocated"),
    "symbolic local": (
        Allocate(Buffer("g", (symbol("m"),), F32, scope="local"), put(ONE)),
        "local buffer g has a symbolic size",
    ),
    "unknown size": (Allocate(Buffer("g", (N,), F32, scope="scratch"), put(ONE)), "sizes ['n'] of g"),
    "same name": (Allocate(Buffer("b", (8,), F32, scope="local"), put(ONE)), "two buffers are called b"),
    "input written": (Store(A, (ZERO,), ONE), "input a is written"),
    "inner parallel": (For(I, const(2), For(J, const(2), put(ONE), "parallel")), "parallel loop inside another loop"),
    "loop kind": (For(I, const(2), put(ONE), "simd"), "unknown loop kind simd"),
    "unrolled extent": (For(I, const(2), For(J, I, put(ONE), "unrolled")), "needs a constant extent"),
    "loop of ints": (For(Var("k", I32), Const(2, I32), put(ONE)), "a loop over int32"),
    "shared scratch": (
        Allocate(S, For(I, const(2), Store(S, (I,), ONE), "parallel")),
        "scratch buffer s of the outer thread is used in a parallel loop",
    ),
    "condition": (If(ZERO, put(ONE)), "the condition is int64, not bool"),
    "assertion": (Assert(ONE, "no"), "the condition is float32, not bool"),
    "prefetch": (Prefetch(S, (ZERO,)), "s"),
    "prefetched vector": (Prefetch(A, (Ramp(ZERO, 1, 4),)), "a"),
    "let": (Let(I, ONE, put(ONE)), "i is int64, its value float32"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str) -> None:
    body, message = CASES[case]
    found = problems(func(body, symbols=("m",)))
    assert len(found) == 1, found
    assert message in found[0]


def test_refused_functions() -> None:
    assert "no C identifier" in problems(PrimFunc("a b", (B,), 1, (), put(ONE)))[0]
    assert "2 outputs of 1 params" in problems(PrimFunc("f", (B,), 2, (), put(ONE)))[0]
    assert "param t has scope local" in problems(func(put(ONE), T, B))[0]
    strided = Buffer("q", (2, 2), F32, strides=(1,))
    assert "2 dimensions and 1 strides" in problems(func(put(ONE), strided, B))[0]


def test_all_problems_at_once_with_the_statement_around() -> None:
    bad = For(I, const(8), Seq((put(Unary("sinc", ONE), I), put(ONE, J))))
    with pytest.raises(VerifyError) as info:
        verify(func(bad))
    assert str(info.value) == (
        "f is not legal:\n"
        "- unknown function sinc: sinc(1.0), in\n"
        "    b[i] = sinc(1.0)\n"
        "- variable j is not bound, in\n"
        "    b[j] = 1.0"
    )
