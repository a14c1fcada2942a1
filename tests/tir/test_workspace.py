"""Placement of scratch buffers in one thread's workspace."""

from __future__ import annotations

from nnvm.dim import evaluate, symbol
from nnvm.dtype import F16, F32, I32
from nnvm.te.expr import Buffer, Var, const
from nnvm.tir.stmt import Allocate, For, If, PrimFunc, Seq, Store
from nnvm.tir.workspace import buffer_bytes, scratch_offsets, workspace_bytes

WORK = Store(Buffer("o", (1,), I32), (const(0),), const(1, I32))


def scratch(name: str, *shape: object) -> Buffer:
    return Buffer(name, shape, F32, scope="scratch")  # type: ignore[arg-type]


def test_nested_buffers_lie_one_behind_the_other_and_siblings_share() -> None:
    a, b, c, d = scratch("a", 10), scratch("b", 100), scratch("c", 3), scratch("d", 16)
    local = Buffer("l", (1000,), F32, scope="local")
    inner = Seq((Allocate(b, WORK), For(Var("i"), const(4), Allocate(c, Allocate(local, Allocate(d, WORK))))))
    stmt = Allocate(a, inner)
    assert scratch_offsets(stmt) == {a: 0, b: 64, c: 64, d: 128}
    assert workspace_bytes(stmt) == 64 + 448
    assert PrimFunc("f", (), 0, (), stmt).workspace() == 512


def test_branches_share() -> None:
    a, b = scratch("a", 16), scratch("b", 32)
    stmt = If(const(True, "bool"), Allocate(a, WORK), Allocate(b, WORK))
    assert workspace_bytes(stmt) == 128
    assert scratch_offsets(stmt) == {a: 0, b: 0}
    assert workspace_bytes(WORK) == 0


def test_symbolic_sizes() -> None:
    n = symbol("n")
    a, b, c = scratch("a", n, 4), scratch("b", 100), scratch("c", n)
    stmt = Allocate(a, Seq((Allocate(b, WORK), Allocate(c, WORK))))
    for value in (0, 1, 5, 1000):
        first = -(-value * 16 // 64) * 64
        assert evaluate(scratch_offsets(stmt)[c], {"n": value}) == first
        assert evaluate(workspace_bytes(stmt), {"n": value}) == first + max(448, -(-value * 4 // 64) * 64)


def test_bytes_of_strided_and_empty_buffers() -> None:
    assert buffer_bytes(Buffer("a", (3, 4), F16, strides=(100, 1))) == 448
    assert buffer_bytes(Buffer("a", (3, 0), F32, strides=(100, 1))) == 0
    assert buffer_bytes(Buffer("a", (), F32)) == 64
