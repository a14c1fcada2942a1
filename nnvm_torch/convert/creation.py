"""Tensors from nothing."""

from __future__ import annotations

from typing import Any

import torch

from nnvm.dim import is_static, numel
from nnvm.dtype import F64, I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import TABLE, Context, Scalar, Unsupported, Value, converts, is_known, overload
from nnvm_torch.tensors import numpy_of

__all__: list[str] = []

#: A creation of known values with at most so many elements becomes a constant.
MAX_CONSTANT = 1 << 16


def _filled(c: Context, value: Scalar) -> NodeEntry:
    number = c.stored(value, c.dtype)
    if isinstance(value, (int, float)):
        return c.full(c.shape, value, c.dtype)
    return c.broadcast(number, c.shape)


@converts("full.default", "new_full.default")
def _full(c: Context, *args: Any, **_: Any) -> Value:
    return _filled(c, args[-1])


@converts("full_like.default")
def _full_like(c: Context, x: Any, value: Scalar, **_: Any) -> Value:
    return _filled(c, value)


@converts("fill.Scalar", "fill.Tensor")
def _fill(c: Context, x: NodeEntry, value: Scalar | NodeEntry) -> Value:
    if isinstance(value, NodeEntry):
        return c.broadcast(c.cast(value, c.dtype), c.shape)
    return _filled(c, value)


@converts("scalar_tensor.default")
def _scalar_tensor(c: Context, value: Scalar, **_: Any) -> Value:
    return _filled(c, value)


@converts("zeros.default", "zeros_like.default", "new_zeros.default", "zero.default", "empty.memory_format",
          "empty_like.default", "new_empty.default", "empty_strided.default", "new_empty_strided.default",
          "empty_permuted.default")  # fmt: skip
def _zeros(c: Context, *_: Any, **__: Any) -> Value:
    return c.full(c.shape, 0, c.dtype)


@converts("ones.default", "ones_like.default", "new_ones.default")
def _ones(c: Context, *_: Any, **__: Any) -> Value:
    return c.full(c.shape, 1, c.dtype)


def known_value(c: Context, target: Any) -> NodeEntry | None:
    """The result as a constant, where the call has no tensor and no symbolic size among its arguments."""
    if not is_static(c.shape) or numel(c.shape) > MAX_CONSTANT:  # type: ignore[operator]
        return None
    flat = torch.utils._pytree.tree_leaves((c.args, c.kwargs))
    if any(isinstance(a, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)) for a in flat):
        return None
    return c.const_tensor(numpy_of(target(*c.args, **c.kwargs)), c.dtype)


@converts("arange.start_step", "arange.start", "arange.default")
def _arange(c: Context, *args: Scalar, **_: Any) -> Value:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    return _range(c, start, step)


@converts("prims.iota.default")
def _iota(c: Context, length: Any, *, start: Scalar, step: Scalar, **_: Any) -> Value:
    return _range(c, start, step)


def _range(c: Context, start: Scalar, step: Scalar) -> NodeEntry:
    if c.dtype.is_bool:
        raise Unsupported("a range of bools")
    if is_known(start, step):
        return c.op("arange", start=start, step=step, length=c.shape[0], dtype=c.dtype)
    at = F64 if c.dtype.is_float else I64
    count = c.cast(c.op("arange", start=0, step=1, length=c.shape[0], dtype=I64), at)
    return c.cast(c.op("add", c.op("multiply", count, c.value(step, at)), c.value(start, at)), c.dtype)


def _constant(name: str) -> Any:
    target = overload(name)

    def convert(c: Context, *_: Any, **__: Any) -> Value:
        if (value := known_value(c, target)) is None:
            raise Unsupported("values that depend on a symbolic size")
        return value

    return convert


for _n in ("linspace.default", "logspace.default", "eye.default", "eye.m", "tril_indices.default",
           "triu_indices.default", "hann_window.default", "hann_window.periodic", "hamming_window.default",
           "hamming_window.periodic", "blackman_window.default", "blackman_window.periodic", "bartlett_window.default",
           "bartlett_window.periodic", "kaiser_window.default", "range.step", "range.default"):  # fmt: skip
    if (_t := overload(_n)) is not None and _t not in TABLE:
        converts(_n)(_constant(_n))
