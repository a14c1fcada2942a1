"""Reading and writing by index against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def data(shape: Any, t: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.rand(shape) * 10).to(t)


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_take(check: Any, index_dtype: torch.dtype) -> None:
    x, i = data((5, 4, 3)), torch.tensor([[0, 4], [2, 2]], dtype=index_dtype)
    check("take", [x, i], x[i.long()], axis=0)
    check("take", [x[:, :, 0].contiguous(), i], F.embedding(i, x[:, :, 0]), axis=0)
    check("take", [x, torch.tensor([1, 0])], x[:, :, [1, 0]], axis=-1)
    check("take", [x, torch.tensor(3)], x[3], axis=0)
    check("take", [x, torch.tensor([-1, 2, -5])], x[[-1, 2, -5]], axis=0, mode="wrap")
    check("take", [x, torch.tensor([-7, 9])], x[[0, 4]], axis=0, mode="clip")
    check("take", [torch.empty(0, 4), torch.tensor([9])], torch.empty(0, 1), axis=1)
    for t in DTYPES:
        check("take", [data((5, 4), t), i], data((5, 4), t)[i.long()], axis=0)


@pytest.mark.parametrize("mode,index", [("raise", [0, 5]), ("raise", [-1]), ("wrap", [5]), ("wrap", [-6])])
def test_take_out_of_bounds_raises(check: Any, mode: str, index: list[int]) -> None:
    with pytest.raises(IndexError, match="out of"):
        check("take", [data((5, 4)), torch.tensor(index)], torch.zeros(len(index), 4), axis=0, mode=mode)


def test_reading_nothing(check: Any) -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    check("take", [data((5, 4)), empty], torch.zeros(0, 4), axis=0)
    check("take", [torch.zeros(0, 4), empty], torch.zeros(0, 4), axis=0)
    with pytest.raises(IndexError):
        check("take", [torch.zeros(0, 4), torch.tensor([0])], torch.zeros(1, 4), axis=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(check: Any, axis: int) -> None:
    x = data((3, 4, 5))
    i = torch.randint(0, 3, (2, 3, 2))
    check("gather", [x, i], x.gather(axis, i), axis=axis)
    check("gather", [torch.tensor(2.0), torch.tensor(0)], torch.tensor(2.0), axis=0)
    for bad in (-1, 7):
        i[0, 1, 1] = bad
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            check("gather", [x, i], x[:2, :3, :2], axis=axis)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_index(check: Any, axes: Any) -> None:
    x = data((4, 5, 6))
    for shape in ((3,), (2, 3)):
        indices = [torch.randint(-4, 4, shape if k else shape[-1:]) for k in range(len(axes))]
        where: list[Any] = [slice(None)] * 3
        for a, i in zip(axes, indices):
            where[a] = i
        check("index", [x, *indices], x[tuple(where)], axes=axes)


def test_index_out_of_bounds_raises(check: Any) -> None:
    for bad in (4, -5):
        with pytest.raises(IndexError, match="out of bounds for dimension 1 with size 4"):
            check("index", [data((3, 4)), torch.tensor([0, bad])], torch.zeros(3, 2), axes=(1,))


def test_one_hot(check: Any) -> None:
    i = torch.tensor([[0, 3], [2, 1]])
    check("one_hot", [i], F.one_hot(i, 4), depth=4)
    check("one_hot", [i], F.one_hot(i, 5).half(), depth=5, dtype="float16")
    with pytest.raises((RuntimeError, IndexError), match="smaller than num_classes"):
        check("one_hot", [i], F.one_hot(i, 4)[..., :3], depth=3)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_scatter(check: Any, axis: int, dtype: torch.dtype) -> None:
    x = data((4, 5), dtype)
    i = torch.tensor([[0, 1, 2, 0], [3, 1, 0, 0], [1, 1, 1, 2]])
    src = data((3, 5), dtype) + 1
    unique = torch.tensor([[3, 0], [0, 2], [1, 1]]) if axis == 0 else torch.tensor([[2, 0, 4], [1, 3, 0], [4, 2, 1]])
    check("scatter", [x, unique, src], x.scatter(axis, unique, src), axis=axis)
    for reduce, name in (("add", "sum"), ("prod", "prod"), ("amax", "amax"), ("amin", "amin"), ("mean", "mean")):
        for include_self in (True, False):
            expected = x.scatter_reduce(axis, i, src, name, include_self=include_self)
            check("scatter", [x, i, src], expected, axis=axis, reduce=reduce, include_self=include_self, tolerance=2)


def test_scatter_last_wins_and_half_types(check: Any) -> None:
    x, i = torch.zeros(3), torch.tensor([1, 1, 0])
    check("scatter", [x, i, torch.tensor([5.0, 6.0, 7.0])], torch.tensor([7.0, 6.0, 0.0]), axis=0)
    h = data((6,), torch.bfloat16)
    j = torch.tensor([0, 2, 4])
    check("scatter", [h, j, h[:3].contiguous()], h.scatter_add(0, j, h[:3]), axis=0, reduce="add")
    check("scatter", [torch.tensor(1.0), torch.tensor(0), torch.tensor(5.0)], torch.tensor(6.0), axis=0, reduce="add")
    check("scatter", [x, torch.zeros(0, dtype=torch.int64), torch.zeros(0)], x, axis=0)


@pytest.mark.parametrize("bad", [-1, 3])
def test_scatter_out_of_bounds_raises(check: Any, bad: int) -> None:
    with pytest.raises((RuntimeError, IndexError), match="out of bounds for dimension 0 with size 3"):
        check("scatter", [torch.zeros(3), torch.tensor([0, bad]), torch.ones(2)], torch.zeros(3), axis=0, reduce="add")


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (1, 2)])
def test_index_put(check: Any, axes: Any, accumulate: bool) -> None:
    x = data((4, 5, 3))
    first = torch.tensor([0, -1, 2])  # no element twice, so that without accumulate the result is unique
    indices = [first, torch.tensor([1, 0, -1])][: len(axes)]
    where: list[Any] = [slice(None)] * 3
    for a, i in zip(axes, indices):
        where[a] = i
    given: list[Any] = [None] * 3
    for a, i in zip(axes, indices):
        given[a] = i
    last = max(axes)
    for values in (torch.rand(x[tuple(where)].shape), torch.tensor(3.0)):
        expected = torch.ops.aten.index_put(x, given[: last + 1], values, accumulate)
        check("index_put", [x, values, *indices], expected, axes=axes, accumulate=accumulate)
    if accumulate:
        twice = [torch.zeros(3, dtype=torch.int64) for _ in axes]
        for a, i in zip(axes, twice):
            given[a] = i
        expected = torch.ops.aten.index_put(x, given[: last + 1], torch.tensor(1.5), True)
        check("index_put", [x, torch.tensor(1.5), *twice], expected, axes=axes, accumulate=True)


def test_index_put_out_of_bounds_raises(check: Any) -> None:
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3"):
        check("index_put", [torch.zeros(3), torch.ones(2), torch.tensor([0, 3])], torch.zeros(3), axes=(0,))


@pytest.mark.parametrize("op,types,attrs,message", [
    ("take", [TensorType((3,)), TensorType((2,))], {}, "indices must be signed integer or unsigned"),
    ("gather", [(3, 4), (3,)], {"axis": 0}, "as many axes"),
    ("gather", [(3, 4), (4, 4)], {"axis": 1}, "larger than data"),
    ("index", [(3, 4), (2,), (3,)], {"axes": (0, 1)}, "do not broadcast"),
    ("index", [(3, 4), (2,)], {"axes": (0, 1)}, "1 index tensors for axes"),
])  # fmt: skip
def test_misfits(op: str, types: Any, attrs: Any, message: str) -> None:
    from nnvm.dtype import I64

    kinds = [t if isinstance(t, TensorType) else TensorType(t, I64) for t in types]
    with pytest.raises(TypeInferenceError, match=message):
        apply(op, [variable(f"x{k}", t) for k, t in enumerate(kinds)], attrs)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(check, right):
    edges = torch.randn(4, 37).sort(-1)[0]
    values = torch.cat([torch.randn(4, 9), edges[:, 3:6]], 1)
    edges[1, -3:], values[2, 1] = math.nan, math.nan
    check("searchsorted", [edges, values], torch.searchsorted(edges, values, right=right), right=right)
    check("searchsorted", [edges[0], values], torch.searchsorted(edges[0], values, right=right), right=right)
    numbers = torch.randint(0, 9, (2, 16)).sort(-1)[0]
    some = numbers[:, :5].contiguous()
    check("searchsorted", [numbers, some], torch.searchsorted(numbers, some, right=right), right=right)
