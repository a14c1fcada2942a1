"""The table of converters, and what a converter works with.

A converter gets a `Context` and the arguments of the ATen call, where tensors are NodeEntries, sizes are Dims and
all else is as in PyTorch. It gives one entry, or a tuple of entries (None for an output that it cannot give), and
raises `Unsupported` where ATen must run the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np
import torch

from nnvm.dim import Dim, Shape, SymDim
from nnvm.dtype import F16, I64, DType
from nnvm.graph import NodeEntry, TensorType, apply, constant
from nnvm_torch.tensors import dim_of, dtype_of, numpy_of, torch_dtype

__all__ = ["TABLE", "Context", "Converter", "NeedsMemory", "Operand", "Scalar", "Unsupported", "Value", "converter_of",
           "converts", "holds", "is_known", "normal_axes", "normal_axis"]  # fmt: skip

Value = Union[NodeEntry, "tuple[NodeEntry | None, ...]"]
Scalar = int | float | bool | SymDim
Operand = NodeEntry | Scalar
Converter = Callable[..., Value]

TABLE: dict[Any, Converter] = {}
#: Converters of operators that torch does not have, by name. Parts of torch register theirs when they are first needed.
_ABSENT: dict[str, Converter] = {}


class Unsupported(Exception):
    """This call has no conversion; the message says why."""


class NeedsMemory(Unsupported):
    """This call has a meaning only where tensors lie as in eager: ATen must run the whole graph."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Registers the decorated function for ATen overloads (``add.Tensor``; ``prims.iota.default`` for another
    namespace). Names that this version of torch does not have are never looked up."""

    def decorate(fn: Converter) -> Converter:
        for name in names:
            if (target := overload(name)) is None:
                _ABSENT[name if name.count(".") > 1 else f"aten.{name}"] = fn
            elif target in TABLE:
                raise ValueError(f"{name} has a converter already")
            else:
                TABLE[target] = fn
        return fn

    return decorate


def converter_of(target: Any) -> Converter | None:
    """The converter for a call's target, if there is one."""
    return TABLE.get(target) or _ABSENT.get(str(target))


def overload(name: str) -> Any:
    """The operator overload of that name, None where this torch lacks it."""
    namespace, op, kind = (["aten", *name.split(".")] if name.count(".") == 1 else name.split("."))[:3]
    packet = getattr(getattr(torch.ops, namespace), op, None)
    return getattr(packet, kind, None)


