"""Ops and fused groups through lower_group as machine code, against the ops' references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnvm.compiler.lower_group import lower_group
from nnvm.dtype import F32, I64
from nnvm.graph.node import NodeEntry, constant
from nnvm.graph.types import TensorType
from tests.schedules import groups
from tests.schedules.groups import data, graph_of, op
from tests.schedules.harness import HASWELL

RNG = np.random.default_rng(0)
X = (2, 6, 9, 11)
Build = Callable[..., NodeEntry]


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def scalar(value: float) -> NodeEntry:
    return constant(np.array(value, np.float32), TensorType((), F32))


CASES: dict[str, tuple[list[tuple[int, ...]], Build]] = {
    "gelu of a sum": ([X, X], lambda a, b: op("gelu", op("add", a, b))),
    "scale by a constant": ([X], lambda a: op("multiply", a, scalar(0.5))),
    "broadcast over rows": ([X, (6, 1, 1)], lambda a, b: op("multiply", a, b)),
    "variance": ([X], lambda a: op("variance", a, axis=(2, 3), correction=1.0)),
    "logsumexp": ([X], lambda a: op("logsumexp", a, axis=(1,))),
    "log_softmax over channels": ([X], lambda a: op("log_softmax", a, axis=1)),
    "softmax of a scaled sum": ([X, (1, 1, 1, 11)],
                                lambda a, b: op("softmax", op("add", op("multiply", a, scalar(0.1)), b), axis=3)),
    "relu after layer_norm": ([(3, 7, 20), (20,), (20,)], lambda a, g, b: op("relu", op("layer_norm", a, g, b))),
    "rms_norm": ([(3, 7, 20), (20,)], lambda a, g: op("rms_norm", a, g)),
    "silu after group_norm": ([X, (6,), (6,)], lambda a, g, b: op("silu", op("group_norm", a, g, b, num_groups=3))),
    "transpose of a relu": ([X], lambda a: op("transpose", op("relu", a), axes=(0, 2, 3, 1))),
    "concat of relus": ([X, (2, 3, 9, 11)], lambda a, b: op("concatenate", op("relu", a), b, axis=1)),
    "concat of many": ([(2, 5)] * 50, lambda *xs: op("concatenate", *xs, axis=1)),
    "pad and crop": ([X], lambda a: op("pad", a, pad_width=((0, 0), (0, 0), (2, -1), (-1, 3)))),
    "reflect": ([X], lambda a: op("pad", a, pad_width=((0, 0), (0, 0), (2, 1), (1, 3)), mode="reflect")),
    "slice": ([X], lambda a: op("slice", a, begin=(0, 1, 0, 2), end=(2, 5, 9, 11), step=(1, 2, 1, 3))),
    "flip": ([X], lambda a: op("flip", a, axes=(3,))),
    "roll": ([X], lambda a: op("roll", a, shifts=(2,), axes=(3,))),
    "adaptive pool": ([X], lambda a: op("adaptive_avg_pool2d", a, output_size=(3, 4))),
    "global pool": ([X], lambda a: op("global_avg_pool2d", a)),
    "nearest": ([X], lambda a: op("resize", a, size=(18, 23), mode="nearest")),
    "linear": ([X], lambda a: op("resize", a, size=(18, 23), mode="linear")),
    "conv, bias, relu": ([X, (8, 6, 3, 3), (8,)],
                         lambda a, w, b: op("relu", op("conv2d", a, w, b, padding=((1, 1), (1, 1))))),
    "dense, gelu": ([(5, 12), (7, 12), (7,)], lambda a, w, b: op("gelu", op("dense", a, w, b))),
    "batched matmul": ([(2, 3, 5, 8), (2, 3, 8, 6)], lambda a, b: op("matmul", a, b)),
    "sum of a sum": ([X], lambda a: op("sum", op("multiply", op("sum", a, axis=(3,)), scalar(2.0)), axis=(1,))),
    "softmax, then its maximum": ([(4, 30)], lambda a: op("max", op("softmax", a, axis=1), axis=(1,))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_group(name: str) -> None:
    shapes, build = CASES[name]
    ins = [data(s) for s in shapes]
    graph = graph_of([build(*ins)], ins)
    arrays = [rand(*s) for s in shapes]
    (out,) = groups.run(graph, arrays, compiled=True)
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_embedding_with_a_bad_index() -> None:
    table, index = data((9, 20)), data((3, 4), "int64")
    graph = graph_of([op("take", table, index, axis=0)], [table, index])
    t, i = rand(9, 20), RNG.integers(0, 9, (3, 4))
    np.testing.assert_array_equal(groups.run(graph, [t, i], compiled=True)[0], t[i])
    i[2, 1] = 9
    with pytest.raises(IndexError, match="out of range"):
        groups.run(graph, [t, i], compiled=True)


def test_one_value_as_two_outputs() -> None:
    a = data((4, 10))
    y = op("relu", a)
    graph = graph_of([y, y, a], [a])
    x = rand(4, 10)
    one, two, three = groups.run(graph, [x], compiled=True)
    np.testing.assert_array_equal(one, np.maximum(x, 0))
    np.testing.assert_array_equal(two, one)
    np.testing.assert_array_equal(three, x)


def test_ops_that_build_their_own_loops() -> None:
    a = data((3, 20))
    graph = graph_of([op("cumsum", a, axis=1)], [a])
    x = rand(3, 20)
    np.testing.assert_allclose(groups.run(graph, [x], compiled=True)[0], np.cumsum(x, 1), rtol=1e-5)


def test_facts_for_the_report() -> None:
    a, w = data((5, 12)), data((7, 12))
    func = lower_group(graph_of([op("relu", op("dense", a, w))], [a, w]), HASWELL, "kernel")
    assert func.attrs["ops"] == ("dense", "relu")
    assert func.attrs["flops"] == 2 * 5 * 12 * 7 + 5 * 7
    assert func.attrs["bytes"] == 4 * (5 * 12 + 7 * 12 + 5 * 7)


def test_large_constants_must_be_inputs() -> None:
    a, c = data((4,)), constant(np.arange(4), TensorType((4,), I64))
    with pytest.raises(ValueError, match="must be an input"):
        lower_group(graph_of([op("add", op("cast", a, dtype="int64"), c)], [a]), HASWELL, "kernel")
