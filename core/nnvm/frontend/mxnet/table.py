"""The table of converters of MXNet's operators, and what a converter sees of its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnvm.dim import numel
from nnvm.dtype import F32, DType
from nnvm.dtype import dtype as as_dtype
from nnvm.frontend.mxnet.document import Attributes, SymbolError
from nnvm.frontend.onnx.table import emit, of_array, scalar
from nnvm.graph import NodeEntry

__all__ = ["CONVERTERS", "Context", "Refused", "Results", "axes_of", "axis_of", "cast", "converts", "cut", "emit",
           "like", "of_array", "rows", "scalar", "type_named"]  # fmt: skip

Results = NodeEntry | Sequence[NodeEntry]


class Refused(Exception):
    """Why a node cannot be imported."""


class Context:
    """A node as its converter sees it: its operator, its inputs and its attributes."""

    def __init__(self, op: str, inputs: Sequence[NodeEntry], attrs: Attributes) -> None:
        self.op, self.inputs, self.attrs = op, list(inputs), attrs

    def __getitem__(self, i: int) -> NodeEntry:
        if i >= len(self.inputs):
            raise Refused(f"input {i} is missing")
        return self.inputs[i]

    def has(self, i: int) -> bool:
        return i < len(self.inputs)


Converter = Callable[[Context], Results]

CONVERTERS: dict[str, Converter] = {}


def converts(*ops: str) -> Callable[[Converter], Converter]:
    """Registers the decorated function as the converter of `ops`."""

    def add(converter: Converter) -> Converter:
        for op in ops:
            if op in CONVERTERS:
                raise ValueError(f"{op} has a converter already")
            CONVERTERS[op] = converter
        return converter

    return add


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Refused(f"axis {axis} of {rank} axes")
    return axis % rank


def axes_of(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes from 0 on, none of them twice; None and () mean all."""
    if not axes:
        return tuple(range(rank))
    found = tuple(axis_of(a, rank) for a in axes)
    if len({*found}) != len(found):
        raise Refused(f"axes {tuple(axes)}")
    return found


def cast(x: NodeEntry, dtype: DType) -> NodeEntry:
    return x if x.type.dtype == dtype else emit("cast", x, dtype=dtype)


def like(number: float, x: NodeEntry) -> NodeEntry:
    """A number as a constant without axes, of the element type of `x`."""
    return scalar(number, x.type.dtype)


def cut(x: NodeEntry, axis: int, begin: Any, end: Any, step: int = 1) -> NodeEntry:
    """`x` from `begin` to before `end` along an axis."""
    shape = x.type.shape
    begins, ends, steps = [0] * len(shape), list(shape), [1] * len(shape)
    begins[axis], ends[axis], steps[axis] = begin, end, step
    return emit("slice", x, begin=tuple(begins), end=tuple(ends), step=tuple(steps))


def rows(x: NodeEntry, lead: int = 1) -> NodeEntry:
    """The first `lead` axes as they are, all others as one."""
    shape = x.type.shape
    return emit("reshape", x, shape=(*shape[:lead], numel(shape[lead:])))


def type_named(attrs: Attributes, name: str = "dtype", default: DType = F32) -> DType:
    """The element type that an attribute names."""
    text = attrs.word(name, None)
    if text in (None, "None"):
        return default
    try:
        return as_dtype(np.dtype(text).name if text != "bfloat16" else text)
    except (TypeError, ValueError):
        raise SymbolError(f"the attribute {name} is {text!r}, which is no element type") from None
