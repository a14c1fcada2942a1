"""Constants as LLVM writes them."""

from __future__ import annotations

import itertools

import pytest

from nnvm.codegen.llvm.lltype import literal
from nnvm.dtype import BF16, F16, F32, F64

MINUS = {F32: "0x8000000000000000", F64: "0x8000000000000000", F16: "32768", BF16: "32768"}
PLUS = {F32: "0x0000000000000000", F64: "0x0000000000000000", F16: "0", BF16: "0"}


@pytest.mark.parametrize("t", [F32, F64, F16, BF16], ids=str)
def test_zeros_keep_their_sign_whichever_came_first(t) -> None:
    for first, second in itertools.permutations([(0.0, PLUS), (-0.0, MINUS)]):
        assert [literal(v, t) for v, _ in (first, second)] == [text[t] for _, text in (first, second)]
    for lanes in (7, 8):
        for value in (-0.0, 0.0, 0, -0.0) if lanes == 7 else (0.0, -0.0, 0):
            assert (literal(value, t, lanes) == "zeroinitializer") == (str(value) != "-0.0")
    assert literal(0, t) == literal(False, t) == PLUS[t]
