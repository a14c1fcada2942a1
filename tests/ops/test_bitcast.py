"""Bits of elements against eager PyTorch's `Tensor.view`."""

from __future__ import annotations

import pytest
import torch

from nnvm.dtype import F16, I32, I64
from nnvm.graph import TensorType, TypeInferenceError, apply, variable


@pytest.mark.parametrize("source, to", [
    (torch.float32, torch.int32), (torch.int32, torch.float32), (torch.float64, torch.int64),
    (torch.int64, torch.float64), (torch.int8, torch.uint8), (torch.uint8, torch.int8), (torch.int32, torch.int32),
])  # fmt: skip
def test_bitcast(check, source, to):
    torch.manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (3, 37), dtype=torch.int64)
    x = (bits.to(torch.float64) / 3e8).to(source) if source.is_floating_point else bits.to(source)
    if to.is_floating_point:
        x &= 0x3FFFFFFF  # no NaN: its payload need not survive
    check("bitcast", [x], x.view(to), dtype=str(to).removeprefix("torch."))


def test_special_values_keep_their_bits(check):
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-45, 3.4e38])
    check("bitcast", [x], x.view(torch.int32), dtype="int32")


@pytest.mark.parametrize("to", [I64, F16])
def test_other_widths_are_errors(to):
    with pytest.raises(TypeInferenceError, match=r"the same width|half types"):
        apply("bitcast", [variable("x", TensorType((3,), I32))], {"dtype": to})
