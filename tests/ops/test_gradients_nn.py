"""Gradients of matrix products, normalisations, softmax and attention against torch.autograd in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops.gradient_check import check_gradient, normal


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_dense(shape: tuple[int, ...]) -> None:
    x, w, b = normal(*shape), normal(5, 4, seed=1), normal(5, seed=2)
    check_gradient("dense", [x, w], F.linear)
    check_gradient("dense", [x, w, b], F.linear)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("left", "right"), [((), ()), ((2,), (2,)), ((2, 1), (3,)), ((), (2, 3))])
def test_matmul(left: Any, right: Any, transpose_a: bool, transpose_b: bool) -> None:
    a = normal(*left, *((4, 3) if transpose_a else (3, 4)))
    b = normal(*right, *((5, 4) if transpose_b else (4, 5)), seed=1)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)

    check_gradient("matmul", [a, b], product, transpose_a=transpose_a, transpose_b=transpose_b)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis: int) -> None:
    check_gradient("softmax", [normal(3, 4, 5)], lambda x: x.softmax(axis), axis=axis)
    check_gradient("log_softmax", [normal(3, 4, 5)], lambda x: x.log_softmax(axis), axis=axis)


@pytest.mark.parametrize(("axis", "shape"), [(-1, (5,)), (1, (4, 5))])
def test_row_norms(axis: int, shape: tuple[int, ...]) -> None:
    x, gamma, beta = normal(3, 4, 5), normal(*shape, seed=1), normal(*shape, seed=2)
    attrs = {"axis": axis, "eps": 1e-3}
    check_gradient("layer_norm", [x], lambda x: F.layer_norm(x, shape, eps=1e-3), **attrs)
    check_gradient("layer_norm", [x, gamma], lambda x, g: F.layer_norm(x, shape, g, eps=1e-3), **attrs)
    check_gradient("layer_norm", [x, gamma, beta], lambda x, g, b: F.layer_norm(x, shape, g, b, 1e-3), **attrs)
    check_gradient("rms_norm", [x], lambda x: F.rms_norm(x, shape, eps=1e-3), **attrs)
    check_gradient("rms_norm", [x, gamma], lambda x, g: F.rms_norm(x, shape, g, 1e-3), **attrs)


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 3, 4)])
def test_channel_norms(shape: tuple[int, ...]) -> None:
    x, gamma, beta = normal(*shape), normal(6, seed=1), normal(6, seed=2)
    check_gradient("group_norm", [x], lambda x: F.group_norm(x, 3, eps=1e-3), num_groups=3, eps=1e-3)
    check_gradient("group_norm", [x, gamma, beta], lambda x, g, b: F.group_norm(x, 3, g, b, 1e-3), num_groups=3,
                   eps=1e-3)  # fmt: skip
    check_gradient("instance_norm", [x, gamma, beta], lambda x, g, b: F.instance_norm(x, None, None, g, b, eps=1e-3),
                   eps=1e-3)  # fmt: skip


@pytest.mark.parametrize(("scale", "center"), [(True, True), (False, True), (True, False)])
def test_batch_norm(scale: bool, center: bool) -> None:
    mean, var = normal(6, seed=3), normal(6, seed=4).abs() + 0.2

    def expected(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> torch.Tensor:
        c = (1, 6, 1)
        out: torch.Tensor = (x - mean.view(c)) / (var.view(c) + 1e-3).sqrt()
        out = out * gamma.view(c) if scale else out
        return out + beta.view(c) if center else out

    inputs = [normal(2, 6, 5), normal(6, seed=1), normal(6, seed=2), mean, var]
    check_gradient("batch_norm", inputs, expected, epsilon=1e-3, scale=scale, center=center)


def test_l2_normalize_and_lrn() -> None:
    x = normal(3, 7, 4)
    x[0, :, 0] = 1e-3
    check_gradient("l2_normalize", [x], lambda x: x / (x * x).sum(1, keepdim=True).clamp(min=0.1).sqrt(), axis=(1,),
                   eps=0.1)  # fmt: skip
    for size in (3, 4, 5):
        check_gradient("lrn", [x], lambda x: F.local_response_norm(x, size, 0.3, 0.6, 2.0), size=size, alpha=0.3,  # noqa: B023
                       beta=0.6, bias=2.0)  # fmt: skip


def test_attention() -> None:
    sdpa = F.scaled_dot_product_attention
    q, k, v = normal(2, 4, 5, 8), normal(2, 4, 6, 8, seed=1), normal(2, 4, 6, 3, seed=2)
    check_gradient("attention", [q, k, v], sdpa)
    check_gradient("attention", [q, k, v], lambda q, k, v: sdpa(q, k, v, scale=0.3), scale=0.3)
    check_gradient("attention", [q, k, v], lambda q, k, v: sdpa(q, k, v, is_causal=True), causal=True)
    check_gradient("attention", [q, k, v, normal(1, 4, 5, 6, seed=3)], sdpa)
    check_gradient("attention", [q, k, v, normal(5, 1, seed=3)], sdpa)


def test_attention_by_a_mask_with_an_empty_row() -> None:
    q, k, v = normal(2, 5, 8), normal(2, 6, 8, seed=1), normal(2, 6, 3, seed=2)
    allowed = normal(5, 6, seed=3) > 0
    allowed[2] = False

    def expected(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q, k, v, mask | ~mask.any(1, keepdim=True))
        return out * mask.any(1)[:, None]

    check_gradient("attention", [q, k, v, allowed], expected)


def test_attention_with_shared_heads() -> None:
    q, k, v = normal(2, 6, 5, 8), normal(2, 2, 7, 8, seed=1), normal(2, 2, 7, 8, seed=2)
    check_gradient("attention", [q, k, v], lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                   groups=3)  # fmt: skip
