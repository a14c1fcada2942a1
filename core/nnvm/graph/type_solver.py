"""Types of a graph of which little is known: what each op says, forward and backward, until nothing more follows.

```
%x: float32[4, ?], %w: ?                        %x: float32[4, 8], %w: float32[16, 8]
%a = relu(%x): ?                         ->     %a = relu(%x): float32[4, 8]
%y = dense(%a, %w): float32[4, 16]              %y = dense(%a, %w): float32[4, 16]
(%w.shape[1] is 8 by another reader)
```
The nodes are visited in topological order and back until a round teaches nothing. Each states its ``type_relation``
and then lets ``infer_type`` judge, which also runs on unknown sizes where the relation allows it: the equations between
its result and what is known of the output carry sizes backward. What is only assumed comes last (`TypeRelation.weak`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

from nnvm.dim import Dim, Shape, SymDim, as_partial_shape, is_static, substitute
from nnvm.dtype import F32, I64, DType
from nnvm.dtype import dtype as as_dtype
from nnvm.graph.dim_solver import DimSolver, has_unknown
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry, TypeInferenceError
from nnvm.graph.type_relation import Relation, TypeRelation, Value, conflict
from nnvm.graph.types import TensorType

__all__ = ["ELEMWISE", "SCALAR", "Hint", "PartialShape", "TypeSolution", "partial", "solve_types"]

#: A shape of which some sizes (None), or even the rank (None as a whole), are not known.
PartialShape = Union["tuple[Dim | None, ...]", None]
#: What is known of a variable in advance, (shape, name of the dtype); or SCALAR; or of an op ELEMWISE.
Hint = Union["tuple[PartialShape, str | None]", str]
#: Of a constant number: it takes the dtype of what stands beside it.
SCALAR: Hint = "scalar"
#: Of an op that could broadcast: it does not, its inputs have one shape.
ELEMWISE: Hint = "elemwise"

#: What may be used: facts alone; also named sizes in rules that decide by extents; also what is only assumed.
_FACTS, _NAMED, _ASSUMED = range(3)
#: With more values than these an error lists the variables alone.
_FEW = 50
_RULE_ERRORS = (ValueError, TypeError, IndexError)


def partial(shape: PartialShape = None, dtype: DType | str | None = None, of: str = "a hint") -> Hint:
    """The hint of a variable with this shape (None: unknown, as are Nones in it) and dtype.

    TypeError or ValueError where a size is none; it names `of`, what the type is of.
    """
    return (None if shape is None else as_partial_shape(shape, of), None if dtype is None else as_dtype(dtype).name)


class TypeSolution:
    """What inference found.

    Attributes:
        values: of every value of the graph.
        sizes: the named sizes that equal something, with what.
        equations: between named sizes that neither hold by themselves nor determine one.
    """

    def __init__(self, graph: Graph, values: Mapping[NodeEntry, Value], solver: DimSolver) -> None:
        self.graph = graph
        self.values = values
        self.sizes = solver.bindings()
        self.equations = solver.open_equations()

    def shape(self, entry: NodeEntry) -> PartialShape:
        """The shape of a value; unknown sizes are None."""
        shape = self.values[entry].shape
        return None if shape is None else tuple(None if has_unknown(d) else d for d in shape)

    def known_shape(self, entry: NodeEntry) -> Shape:
        """The shape of a value all of which is known; TypeInferenceError where it is not."""
        value = self.values[entry]
        if value.shape is None or not value.is_known:
            raise TypeInferenceError(f"the shape {value} of %{entry} does not follow from what is known")
        return value.shape

    def require(self, *, dtypes: bool = True) -> None:
        """TypeInferenceError that lists the variables whose type is not determined, with what is known of it."""
        missing = []
        for v in self.graph.inputs:
            value = self.values[v[0]]
            if not value.is_known or (dtypes and value.dtype is None):
                known = "" if value.shape is None and value.dtype is None else f" (known: {value})"
                missing.append(f"{v.name}{known}")
        if missing:
            raise TypeInferenceError(
                f"no type is given for the variables {', '.join(missing)}, and none follows from what they are used in"
            )

    def bound(self, value: Any) -> Any:
        """An attribute's value with the named sizes replaced by what they equal."""
        if not self.sizes:
            return value
        if isinstance(value, SymDim):
            return substitute(value, self.sizes)
        return tuple(map(self.bound, value)) if isinstance(value, tuple) else value


def solve_types(graph: Graph, given: Mapping[str, TensorType | Hint] | None = None) -> TypeSolution:
    """All that follows about the types of a graph.

    `given` tells types by the name of a node, or of an output as ``name_output1``, over those that variables have; so
    does the graph attribute ``type_hints``. TypeInferenceError where types contradict each other, naming the nodes that
    say so; what stays unknown is no error here.
    """
    return _Solver(graph, given or {}).solve()


