"""Recurrent layers against eager's: kinds of cells, directions, sizes around those of blocks and tiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nnvm.dim import symbol
from nnvm.dtype import F32, F64, dtype
from nnvm.graph.node import apply, variable
from nnvm.graph.types import TensorType
from nnvm.testing.run_op import run_op

EAGER = {"lstm": torch.lstm, "gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def layer(kind, steps, batch, size, reverse=False, bias=True, dtype=torch.float32, seed=0):
    """Inputs of the op, and eager's results."""
    g = torch.Generator().manual_seed(seed)
    rows = GATES[kind] * size
    x, h, c = (torch.randn(*s, size, generator=g, dtype=dtype) for s in ((steps, batch), (batch,), (batch,)))
    w_ih, w_hh = (torch.randn(rows, size, generator=g, dtype=dtype) * 0.4 for _ in range(2))
    b_ih, b_hh = (torch.randn(rows, generator=g, dtype=dtype) * bias for _ in range(2))
    state = [h[None], c[None]] if kind == "lstm" else h[None]
    data = x.flip(0) if reverse else x
    out, *last = EAGER[kind](data, state, [w_ih, w_hh, b_ih, b_hh], True, 1, 0.0, False, False, False)
    more = [c] if kind == "lstm" else []
    if kind == "gru" and bias:
        more, b_hh = [b_hh[2 * size :]], F.pad(b_hh[: 2 * size], (0, size))
    gates = F.linear(x, w_ih, b_ih + b_hh)
    return [gates, w_hh, h, *more], [out.flip(0) if reverse else out, *(s[0] for s in last)]


def packed(weight, gates, block):
    """[G H, H] -> [H/p, H, G, p], padded with zeros."""
    size = weight.shape[1]
    blocks = -(-size // block)
    wide = F.pad(weight.view(gates, size, size), (0, 0, 0, blocks * block - size))
    return wide.view(gates, blocks, block, size).permute(1, 3, 0, 2).contiguous()


@pytest.mark.parametrize("kind", EAGER)
@pytest.mark.parametrize(("steps", "batch", "size", "block", "reverse", "route"), [
    (4, 1, 16, 16, False, "scheduled"), (3, 7, 20, 8, True, "scheduled"), (2, 27, 5, 16, False, "scheduled"),
    (3, 2, 33, 16, True, "scheduled"), (3, 7, 20, 0, False, "scheduled"), (2, 3, 5, 0, True, "interpreter"),
    (2, 2, 10, 8, False, "interpreter"), (2, 2, 10, 8, True, "reference"), (3, 4, 5, 0, False, "reference"),
])  # fmt: skip
def test_values(kind, steps, batch, size, block, reverse, route):
    inputs, expected = layer(kind, steps, batch, size, reverse, bias=size != 20)
    check(kind, inputs, expected, route, block, reverse, sums=24 if block == 16 else 9)


@pytest.mark.parametrize("kind", EAGER)
def test_float64(kind):
    inputs, expected = layer(kind, 5, 3, 11, dtype=torch.float64)
    check(kind, inputs, expected, "scheduled", 8, False, tolerance=1e-12)


@pytest.mark.parametrize(("sums", "batch"), [(1, 5), (4, 1), (4, 6), (7, 24), (40, 5), (40, 49), (24, 13)])
def test_tiles(sums, batch):
    """Whatever rows a tile has, and whether or not they divide the batch."""
    inputs, expected = layer("lstm", 2, batch, 24, seed=batch)
    check("lstm", inputs, expected, "scheduled", 8, False, sums=sums)


def check(kind, inputs, expected, route, block, reverse, sums=8, tolerance=3e-6, symbols=None, types=None):
    inputs = list(inputs)
    if block:
        inputs[1] = packed(inputs[1], GATES[kind], block)
    types = types or [TensorType(tuple(t.shape), F32 if t.dtype == torch.float32 else F64) for t in inputs]
    attrs = {"kind": kind, "reverse": reverse, "block": block, "sums": sums}
    got = run_op("recurrent", [t.numpy() for t in inputs], types, attrs, route, symbols)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "reverse"), [("lstm", True), ("gru", False)])
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (5, 4), (2, 30), (0, 3), (3, 0)])
def test_sizes_of_the_call(kind, reverse, steps, batch):
    t, n, size = symbol("t"), symbol("n"), 12
    inputs, expected = layer(kind, max(steps, 1), max(batch, 1), size, reverse)
    if not steps:
        inputs[0], expected = inputs[0][:0], [expected[0][:0], inputs[2], *(inputs[3:] if kind == "lstm" else ())]
    if not batch:
        inputs = [inputs[0][:, :0], inputs[1], inputs[2][:0], *(m[:0] if m.dim() == 2 else m for m in inputs[3:])]
        expected = [expected[0][:, :0], *(e[:0] for e in expected[1:])]
    shapes = [(t, n, GATES[kind] * size), (2, size, GATES[kind], 8), (n, size)]
    shapes += [(n, size) if m.dim() == 2 else (size,) for m in inputs[3:]]
    types = [TensorType(s, F32) for s in shapes]
    check(kind, inputs, expected, "scheduled", 8, reverse, symbols={"t": steps, "n": batch}, types=types)


def test_relu_carries_nan():
    inputs, _ = layer("rnn_relu", 3, 2, 8)
    inputs[0][1, 0, 3] = torch.nan
    (out, _) = run_op("recurrent", [t.numpy() for t in inputs], [TensorType(tuple(t.shape), F32) for t in inputs],
                      {"kind": "rnn_relu"}, "scheduled")  # fmt: skip
    assert np.isnan(out[1, 0, 3]) and np.isnan(out[2, 0]).all() and not np.isnan(out[:, 1]).any()


@pytest.mark.parametrize(("change", "message"), [
    ({"gates": (3, 2, 30)}, "do not fit"), ({"weight": (30, 8)}, "do not fit"), ({"hidden": (3, 8)}, "do not fit"),
    ({"more": (8,)}, "takes"), ({"more": None}, "missing"), ({"kind": "gru", "gates": (3, 2, 24)}, "do not fit"),
    ({"dtype": "float16"}, "float32 or float64"), ({"block": 16}, "do not fit"), ({"kind": "what"}, "what"),
])  # fmt: skip
def test_what_does_not_fit(change, message):
    shapes = {"gates": (3, 2, 32), "weight": (32, 8), "hidden": (2, 8), "more": (2, 8), **change}
    attrs = {k: shapes.pop(k) for k in ("kind", "block") if k in shapes}
    kind = dtype(shapes.pop("dtype", "float32"))
    inputs = [variable(name, TensorType(shape, kind)) for name, shape in shapes.items() if shape is not None]
    with pytest.raises(ValueError, match=message):
        apply("recurrent", inputs, attrs)
