"""Ops on shapes with named sizes: compiled once, called with several values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnvm.dim import SymDim, evaluate, symbol
from nnvm.dtype import F32, I64, DType
from nnvm.graph.node import apply, variable
from nnvm.graph.types import TensorType
from nnvm.testing.run_op import run_op

S, T = symbol("s"), symbol("t")

CASES: list[tuple[str, list[tuple[tuple[Any, ...], DType]], dict[str, Any]]] = [
    ("add", [((S, 1), F32), ((S, 5), F32)], {}),
    ("gelu", [((T, S, 3), F32)], {}),
    ("sum", [((S, T, 3), F32)], {"axis": 1}),
    ("mean", [((S, T), F32)], {"axis": (0, 1)}),
    ("variance", [((T, S), F32)], {"axis": 1}),
    ("argmax", [((T, S), F32)], {"axis": 1}),
    ("softmax", [((T, S), F32)], {}),
    ("log_softmax", [((S, 6), F32)], {"axis": 0}),
    ("layer_norm", [((T, S, 8), F32), ((8,), F32), ((8,), F32)], {}),
    ("rms_norm", [((T, S), F32)], {}),
    ("group_norm", [((S, 6, T), F32)], {"num_groups": 2}),
    ("dense", [((S, 7), F32), ((5, 7), F32), ((5,), F32)], {}),
    ("dense", [((S, T, 6), F32), ((2, 6, 4), F32)], {"kernel_layout": "NK4n"}),
    ("matmul", [((S, 4, T), F32), ((S, T, 3), F32)], {}),
    ("attention", [((2, S, 8), F32), ((2, T, 8), F32), ((2, T, 8), F32)], {}),
    ("attention", [((2, S, 8), F32)] * 3, {"causal": True}),
    ("conv2d", [((S, 4, 6, 5), F32), ((3, 4, 3, 3), F32)], {"padding": 1}),
    ("conv2d", [((2, 4, S, T), F32), ((3, 4, 3, 3), F32)], {"padding": 1, "strides": 2}),
    ("conv2d", [((S, 2, 6, 5, 4), F32), ((1, 2, 3, 3, 4, 8), F32)],
     {"data_layout": "NCHW4c", "kernel_layout": "OIHW4i8o", "out_layout": "NCHW8c"}),
    ("conv2d_transpose", [((S, 4, 3, T), F32), ((4, 2, 4, 4), F32)], {"padding": 1, "strides": 2}),
    ("max_pool2d", [((S, 3, 7, T), F32)], {"pool_size": 3, "strides": 2, "padding": 1}),
    ("avg_pool2d", [((S, 3, T, 7), F32)], {"pool_size": 3, "strides": 2, "padding": 1}),
    ("adaptive_avg_pool2d", [((S, 3, T, 7), F32)], {"output_size": 1}),
    ("resize", [((S, 3, 4, 5), F32)], {"size": (8, 9), "mode": "linear"}),
    ("resize", [((1, 3, S, T), F32)], {"size": (S * 2, T * 2), "mode": "nearest"}),
    ("take", [((9, 4), F32), ((S, T), I64)], {}),
    ("gather", [((S, 9), F32), ((S, 4), I64)], {"axis": 1}),
    ("index", [((9, S), F32), ((T,), I64)], {"axes": (0,)}),
    ("one_hot", [((S,), I64)], {"depth": 9}),
    ("scatter", [((S, 9), F32), ((S, 4), I64), ((S, 4), F32)], {"axis": 1, "reduce": "add"}),
    ("index_put", [((9, S), F32), ((), F32), ((3,), I64)], {"axes": (0,)}),
    ("cumsum", [((T, S), F32)], {"axis": 1}),
    ("sort", [((T, S), F32)], {"axis": 1}),
    ("topk", [((S, 9), F32)], {"k": 3}),
    ("transpose", [((S, T, 3), F32)], {"axes": (2, 0, 1)}),
    ("concatenate", [((S, 3), F32), ((T, 3), F32)], {"axis": 0}),
    ("slice", [((S, T), F32)], {"begin": (1, 0), "end": (S, T - 1)}),
    ("reshape", [((S, 6), F32)], {"shape": (S, 2, 3)}),
    ("flip", [((S, 3), F32)], {"axes": (0,)}),
    ("pad", [((S, 3), F32)], {"pad_width": ((1, 2), (0, 1)), "mode": "edge"}),
    ("im2col", [((S, 2, 5, 4), F32)], {"kernel_size": (2, 3), "padding": 1}),
    ("layout_transform", [((S, 10, T), F32)], {"src_layout": "NCW", "dst_layout": "NCW4c"}),
    ("arange", [], {"length": S}),
    ("full", [], {"shape": (S, T), "value": 2.5}),
    ("full", [], {"shape": (3,), "value": S * T - 40, "dtype": "int64"}),
    ("full", [], {"shape": (S,), "value": (T - S * 3) // (T - 20) + (S - 50) // 7, "dtype": "float32"}),
    ("full", [], {"shape": (), "value": 100 % (T - 20) - S % (T - 20) + (S - 50) % 7, "dtype": "int32"}),
    ("tril", [((S, T), F32)], {"k": T - S}),
    ("triu", [((S, T), F32)], {"k": S - 6}),
]  # fmt: skip


def sized(value: Any, sizes: dict[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(sized(v, sizes) for v in value)
    return evaluate(value, sizes) if isinstance(value, SymDim) else value


@pytest.mark.parametrize("op,inputs,attrs", CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_compiled_for_any_size(op: str, inputs: Any, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    types = [TensorType(shape, dtype) for shape, dtype in inputs]
    for sizes in ({"s": 5, "t": 4}, {"s": 17, "t": 9}):
        shapes = [sized(t.shape, sizes) for t in types]
        arrays = [
            rng.integers(0, 9, s) if t.dtype == I64 else rng.standard_normal(s).astype(np.float32)
            for t, s in zip(types, shapes)
        ]
        if op == "index_put":
            arrays[-1] = np.array([4, 0, 7])
        expected = run_op(op, arrays, types, attrs, "reference", sizes)
        for got, want in zip(run_op(op, arrays, types, attrs, "scheduled", sizes), expected):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
        # the inferred types evaluate to what the known sizes give
        entries = [variable(f"x{i}", TensorType(s, t.dtype)) for i, (s, t) in enumerate(zip(shapes, types))]
        known = apply(op, entries, {k: sized(v, sizes) for k, v in attrs.items()})
        assert [a.shape for a in expected] == [e.type.shape for e in known.outputs]
