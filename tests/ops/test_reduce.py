"""Reductions, running sums and sorting against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.int32, torch.int64, torch.uint8]
AXES: list[Any] = [None, (1,), (-1,), (0, 2), (0, 1, 2), (0,)]


def data(dtype: torch.dtype, shape: Any = (3, 4, 5)) -> torch.Tensor:
    torch.manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape) > 0.4
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(max(info.min, -100), 100, shape, dtype=dtype)
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def over(fn: Any, x: torch.Tensor, axis: Any, keepdims: bool, **more: Any) -> torch.Tensor:
    out: torch.Tensor = fn(x, dim=tuple(range(x.dim())) if axis is None else axis, keepdim=keepdims, **more)
    return out


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
def test_axes(check: Any, axis: Any, keepdims: bool) -> None:
    x = data(torch.float32)
    attrs = {"axis": axis, "keepdims": keepdims}
    check("sum", [x], over(torch.sum, x, axis, keepdims), **attrs)
    check("mean", [x], over(torch.mean, x, axis, keepdims), **attrs)
    check("max", [x], over(torch.amax, x, axis, keepdims), **attrs)
    check("min", [x], over(torch.amin, x, axis, keepdims), **attrs)
    check("logsumexp", [x], over(torch.logsumexp, x, axis, keepdims), **attrs)
    check("variance", [x], over(torch.var, x, axis, keepdims, correction=1), **attrs)
    check("variance", [x], over(torch.var, x, axis, keepdims, correction=0), correction=0, **attrs)
    b = data(torch.bool)
    check("any", [b], over(torch.any, b, axis, keepdims), **attrs)
    check("all", [b], over(torch.all, b, axis, keepdims), **attrs)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
def test_dtypes(check: Any, dtype: torch.dtype) -> None:
    x = data(dtype)
    check("sum", [x], x.sum(1), axis=1, tolerance=2)
    check("prod", [x], x.prod(1), axis=1, tolerance=2)
    check("max", [x], x.amax(1), axis=1)
    check("min", [x], x.amin((0, 2)), axis=(0, 2))
    check("any", [x], x.bool().any(1), axis=1)
    check("all", [x], x.bool().all(1), axis=1)
    if dtype != torch.bool:
        check("argmax", [x], x.argmax(1), axis=1)
        check("argmin", [x], x.argmin(), axis=None)
    if dtype.is_floating_point:
        check("mean", [x], x.mean(1), axis=1)
        check("variance", [x], x.var(1), axis=1, tolerance=2)
        check("logsumexp", [x], x.logsumexp(2), axis=2, tolerance=2)


def test_result_dtype(check: Any) -> None:
    x = data(torch.float16)
    check("sum", [x], x.sum(1, dtype=torch.float32), axis=1, dtype="float32")
    i = data(torch.int64)
    check("sum", [i], i.sum(1, dtype=torch.float64), axis=1, dtype="float64")
    check("sum", [i], i.sum(1, dtype=torch.int8), axis=1, dtype="int8")


def test_half_sums_are_exact_to_one_rounding(check: Any) -> None:
    x = torch.full((4, 4096), 0.1, dtype=torch.float16)
    check("sum", [x], x.double().sum(1).half(), axis=1, tolerance=0.5)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "logsumexp", "sum", "any", "all"])
def test_special_values(check: Any, name: str) -> None:
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1.0, nan, 3.0, nan], [inf, -inf, 0.0, inf], [-inf, -inf, -inf, -inf], [0.0, -0.0, 0.0, 0.0],
                      [2.0, 2.0, 1.0, 1.0]])  # fmt: skip
    fn = {"max": torch.amax, "min": torch.amin}.get(name) or getattr(torch, name)
    check(name, [x], fn(x, 1), axis=1)


def test_empty(check: Any) -> None:
    x = torch.zeros(3, 0, 2)
    check("sum", [x], x.sum(1), axis=1)
    check("prod", [x], x.prod(1), axis=1)
    check("mean", [x], x.mean(1), axis=1)
    check("any", [x], x.bool().any(1), axis=1)
    check("all", [x], x.bool().all(1), axis=1)
    check("logsumexp", [x], x.logsumexp(1), axis=1)
    check("max", [x], x.amax(2), axis=2)
    with pytest.raises(TypeInferenceError, match="extent 0 along axis"):
        apply("max", [variable("x", TensorType((3, 0, 2)))], {"axis": 1})


def test_scalar(check: Any) -> None:
    x = torch.tensor(2.5)
    for name in ("sum", "mean", "max", "prod", "logsumexp"):
        check(name, [x], x)
    check("argmax", [x], torch.tensor(0))


def test_misfits() -> None:
    x = [variable("x", TensorType((2, 3)))]
    for axis, message in (((0, 0), "twice"), (2, "axis 2 is out of range for rank 2")):
        with pytest.raises(TypeInferenceError, match=message):
            apply("sum", x, {"axis": axis})


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
def test_scans(check: Any, dtype: torch.dtype) -> None:
    x = data(dtype)
    for axis in (0, 1, -1) if dtype == torch.float32 else (1,):
        check("cumsum", [x], x.cumsum(axis), axis=axis, tolerance=4)
        check("cumprod", [x], x.cumprod(axis), axis=axis, tolerance=4)


def test_scan_of_scalar_and_empty(check: Any) -> None:
    check("cumsum", [torch.tensor(3.0)], torch.tensor(3.0), axis=0)
    check("cumsum", [torch.zeros(2, 0)], torch.zeros(2, 0), axis=1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
@pytest.mark.parametrize("descending", [False, True])
def test_sort(check: Any, dtype: torch.dtype, descending: bool) -> None:
    x = data(dtype, (2, 13, 3))
    x = x.round() if dtype.is_floating_point else x  # ties: the order must be stable
    for axis in (0, 1, -1) if dtype == torch.float32 else (1,):
        values, order = torch.sort(x, dim=axis, descending=descending, stable=True)
        check("sort", [x], [values, order], axis=axis, descending=descending, stable=True)
        if dtype == torch.float32:
            check("argsort", [x], order, axis=axis, descending=descending)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 31, 32, 33, 100])
def test_sort_sizes(check: Any, n: int) -> None:
    torch.manual_seed(n)
    x = torch.randn(n)
    x[n // 2 : n // 2 + 2] = math.nan
    check("sort", [x], torch.sort(x, stable=True), axis=0)
    check("sort", [x], torch.sort(x, stable=True, descending=True), axis=0, descending=True)


@pytest.mark.parametrize("k,n", [(1, 1), (3, 10), (10, 10), (70, 100), (0, 5)])
@pytest.mark.parametrize("largest", [False, True])
def test_topk(check: Any, k: int, n: int, largest: bool) -> None:
    torch.manual_seed(0)
    x = torch.randperm(n * 2).reshape(2, n).float()
    check("topk", [x], torch.topk(x, k, 1, largest), k=k, axis=1, largest=largest)
    if n > 3 and k:
        x[0, 2] = math.nan
        check("topk", [x], torch.topk(x, k, 1, largest), k=k, axis=1, largest=largest)


def test_topk_along_an_outer_axis(check: Any) -> None:
    x = torch.randperm(30).reshape(5, 6)
    check("topk", [x], torch.topk(x, 2, 0), k=2, axis=0)
    with pytest.raises(TypeInferenceError, match="k out of range"):
        apply("topk", [variable("x", TensorType((3,)))], {"k": 4})
