"""Parts of compute bodies that families of ops share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnvm import te
from nnvm.dim import Dim, Shape
from nnvm.dtype import DType
from nnvm.te.expr import Expr
from nnvm.te.tensor import IterVar, Tensor

__all__ = ["as_float", "over", "read", "read_broadcast", "reduce_axes", "rounded"]


def over(shape: Shape, name: str, fn: Callable[..., Expr], attrs: dict[str, Any] | None = None) -> Tensor:
    """`te.compute` whose function takes any number of indices."""
    return te.compute(shape, fn, name, attrs, axis_names=[f"i{d}" for d in range(len(shape))])


def read(t: Tensor, *indices: Expr) -> Expr:
    """`t[indices]`."""
    return t[indices]


def read_broadcast(t: Tensor, indices: Sequence[Expr], shape: Shape) -> Expr:
    """The element of `t` that numpy's broadcasting to `shape` puts at `indices`."""
    skip = len(shape) - len(t.shape)
    own = tuple(te.const(0) if d == 1 and shape[skip + i] != 1 else indices[skip + i] for i, d in enumerate(t.shape))
    return t[own]


def rounded(t: Tensor, dtype: DType) -> Tensor:
    """`t` as `dtype`, in a stage of its own where that is a change: the one rounding of a half-type op."""
    return t if t.dtype == dtype else over(t.shape, f"{t.name}_{dtype}", lambda *i: te.cast(t[i], dtype))


def reduce_axes(extents: Sequence[Dim], prefix: str = "r") -> list[IterVar]:
    return [te.reduce_axis(d, f"{prefix}{i}") for i, d in enumerate(extents)]


def as_float(size: Dim, dtype: DType) -> Expr:
    """A size as a float expression."""
    return te.cast(te.const(size), dtype) if not isinstance(size, int) else te.const(float(size), dtype)
