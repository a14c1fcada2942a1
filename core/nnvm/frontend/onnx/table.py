"""The table of converters, and what a converter sees of its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from nnvm.dim import Dim, SymDim, is_static
from nnvm.dtype import BF16, I64, DType, bf16_to_f32
from nnvm.frontend.onnx.formats import Narrow
from nnvm.graph import NodeEntry, TensorType, apply, constant, topological
from nnvm.graph.evaluate import can_evaluate, evaluate_node

__all__ = ["CONVERTERS", "Context", "Converter", "Dims", "NeedsValue", "Tensors", "Unsupported", "converts", "counted",
           "emit", "find", "known", "materialise", "of_array", "of_dims", "scalar"]  # fmt: skip

Array = np.ndarray[Any, Any]

#: Constants of up to so many elements are computed while importing.
FOLD_LIMIT = 4096


#: Elements of a tensor, at most: no machine holds more.
LARGEST = 1 << 40
#: Elements of a constant that importing makes out of numbers, at most.
LARGEST_CONSTANT = 1 << 26


class Unsupported(Exception):
    """Why a node cannot be imported."""


class NeedsValue(Unsupported):
    """A node needs a value that is known at the call only.

    Attributes:
        inputs: the graph inputs that the value is computed from.
    """

    def __init__(self, what: str, inputs: frozenset[str]) -> None:
        super().__init__(f"{what} must be known when the model is imported; it depends on {', '.join(sorted(inputs))}")
        self.inputs = inputs


@dataclass(frozen=True)
class Dims:
    """An integer tensor whose elements are sizes, some of them symbolic: an array of ``Dim`` objects."""

    array: Array
    dtype: DType = I64


@dataclass(frozen=True)
class Tensors:
    """A sequence of tensors, whose length is known."""

    items: tuple[Value, ...]


Value = NodeEntry | Dims | Narrow | Tensors
Results = Value | Sequence[Value | None]


class Context:
    """A node as its converter sees it.

    Attributes:
        inputs: its values; None where an optional one is left out.
        attrs: its attributes as Python values and numpy arrays.
        opset: version of its domain that the model asks for.
        outputs: for each output, whether it has a name.
        params: arrays of the variables of kind ``param``, by name.
    """

    def __init__(
        self, op: str, inputs: Sequence[Value | None], attrs: Mapping[str, Any], opset: int, outputs: Sequence[bool],
        params: Mapping[str, Array],
    ) -> None:  # fmt: skip
        self.op, self.opset, self.params = op, opset, params
        self.inputs, self.attrs, self.outputs = list(inputs), attrs, outputs

    def like(self, *inputs: Value | None, **attrs: Any) -> Context:
        """The same node with other inputs, and some other attributes, for the converter of another op."""
        return Context(self.op, inputs, {**self.attrs, **attrs}, self.opset, self.outputs, self.params)

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def __getitem__(self, i: int) -> NodeEntry:
        """Input `i` as a tensor of the graph."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise Unsupported(f"input {i} is missing")
        return materialise(value)

    def optional(self, i: int) -> NodeEntry | None:
        return self[i] if self.has(i) else None

    def value(self, i: int, what: str) -> Array:
        """The elements of input `i`; of dtype object where they are sizes. NeedsValue where they are not known."""
        value = self.inputs[i]
        if isinstance(value, Dims):
            return value.array
        entry = self[i]
        if entry.node.is_variable and entry.node.name in self.params:
            array = self.params[entry.node.name]
        elif entry.node.is_constant:
            array = entry.node.attrs["value"]
        else:
            names = {n.name for n in topological([entry]) if n.is_variable and n.name not in self.params}
            if not names:
                raise Unsupported(f"{what} is computed from weights in a way that is not folded")
            raise NeedsValue(what, frozenset(names))
        return np.asarray(bf16_to_f32(array) if entry.type.dtype == BF16 else array)

    def dims(self, i: int, what: str) -> tuple[Dim, ...]:
        """The elements of an integer vector, as sizes."""
        return tuple(d if isinstance(d, SymDim) else int(d) for d in self.value(i, what).ravel())

    def ints(self, i: int, what: str) -> tuple[int, ...]:
        dims = self.dims(i, what)
        if not is_static(dims):
            raise Unsupported(f"{what} {dims} is symbolic")
        return tuple(int(d) for d in dims)  # type: ignore[arg-type]

    def axes(self, i: int, rank: int) -> tuple[int, ...] | None:
        """Axes, not negative, from the attribute ``axes`` (older opsets) or from input `i`; None where not given."""
        if "axes" in self.attrs:
            axes: Sequence[int] = self.attrs["axes"]
        elif self.has(i):
            axes = self.ints(i, "axes")
        else:
            return None
        return tuple(axis_of(a, rank) for a in axes)

    def axis(self, default: int, rank: int) -> int:
        return axis_of(self.attrs.get("axis", default), rank)


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} of {rank} axes")
    return axis + rank if axis < 0 else axis