class Context:
    """One call being converted.

    Attributes:
        args, kwargs: the arguments as torch has them, tensors as fake tensors.
        outs: types that torch gives the results.
        used: for each result, whether anything uses it.
        source: the user's source line.
    """

    def __init__(
        self, args: Sequence[Any], kwargs: dict[str, Any], outs: Sequence[TensorType], used: Sequence[bool],
        source: str, is_param: Callable[[NodeEntry], bool],
    ) -> None:  # fmt: skip
        self.args, self.kwargs, self.outs, self.used, self.source = args, kwargs, outs, used, source
        self.is_param = is_param

    @property
    def out(self) -> TensorType:
        return self.outs[0]

    @property
    def dtype(self) -> DType:
        return self.out.dtype

    @property
    def shape(self) -> Shape:
        return self.out.shape

    def traced(self, position: int, name: str) -> Any:
        """An argument as torch has it: a size that only the call knows is a `torch.SymInt`, whose comparisons are
        guards."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name)

    def op(self, name: str, *inputs: NodeEntry, **attrs: Any) -> NodeEntry:
        return apply(name, inputs, attrs, source=self.source)[0]

    def op_outputs(self, name: str, *inputs: NodeEntry, **attrs: Any) -> tuple[NodeEntry, ...]:
        return apply(name, inputs, attrs, source=self.source).outputs

    # values

    def cast(self, x: NodeEntry, dtype: DType) -> NodeEntry:
        return x if x.type.dtype == dtype else self.op("cast", x, dtype=dtype)

    def const(self, value: int | float | bool, dtype: DType) -> NodeEntry:
        """A constant of shape ()."""
        return constant(_array(value, dtype), TensorType((), dtype))

    def const_tensor(self, value: np.ndarray, dtype: DType) -> NodeEntry:  # type: ignore[type-arg]
        return constant(np.ascontiguousarray(value, dtype.numpy), TensorType(value.shape, dtype))

    def value(self, x: NodeEntry | Scalar, dtype: DType) -> NodeEntry:
        """A tensor or a number as a tensor of `dtype` that broadcasts."""
        if isinstance(x, NodeEntry):
            return self.cast(x, dtype)
        if isinstance(x, SymDim):
            return self.cast(self.dim_value(x), dtype)
        if not isinstance(x, (int, float, bool)):
            raise Unsupported(f"a scalar of type {type(x).__name__}")
        return self.const(x, dtype)

    def dim_value(self, d: Dim) -> NodeEntry:
        """A size as an int64 tensor of shape ()."""
        return self.const(d, I64) if isinstance(d, int) else self.full((), d, I64)

    def compute(self, x: NodeEntry) -> NodeEntry:
        """The tensor in the type that arithmetic is done in: float32 for the half types."""
        return self.cast(x, x.type.dtype.compute)

    def truth(self, x: NodeEntry) -> NodeEntry:
        """Whether each element is not zero."""
        return x if x.type.dtype.is_bool else self.op("not_equal", x, self.const(0, x.type.dtype))

    def stored(self, value: Scalar | NodeEntry, dtype: DType) -> NodeEntry:
        """A number that is written into a tensor of `dtype`, or a tensor cast to it. Unsupported where the type cannot
        hold the number: ATen says so (c10/util/TypeCast.h, `overflows`; a negative number that is whole wraps in an
        unsigned type). Of a number that only the call knows, a guard says whether it can."""
        number = self._as_traced(value) if isinstance(value, SymDim) else value
        if not isinstance(number, NodeEntry) and not holds(dtype, number):
            raise Unsupported(f"{value} in a tensor of {dtype}")
        return self.value(value, dtype)

    def _as_traced(self, d: SymDim) -> Any:
        """An expression among the arguments as torch has it; Unsupported where it is none of them."""
        for a in torch.utils._pytree.tree_leaves((self.args, self.kwargs)):
            if isinstance(a, torch.SymInt) and dim_of(a) == d:
                return a
        raise Unsupported(f"{d}, of which no guard can say whether a tensor holds it")

    def full(self, shape: Shape, value: Scalar, dtype: DType) -> NodeEntry:
        return self.op("full", shape=shape, dtype=dtype, value=value)

    # shapes

    def reshape(self, x: NodeEntry, shape: Shape) -> NodeEntry:
        return x if x.type.shape == tuple(shape) else self.op("reshape", x, shape=tuple(shape))

    def broadcast(self, x: NodeEntry, shape: Shape) -> NodeEntry:
        return x if x.type.shape == tuple(shape) else self.op("broadcast_to", x, shape=tuple(shape))

    def transpose(self, x: NodeEntry, axes: Sequence[int]) -> NodeEntry:
        return x if list(axes) == list(range(len(axes))) else self.op("transpose", x, axes=tuple(axes))

    def swap(self, x: NodeEntry, a: int, b: int) -> NodeEntry:
        axes = list(range(x.type.rank))
        axes[a], axes[b] = axes[b], axes[a]
        return self.transpose(x, axes)

    def slice(self, x: NodeEntry, axis: int, begin: Dim, length: Dim, step: int = 1) -> NodeEntry:
        """`length` elements of `axis` from `begin` on, each `step`-th."""
        shape = x.type.shape
        if begin == 0 and step == 1 and length == shape[axis]:
            return x
        end = begin + (length - 1) * step + 1 if length != 0 else begin
        begins: list[Dim] = [0] * len(shape)
        ends, steps = list(shape), [1] * len(shape)
        begins[axis], ends[axis], steps[axis] = begin, end, step
        return self.op("slice", x, begin=tuple(begins), end=tuple(ends), step=tuple(steps))

    def concat(self, parts: Sequence[NodeEntry], axis: int) -> NodeEntry:
        return parts[0] if len(parts) == 1 else self.op("concatenate", *parts, axis=axis)

    # facts

    def result_type(self, *xs: Any) -> DType:
        """torch's promotion of some of the call's arguments (fake tensors and numbers)."""
        numbers = {torch.SymInt: 0, torch.SymFloat: 0.0}
        t = torch.result_type(*[numbers.get(type(x), x) for x in xs])
        if (d := dtype_of(t)) is None:
            raise Unsupported(f"dtype {t}")
        return d


def is_known(*values: Any) -> bool:
    """Are all of them numbers, none of which only the call knows?"""
    return all(isinstance(v, (int, float)) for v in values)


def holds(dtype: DType, value: int | float | torch.SymInt) -> bool:
    """Does ATen take the number for a tensor of `dtype`? Of a `torch.SymInt` that may be either, the answer is a guard
    on its range, not on its value."""
    if dtype.is_bool or value is True or value is False:
        return True
    if isinstance(value, torch.SymInt):
        return _holds_whole(dtype, value)
    if dtype.is_float:
        return not math.isfinite(value) or abs(value) <= torch.finfo(torch_dtype(dtype)).max
    if not math.isfinite(value):
        return False
    low = dtype.min if dtype.is_signed or isinstance(value, float) else -dtype.max
    return low <= value <= dtype.max


def _holds_whole(dtype: DType, value: torch.SymInt) -> bool:
    if dtype.bits == 64 or (dtype.is_float and dtype != F16):
        return True  # floats of 8 bits of exponent are larger than any integer of 64
    high = int(torch.finfo(torch.float16).max) if dtype.is_float else int(dtype.max)
    low = int(dtype.min) if dtype.is_signed and not dtype.is_float else -high
    return bool(value >= low) and bool(value <= high)


def _array(value: int | float | bool, dtype: DType) -> np.ndarray:  # type: ignore[type-arg]
    """A number as an array of shape (), converted as torch converts it (integers wrap)."""
    if dtype.is_int and isinstance(value, float):
        value = int(value)
    if dtype.is_int and not dtype.min <= value <= dtype.max:
        value = (int(value) - int(dtype.min)) % (1 << dtype.bits) + int(dtype.min)
    if dtype.is_float and not dtype.is_half:
        with np.errstate(over="ignore"):
            return np.asarray(value, dtype.numpy)
    return numpy_of(torch.tensor(value, dtype=torch_dtype(dtype)))


def normal_axis(axis: int, rank: int) -> int:
    return axis + max(rank, 1) if axis < 0 else axis


def normal_axes(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Axes from 0 on; none given means all."""
    if isinstance(axes, int):
        axes = (axes,)
    return tuple(normal_axis(a, rank) for a in axes) if axes else tuple(range(rank))
