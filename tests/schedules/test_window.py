"""Pooling and depthwise convolution: values against the references, and loops without conditions in the interior."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from nnvm.compiler.lower_group import lower_group
from nnvm.dim import evaluate, known_ranges, likely_sizes, symbol
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.target import Target
from nnvm.te.expr import Binary, Const, Select
from nnvm.tir.stmt import For
from nnvm.tir.visitor import post_order, stmts
from tests.schedules import groups
from tests.schedules.groups import data, graph_of, op
from tests.schedules.harness import HASWELL

RNG = np.random.default_rng(0)
GEOMETRIES: list[dict[str, Any]] = [
    {"pool_size": (3, 3), "strides": (2, 2), "padding": ((1, 1), (1, 1))},
    {"pool_size": (3, 2), "strides": (1, 1), "padding": ((1, 0), (0, 1))},
    {"pool_size": (2, 2), "ceil_mode": True},
    {"pool_size": (5, 5), "strides": (1, 1), "padding": ((2, 2), (2, 2))},
    {"pool_size": (7, 9), "strides": (1, 1)},
]


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("layout", ["NCHW", "NCHW8c"])
def test_pooling(name: str, geometry: dict[str, Any], layout: str) -> None:
    shape = (2, 3, 9, 11) if layout == "NCHW" else (1, 2, 9, 11, 8)
    x = data(shape)
    graph = graph_of([op(name, x, layout=layout, **geometry)], [x])
    a = rand(*shape)
    a[0, 1, 4, 5] = np.nan
    (out,) = groups.run(graph, [a], compiled=True)
    np.testing.assert_allclose(out, groups.reference(graph, [a])[0], rtol=1e-5, atol=1e-6)


def test_pooling_in_the_interpreter() -> None:
    x = data((1, 2, 5, 6, 8))
    graph = graph_of([op("max_pool2d", x, layout="NCHW8c", **GEOMETRIES[0])], [x])
    a = rand(1, 2, 5, 6, 8)
    np.testing.assert_array_equal(groups.run(graph, [a], compiled=False)[0], groups.reference(graph, [a])[0])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("blocked", [False, True])
def test_depthwise(stride: int, kernel: int, blocked: bool) -> None:
    half = kernel // 2
    common: dict[str, Any] = {"padding": ((half, half), (half, half)), "strides": (stride, stride)}
    if blocked:
        x, w = data((1, 2, 9, 12, 8)), data((2, 1, kernel, kernel, 1, 8))
        y = op("conv2d", x, w, groups=16, data_layout="NCHW8c", kernel_layout="OIHW1i8o", **common)
    else:
        x, w = data((1, 5, 9, 12)), data((5, 1, kernel, kernel))
        y = op("conv2d", x, w, groups=5, **common)
    graph = graph_of([op("relu", y)], [x, w])
    arrays = [rand(*x.type.shape), rand(*w.type.shape)]
    (out,) = groups.run(graph, arrays, compiled=True)
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_a_padded_window_has_no_conditions() -> None:
    """Neither in the interior nor at the borders, where loops run over the taps inside. (Small images are padded.)"""
    x, w = data((1, 2, 29, 32, 8)), data((2, 1, 3, 3, 1, 8))
    y = op("conv2d", x, w, groups=16, data_layout="NCHW8c", kernel_layout="OIHW1i8o", padding=((1, 1), (1, 1)))
    body = lower_group(graph_of([y], [x, w]), HASWELL, "kernel").body
    assert not any(isinstance(e, Select) for e in post_order(body))
    unrolled = [s for s in stmts(body) if isinstance(s, For) and s.kind == "unrolled"]
    assert len(unrolled) >= 2, "taps and neighbouring pixels are written out"


def likely_or_not(sizes: dict[str, int] | None) -> Any:
    return contextlib.nullcontext() if sizes is None else likely_sizes(sizes.items())


@pytest.mark.parametrize("geometry, likely", [(GEOMETRIES[0], None), (GEOMETRIES[1], {"h": 56, "w": 60}),
                                              (GEOMETRIES[2], None)], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("layout", ["NCHW", "NCHW8c"])
def test_pooling_of_unknown_sizes(name: str, geometry: dict[str, Any], layout: str, likely: Any) -> None:
    """One kernel for sizes on both sides of where there is an interior, of which tiles are a part."""
    sizes = symbol("h"), symbol("w")
    x = data((2, 3, *sizes) if layout == "NCHW" else (1, 2, *sizes, 8))
    graph = graph_of([op(name, x, layout=layout, **geometry)], [x])
    with known_ranges([("h", 4, None), ("w", 4, None)]), likely_or_not(likely):
        func = lower_group(graph, HASWELL, "kernel")
        kernel = compile_funcs([lower_group(graph, Target.host(), "kernel")])[0]
    for h, w in ((4, 4), (5, 9), (9, 5), (8, 23), (17, 40)):
        a = rand(*(evaluate(d, {"h": h, "w": w}) for d in x.type.shape))
        right = groups.reference(graph, [a])[0]
        out = np.empty(right.shape, np.float32)
        kernel(a.reshape(-1), out.reshape(-1), symbols={"h": h, "w": w})
        np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-6)
    a = rand(*(evaluate(d, {"h": 9, "w": 6}) for d in x.type.shape))
    (out,) = groups.run(graph, [a], compiled=False, symbols={"h": 9, "w": 6})
    np.testing.assert_allclose(out, groups.reference(graph, [a])[0], rtol=1e-5, atol=1e-6)
    unrolled = [s for s in stmts(func.body) if isinstance(s, For) and s.kind == "unrolled"]
    assert layout == "NCHW" or unrolled, "taps and neighbouring pixels are written out"


@pytest.mark.parametrize("width,strides", [(17, 3), (9, 1), (6, 2)])
@pytest.mark.parametrize("name", ["max_pool1d", "avg_pool1d"])
def test_borders_beside_which_only_the_call_knows_sizes(name: str, width: int, strides: int) -> None:
    """A border one wide has no axis of its own: vectors go along one whose size is unknown."""
    n, c = symbol("n"), symbol("c")
    x = data((n, c, width))
    graph = graph_of([op(name, x, pool_size=(3,), strides=(strides,), padding=((1, 1),))], [x])
    with known_ranges([("n", 1, None), ("c", 1, None)]):
        kernel = compile_funcs([lower_group(graph, Target.host(), "kernel")])[0]
    for env in ({"n": 1, "c": 1}, {"n": 7, "c": 4}, {"n": 33, "c": 2}, {"n": 3, "c": 40}):
        a = rand(env["n"], env["c"], width)
        right = groups.reference(graph, [a])[0]
        out = np.empty(right.shape, np.float32)
        kernel(a.reshape(-1), out.reshape(-1), symbols=env)
        np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise_of_unknown_sizes(stride: int, kernel: int) -> None:
    half, (h, w) = kernel // 2, (symbol("h"), symbol("w"))
    x, k = data((1, 2, h, w, 8)), data((2, 1, kernel, kernel, 1, 8))
    y = op("conv2d", x, k, groups=16, data_layout="NCHW8c", kernel_layout="OIHW1i8o", strides=(stride, stride),
           padding=((half, half), (half, half)))  # fmt: skip
    graph = graph_of([op("relu", y)], [x, k])
    with known_ranges([("h", 1, None), ("w", 1, None)]):
        compiled = compile_funcs([lower_group(graph, Target.host(), "kernel")])[0]
    weights = rand(*k.type.shape)
    for sizes in ((1, 1), (2, 5), (3, 3), (9, 12), (16, 33)):
        env = dict(zip("hw", sizes))
        a = rand(1, 2, *sizes, 8)
        right = groups.reference(graph, [a, weights])[0]
        out = np.empty(right.shape, np.float32)
        compiled(a.reshape(-1), weights.reshape(-1), out.reshape(-1), symbols=env)
        np.testing.assert_allclose(out, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("blocks", [4, 12])
def test_no_index_is_divided_by_a_size_where_channels_are_enough_for_threads(blocks: int) -> None:
    sizes = symbol("h"), symbol("w")
    x, w = data((1, blocks, *sizes, 8)), data((blocks, 1, 3, 3, 1, 8))
    y = op("conv2d", x, w, groups=8 * blocks, data_layout="NCHW8c", kernel_layout="OIHW1i8o", padding=((1, 1), (1, 1)))
    with known_ranges([("h", 2, None), ("w", 2, None)]), likely_sizes([("h", 56), ("w", 56)]):
        body = lower_group(graph_of([y], [x, w]), HASWELL, "kernel").body
    divisors = [e.b for e in post_order(body) if isinstance(e, Binary) and e.op in ("floordiv", "floormod")]
    assert divisors and all(isinstance(d, Const) for d in divisors) == (blocks == 12)