Converter = Callable[[Context], Results]
C = TypeVar("C", bound=Converter)

#: op type -> ((domain, first opset, last opset, converter), ...)
CONVERTERS: dict[str, list[tuple[str, int, int, Converter]]] = {}


def converts(*ops: str, since: int = 1, until: int = 1 << 30, domain: str = "") -> Callable[[C], C]:
    """Registers a converter of `ops` for opsets `since` to `until`."""

    def add(converter: C) -> C:
        for op in ops:
            CONVERTERS.setdefault(op, []).append((domain, since, until, converter))
        return converter

    return add


def find(domain: str, op: str, opset: int) -> Converter | None:
    for of, since, until, converter in CONVERTERS.get(op, ()):
        if of == domain and since <= opset <= until:
            return converter
    return None


def emit(op: str, *inputs: NodeEntry, **attrs: Any) -> NodeEntry:
    """The first output of a new node; computed at once where it depends on small constants only."""
    node = apply(op, inputs, attrs)
    entry = node[0]
    size = entry.type.numel
    if isinstance(size, int) and size > LARGEST:
        raise Unsupported(f"a tensor of {size} elements")
    if all(e.node.is_constant for e in inputs) and isinstance(size, int) and size <= FOLD_LIMIT and can_evaluate(node):
        if not all(is_static(v) for v in node.attrs.values() if isinstance(v, tuple)) or any(
            isinstance(v, SymDim) for v in node.attrs.values()
        ):
            return entry
        (array, *_) = evaluate_node(node, [e.node.attrs["value"] for e in inputs])
        return constant(np.asarray(array).reshape(entry.type.shape), entry.type)
    return entry


def known(value: Value | None) -> Array | None:
    """The elements of an integer constant or of sizes, None of anything else."""
    if isinstance(value, Dims):
        return value.array
    if isinstance(value, NodeEntry) and value.node.is_constant and value.type.dtype.is_int:
        return np.asarray(value.node.attrs["value"])
    return None


def of_array(array: Array, dtype: DType) -> NodeEntry:
    """A constant; `array` holds bfloat16 as bits."""
    return constant(np.ascontiguousarray(array).reshape(array.shape), TensorType(array.shape, dtype))


def of_dims(dims: Any, dtype: DType = I64) -> Value:
    """The integer tensor of some sizes: a constant where all are known."""
    array = np.asarray(dims, object)
    if all(isinstance(d, (int, np.integer)) for d in array.ravel()):
        return of_array(array.astype(dtype.numpy), dtype)
    return Dims(array, dtype)


def materialise(value: Value) -> NodeEntry:
    """The value as a tensor of the graph; Unsupported for symbolic sizes, which no kernel gets as numbers."""
    if isinstance(value, Dims):
        raise Unsupported(f"the symbolic sizes {value.array.tolist()} as a tensor")
    if isinstance(value, Tensors):
        raise Unsupported(f"a sequence of {len(value.items)} tensors, where one tensor is wanted")
    if isinstance(value, Narrow):
        raise Unsupported(f"elements of type {value.format.name}")
    return value


def counted(n: int, what: str) -> int:
    """`n` where a constant may have so many elements; Unsupported else."""
    if not 0 <= n <= LARGEST_CONSTANT:
        raise Unsupported(f"{what} of {n} elements, more than {LARGEST_CONSTANT}")
    return n


def scalar(number: Any, dtype: DType) -> NodeEntry:
    """A constant without axes."""
    if dtype == BF16:
        raise Unsupported("bfloat16 constants")
    return of_array(np.asarray(number).astype(dtype.numpy), dtype)