class _Solver:
    def __init__(self, graph: Graph, given: Mapping[str, TensorType | Hint]) -> None:
        self.graph = graph
        self.order = graph.nodes
        self.dims = DimSolver()
        nodes = dict.fromkeys((*graph.inputs, *self.order))
        self.values = {e: Value(e, self.dims) for n in nodes for e in n.outputs}
        self.level = _FACTS
        self.done: set[Node] = set()
        self.elemwise: set[str] = set()
        self._known(graph, given)
        self.ops = [(n, self._relation(n)) for n in self.order if not n.is_variable and not n.is_constant]

    def _known(self, graph: Graph, given: Mapping[str, TensorType | Hint]) -> None:
        """Enters what is given: types of variables and constants, hints, then types by name over these."""
        hints: dict[str, Hint] = dict(graph.attrs.get("type_hints", ()))
        self.elemwise = {name for name, hint in hints.items() if hint == ELEMWISE}
        names = {n.name for e in self.values for n in (e.node,)}
        by_name: dict[str, Value] = {}
        for e, value in self.values.items():
            if e.node.num_outputs == 1:
                by_name[e.node.name] = value
                by_name.setdefault(f"{e.node.name}_output", value)
            else:
                by_name.setdefault(f"{e.node.name}_output{e.index}", value)
        if unknown := [name for name in given if name not in by_name and name not in names]:
            near = difflib.get_close_matches(unknown[0], by_name, 3)
            names_shown = [v.name for v in graph.inputs] if len(by_name) > _FEW else list(by_name)
            advice = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(names_shown)}"
            raise TypeInferenceError(f"the graph has no value {', '.join(unknown)}; {advice}")
        for node in dict.fromkeys((*graph.inputs, *self.order)):
            hint = given.get(node.name, hints.get(node.name)) if node.is_variable else hints.get(node.name)
            if not (node.is_variable or node.is_constant):
                continue
            value = self.values[node[0]]
            if node.is_variable and "__dtype__" in node.attrs:
                value.dtype = as_dtype(node.attrs["__dtype__"])
            if hint is None or hint == SCALAR:
                if node.types is not None:
                    value.tell(node[0].type.shape, node)
                    value.dtype = None if hint == SCALAR else node[0].type.dtype
            else:
                self._tell(value, hint, node)
        for name, known in given.items():
            if name in by_name and not by_name[name].entry.node.is_variable:
                self._tell(by_name[name], known, None)

    def _tell(self, value: Value, known: TensorType | Hint, sayer: Node | None) -> None:
        if isinstance(known, TensorType):
            value.tell(known.shape, sayer)
            value.dtype = known.dtype
        elif isinstance(known, tuple):
            shape, name = known
            if shape is not None:
                value.tell(tuple(self.dims.unknown() if d is None else d for d in shape), sayer)
            if name is not None:
                value.dtype = as_dtype(name)

    def _relation(self, node: Node) -> Relation:
        inputs = [self.values[e] for e in node.inputs]
        return Relation(node, inputs, [self.values[e] for e in node.outputs], self.dims)

    def solve(self) -> TypeSolution:
        while True:
            before = self.dims.version
            for forward in (True, False):
                for node, relation in self.ops if forward else reversed(self.ops):
                    if node not in self.done:
                        self._visit(node, relation)
            self.dims.settle()
            if self.dims.version != before:
                continue
            if self.level == _ASSUMED:
                break
            self.level += 1
        return TypeSolution(self.graph, self.values, self.dims)

    def _visit(self, node: Node, relation: Relation) -> None:
        rule: TypeRelation | None = node.op.attr("type_relation")
        try:
            if node.name in self.elemwise:
                relation.same_shape(*relation.inputs, *relation.outputs)
            if rule is not None:
                rule.equations(relation)
                if rule.weak is not None and self.level == _ASSUMED:
                    rule.weak(relation)
        except TypeInferenceError:
            raise
        except _RULE_ERRORS as error:
            raise conflict(node, self._refusal(node, relation) or str(error), tuple(relation.inputs)) from None
        around = (*relation.inputs, *relation.outputs)
        complete = all(v.is_known for v in relation.inputs)
        if any(v.shape is None for v in relation.inputs):
            return
        if rule is None or not rule.is_symbolic(node.attrs):
            static = all(is_static(v.shape or ()) for v in relation.inputs)
            if not complete or not (static or self.level >= _NAMED):
                return
        self._forward(node, relation)
        if complete and all(v.is_known and v.dtype is not None for v in around):
            self.done.add(node)

    def _refusal(self, node: Node, relation: Relation) -> str:
        """What ``infer_type`` has to say against inputs that the equations could not even be stated for."""
        infer: Callable[..., Any] | None = node.op.attr("infer_type")
        if infer is None or any(v.shape is None for v in relation.inputs):
            return ""
        try:
            infer(node.attrs, next(_candidates(relation.inputs)))
        except _RULE_ERRORS as error:
            return str(error)
        return ""

    def _forward(self, node: Node, relation: Relation) -> None:
        """Runs ``infer_type`` and equates the outputs with what it gives."""
        infer: Callable[..., Any] | None = node.op.attr("infer_type")
        if infer is None:
            return
        failure: Exception | None = None
        for types in _candidates(relation.inputs):
            try:
                outputs = tuple(infer(node.attrs, types))
            except _RULE_ERRORS as error:
                failure = failure or error
                continue
            typed = all(v.dtype is not None for v in relation.inputs)
            for value, t in zip(relation.outputs, outputs, strict=True):
                relation.has_shape(value, t.shape, *relation.inputs)
                if typed:
                    relation.has_dtype(value, t.dtype)
            return
        if all(v.shape is not None and is_static(v.shape) for v in relation.inputs):
            raise conflict(node, str(failure), tuple(relation.inputs)) from None


def _candidates(values: list[Value]) -> Iterator[tuple[TensorType, ...]]:
    """Types of the inputs; where a dtype is not known (shapes do not depend on it) any that the op may take."""
    unknown = any(v.dtype is None for v in values)
    for stand_in in (F32, I64) if unknown else (F32,):
        yield tuple(TensorType(v.shape or (), v.dtype or stand_in) for v in values)
