"""Convolutions against eager PyTorch, in plain and blocked layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nnvm.dtype import F32
from nnvm.graph.layout import Layout
from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType
from nnvm.ops.nn_conv import from_plain, to_plain

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def blocked(t: torch.Tensor, layout: str, order: str) -> torch.Tensor:
    return torch.from_numpy(from_plain(t.numpy(), Layout.parse(layout), order))


def pairs(padding: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in padding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank,kernel,stride,padding,dilation,groups", [
    (2, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, (3, 2), (2, 1), (1, 0), (1, 2), 2),
    (2, (3, 3), (1, 1), (2, 2), (2, 2), 4),
    (1, (3,), (2,), (1,), (1,), 1),
    (3, (2, 1, 2), (1, 2, 1), (1, 0, 0), (1, 1, 1), 2),
])  # fmt: skip
def test_conv(check: Any, dtype: torch.dtype, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any,
              groups: int) -> None:  # fmt: skip
    torch.manual_seed(0)
    x = torch.randn(2, 4, *(6, 5, 4)[:rank]).to(dtype)
    w = torch.randn(8, 4 // groups, *kernel).to(dtype)
    b = torch.randn(8).to(dtype)
    attrs = {"strides": stride, "padding": pairs(padding), "dilation": dilation, "groups": groups}
    for bias in (None, b):
        expected = CONV[rank](x, w, bias, stride, padding, dilation, groups)
        check(f"conv{rank}d", [x, w] if bias is None else [x, w, b], expected, tolerance=4, **attrs)


@pytest.mark.parametrize("data,kernel,out,groups,channels", [
    ("NCHW4c", "OIHW4i4o", None, 1, 8),
    ("NCHW4c", "OIHW4i8o", None, 1, 8),
    ("NCHW", "OIHW4o", "NCHW4c", 1, 8),
    ("NCHW4c", "OIHW4i", "NCHW", 1, 8),
    ("NCHW4c", "OIHW1i4o", None, 8, 8),
    ("NCHW4c", "OIHW4i4o", None, 2, 8),
    ("NCHW2c", "OIHW4i4o", "NCHW8c", 1, 8),
    ("NHWC", "HWIO", None, 1, 8),
    ("NCHW4c", "OIHW4i4o", None, 1, 6),
])  # fmt: skip
def test_conv_layouts(check: Any, data: str, kernel: str, out: str | None, groups: int, channels: int) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(2, 8, 5, 6), torch.randn(channels, 8 // groups, 3, 3), torch.randn(channels)
    expected = blocked(F.conv2d(x, w, b, 1, 1, 1, groups), out or data, "NCHW")
    attrs = {"padding": (1, 1), "groups": groups, "data_layout": data, "kernel_layout": kernel, "out_layout": out}
    inputs = [blocked(x, data, "NCHW"), blocked(w, kernel, "OIHW"), b]
    check("conv2d", inputs, expected, tolerance=4, channels=channels, **attrs)
    if "4c" in (out or data):
        bias = blocked(b, "C4c", "C")
        check("conv2d", [*inputs[:2], bias], expected, tolerance=4, channels=channels, **attrs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_conv_other_dtypes(check: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(1, 4, 5, 5).to(dtype), torch.randn(6, 4, 3, 3).to(dtype), torch.randn(6).to(dtype)
    expected = F.conv2d(x.double(), w.double(), b.double(), padding=1).to(dtype)
    check("conv2d", [x, w, b], expected, tolerance=2, padding=1)


def test_conv_asymmetric_and_negative_padding(check: Any) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(1, 2, 6, 7), torch.randn(3, 2, 3, 3)
    expected = F.conv2d(F.pad(x, (2, 0, -1, 1)), w)
    check("conv2d", [x, w], expected, tolerance=4, padding=((-1, 1), (2, 0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank,kernel,stride,padding,output_padding,dilation,groups", [
    (2, (3, 3), (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1),
    (2, (4, 4), (2, 2), (1, 1), (0, 0), (1, 1), 2),
    (2, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1),
    (2, (3, 2), (3, 2), (0, 1), (1, 0), (2, 1), 4),
    (2, (3, 3), (2, 1), (3, 0), (0, 0), (1, 2), 1),
    (2, (1, 1), (2, 2), (0, 0), (1, 0), (1, 1), 1),
    (1, (5,), (3,), (2,), (1,), (1,), 1),
    (3, (2, 3, 2), (2, 1, 2), (0, 1, 0), (0, 0, 1), (1, 1, 1), 2),
])  # fmt: skip
def test_conv_transpose(check: Any, dtype: torch.dtype, rank: int, kernel: Any, stride: Any, padding: Any,
                        output_padding: Any, dilation: Any, groups: int) -> None:  # fmt: skip
    torch.manual_seed(0)
    x = torch.randn(2, 4, *(4, 5, 3)[:rank]).to(dtype)
    w = torch.randn(4, 8 // groups, *kernel).to(dtype)
    b = torch.randn(8).to(dtype)
    # eager rounds bfloat16 several times here: the truth is float32's, rounded once
    expected = TRANSPOSE[rank](x.float(), w.float(), b.float(), stride, padding, output_padding, groups, dilation).to(
        dtype
    )
    check(f"conv{rank}d_transpose", [x, w, b], expected, tolerance=4, strides=stride, padding=pairs(padding),
          output_padding=output_padding, dilation=dilation, groups=groups)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank,kernel,stride,padding,dilation,groups", [
    (2, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    (2, (1, 2), (2, 2), (1, 1), (1, 1), 2),
    (2, (3, 3), (2, 3), (1, 0), (2, 2), 1),
    (1, (5,), (3,), (1,), (1,), 1),
    (3, (3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 1, 1), 2),
])  # fmt: skip
def test_conv_transpose_of_what_is_not_finite(check: Any, dtype: torch.dtype, rank: int, kernel: Any, stride: Any,
                                              padding: Any, dilation: Any, groups: int) -> None:  # fmt: skip
    """An infinite element reaches the outputs of its own stencil, and makes no other one a NaN."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, *(4, 5, 3)[:rank]), torch.randn(4, 6 // groups, *kernel).to(dtype)
    x.view(-1)[5::31] = float("inf")
    x.view(-1)[22::43] = float("nan")
    x = x.to(dtype)
    expected = TRANSPOSE[rank](x.double(), w.double(), None, stride, padding, 0, groups, dilation).to(dtype)
    assert expected.isfinite().any() and expected.isnan().any() and expected.isinf().any()
    check(f"conv{rank}d_transpose", [x, w], expected, tolerance=4, strides=stride, padding=pairs(padding),
          dilation=dilation, groups=groups)  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose_blocked(check: Any, groups: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(1, 8, 4, 3), torch.randn(8, 8 // groups, 4, 4)
    expected = blocked(F.conv_transpose2d(x, w, None, 2, 1, groups=groups), "NCHW4c", "NCHW")
    check("conv2d_transpose", [blocked(x, "NCHW4c", "NCHW"), blocked(w, "IOHW4i4o", "IOHW")], expected, tolerance=4,
          strides=2, padding=1, groups=groups, data_layout="NCHW4c", kernel_layout="IOHW4i4o")  # fmt: skip


@pytest.mark.parametrize("data,weight,attrs,message", [
    ((1, 3, 8, 8), (4, 2, 3, 3), {}, "3 channels.*takes 2"),
    ((1, 4, 8, 8), (3, 2, 3, 3), {"groups": 2}, "3 output channels for 2 groups"),
    ((1, 3, 2, 2), (4, 3, 3, 3), {}, "larger than the padded data"),
    ((1, 3, 8), (4, 3, 3, 3), {}, "not of layout NCHW"),
    ((1, 3, 8, 8), (4, 3, 3, 3), {"strides": (1, 1, 1)}, "3 entries for 2 spatial axes"),
])  # fmt: skip
def test_conv_misfits(data: Any, weight: Any, attrs: Any, message: str) -> None:
    entries = [variable("x", TensorType(data)), variable("w", TensorType(weight))]
    with pytest.raises(TypeInferenceError, match=message):
        apply("conv2d", entries, attrs)


@pytest.mark.parametrize(
    "kernel,stride,padding,dilation", [((2, 3), (1, 2), (1, 0), (1, 1)), ((3, 2), (2, 1), (2, 1), (2, 1))]
)
def test_im2col_and_back(check: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 5)
    attrs = {"kernel_size": kernel, "strides": stride, "padding": pairs(padding), "dilation": dilation}
    columns = F.unfold(x, kernel, dilation, padding, stride)
    check("im2col", [x], columns, **attrs)
    check("col2im", [columns], F.fold(columns, (6, 5), kernel, dilation, padding, stride), output_size=(6, 5), **attrs)


@pytest.mark.parametrize("layout,order", [("NCHW8c", "NCHW"), ("OIHW4i8o", "OIHW"), ("NHWC", "NCHW"), ("NK16n", "NK")])
def test_plain_and_back(layout: str, order: str) -> None:
    x = np.random.default_rng(0).random([8, 16, 2, 3][: len(order)]).astype(np.float32)
    x = np.repeat(x, 2, 0)
    packed = from_plain(x, Layout.parse(layout), order)
    assert packed.shape == Layout.parse(layout).shape(dict(zip(order, x.shape)))
    np.testing.assert_array_equal(to_plain(packed, Layout.parse(layout), order), x)


def test_symbolic_batch_and_extent() -> None:
    from nnvm.dim import symbol

    b, s = symbol("b"), symbol("s")
    node = apply("conv2d", [variable("x", TensorType((b, 3, s, s))), variable("w", TensorType((4, 3, 3, 3)))],
                 {"strides": 2, "padding": 1})  # fmt: skip
    assert node[0].type == TensorType((b, 4, (s - 1) // 2 + 1, (s - 1) // 2 + 1), F32)
