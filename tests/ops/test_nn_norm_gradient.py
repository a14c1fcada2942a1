"""The gradient of a row normalisation against autograd's, and as one kernel of one pass over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def expected(g: torch.Tensor, x: torch.Tensor, w: Any, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """(gradient of x, mean, 1 / deviation), in float64."""
    x = x.double().clone().requires_grad_()
    axes = tuple(range(x.dim() - len(shape), x.dim()))
    F.layer_norm(x, shape, None if w is None else w.double()).backward(g.double())
    mean = x.detach().mean(axes, keepdim=True)
    return x.grad, mean, (x.detach().var(axes, correction=0, keepdim=True) + 1e-5).rsqrt()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, rows", [((3, 4, 6), 1), ((3, 4, 6), 2), ((5, 33), 1), ((7,), 1), ((2, 130), 1)])
def test_against_autograd(check: Any, dtype: torch.dtype, shape: tuple[int, ...], rows: int) -> None:
    g, x = randn(*shape, seed=1, dtype=dtype), randn(*shape, seed=2, dtype=dtype)
    own = shape[len(shape) - rows :]
    for w in (None, randn(*own, seed=3, dtype=dtype)):
        right, mean, scale = (t.to(dtype) for t in expected(g, x, w, own))
        inputs = [g, x, mean, scale, *([] if w is None else [w])]
        if dtype in (torch.float32, torch.float64):
            check("row_norm_grad", inputs, right, axis=len(shape) - rows, tolerance=16)
        else:  # the statistics are rounded to the type
            check("row_norm_grad", inputs, by_hand(*inputs, rows=rows), axis=len(shape) - rows, tolerance=4)


def by_hand(g: Any, x: Any, mean: Any, scale: Any, w: Any = None, *, rows: int) -> torch.Tensor:
    axes = tuple(range(-rows, 0))
    h = g.double() if w is None else g.double() * w.double()
    n = (x.double() - mean.double()) * scale.double()
    out = scale.double() * (h - h.mean(axes, keepdim=True) - n * (h * n).mean(axes, keepdim=True))
    return out.to(g.dtype)


def test_types() -> None:
    x = variable("x", TensorType((2, 6)))
    row, wrong = variable("m", TensorType((2, 1))), variable("w", TensorType((5,)))
    with pytest.raises(TypeInferenceError, match="gamma"):
        apply("row_norm_grad", [x, x, row, row, wrong])
    with pytest.raises(TypeInferenceError, match="mean"):
        apply("row_norm_grad", [x, x, x, row])
    assert apply("row_norm_grad", [x, x, row, row])[0].type.shape == (2, 6)


def test_reference_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    g, x = rng.standard_normal((2, 4, 9))
    shapes = [(4, 9), (4, 9), (4, 1), (4, 1)]
    node = apply("row_norm_grad", [variable(n, TensorType(s)) for n, s in zip("gxms", shapes)])
    mean, scale = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    (got,) = node.op.attr("reference")(node.attrs, g, x, mean, scale)
    right, _, _ = expected(torch.from_numpy(g), torch.from_numpy(x), None, (9,))
    np.testing.assert_allclose(got, right.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, axes", [((3, 4, 6, 5), (0, 2, 3)), ((5, 33), (0,)), ((2, 3, 40), (0, 2)),
                                         ((4, 7), (1,))])  # fmt: skip
def test_sums(check: Any, dtype: torch.dtype, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Both at once; the sums are of numbers that cancel, so that what counts is the error beside their sizes."""
    g, x = randn(*shape, seed=1, dtype=dtype) + 2, randn(*shape, seed=2, dtype=dtype) - 1
    mean = x.double().mean(axes, keepdim=True).to(dtype) - 1
    right = [t.sum(axes, keepdim=True).to(dtype) for t in (g.double(), g.double() * (x.double() - mean.double()))]
    check("norm_sums", [g, x, mean], right, axis=axes, tolerance=64)


def test_types_of_sums() -> None:
    x, row = variable("x", TensorType((2, 6))), variable("m", TensorType((1, 6)))
    assert [e.type.shape for e in apply("norm_sums", [x, x, row], {"axis": (0,)}).outputs] == [(1, 6), (1, 6)]
    with pytest.raises(TypeInferenceError, match="mean"):
        apply("norm_sums", [x, x, row], {"axis": (1,)})
