"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dtype import F32, I64
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.nn import Pads, window_padding
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, of_array, scalar
from nnvm.graph import NodeEntry, apply

__all__: list[str] = []


def _widely_padded(x: NodeEntry, padding: Pads, kernel: Sequence[int], value: float) -> tuple[NodeEntry, Pads]:
    """(data, padding left to the pool): padding over half of the window, which pools do not take, is done first."""
    if all(max(p) <= k // 2 for p, k in zip(padding, kernel)):
        return x, padding
    width = ((0, 0), (0, 0), *padding)
    return emit("pad", x, pad_width=width, mode="constant", value=value), ((0, 0),) * len(kernel)


@dataclass(frozen=True)
class Windows:
    """Where a pool's windows lie, for each spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Pads
    ceil_mode: bool

    @property
    def rank(self) -> int:
        return len(self.kernel)


def _windows(c: Context, x: NodeEntry) -> Windows:
    kernel = tuple(c.attrs["kernel_shape"])
    rank = len(kernel)
    if not 1 <= rank <= 3:
        raise Unsupported(f"{rank} spatial axes")
    strides = tuple(c.attrs.get("strides", (1,) * rank))
    dilation = tuple(c.attrs.get("dilations", (1,) * rank))
    padding = window_padding(c, x.type.shape[2:], kernel, strides, dilation)
    return Windows(kernel, strides, dilation, padding, bool(c.attrs.get("ceil_mode", 0)))


def _is_usual(w: Windows) -> bool:
    """Whether the pooling ops take such windows."""
    return all(d == 1 for d in w.dilation) and all(max(p) <= k // 2 for p, k in zip(w.padding, w.kernel))


def _summed(x: NodeEntry, w: Windows) -> tuple[NodeEntry, list[np.ndarray[Any, Any]]]:
    """The sum of each window, as a convolution with ones; and for each axis and window the taps inside the data and its
    padding (row 0: inside the data)."""
    n, channels, *sizes = x.type.shape
    space = [d for d in sizes if isinstance(d, int)]
    if len(space) != len(sizes):
        raise Unsupported("such windows on a symbolic axis")
    padding, counts = [], []
    for size, k, s, d, (low, high) in zip(space, w.kernel, w.strides, w.dilation, w.padding):
        room = size + low + high - (k - 1) * d - 1
        out = (-(-room // s) if w.ceil_mode else room // s) + 1
        if w.ceil_mode and (out - 1) * s >= size + low:
            out -= 1  # a window must begin in the data or the padding before it
        more = max(0, (out - 1) * s + (k - 1) * d + 1 - (size + low + high))
        padding.append((low, high + more))
        at = np.arange(out)[:, None] * s + np.arange(k) * d - low
        counts.append(np.stack([((at >= 0) & (at < size)).sum(1), (at < size + high).sum(1)]))
    t = x.type.dtype
    ones = of_array(np.ones((1, 1, *w.kernel), t.numpy), t)
    flat = emit("reshape", x, shape=(n * channels, 1, *space))
    total = emit(f"conv{w.rank}d", flat, ones, strides=w.strides, padding=tuple(padding), dilation=w.dilation, groups=1)
    extents = tuple(c.shape[1] for c in counts)
    cut_ = total if total.type.shape[2:] == extents else emit(
        "slice", total, begin=(0,) * (w.rank + 2), end=(*total.type.shape[:2], *extents), step=(1,) * (w.rank + 2))
    return emit("reshape", cut_, shape=(n, channels, *extents)), counts


@converts("AveragePool")
def average_pool(c: Context) -> NodeEntry:
    x = c[0]
    w = _windows(c, x)
    padded = bool(c.attrs.get("count_include_pad", 0))
    if _is_usual(w):
        return emit(f"avg_pool{w.rank}d", x, pool_size=w.kernel, strides=w.strides, padding=w.padding,
                    ceil_mode=w.ceil_mode, count_include_pad=padded)  # fmt: skip
    if x.type.dtype.is_half:
        x = cast(x, F32)
    total, counts = _summed(x, w)
    sizes = counts[0][int(padded)]
    for along in counts[1:]:
        sizes = sizes[..., None] * along[int(padded)]
    if not sizes.all():
        raise Unsupported("a window that lies outside the data")
    return cast(emit("divide", total, of_array(sizes.astype(x.type.dtype.numpy), x.type.dtype)), c[0].type.dtype)


@converts("MaxPool")
def max_pool(c: Context) -> NodeEntry | list[NodeEntry]:
    x, t = c[0], c[0].type.dtype
    if t.is_int and t.bits <= 16:
        x = cast(x, F32)  # exact
    elif not t.is_float:
        raise Unsupported(f"elements of type {t}")
    w = _windows(c, x)
    padding = w.padding
    if len(c.outputs) == 1 and not w.ceil_mode:
        x, padding = _widely_padded(x, padding, w.kernel, x.type.dtype.min)
    common = {"pool_size": w.kernel, "strides": w.strides, "padding": padding, "ceil_mode": w.ceil_mode,
              "dilation": w.dilation}  # fmt: skip
    if len(c.outputs) == 1:
        return cast(emit(f"max_pool{w.rank}d", x, **common), t)
    node = apply(f"max_pool{w.rank}d_with_indices", [x], common)
    # ONNX counts positions in the whole tensor, not in each plane
    n, ch, *space = x.type.shape
    if not all(isinstance(d, int) for d in x.type.shape):
        raise Unsupported("indices in a tensor of symbolic shape")
    position = node[1]
    if c.attrs.get("storage_order", 0):
        position = _column_major(position, [int(d) for d in space])  # type: ignore[arg-type]
    planes = np.arange(n * ch, dtype=np.int64) * int(np.prod(space))  # type: ignore[operator,arg-type]
    offset = of_array(planes.reshape((n, ch, *[1] * w.rank)), I64)  # type: ignore[arg-type]
    return [cast(node[0], t), emit("add", position, offset)]


def _column_major(position: NodeEntry, space: Sequence[int]) -> NodeEntry:
    """A position in a plane counted with the first axis fastest, from one with the last axis fastest."""
    digits = []
    for size in reversed(space):
        n = scalar(size, I64)
        digits.append(emit("remainder", position, n))
        position = emit("floor_divide", position, n)
    result = digits[0]
    for digit, size in zip(digits[1:], reversed(space[:-1])):
        result = emit("add", emit("multiply", result, scalar(size, I64)), digit)
    return result


@converts("LpPool", "GlobalLpPool")
def lp_pool(c: Context) -> NodeEntry:
    x, p = c[0], c.attrs.get("p", 2)
    t = x.type.dtype
    size = emit("abs", x)
    raised = size if p == 1 else emit("multiply", x, x) if p == 2 else emit("power", size, scalar(p, t))
    if c.op == "GlobalLpPool":
        total = emit("sum", raised, axis=tuple(range(2, x.type.rank)), keepdims=True)
    else:
        w = _windows(c, x)
        if _is_usual(w):
            total = emit(f"avg_pool{w.rank}d", raised, pool_size=w.kernel, strides=w.strides, padding=w.padding,
                         ceil_mode=w.ceil_mode, divisor_override=1)  # fmt: skip
        else:
            total = cast(_summed(cast(raised, F32) if t.is_half else raised, w)[0], t)
    return total if p == 1 else emit("sqrt", total) if p == 2 else emit("power", total, scalar(1 / p, t))
