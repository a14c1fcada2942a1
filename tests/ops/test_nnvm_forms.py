"""Ops of NNVM that take their shape from another tensor or have several outputs, against numpy; their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nnvm.graph import TensorType, apply, variable
from nnvm.testing.run_op import ROUTES, run_op
from tests.ops.gradient_check import check_gradient, normal

rng = np.random.default_rng(5)


def array(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


EVERY = [pytest.param(r, marks=pytest.mark.triton) if r == "triton" else r for r in ROUTES]


def check(op: str, arrays: list[np.ndarray], expected: list[np.ndarray], route: str, **attrs: object) -> None:
    got = run_op(op, arrays, [TensorType(a.shape) for a in arrays], attrs, route)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("route", EVERY)
def test_values(route: str) -> None:
    x, like = array(4, 6, 5), array(2, 3, 9)
    check("split", [x], np.split(x, 3, 1), route, indices_or_sections=3, axis=1)
    check("split", [x], np.split(x, [1, 4], -1), route, indices_or_sections=(1, 4), axis=-1)
    check("full_like", [x], [np.full_like(x, 2.5)], route, fill_value=2.5)
    check("ones_like", [x], [np.ones_like(x)], route)
    check("zeros_like", [x], [np.zeros_like(x)], route)
    check("slice_like", [x, like], [x[:2, :3]], route, axis=(0, 1))
    check("elemwise_sum", [x, x * 2, x - 1], [x + x * 2 + (x - 1)], route)
    check("block_grad", [x], [x], route)
    row = array(4, 5)
    check("expand_like", [row, x], [np.broadcast_to(row[:, None], x.shape)], route, axis=(1,))
    thin = array(4, 1, 5)
    check("expand_like", [thin, x], [np.broadcast_to(thin, x.shape)], route, axis=(1,))
    image = array(1, 2, 3, 4)
    check("upscale", [image], [image.repeat(2, 2).repeat(2, 3)], route, scale=2)
    doubled = torch.nn.functional.interpolate(torch.from_numpy(image), scale_factor=2, mode="bilinear").numpy()
    check("upscale", [image], [doubled], route, scale=2, method="BILINEAR")

    slopes = array(6)
    check("prelu_channels", [x, slopes], [np.where(x > 0, x, x * slopes[:, None])], route)
    check("prelu_channels", [x, np.full(5, 2, np.float32)], [np.where(x > 0, x, x * 2)], route, axis=-1)


@pytest.mark.parametrize("route", EVERY)
def test_codes_of_shapes(route: str) -> None:
    x = array(4, 6, 5)
    for codes, shape in [((0, -1), (4, 30)), ((-2,), (4, 6, 5)), ((0, -3), (4, 30)), ((-4, 2, -1, -2), (2, 2, 6, 5)),
                         ((0, -4, -1, 3, 0), (4, 2, 3, 5)), ((-1, 0), (20, 6)), ((120,), (120,))]:  # fmt: skip
        check("reshape_codes", [x], [x.reshape(shape)], route, shape=codes)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("split", [(5, 3)], {"indices_or_sections": 2}, "cannot be split into 2 equal parts"),
        ("split", [(5, 3)], {"indices_or_sections": (3, 2)}, "do not rise"),
        ("slice_like", [(2, 3), (4, 3)], {}, "longer along axis 0"),
        ("slice_like", [(2, 3), (4,)], {}, "ranks differ"),
        ("elemwise_sum", [(2, 3), (3, 2)], {}, "differ"),
        ("expand_like", [(3,), (4, 5)], {"axis": (0,)}, "does not expand"),
        ("prelu_channels", [(2, 3), (2,)], {}, "one slope for each of the 3 channels"),
        ("reshape_codes", [(2, 3)], {"shape": (0, 0, 0)}, "more axes"),
        ("reshape_codes", [(2, 3)], {"shape": (0, 2)}, "cannot take the shape"),
    ],
)
def test_errors(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(op, [variable(f"p{i}", TensorType(s)) for i, s in enumerate(shapes)], attrs)


def test_gradients() -> None:
    x = normal(4, 6, 5)
    check_gradient("split", [x], lambda x: x.split((1, 3, 2), 1), indices_or_sections=(1, 4), axis=1)
    check_gradient("slice_like", [x, normal(2, 6, 3)], lambda x, y: x[:2, :, :3])
    check_gradient("elemwise_sum", [x, normal(4, 6, 5, seed=2)], lambda x, y: x + y)
    check_gradient("reshape_codes", [x], lambda x: x.reshape(4, 30), shape=(0, -1))
    check_gradient("expand_like", [normal(4, 5), x], lambda r, x: r[:, None].expand(4, 6, 5), axis=(1,))
    check_gradient("expand_like", [normal(4, 1, 5), x], lambda r, x: r.expand(4, 6, 5), axis=(1,))
    check_gradient("upscale", [normal(1, 2, 3, 4)], lambda x: torch.nn.functional.interpolate(x, scale_factor=2),
                   scale=2)  # fmt: skip
    check_gradient("prelu_channels", [x, normal(6, seed=4)], torch.nn.functional.prelu)
    check_gradient("block_grad", [x], lambda x: x.detach() + 0 * x)
