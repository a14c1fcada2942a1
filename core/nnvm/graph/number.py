"""Numbers that a user writes beside tensors: kept exactly until the element type beside them is known.

``x * 0.1`` of float64 data multiplies by the float64 number, ``n + (2**40 + 1)`` of int64 data adds exactly that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnvm.dtype import BF16, DType, f32_to_bf16
from nnvm.dtype import dtype as as_dtype
from nnvm.graph.node import NodeEntry, constant
from nnvm.graph.types import TensorType

__all__ = ["exact_constant", "number_as"]

Array = np.ndarray[Any, Any]


def exact_constant(value: Any) -> NodeEntry:
    """A constant of shape () that holds a number as it was written: int64 (or uint64), or float64.

    TypeError where `value` is no real number, ValueError where it is an integer that no element type holds.
    """
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        kind = f"an array of shape {list(value.shape)}" if getattr(value, "shape", ()) else repr(value)
        raise TypeError(f"expected a Symbol or a number, got {kind}; give arrays as a Variable's value at the call")
    whole = isinstance(value, (bool, int, np.bool_, np.integer))
    array = np.asarray(int(value) if whole else float(value))
    if array.dtype == object:
        raise ValueError(f"no element type holds the number {value}")
    return constant(array, TensorType((), as_dtype(array.dtype)))


def number_as(value: Array, dtype: DType) -> Array:
    """An array of shape () in another element type (bfloat16 as its bits).

    ValueError where the type is an integer or bool and cannot hold the number: it is never cut to one that it can.
    """
    if dtype == BF16:
        return f32_to_bf16(value.astype(np.float32))
    if dtype.is_float:
        with np.errstate(over="ignore"):  # infinite, as everything beyond a type's range is
            return value.astype(dtype.numpy)
    number = value.item()
    low, high = (0, 1) if dtype.numpy == np.bool_ else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    if not (low <= number <= high and number == int(number)):
        raise ValueError(f"the number {number} is no {dtype}; cast the values beside it to a type that holds it")
    return np.asarray(int(number), dtype.numpy)
