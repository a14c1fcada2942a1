"""ONNX models to graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import nnvm.ops  # noqa: F401  registers the operators
from nnvm import config
from nnvm.dim import Dim, symbol
from nnvm.dtype import DType
from nnvm.frontend.onnx import convert  # noqa: F401  registers the converters
from nnvm.frontend.onnx.exclusions import OPERATORS
from nnvm.frontend.onnx.formats import Narrow, format_of
from nnvm.frontend.onnx.functions import definition_of
from nnvm.frontend.onnx.misfit import misfit
from nnvm.frontend.onnx.narrow import LOOKS, MOVES, looking, moving
from nnvm.frontend.onnx.protos import array_of, element_type, format_array_of, type_proto
from nnvm.frontend.onnx.reading import OLDEST, prepared, read_model
from nnvm.frontend.onnx.sizes import fold_sizes
from nnvm.frontend.onnx.subgraphs import CONTROL
from nnvm.frontend.onnx.table import Context, Dims, NeedsValue, Tensors, Unsupported, Value, find, materialise, of_array
from nnvm.frontend.onnx.unsupported import InvalidModel, UnsupportedModel, UnsupportedNode
from nnvm.graph import Graph, Node, NodeEntry, TensorType, TypeInferenceError, apply, variable

__all__ = ["Imported", "InvalidModel", "UnsupportedModel", "UnsupportedNode", "from_onnx"]

Array = np.ndarray[Any, Any]

#: Integer and bool initialisers of up to so many elements become constants.
SMALL = 4096
#: Nodes of bodies that are written out, at most: loops in loops multiply.
LARGEST = 20_000


class Imported(NamedTuple):
    """A model as a graph.

    Attributes:
        graph: its inputs are the model's, then variables of kind ``param``.
        params: arrays of the params, by name (bfloat16 as its uint16 bits).
    """

    graph: Graph
    params: dict[str, Array]


def from_onnx(
    model: Any, shapes: Mapping[str, Sequence[int | str]] | None = None, values: Mapping[str, Array] | None = None
) -> Imported:
    """Imports an ONNX model; one of an opset before 7 is converted by the package `onnx` first.

    Args:
        model: an `onnx.ModelProto`, or the path of a file (with its external data next to it).
        shapes: shapes of inputs by name, where they are to differ from the model's; a str is a symbolic size.
        values: arrays of inputs that are to be constants.

    Raises:
        FileNotFoundError: there is no such file. InvalidModel: it holds no model, or one that contradicts itself.
        UnsupportedModel: lists everything that cannot be imported.
    """
    return _Importer(prepared(read_model(model)), shapes or {}, values or {}).run()


@contextmanager
def _explained() -> Iterator[None]:
    """Errors at what does not fit an operator as `Unsupported`; with NNVM_DEBUG they come as they are."""
    try:
        yield
    except (Unsupported, TypeInferenceError, BrokenBody):
        raise
    except Exception as e:
        if config.debug_level():
            raise
        text = " ".join(str(e).split())[:200]
        raise Unsupported(f"what it says does not fit together ({type(e).__name__}: {text})") from e


class BrokenBody(Exception):
    """A subgraph has a node that cannot be imported."""


class _Importer:
    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int | str]], values: Mapping[str, Array]) -> None:
        self.model, self.shapes, self.values = model, shapes, values
        self.opsets = {o.domain if o.domain != "ai.onnx" else "": o.version for o in model.opset_import}
        self.env: dict[str, Value | None] = {"": None}
        self.failed: list[UnsupportedNode] = []
        self.broken: set[str] = set()  # values that could not be computed
        self.params: dict[str, Array] = {}
        self.variables: dict[str, NodeEntry] = {}
        self.inputs: list[Node] = []
        self.written = 0  # nodes of bodies

    def run(self) -> Imported:
        graph = self.model.graph
        initialised = {t.name for t in graph.initializer}
        for tensor in graph.sparse_initializer:
            self._refuse("sparse initializer", tensor.values.name, "sparse tensors")
            self.broken.add(tensor.values.name)
        for tensor in graph.initializer:
            self._initializer(tensor)
        for info in graph.input:
            if info.name not in initialised:
                self._input(info)
        for position, node in enumerate(graph.node):
            self._node(node, position)
        outputs = [e for o in graph.output if (e := self._output(o)) is not None]
        if self.failed:
            raise UnsupportedModel(self.failed)
        imported = Graph(tuple(outputs), tuple(self.inputs))
        used = {n.name: n for n in imported.nodes if n.is_variable and n.name in self.params}
        whole = Graph(tuple(outputs), (*self.inputs, *used.values()))
        return Imported(whole, {name: self.params[name] for name in used})

    def _refuse(
        self, op: str, name: str, reason: str, domain: str = "", needs: frozenset[str] = frozenset(),
        final: bool = False,
    ) -> None:  # fmt: skip
        opset = self.opsets.get(domain, 0)
        self.failed.append(UnsupportedNode(f"{domain}.{op}" if domain else op, name, opset, reason, needs, final))

    def _initializer(self, tensor: Any) -> None:
        try:
            with _explained():
                if (narrow := format_array_of(tensor)) is not None:
                    array, f = narrow
                    self.env[tensor.name] = Narrow(self._weight(tensor.name, array, f.store), f)
                    return
                self.env[tensor.name] = self._weight(tensor.name, *array_of(tensor))
        except Unsupported as e:
            self._refuse("initializer", tensor.name, str(e))
            self.broken.add(tensor.name)

    def _weight(self, called: str, array: Array, dtype: DType) -> NodeEntry:
        """A constant, or a variable of kind ``param``."""
        if not dtype.is_float and array.size <= SMALL:
            return of_array(array, dtype)
        name, count, t = called, 0, TensorType(array.shape, dtype)
        bits = array.tobytes()
        while name in self.params and (self.variables[name].type != t or self.params[name].tobytes() != bits):
            name, count = f"{called}.{count + 1}", count + 1  # the other branch of an If may have a weight of this name
        if name not in self.params:
            self.params[name] = array
            self.variables[name] = variable(name, t, "param")
        return self.variables[name]

    def _input(self, info: Any) -> None:
        try:
            with _explained():
                if any(v.name == info.name for v in self.inputs):
                    raise Unsupported("another input has this name")
                f = format_of(info.type.tensor_type.elem_type) if info.type.HasField("tensor_type") else None
                entry = variable(info.name, self._type(info))
        except Unsupported as e:
            self._refuse("input", info.name, str(e))
            self.broken.add(info.name)
            return
        self.inputs.append(entry.node)
        if info.name in self.values:
            entry = of_array(self.values[info.name], entry.type.dtype)
        self.env[info.name] = entry if f is None else Narrow(entry, f)

    def _type(self, info: Any) -> TensorType:
        if not info.type.HasField("tensor_type"):
            raise Unsupported(f"a {info.type.WhichOneof('value') or 'value without type'}")
        tensor = info.type.tensor_type
        f = format_of(tensor.elem_type)
        dtype = element_type(tensor.elem_type) if f is None else f.store
        if info.name in self.values:
            return TensorType(self.values[info.name].shape, dtype)
        if info.name in self.shapes:
            given = self.shapes[info.name]
            return TensorType(tuple(symbol(d) if isinstance(d, str) else int(d) for d in given), dtype)
        if not tensor.HasField("shape"):
            raise Unsupported("its shape is not given")
        return TensorType(tuple(_dim(d, f"{info.name}_{i}") for i, d in enumerate(tensor.shape.dim)), dtype)

    def _node(self, node: Any, position: int) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        name = node.name or f"node {position} ({', '.join(node.output)})"
        opset = self.opsets.get(domain, 0)
        converter = find(domain, node.op_type, opset)
        outputs = [o for o in node.output if o]
        if node.op_type in CONTROL and not domain:
            converter = partial(self._control, node)
        elif converter is None and (body := self._definition(node)) is not None:
            converter = partial(self._inlined, node, body)
        if converter is None or not (domain or opset >= 7):
            why = OPERATORS.get(f"{domain}.{node.op_type}" if domain else node.op_type, "no converter")
            why = why if opset >= OLDEST or domain else f"opset before {OLDEST}"
            self._refuse(node.op_type, name, why, domain, final=True)
            self.broken.update(outputs)
            return
        if any(i in self.broken for i in node.input):
            self.broken.update(outputs)
            return
        try:
            with _explained():
                if unknown := [i for i in node.input if i not in self.env]:
                    raise Unsupported(f"nothing gives its input {unknown[0]}")
                attrs = _Attributes((a.name, _attribute(a)) for a in node.attribute if not a.HasField("g"))
                inputs = [self.env[i] for i in node.input]
                context = Context(node.op_type, inputs, attrs, opset, [bool(o) for o in node.output], self.params)
                folded = fold_sizes(context)
                if any(isinstance(v, Tensors) for v in inputs) and node.op_type == "Identity":
                    folded = inputs[0]
                if any(isinstance(v, Narrow) for v in inputs) and node.op_type in MOVES | LOOKS:
                    converter = partial(moving if node.op_type in MOVES else looking, converter)
                result = converter(context) if folded is None else folded
                results: list[Value | None] = list(result) if isinstance(result, Sequence) else [result]
                whole = [*results, *[None] * len(node.output)]
                if missing := [o for o, r in zip(node.output, whole) if o and r is None]:
                    raise Unsupported(f"its output {missing[0]}")
        except BrokenBody:
            self.broken.update(outputs)  # what broke in there is listed already
        except NeedsValue as e:
            self._refuse(node.op_type, name, str(e), domain, e.inputs)
            self.broken.update(outputs)
        except (Unsupported, TypeInferenceError) as e:
            misfits = misfit(node, domain, opset) if e.__cause__ is not None else None
            self._refuse(node.op_type, name, misfits or str(e), domain)
            self.broken.update(outputs)
        else:
            self.env.update((o, r) for o, r in zip(node.output, results) if o)

    def _control(self, node: Any, c: Context) -> list[Value]:
        graphs = {a.name: a.g for a in node.attribute if a.HasField("g")}
        return CONTROL[node.op_type](self, c, graphs)

    def _definition(self, node: Any) -> Any:
        """The graph that ONNX defines a node of a subgraph by; None where there is none. (Those of the model's own
        graph are in place before the import.)"""
        values = {i: self.env.get(i) for i in node.input if i}
        if not all(isinstance(v, (NodeEntry, Dims)) for v in values.values()):
            return None
        types = {i: type_proto(v.type if isinstance(v, NodeEntry) else TensorType(v.array.shape, v.dtype))
                 for i, v in values.items() if isinstance(v, (NodeEntry, Dims))}  # fmt: skip
        return definition_of(node, types, self.opsets)

    def _inlined(self, node: Any, graph: Any, c: Context) -> list[Value]:
        """The nodes of a definition, whose names are its own."""
        env, broken = self.env, self.broken
        self.env, self.broken = {"": None, **{i: env[i] for i in node.input}}, set()
        try:
            return self.body(graph, {})
        finally:
            self.env, self.broken = env, broken

    def body(self, graph: Any, bound: Mapping[str, Value | None]) -> list[Value]:
        """Imports a subgraph in place; see `Scope`. Names are unique over all subgraphs that can see each other."""
        self.written += len(graph.node)
        if self.written > LARGEST:
            raise Unsupported(f"loops that make more than {LARGEST} nodes when they are written out")
        self.env.update(bound)
        self.broken.difference_update(bound)
        for tensor in graph.initializer:
            self._initializer(tensor)
        for position, inner in enumerate(graph.node):
            self.broken.difference_update(inner.output)
            self._node(inner, position)
        if lost := [o.name for o in graph.output if o.name in self.broken or o.name not in self.env]:
            raise BrokenBody(f"nothing gives {lost[0]} of its subgraph")
        values = [self.env[o.name] for o in graph.output]
        if any(v is None for v in values):
            raise Unsupported("an absent value as output of a subgraph")
        return [v for v in values if v is not None]

    def _output(self, info: Any) -> NodeEntry | None:
        if info.name in self.broken:
            return None
        value = self.env.get(info.name)
        if value is None:
            self._refuse("output", info.name, "nothing gives it")
            return None
        declared = info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else 0
        try:
            with _explained():
                if isinstance(value, Narrow):
                    if declared and format_of(declared) != value.format:
                        raise Unsupported(f"it is of {value.format.name}, the model says otherwise")
                    return _own(value.entry)
                entry = materialise(value)
                if declared and element_type(declared) != entry.type.dtype:
                    raise Unsupported(f"it is {entry.type}, the model says {element_type(declared)}")
        except Unsupported as e:
            self._refuse("output", info.name, str(e))
            return None
        return _own(entry)


class _Attributes(dict[str, Any]):
    """Attributes of a node by name."""

    def __missing__(self, name: str) -> Any:
        raise Unsupported(f"its attribute {name} is missing")


def _own(entry: NodeEntry) -> NodeEntry:
    """An entry that is computed: inputs and constants are copied."""
    return apply("identity", [entry])[0] if entry.node.is_variable or entry.node.is_constant else entry


def _dim(d: Any, fallback: str) -> Dim:
    """A size as the model gives it; -1 and names without a letter or digit, which exporters write, tell nothing."""
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    name = d.dim_param if any(ch.isalnum() for ch in d.dim_param) else fallback
    return symbol("".join(ch if ch.isalnum() else "_" for ch in name))


def _attribute(a: Any) -> Any:
    """An attribute's value: numbers, str, tuples of these, (array, DType) of a tensor, or a Narrow constant."""
    import onnx

    kinds = onnx.AttributeProto
    if a.type in (kinds.FLOAT, kinds.INT):
        return a.f if a.type == kinds.FLOAT else a.i
    if a.type == kinds.STRING:
        return a.s.decode()
    if a.type == kinds.TENSOR:
        if (narrow := format_array_of(a.t)) is not None:
            return Narrow(of_array(narrow[0], narrow[1].store), narrow[1])
        return array_of(a.t)
    if a.type in (kinds.FLOATS, kinds.INTS):
        return tuple(a.floats if a.type == kinds.FLOATS else a.ints)
    if a.type == kinds.STRINGS:
        return tuple(s.decode() for s in a.strings)
    raise Unsupported(f"attribute {a.name} of kind {kinds.AttributeType.Name(a.type)}")
