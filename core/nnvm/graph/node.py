"""Nodes and the values they give."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnvm.graph import op as registry
from nnvm.graph.op import Op
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType

__all__ = ["Node", "NodeEntry", "TypeInferenceError", "apply", "constant", "retyped", "variable"]

_counter = itertools.count()


class TypeInferenceError(ValueError):
    """Shapes or dtypes of a node's inputs do not fit together; the message shows the node and its input types."""


@dataclass(eq=False, slots=True)
class Node:
    """One application of an Op; immutable by convention, compared by identity.

    Attributes:
        attrs: every param of the op, normalised.
        types: type of each output; None as long as it is not inferred.
        source: the user's source line that it comes from, for reports; "" unknown.
    """

    op: Op
    inputs: tuple[NodeEntry, ...]
    attrs: Mapping[str, Any]
    name: str
    types: tuple[TensorType, ...] | None
    source: str = ""

    @property
    def num_outputs(self) -> int:
        return len(self.types) if self.types is not None else self.op.outputs(self.attrs)

    @property
    def is_variable(self) -> bool:
        return self.op.name == "variable"

    @property
    def is_constant(self) -> bool:
        return self.op.name == "constant"

    @property
    def outputs(self) -> tuple[NodeEntry, ...]:
        count = self.num_outputs
        return (NodeEntry(self, 0),) if count == 1 else tuple(NodeEntry(self, i) for i in range(count))

    def __getitem__(self, index: int) -> NodeEntry:
        return NodeEntry(self, index)

    def __repr__(self) -> str:
        types = ", ".join(map(str, self.types)) if self.types is not None else "?"
        return f"{self.name} = {self.op.name}({', '.join(str(e) for e in self.inputs)}): {types}"


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """Output `index` of `node`: a value in the graph."""

    node: Node
    index: int = 0

    @property
    def type(self) -> TensorType:
        """Its type; TypeInferenceError where types are not inferred yet (run InferType)."""
        if self.node.types is None:
            raise TypeInferenceError(f"the type of {self} is not known yet; run the pass InferType")
        return self.node.types[self.index]

    def __str__(self) -> str:
        return self.node.name if self.node.num_outputs == 1 else f"{self.node.name}.{self.index}"


def apply(
    op: Op | str, inputs: Sequence[NodeEntry], attrs: Mapping[str, Any] | None = None, name: str = "", source: str = "",
) -> Node:  # fmt: skip
    """A new node. Its types are inferred where all input types are known; TypeInferenceError says what does not fit."""
    op = registry.get(op) if isinstance(op, str) else op
    op.check_inputs(len(inputs))
    full = op.normalise(attrs or {})
    node = Node(op, tuple(inputs), full, name or f"{op.name}_{next(_counter)}", None, source)
    if all(e.node.types is not None for e in inputs) and op.has("infer_type"):
        node.types = infer_node(node, tuple(e.type for e in inputs))
    return node


def infer_node(node: Node, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Output types of `node` for these input types."""
    try:
        outputs = tuple(node.op.attr("infer_type")(node.attrs, inputs))
        if any(isinstance(d, int) and d < 0 for t in outputs for d in t.shape):
            raise ValueError(f"the result {', '.join(map(str, outputs))} has a size below 0")
        return _on_device(node, inputs, outputs)
    except (ValueError, TypeError, IndexError) as e:
        shown = ", ".join(f"{x}: {t}" for x, t in zip(node.inputs, inputs))
        at = f" ({node.source})" if node.source else ""
        raise TypeInferenceError(f"{node.op.name} {node.name}({shown}): {e}{at}") from None


def _on_device(node: Node, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """The output types on the device where the node runs: that of its inputs. Constants are wherever they are read."""
    if all(t.device == "cpu" for t in inputs) or node.op.attr("sets_device"):
        return outputs
    device = next((t.device for e, t in zip(node.inputs, inputs) if not e.node.is_constant), inputs[0].device)
    return tuple(t if t.device == device else replace(t, device=device) for t in outputs)


def variable(
    name: str, type: TensorType | None = None, kind: str = "input", notes: Mapping[str, Any] | None = None
) -> NodeEntry:
    """An input of the graph. `kind`: ``input`` (new at each call), ``param`` (a weight), ``prepared`` (computed from
    weights once per weight version). `notes`: attributes of users (`nnvm.attribute`)."""
    attrs = {"kind": kind, **(notes or {})}
    return NodeEntry(Node(_VARIABLE, (), attrs, name, (type,) if type is not None else None))


def retyped(v: Node, type: TensorType) -> NodeEntry:
    """The variable `v` with another type; its kind and the user's attributes stay."""
    return NodeEntry(Node(_VARIABLE, (), v.attrs, v.name, (type,)))


def constant(value: Any, type: TensorType, name: str = "") -> NodeEntry:
    """A constant; `value` is a numpy array of `type` (bfloat16 as its uint16 bits)."""
    value = np.asarray(value)  # a numpy scalar has no memory to point at
    if tuple(value.shape) != type.shape or value.dtype != type.dtype.numpy:
        raise ValueError(f"constant of type {type} from an array {value.dtype}{list(value.shape)}")
    if not value.flags.c_contiguous:
        value = value.copy(order="C")
    return NodeEntry(Node(_CONSTANT, (), {"value": value}, name or f"const_{next(_counter)}", (type,)))


_VARIABLE = registry.register(
    "variable", params={"kind": registry.Param("input, param or prepared", str, "input")}, pattern=OpPattern.OPAQUE,
    doc="An input of the graph.",
)  # fmt: skip
_CONSTANT = registry.register(
    "constant", params={"value": registry.Param("the array", lambda v: v)}, pattern=OpPattern.ELEMWISE,
    is_constant=True, doc="A constant array.",
)  # fmt: skip
