"""Convolutions, and resizing of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnvm.dim import Dim
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Unsupported, Value, converts

__all__: list[str] = []


def _spread(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One number for each of `n` dimensions; one alone counts for all."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


@converts("convolution.default", "_convolution.default")
def _convolution(
    c: Context, x: NodeEntry, weight: NodeEntry, bias: NodeEntry | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, *_: Any,
) -> Value:  # fmt: skip
    n = weight.type.rank - 2
    if not 1 <= n <= 3:
        raise Unsupported(f"a convolution over {n} dimensions")
    if any(d == 0 for d in (*x.type.shape, *weight.type.shape, *c.shape)):
        raise Unsupported("a convolution of an empty tensor")
    lead = x.type.rank == n + 1
    if lead:
        x = c.reshape(x, (1, *x.type.shape))
    attrs: dict[str, Any] = {
        "strides": _spread(stride, n), "padding": tuple((p, p) for p in _spread(padding, n)),
        "dilation": _spread(dilation, n), "groups": groups,
    }  # fmt: skip
    name = f"conv{n}d"
    inputs = [c.cast(t, c.dtype) for t in (x, weight, *([] if bias is None else [bias]))]
    if transposed:
        name, attrs["output_padding"] = f"conv{n}d_transpose", _spread(output_padding, n)
    out = c.op(name, *inputs, **attrs)
    return c.reshape(out, c.shape) if lead else out


def _resize(c: Context, x: NodeEntry, size: Sequence[Dim], mode: str, align_corners: bool,
            scales: Sequence[float | None]) -> NodeEntry:  # fmt: skip
    return c.op("upsampling", x, size=tuple(size), mode=mode, align_corners=align_corners,
                scales=tuple(None if s is None else float(s) for s in scales))  # fmt: skip


def _nearest(mode: str) -> Any:
    def convert(c: Context, x: NodeEntry, size: Sequence[Dim], *scales: float | None) -> Value:
        n = len(size)
        return _resize(c, x, size, mode, False, (*scales, *(None,) * n)[:n])

    return convert


def _smooth(mode: str) -> Any:
    def convert(c: Context, x: NodeEntry, size: Sequence[Dim], align_corners: bool, *scales: float | None) -> Value:
        n = len(size)
        if not x.type.dtype.is_float:
            raise Unsupported("a smooth interpolation of whole numbers")
        return _resize(c, x, size, mode, align_corners, (*scales, *(None,) * n)[:n])

    return convert


converts(*(f"upsample_nearest{n}d.default" for n in (1, 2, 3)))(_nearest("nearest"))
converts(*(f"_upsample_nearest_exact{n}d.default" for n in (1, 2, 3)))(_nearest("nearest_exact"))
converts("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")(_smooth("linear"))
converts("upsample_bicubic2d.default")(_smooth("cubic"))


def _by_size_or_scale(convert: Any) -> Any:
    """The overload that takes a size or factors, which exported programs keep."""

    def convert_vec(c: Context, x: NodeEntry, size: Any, *rest: Any) -> Value:
        *options, scales = rest
        out: NodeEntry = convert(c, x, c.shape[2:], *options, *(scales or ()))
        return out

    return convert_vec


converts("upsample_nearest2d.vec")(_by_size_or_scale(_nearest("nearest")))
converts("upsample_bilinear2d.vec")(_by_size_or_scale(_smooth("linear")))
