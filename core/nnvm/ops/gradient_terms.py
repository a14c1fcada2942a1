"""Arithmetic on values of a graph, in which gradients are written.

>>> @gradient_of("square")
... def square(call, g):
...     return g * call.inputs[0] * 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import Dim, Shape
from nnvm.dtype import BF16, DType, f32_to_bf16
from nnvm.graph import op as registry
from nnvm.graph.node import Node, NodeEntry, apply, constant
from nnvm.graph.passes.gradient import sum_to_shape
from nnvm.graph.types import TensorType

__all__ = ["Call", "Rule", "Value", "array", "gradient_of", "unbroadcast", "zero_gradient", "zeros"]

Number = int | float


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a graph under Python's operators; a number beside it takes its element type."""

    entry: NodeEntry

    @property
    def shape(self) -> Shape:
        return self.entry.type.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        return self.entry.type.dtype

    def op(self, name: str, *others: Value | Number, **attrs: Any) -> Value:
        """Output 0 of op `name` on this value and `others`."""
        return Value(apply(name, [self.entry, *(self._like(o).entry for o in others)], attrs)[0])

    def _like(self, other: Value | Number) -> Value:
        return other if isinstance(other, Value) else array(np.asarray(other), self.dtype)

    def __add__(self, other: Value | Number) -> Value:
        return self.op("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.op("subtract", other)

    def __rsub__(self, other: Number) -> Value:
        return self._like(other) - self

    def __mul__(self, other: Value | Number) -> Value:
        return self if isinstance(other, (int, float)) and other == 1 else self.op("multiply", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.op("divide", other)

    def __rtruediv__(self, other: Number) -> Value:
        return self._like(other) / self

    def __neg__(self) -> Value:
        return self.op("negative")

    __radd__, __rmul__ = __add__, __mul__

    def where(self, condition: Value, other: Value | Number = 0) -> Value:
        """This value where the condition holds, else `other`."""
        return condition.op("where", self, self._like(other))

    def unless(self, condition: Value) -> Value:
        """This value, 0 where the condition holds."""
        return condition.op("where", self._like(0), self)

    def sum(self, axis: Sequence[int], keepdims: bool = False) -> Value:
        return self.op("sum", axis=tuple(axis), keepdims=keepdims) if axis else self

    def mean(self, axis: Sequence[int], keepdims: bool = False) -> Value:
        return self.op("mean", axis=tuple(axis), keepdims=keepdims) if axis else self

    def reshape(self, *shape: Dim) -> Value:
        return self if shape == self.shape else self.op("reshape", shape=shape)

    def transpose(self, *axes: int) -> Value:
        return self if axes == tuple(range(self.rank)) else self.op("transpose", axes=axes)

    def broadcast_to(self, shape: Shape) -> Value:
        return self if shape == self.shape else self.op("broadcast_to", shape=shape)

    def cast(self, dtype: DType) -> Value:
        return self if dtype == self.dtype else self.op("cast", dtype=dtype)


def array(value: np.ndarray[Any, Any], dtype: DType) -> Value:
    """A constant, contiguous in row-major order."""
    raw = f32_to_bf16(value.astype(np.float32)) if dtype == BF16 else value.astype(dtype.numpy)
    raw = np.array(raw, order="C")
    return Value(constant(raw, TensorType(tuple(raw.shape), dtype)))


def zeros(like: Value) -> Value:
    """0 everywhere, in the type of `like`."""
    return Value(apply("full", [], {"shape": like.shape, "dtype": like.dtype, "value": 0})[0])


@dataclass(frozen=True)
class Call:
    """The node that is differentiated."""

    node: Node

    @property
    def inputs(self) -> list[Value]:
        return [Value(e) for e in self.node.inputs]

    @property
    def out(self) -> Value:
        return Value(self.node[0])

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.node.attrs


#: (node, gradient of its output 0) -> gradients of the inputs; one alone stands for that of the first.
Rule = Callable[[Call, Value], "Value | Sequence[Value | None]"]


def gradient_of(*names: str) -> Callable[[Rule], Rule]:
    """Attaches the decorated rule to the ops; inputs that it says nothing of have no gradient."""

    def decorate(rule: Rule) -> Rule:
        def gradient(node: Node, out_grads: Sequence[NodeEntry | None]) -> list[NodeEntry | None]:
            head = out_grads[0]
            if head is None:  # only outputs that have no gradient are used further
                return [None] * len(node.inputs)
            found = rule(Call(node), Value(head))
            given = [found] if isinstance(found, Value) else list(found)
            given += [None] * (len(node.inputs) - len(given))
            return [None if v is None else v.entry for v in given]

        for name in names:
            registry.get(name).set_attr("gradient", gradient)
        return rule

    return decorate


def zero_gradient(*names: str) -> None:
    """Of ops that are constant between their steps."""
    for name in names:
        registry.get(name).set_attr("gradient", lambda node, out_grads: [None] * len(node.inputs))


def unbroadcast(grad: Value, operand: Value) -> Value:
    """The gradient of an operand that was broadcast to the shape of `grad`."""
    return Value(sum_to_shape(grad.entry, operand.shape))
