"""What an op says about the types around it: equations between its inputs and outputs, used in every direction.

The op attribute ``type_relation`` holds a `TypeRelation`. Its equations see a `Relation`, whose inputs and outputs are
values of which little may be known, and state what must hold; whatever is known flows to where it is not:

>>> def dense(r):                              # data [..., K], weight [N, K] -> [..., N]
...     data, weight = r.inputs[:2]
...     k = r.rank(weight, 2)[1]
...     if data.shape is not None:
...         r.equal(data.shape[-1], k, "features", data, weight)

The rule ``infer_type`` stays the judge of complete types. A relation only has to say what that rule demands of its
inputs (else it fails) and which ranks follow from which; sizes of the output flow back through the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnvm.dim import Dim, Shape
from nnvm.dtype import DType
from nnvm.graph.dim_solver import Contradiction, DimSolver, has_unknown
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError

__all__ = ["Relation", "TypeRelation", "Value"]


@dataclass(frozen=True)
class TypeRelation:
    """The op attribute.

    Attributes:
        equations: states what holds; ValueError from it says what does not fit.
        symbolic: whether ``infer_type`` is right for sizes that are still unknown, so that it may run on them (or a
            function of the attributes that tells). It is not where it decides by an extent (which axes have extent 1,
            whether a slice ends inside).
        weak: what is assumed where nothing else determines a type, such as that a norm's weights have the data's dtype.
    """

    equations: Callable[[Relation], None]
    symbolic: bool | Callable[[Mapping[str, Any]], bool] = True
    weak: Callable[[Relation], None] | None = None

    def is_symbolic(self, attrs: Mapping[str, Any]) -> bool:
        return self.symbolic(attrs) if callable(self.symbolic) else self.symbolic


class Value:
    """What is known of the type of one value of the graph.

    Attributes:
        entry: the value.
        dtype: None as long as it is not known.
        sayer: the node that told its rank, for messages.
    """

    __slots__ = ("_raw", "_seen", "_shape", "_solver", "dtype", "entry", "sayer")

    def __init__(self, entry: NodeEntry, solver: DimSolver) -> None:
        self.entry = entry
        self.dtype: DType | None = None
        self.sayer: Node | None = None
        self._solver = solver
        self._raw: Shape | None = None  # as it was first said: the solver knows why its unknowns are what they are
        self._shape: Shape | None = None
        self._seen = -1

    @property
    def shape(self) -> Shape | None:
        """The shape, with unknowns in it; None where not even the rank is known."""
        if self._shape is not None and self._seen != self._solver.version:
            self._shape = tuple(map(self._solver.resolve, self._shape))
            self._seen = self._solver.version
        return self._shape

    @property
    def is_known(self) -> bool:
        """Whether every size is known (as a number or a named size)."""
        shape = self.shape
        return shape is not None and not any(map(has_unknown, shape))

    def tell(self, shape: Shape, sayer: Node | None) -> None:
        """Gives a value its first shape."""
        self._raw = self._shape = shape
        self.sayer = sayer
        self._solver.version += 1

    def sayers(self, sizes: tuple[Dim, ...] = ()) -> list[Node]:
        """The nodes that told its rank, and those of its sizes that are in `sizes`."""
        found = [] if self.sayer is None else [self.sayer]
        for d in self._raw or ():
            if not sizes or self._solver.resolve(d) in sizes:
                found += [n for n in self._solver.reasons(d) if isinstance(n, Node)]
        return list(dict.fromkeys(found))

    def __str__(self) -> str:
        dtype = "" if self.dtype is None else str(self.dtype)
        if self.shape is None:
            return f"{dtype}[...]"
        return f"{dtype}[{', '.join('?' if has_unknown(d) else str(d) for d in self.shape)}]"


class Relation:
    """One node with the values around it; the methods state what holds and raise TypeInferenceError where it cannot.

    Attributes:
        attrs: of the node.
        inputs, outputs: the values, in order.
    """

    def __init__(self, node: Node, inputs: list[Value], outputs: list[Value], solver: DimSolver) -> None:
        self.node = node
        self.inputs = inputs
        self.outputs = outputs
        self.solver = solver

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.node.attrs

    def rank(self, value: Value, rank: int) -> Shape:
        """`value` has `rank` axes; gives its shape, with unknowns in it."""
        shape = value.shape
        if shape is None:
            shape = tuple(self.solver.unknown() for _ in range(rank))
            value.tell(shape, self.node)
        elif len(shape) != rank:
            raise self._error(f"needs {rank} axes of {_named(value)}", (value,), ())
        return shape

    def same_rank(self, *values: Value) -> int | None:
        """All have as many axes; gives how many, as far as that is known."""
        first = next((v for v in values if v.shape is not None), None)
        if first is None or first.shape is None:
            return None
        rank = len(first.shape)
        for v in values:
            if v.shape is not None and len(v.shape) != rank:
                raise self._error("needs as many axes", (first, v), ())
            self.rank(v, rank)
        return rank

    def same_shape(self, *values: Value) -> None:
        """All have one shape."""
        if self.same_rank(*values) is None:
            return
        first = values[0]
        for v in values[1:]:
            self.has_shape(v, first.shape or (), first)

    def has_shape(self, value: Value, shape: Shape, *of: Value) -> None:
        """`value` has this shape; `of` are the values that the shape was taken from, for messages."""
        known = value.shape
        if known is None:
            value.tell(shape, self.node)
            return
        if known is shape or known == shape:
            return
        if len(known) != len(shape):
            raise self._error(f"says that {_named(value)} is {_show(shape)}", (value, *of), ())
        for axis, (a, b) in enumerate(zip(known, shape)):
            if a is not b and a != b:
                self.equal(a, b, f"axis {axis} of {_named(value)}", value, *of)

    def equal(self, a: Dim, b: Dim, what: str, *values: Value) -> None:
        """Two sizes are equal; `what` they are and the `values` that they were taken from, for messages."""
        if a is b:
            return
        try:
            self.solver.equate(a, b, self.node)
        except Contradiction as error:
            x, y = error.pair
            raise self._error(f"{what}: {_dim(x)} against {_dim(y)}", values, (x, y)) from None

    def same_dtype(self, *values: Value) -> None:
        """All have one dtype."""
        first = next((v for v in values if v.dtype is not None), None)
        if first is None or first.dtype is None:
            return
        for v in values:
            if v.dtype is not None and v.dtype != first.dtype:
                raise self._error("needs one dtype", (first, v), ())
            self.has_dtype(v, first.dtype)

    def has_dtype(self, value: Value, dtype: DType) -> None:
        """`value` has this dtype."""
        if value.dtype is None:
            value.dtype = dtype
            self.solver.version += 1
        elif value.dtype != dtype:
            raise self._error(f"says that {_named(value)} is {dtype}", (value,), ())

    def _error(self, what: str, values: tuple[Value, ...], sizes: tuple[Dim, ...]) -> TypeInferenceError:
        return conflict(self.node, what, values, sizes)


def conflict(node: Node, what: str, values: tuple[Value, ...], sizes: tuple[Dim, ...] = ()) -> TypeInferenceError:
    """The error of a node whose types contradict each other: names it, the values, and the nodes that say so."""
    shown = []
    for v in dict.fromkeys(values):
        by = [f"{n.op.name} {n.name}" for n in v.sayers(sizes) if n is not node]
        shown.append(f"{_named(v)} is {v}" + (f" (says {', '.join(by)})" if by else ""))
    at = f" ({node.source})" if node.source else ""
    told = f"; {'; '.join(shown)}" if shown else ""
    return TypeInferenceError(f"{node.op.name} {node.name}: {what}{told}{at}")


def _named(value: Value) -> str:
    return f"%{value.entry.node.name}" if value.entry.node.num_outputs == 1 else f"%{value.entry}"


def _show(shape: Shape) -> str:
    return f"[{', '.join(map(_dim, shape))}]"


def _dim(d: Dim) -> str:
    return "?" if has_unknown(d) else str(d)
