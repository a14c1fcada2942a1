"""Keys packed for attention's register tiles."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm.dim import Dim, ceildiv, symbol
from nnvm.dtype import F16, F32
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.schedules.access import At, Source
from nnvm.schedules.cpu.attention_pack import pack_keys
from nnvm.schedules.emit import Lanes
from nnvm.target import Target
from nnvm.te.expr import Buffer, Cast, Expr, Shuffle
from nnvm.tir import interpreter, verify
from nnvm.tir.affine import Affine, Space
from nnvm.tir.stmt import Let, PrimFunc
from nnvm.tir.visitor import stmts

SKYLAKE = Target.parse("llvm -mcpu=skylake-avx512")


def packing(keys: Dim, depth: int, transposed: bool, half: bool, target: Target) -> PrimFunc:
    lanes, space = Lanes.of(target.lanes(32)), Space()
    k = Buffer("k", (keys * depth,), F16 if half else F32)
    width = 2 * lanes.count
    panels = Buffer("panels", (ceildiv(keys, width) * width * depth,), F32)
    source = Source(k, (1, keys) if transposed else (depth, 1))

    def value(row: Affine, step: Affine) -> Expr:
        return Cast(At(source, source.address([row, step])), F32) if half else At(source, source.address([row, step]))

    body = pack_keys(panels, keys, depth, width, value, space, target, lanes)
    symbols = () if isinstance(keys, int) else ("t",)
    return PrimFunc("pack", (k, panels), 1, symbols, body)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("keys", "depth", "known"), [(37, 20, True), (64, 16, True), (5, 7, True), (1, 32, True),
                                                      (49, 33, False), (32, 16, False), (7, 16, False)])  # fmt: skip
def test_panels(keys: int, depth: int, known: bool, transposed: bool, half: bool, compiled: bool) -> None:
    """Every lane that is read is written, by a number that is no denormal one; nothing is written behind the panels."""
    target = Target.host() if compiled else SKYLAKE
    func = packing(keys if known else symbol("t"), depth, transposed, half, target)
    verify.verify(func)
    width = 2 * target.lanes(32)
    k = np.random.default_rng(0).uniform(1, 2, (keys, depth)).astype(np.float16 if half else np.float32)
    panels = np.full(-(-keys // width) * width * depth + 32, 1e-40, np.float32)
    symbols = {} if known else {"t": keys}
    args = (np.ascontiguousarray(k.T if transposed else k).reshape(-1), panels[:-32])
    if compiled:
        compile_funcs([func])[0](*args, symbols=symbols)
    else:
        interpreter.run(func, args, symbols)
    assert (panels[-32:] == np.float32(1e-40)).all()
    rows = panels[:-32].reshape(-1, depth, width).transpose(0, 2, 1).reshape(-1, depth)
    np.testing.assert_array_equal(rows[:keys], k)
    read = -(-keys // (width // 2)) * (width // 2)  # whole vectors
    filling = rows[keys:read]
    assert ((filling == 0) | (filling >= 1)).all()


def test_rows_are_transposed_in_registers() -> None:
    for transposed in (False, True):
        func = packing(64, 32, transposed, False, SKYLAKE)
        assert any(isinstance(s, Let) and isinstance(s.value, Shuffle) for s in stmts(func.body)) != transposed
