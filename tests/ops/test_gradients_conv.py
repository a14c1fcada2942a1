"""Gradients of convolutions, pooling and resizing against torch.autograd in float64."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch.nn.functional as F

from tests.ops.gradient_check import check_gradient, normal, run_compiled

SIZES = {1: (11,), 2: (7, 8), 3: (5, 6, 7)}
GEOMETRIES: list[dict[str, Any]] = [
    {}, {"strides": 2, "padding": 1}, {"padding": 2, "dilation": 2}, {"strides": 3, "padding": 1, "dilation": 2},
    {"strides": 2, "groups": 2}, {"padding": 1, "groups": 4},
]  # fmt: skip


def split(geometry: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes of the op, and arguments of torch."""
    ours = {k: v if k == "groups" else (((v, v),) if k == "padding" else (v,)) for k, v in geometry.items()}
    return ours, {"stride" if k == "strides" else k: v for k, v in geometry.items()}


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution(rank: int, geometry: dict[str, Any]) -> None:
    ours, theirs = split(geometry)
    groups = geometry.get("groups", 1)
    kernel = (3, 2, 2)[:rank]
    x, w, b = normal(2, 4, *SIZES[rank]), normal(8, 4 // groups, *kernel, seed=1), normal(8, seed=2)
    conv = getattr(F, f"conv{rank}d")
    check_gradient(f"conv{rank}d", [x, w, b], lambda x, w, b: conv(x, w, b, **theirs), **ours)
    check_gradient(f"conv{rank}d", [x, w], lambda x, w: conv(x, w, **theirs), **ours)


@pytest.mark.parametrize("geometry", [*GEOMETRIES, {"strides": 3, "output_padding": 2},
                                      {"dilation": 3, "output_padding": 2}], ids=str)  # fmt: skip
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolution(rank: int, geometry: dict[str, Any]) -> None:
    ours, theirs = split(geometry)
    groups = geometry.get("groups", 1)
    kernel = (3, 2, 2)[:rank]
    x, w = normal(2, 4, *SIZES[rank]), normal(4, 6 // groups if groups < 4 else 2, *kernel, seed=1)
    b = normal(w.shape[1] * groups, seed=2)
    conv = getattr(F, f"conv_transpose{rank}d")
    check_gradient(f"conv{rank}d_transpose", [x, w, b], lambda x, w, b: conv(x, w, b, **theirs), **ours)


def test_convolution_with_uneven_padding() -> None:
    x, w = normal(2, 4, 7, 8), normal(6, 4, 3, 2, seed=1)
    check_gradient("conv2d", [x, w], lambda x, w: F.conv2d(F.pad(x, (0, 3, 2, 1)), w, stride=2),
                   padding=((2, 1), (0, 3)), strides=(2, 2))  # fmt: skip


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling(rank: int, ceil_mode: bool) -> None:
    x = normal(2, 3, *SIZES[rank])
    ours: dict[str, Any] = {"pool_size": (3,), "strides": (2,), "padding": ((1, 1),), "ceil_mode": ceil_mode}
    theirs: dict[str, Any] = {"stride": 2, "padding": 1, "ceil_mode": ceil_mode}
    pool, most = getattr(F, f"avg_pool{rank}d"), getattr(F, f"max_pool{rank}d")
    for counted in (True, False):
        check_gradient(f"avg_pool{rank}d", [x], lambda x: pool(x, 3, count_include_pad=counted, **theirs),  # noqa: B023
                       count_include_pad=counted, **ours)  # fmt: skip
    check_gradient(f"max_pool{rank}d", [x], lambda x: most(x, 3, **theirs), **ours)
    check_gradient(f"max_pool{rank}d_with_indices", [x], lambda x: most(x, 3, return_indices=True, **theirs), **ours)


def test_pooling_with_gaps_overlaps_and_equals() -> None:
    x = normal(2, 3, 9, 10)
    check_gradient("avg_pool2d", [x], lambda x: F.avg_pool2d(x, 2, 3), pool_size=(2, 2), strides=(3, 3))
    check_gradient("avg_pool2d", [x], lambda x: F.avg_pool2d(x, 3, 1, divisor_override=5), pool_size=(3, 3),
                   strides=(1, 1), divisor_override=5)  # fmt: skip
    check_gradient("max_pool2d", [x], lambda x: F.max_pool2d(x, 3, 1, 1, 2), pool_size=(3, 3), strides=(1, 1),
                   padding=((1, 1), (1, 1)), dilation=(2, 2))  # fmt: skip
    check_gradient("max_pool2d", [x.round().clamp(-1, 1)], lambda x: F.max_pool2d(x, 3, 1), pool_size=(3, 3),
                   strides=(1, 1))  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_and_global_pooling(rank: int) -> None:
    x = normal(2, 3, *SIZES[rank])
    average, most = getattr(F, f"adaptive_avg_pool{rank}d"), getattr(F, f"adaptive_max_pool{rank}d")
    out = (4, 3, 2)[:rank]
    check_gradient(f"adaptive_avg_pool{rank}d", [x], lambda x: average(x, out), output_size=out)
    check_gradient(f"global_avg_pool{rank}d", [x], lambda x: average(x, 1))
    check_gradient(f"global_max_pool{rank}d", [x], lambda x: most(x, 1))
    even = normal(2, 3, *(8, 6, 4)[:rank])
    check_gradient(f"adaptive_max_pool{rank}d", [even], lambda x: most(x, out), output_size=out)


@pytest.mark.parametrize(("mode", "theirs"), [("nearest", "nearest"), ("nearest_exact", "nearest-exact"),
                                              ("linear", "bilinear"), ("cubic", "bicubic")])  # fmt: skip
@pytest.mark.parametrize("size", [(9, 5), (3, 12)])
def test_resize(mode: str, theirs: str, size: tuple[int, int]) -> None:
    x = normal(2, 3, 5, 8)
    check_gradient("resize", [x], lambda x: F.interpolate(x, size, mode=theirs), size=size, mode=mode)
    if "nearest" not in mode:
        check_gradient("resize", [x], lambda x: F.interpolate(x, size, mode=theirs, align_corners=True), size=size,
                       mode=mode, align_corners=True)  # fmt: skip


def test_compiled() -> None:
    """The same as native code: constant maps, scatters and the convolutions of a gradient."""
    x, w = normal(2, 4, 9, 10), normal(6, 2, 3, 2, seed=1)
    check_gradient("resize", [x], lambda x: F.interpolate(x, (5, 13), mode="bilinear"), size=(5, 13), mode="linear",
                   run=run_compiled)  # fmt: skip
    check_gradient("adaptive_avg_pool2d", [x], lambda x: F.adaptive_avg_pool2d(x, (4, 3)), output_size=(4, 3),
                   run=run_compiled)  # fmt: skip
    check_gradient("max_pool2d", [x], lambda x: F.max_pool2d(x, 3, 2), pool_size=(3, 3), strides=(2, 2),
                   run=run_compiled)  # fmt: skip
    check_gradient("conv2d", [x, w], lambda x, w: F.conv2d(x, w, stride=2, groups=2), strides=(2, 2), groups=2,
                   run=run_compiled)  # fmt: skip


#: The ops without a gradient, by the reason.
NEED_NONE = {
    "their results are integers or bools": """
        all any argmax argmin argsort bitwise_and bitwise_not bitwise_or bitwise_xor equal greater greater_equal
        isfinite isinf isnan left_shift less less_equal logical_and logical_not logical_or logical_xor not_equal
        right_shift searchsorted signbit""",
    "PyTorch has none either": "nextafter orthogonal_polynomial",
    "bits are not differentiable": "bitcast",
    "they have no input, or none of a float type": "arange constant full one_hot ones variable zeros",
    "passes that run after Gradient make them": "conv2d_winograd group layout_transform",
    "whoever wants one keeps what steps compute, which it does not give": "recurrent",
    "they are gradients already, and PyTorch makes none of its own from them": "norm_sums row_norm_grad",
}


def test_every_differentiable_op_has_a_gradient() -> None:
    """A new op either gets a gradient or a place in one of these lists. In a process without the ops of other tests."""
    script = "import nnvm.ops; from nnvm.graph.op import get, known; " \
             "print(*(n for n in known() if not get(n).has('gradient')))"  # fmt: skip
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert set(found) == {n for names in NEED_NONE.values() for n in names.split()}, (
        "give new ops a gradient in nnvm/ops/gradients_*.py, or list them above"
    )
