"""Interpolation to sizes that only the call knows, in inference and in training."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch  # noqa: F401


@pytest.mark.parametrize("form", [{"scale_factor": 2.0}, {"scale_factor": 0.6, "recompute_scale_factor": True}, None])
@pytest.mark.parametrize("mode,axes", [
    ("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 1), ("nearest-exact", 2),
    ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3),
])  # fmt: skip
def test_sizes_that_change(mode: str, axes: int, form: dict[str, object] | None) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()

    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode=mode, **(form or {"size": like.shape[2:]})) * 2 + 1

    compiled = torch.compile(f, backend="nnvm", dynamic=True, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a graph that AOTAutograd cannot trace runs in eager
        for size, last in ((4, 9), (5, 13)):
            x = torch.randn(1, 3, *[size] * axes)
            x = x.contiguous(memory_format=torch.channels_last) if axes == 2 and size == 5 else x
            like = torch.randn(1, 1, *[last] * axes)
            torch.testing.assert_close(compiled(x, like), f(x, like))
            a, b = (x.clone().requires_grad_() for _ in range(2))
            got, expected = compiled(a, like), f(b, like)
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected)
            seed = torch.randn_like(expected)
            got.backward(seed)
            expected.backward(seed)
            torch.testing.assert_close(a.grad, b.grad)
            assert a.grad is not None and b.grad is not None and a.grad.stride() == b.grad.stride()
