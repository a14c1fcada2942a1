"""Pooling over one to three dimensions, with and without a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnvm.dtype import I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Unsupported, Value, converts

__all__: list[str] = []


def _spread(values: Sequence[int] | int, n: int) -> tuple[int, ...]:
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * n if len(values) == 1 else values


def _batched(c: Context, x: NodeEntry, n: int) -> NodeEntry:
    return c.reshape(x, (1, *x.type.shape)) if x.type.rank == n + 1 else x


def _window(n: int, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    size = _spread(kernel, n)
    empty = not isinstance(stride, int) and not stride
    return {"pool_size": size, "strides": size if empty else _spread(stride, n),
            "padding": tuple((p, p) for p in _spread(padding, n))}  # fmt: skip


def _max_pool(n: int) -> Any:
    def convert(c: Context, x: NodeEntry, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False) -> Value:  # fmt: skip
        if any(d == 0 for d in c.shape):
            raise Unsupported("pooling of an empty tensor")
        attrs = {**_window(n, kernel, stride, padding), "dilation": _spread(dilation, n), "ceil_mode": ceil_mode}
        x = _batched(c, x, n)
        if not c.used[1]:
            return c.reshape(c.op(f"max_pool{n}d", x, **attrs), c.shape), None
        values, indices = c.op_outputs(f"max_pool{n}d_with_indices", x, **attrs)
        return c.reshape(values, c.shape), c.reshape(indices, c.outs[1].shape)

    return convert


def _avg_pool(n: int) -> Any:
    def convert(c: Context, x: NodeEntry, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
                count_include_pad: bool = True, divisor_override: int | None = None) -> Value:  # fmt: skip
        if any(d == 0 for d in c.shape):
            raise Unsupported("pooling of an empty tensor")
        if not x.type.dtype.is_float:
            raise Unsupported("an average pooling of integers")
        attrs = {**_window(n, kernel, stride, padding), "ceil_mode": ceil_mode,
                 "count_include_pad": count_include_pad, "divisor_override": divisor_override}  # fmt: skip
        return c.reshape(c.op(f"avg_pool{n}d", _batched(c, x, n), **attrs), c.shape)

    return convert


def _adaptive_avg_pool(n: int) -> Any:
    def convert(c: Context, x: NodeEntry, size: Sequence[int]) -> Value:
        if not x.type.dtype.is_float:
            raise Unsupported("an average pooling of integers")
        out = c.op(f"adaptive_avg_pool{n}d", _batched(c, x, n), output_size=tuple(c.shape[-n:]))
        return c.reshape(out, c.shape)

    return convert


def _adaptive_max_pool(n: int) -> Any:
    def convert(c: Context, x: NodeEntry, size: Sequence[int]) -> Value:
        if c.used[1]:
            return _adaptive_max_with_indices(c, x, n)
        out = c.op(f"adaptive_max_pool{n}d", _batched(c, x, n), output_size=tuple(c.shape[-n:]))
        return c.reshape(out, c.shape), None

    return convert


def _adaptive_max_with_indices(c: Context, x: NodeEntry, n: int) -> Value:
    """Windows as rows of a table of flat positions; shorter ones repeat their last. The place is that of the first of
    equal elements and of the last NaN, as in eager."""
    lead = x.type.shape[:-n]
    sizes = [d for d in x.type.shape[-n:] if isinstance(d, int)]
    wanted = [d for d in c.shape[-n:] if isinstance(d, int)]
    if len(sizes) < n or len(wanted) < n:
        raise Unsupported("the indices of an adaptive max pooling of symbolic size")
    flat = np.zeros((1, 1), np.int64)
    for size, count in zip(sizes, wanted):
        begin = np.arange(count) * size // count
        lengths = -(-(np.arange(count) + 1) * size // count) - begin
        taps = np.arange(lengths.max())
        places = begin[:, None] + np.minimum(taps, lengths[:, None] - 1)
        flat = (flat[:, None, :, None] * size + places[None, :, None, :]).reshape(len(flat) * count, -1)
    windows, width = flat.shape
    rows = c.op("take", c.reshape(x, (*lead, math.prod(sizes))), c.const_tensor(flat, I64), axis=len(lead), mode="clip")
    values = c.op("max", rows, axis=(len(lead) + 1,), keepdims=False)
    which = c.op("argmax", rows, axis=len(lead) + 1, keepdims=False)
    if x.type.dtype.is_float:
        nth = c.const_tensor(np.arange(width), I64)
        seen = c.op("where", c.op("isnan", rows), nth, c.const(-1, I64))
        nan = c.op("max", seen, axis=(len(lead) + 1,), keepdims=False)
        which = c.op("where", c.op("greater_equal", nan, c.const(0, I64)), nan, which)
    place = c.op("add", which, c.const_tensor(np.arange(windows) * width, I64))
    indices = c.op("take", c.const_tensor(flat.reshape(-1), I64), place, axis=0, mode="clip")
    return c.reshape(values, c.shape), c.reshape(indices, c.outs[1].shape)


for _n in (1, 2, 3):
    converts(f"max_pool{_n}d_with_indices.default")(_max_pool(_n))
    converts(f"avg_pool{_n}d.default")(_avg_pool(_n))
    converts(f"_adaptive_avg_pool{_n}d.default")(_adaptive_avg_pool(_n))
    converts(f"adaptive_max_pool{_n}d.default")(_adaptive_max_pool(_n))
