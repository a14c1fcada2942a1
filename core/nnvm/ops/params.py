"""Converters for op attributes: each checks a value and gives its normal form, or says what it wanted instead."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from nnvm.dim import Dim, SymDim
from nnvm.dtype import DType
from nnvm.dtype import dtype as as_dtype
from nnvm.graph.op import Param

__all__ = ["SymbolicAttribute", "axes", "axis_param", "boolean", "choice", "dim", "dims", "element_type", "integer",
           "integers", "keepdims_param", "number", "optional", "pairs", "scalar", "scalar_or_dim"]  # fmt: skip


class SymbolicAttribute(TypeError):
    """An attribute that has to be known when a graph is built is an expression of sizes."""


def integer(value: Any) -> int:
    """A Python int; bools and floats are refused, and expressions of sizes (SymbolicAttribute)."""
    if isinstance(value, SymDim):
        raise SymbolicAttribute(f"expected an integer, got {value}, which only the call knows")
    if isinstance(value, bool):
        raise TypeError("expected an integer, got a bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected an integer, got {type(value).__name__}") from None


def integers(value: Any) -> tuple[int, ...]:
    """A tuple of ints; a single int is a tuple of one."""
    return tuple(map(integer, value)) if isinstance(value, (tuple, list)) else (integer(value),)


def dim(value: Any) -> Dim:
    return value if isinstance(value, SymDim) else integer(value)


def dims(value: Any) -> tuple[Dim, ...]:
    """A tuple of dimensions; a single one is a tuple of one."""
    return tuple(map(dim, value)) if isinstance(value, (tuple, list)) else (dim(value),)


def number(value: Any) -> float:
    """A Python float."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def scalar(value: Any) -> int | float | bool:
    """A Python number that keeps its kind: bool, int or float."""
    if isinstance(value, (bool, int, float)):
        return value
    item = getattr(value, "item", None)
    if item is not None and isinstance(out := item(), (bool, int, float)):
        return out
    raise TypeError(f"expected a number, got {type(value).__name__}")


def scalar_or_dim(value: Any) -> int | float | bool | SymDim:
    """`scalar`, or an expression of sizes."""
    return value if isinstance(value, SymDim) else scalar(value)


def boolean(value: Any) -> bool:
    if value in (True, False):
        return bool(value)
    raise TypeError(f"expected True or False, got {value!r}")


def axes(value: Any) -> tuple[int, ...] | None:
    """None (all axes) or a tuple of axes."""
    return None if value is None else integers(value)


def pairs(value: Any) -> tuple[tuple[Dim, Dim], ...]:
    """(low, high) for each dimension; one number stands for both."""
    if not isinstance(value, (tuple, list)):
        value = (value,)
    out: list[tuple[Dim, Dim]] = []
    for item in value:
        both = tuple(item) if isinstance(item, (tuple, list)) else (item, item)
        if len(both) != 2:
            raise ValueError(f"expected a pair (low, high) per dimension, got {item!r}")
        out.append((dim(both[0]), dim(both[1])))
    return tuple(out)


def element_type(value: Any) -> DType:
    return as_dtype(value)


def optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`convert`, with None left alone."""
    return lambda value: None if value is None else convert(value)


def choice(*names: str) -> Callable[[Any], str]:
    """One of `names`."""

    def convert(value: Any) -> str:
        if value not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return str(value)

    return convert


axis_param = Param("axis or axes reduced; None: all; negative ones count from the end", axes, None)
keepdims_param = Param("keep reduced axes with extent 1", boolean, False)
