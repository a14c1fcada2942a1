"""Arithmetic on sizes while importing: ``Shape -> Gather -> Concat -> Reshape`` leaves no node, symbolic or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nnvm.dtype import I32, I64
from nnvm.frontend.onnx.table import Context, Dims, Value, known, of_dims

__all__ = ["fold_sizes"]

Array = np.ndarray[Any, Any]


def fold_sizes(c: Context) -> Value | None:
    """What a node gives for integers of which some are symbolic sizes; None where it is to be converted as usual."""
    if not any(isinstance(v, Dims) for v in c.inputs) or c.op not in _FOLDS:
        return None
    arrays = [known(v) for v in c.inputs]
    if any(a is None for a in arrays):
        return None
    result = _FOLDS[c.op](c, *(np.asarray(a, object) for a in arrays))
    if result is None:
        return None
    given = next(v.dtype for v in c.inputs if isinstance(v, Dims))
    return of_dims(result, _CASTS.get(c.attrs["to"], given) if c.op == "Cast" else given)


#: Types that sizes may have, by their code.
_CASTS = {6: I32, 7: I64}


def _gather(c: Context, data: Array, indices: Array) -> Array:
    return np.asarray(np.take(data, indices.astype(np.int64), axis=c.attrs.get("axis", 0)), object)


def _squeeze(c: Context, data: Array, axes: Array | None = None) -> Array:
    given = c.axes(1, data.ndim)
    return np.squeeze(data, axis=given)


def _unsqueeze(c: Context, data: Array, axes: Array | None = None) -> Array | None:
    given = c.attrs.get("axes") or (tuple(int(a) for a in axes) if axes is not None else None)
    return None if given is None else np.expand_dims(data, given)


def _slice(c: Context, data: Array, *bounds: Array) -> Array | None:
    if data.ndim != 1 or len(bounds) < 2:
        return None
    start, end = int(bounds[0][0]), int(bounds[1][0])
    step = int(bounds[3][0]) if len(bounds) > 3 else 1
    return data[start:end:step]


def _cast(c: Context, data: Array) -> Array | None:
    return data if c.attrs["to"] in _CASTS else None


def _reshape(c: Context, data: Array, shape: Array) -> Array:
    return data.reshape(tuple(int(d) for d in shape))


_FOLDS: dict[str, Callable[..., Array | None]] = {
    "Gather": _gather, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Slice": _slice, "Cast": _cast,
    "Reshape": _reshape, "Identity": lambda c, x: x,
    "Concat": lambda c, *parts: np.concatenate(parts, axis=c.attrs["axis"]),
    "Add": lambda c, a, b: np.asarray(a + b, object), "Sub": lambda c, a, b: np.asarray(a - b, object),
    "Mul": lambda c, a, b: np.asarray(a * b, object),
}  # fmt: skip
