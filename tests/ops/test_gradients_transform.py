"""Gradients of reductions, scans, sorting, shape ops and indexing against torch.autograd in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nnvm.graph import TensorType, apply, variable
from nnvm.graph.graph import Graph
from nnvm.graph.passes.gradient import GradientError, gradient
from tests.ops.gradient_check import check_gradient, normal

X = normal(3, 4, 5)
ZEROS = normal(3, 4).masked_fill(torch.tensor([[1, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).bool(), 0.0)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, (1,), (0, 2), (-1,)])
def test_reductions(axis: Any, keepdims: bool) -> None:
    attrs = {"axis": axis, "keepdims": keepdims}
    dim = tuple(range(3)) if axis is None else axis
    check_gradient("sum", [X], lambda x: x.sum(dim, keepdim=keepdims), **attrs)
    check_gradient("mean", [X], lambda x: x.mean(dim, keepdim=keepdims), **attrs)
    check_gradient("max", [X], lambda x: x.amax(dim, keepdim=keepdims), **attrs)
    check_gradient("min", [X], lambda x: x.amin(dim, keepdim=keepdims), **attrs)
    check_gradient("logsumexp", [X], lambda x: x.logsumexp(dim, keepdim=keepdims), **attrs)
    check_gradient("variance", [X], lambda x: x.var(dim, keepdim=keepdims), **attrs)
    check_gradient("variance", [X], lambda x: x.var(dim, correction=0, keepdim=keepdims), correction=0, **attrs)

    def product(x: torch.Tensor) -> torch.Tensor:
        for d in sorted((a % 3 for a in dim), reverse=True):
            x = x.prod(d, keepdim=keepdims)
        return x

    check_gradient("prod", [X], product, **attrs)


def test_edges_of_reductions() -> None:
    tied = torch.tensor([[1.0, 2, 2], [3, 3, 3]]).double()
    check_gradient("max", [tied], lambda x: x.amax(1), axis=1)
    check_gradient("prod", [ZEROS], lambda x: x.prod(1), axis=1)
    low = torch.full((2, 3), -torch.inf, dtype=torch.float64)
    check_gradient("logsumexp", [low], lambda x: x.logsumexp(1), axis=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scans_and_sorting(axis: int) -> None:
    check_gradient("cumsum", [X], lambda x: x.cumsum(axis), axis=axis)
    check_gradient("cumprod", [X], lambda x: x.cumprod(axis), axis=axis)
    check_gradient("sort", [X], lambda x: x.sort(axis, descending=True), axis=axis, descending=True)
    check_gradient("topk", [X], lambda x: x.topk(2, axis), k=2, axis=axis)


def test_cumprod_with_zeros() -> None:
    check_gradient("cumprod", [ZEROS], lambda x: x.cumprod(1), axis=1)


def test_shapes() -> None:
    check_gradient("reshape", [X], lambda x: x.reshape(6, 10), shape=(6, -1))
    check_gradient("flatten", [X], lambda x: x.flatten(1))
    check_gradient("expand_dims", [X], lambda x: x.unsqueeze(1), axis=1)
    check_gradient("squeeze", [normal(3, 1, 4)], lambda x: x.squeeze(1), axis=(1,))
    check_gradient("transpose", [X], lambda x: x.permute(2, 0, 1), axes=(2, 0, 1))
    check_gradient("transpose", [X], lambda x: x.permute(2, 1, 0))
    check_gradient("broadcast_to", [normal(4, 1)], lambda x: x.expand(3, 4, 5), shape=(3, 4, 5))
    check_gradient("concatenate", [X, normal(3, 2, 5)], lambda a, b: torch.cat([a, b], 1), axis=1)
    halves = [normal(3, 2, 2), normal(3, 2, 1), normal(3, 2, 2), normal(3, 2, 1)]
    check_gradient("interleave", halves, lambda *x: torch.stack([
        torch.stack([x[i][..., 0], x[i + 1][..., 0], x[i][..., 1]], -1) for i in (0, 2)], 2).flatten(1, 2),
        axes=(1, 2), steps=(2, 2))  # fmt: skip
    check_gradient("flip", [X], lambda x: x.flip((0, 2)), axes=(0, 2))
    check_gradient("roll", [X], lambda x: x.roll((1, -2), (0, 2)), shifts=(1, -2), axes=(0, 2))
    check_gradient("tril", [X], lambda x: x.tril(1), k=1)
    check_gradient("triu", [X], lambda x: x.triu(-1), k=-1)
    check_gradient("repeat", [X], lambda x: x.repeat_interleave(3, 1), repeats=3, axis=1)


def test_slices() -> None:
    check_gradient("slice", [X], lambda x: x[1:, :-1, 2:4], begin=(1, None, 2), end=(None, -1, 4))
    check_gradient("slice", [normal(7, 8)], lambda x: x[1:6:2, ::3], begin=(1, 0), end=(6, 8), step=(2, 3))

    def written(x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return x.slice_scatter(src, 1, 1, 7, 3)

    check_gradient("slice_scatter", [normal(3, 8), normal(3, 2)], written, axis=1, start=1, end=7, step=3)


@pytest.mark.parametrize(("mode", "expected"), [("constant", "constant"), ("reflect", "reflect"),
                                                ("edge", "replicate"), ("wrap", "circular")])  # fmt: skip
def test_pad(mode: str, expected: str) -> None:
    x = normal(2, 3, 5, 6)
    widths = ((0, 0), (0, 0), (2, 1), (0, 3))
    check_gradient("pad", [x], lambda x: F.pad(x, (0, 3, 2, 1), expected), pad_width=widths, mode=mode)


def test_pad_that_crops() -> None:
    check_gradient("pad", [normal(5, 6)], lambda x: F.pad(x, (-1, 2, 3, -2)), pad_width=((3, -2), (-1, 2)))


def test_indexing() -> None:
    where = torch.tensor([[2, 0], [2, 1], [0, 0]])
    check_gradient("take", [X, where], lambda x, i: x[i], axis=0)
    check_gradient("take", [X, where], lambda x, i: x[:, i], axis=1)
    signed = torch.tensor([-1, 0, 1, -1])
    check_gradient("take", [X, signed], lambda x, i: x[:, i], axis=1, mode="wrap")
    check_gradient("take", [X, signed * 9], lambda x, i: x[:, i.clamp(0, 3)], axis=1, mode="clip")
    index = torch.tensor([[0, 3, 3, 1], [2, 2, 2, 2], [0, 1, 2, 3]])
    check_gradient("gather", [normal(3, 4), index], lambda x, i: x.gather(1, i), axis=1)
    rows, columns = torch.tensor([[0], [2]]), torch.tensor([1, -1, 1])
    check_gradient("index", [X, rows, columns], lambda x, i, j: x[i, j], axes=(0, 1))
    check_gradient("index", [X, columns[:2], columns[:2]], lambda x, i, j: x[i, :, j], axes=(0, 2))


def test_writing_by_index() -> None:
    index = torch.tensor([[0, 3, 1], [2, 1, 0]])
    data, src = normal(3, 4), normal(2, 5, seed=3)
    check_gradient("scatter", [data, index, src], lambda x, i, s: x.scatter(1, i, s[:, :3]), axis=1)
    check_gradient("scatter", [data, index * 0, src], lambda x, i, s: x.scatter_add(1, i, s[:, :3]), axis=1,
                   reduce="add")  # fmt: skip
    where, values = torch.tensor([2, 0]), normal(4, seed=5)
    check_gradient("index_put", [data, values, where], lambda x, v, i: x.index_put((i,), v), axes=(0,))
    check_gradient("index_put", [data, values, where * 0], lambda x, v, i: x.index_put((i,), v, accumulate=True),
                   axes=(0,), accumulate=True)  # fmt: skip


def test_windows() -> None:
    geometry = {"kernel_size": (3, 2), "strides": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 2)}

    def unfold(x: torch.Tensor) -> torch.Tensor:
        return F.unfold(x, (3, 2), (1, 2), (1, 0), (2, 1))

    def fold(x: torch.Tensor) -> torch.Tensor:
        return F.fold(x, (7, 6), (3, 2), (1, 2), (1, 0), (2, 1))

    x = normal(2, 3, 7, 6)
    check_gradient("im2col", [x], unfold, **geometry)
    check_gradient("col2im", [unfold(x)], fold, output_size=(7, 6), **geometry)


def test_a_reduction_without_gradient_is_refused_by_its_attributes() -> None:
    data, index = variable("x", TensorType((3, 4))), variable("i", TensorType((2, 3)))
    index = apply("cast", [index], {"dtype": "int64"})[0]
    y = apply("scatter", [data, index, variable("s", TensorType((2, 3)))], {"axis": 0, "reduce": "amax"})[0]
    graph = Graph((y,), (), {"typed": True})
    with pytest.raises(GradientError, match="scatter with reduce='amax'"):
        gradient(graph, [data])
