"""MXNet's symbols to graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import nnvm.ops  # noqa: F401  registers the operators
from nnvm.dim import SymDim, symbol
from nnvm.dtype import BF16, F32, DType
from nnvm.dtype import dtype as as_dtype
from nnvm.frontend.mxnet import convert  # noqa: F401  registers the converters
from nnvm.frontend.mxnet.document import SymbolError, SymbolNode, read_symbol
from nnvm.frontend.mxnet.params import load_params
from nnvm.frontend.mxnet.table import CONVERTERS, Context, Refused
from nnvm.frontend.onnx.table import Unsupported
from nnvm.graph import Graph, Node, NodeEntry, TensorType, TypeInferenceError, apply, variable

__all__ = ["ImportedSymbol", "RefusedNode", "UnsupportedSymbol", "from_mxnet"]

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, Sequence[int | str]]


class ImportedSymbol(NamedTuple):
    """A symbol as a graph.

    Attributes:
        graph: its inputs are the symbol's, then variables of kind ``param``.
        params: arrays of the params, by name.
        outputs: names of the outputs, as MXNet calls them (``NAME_output``).
    """

    graph: Graph
    params: dict[str, Array]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class RefusedNode:
    """A node that cannot be imported."""

    op: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op} at {self.name}: {self.reason}"


class UnsupportedSymbol(ValueError):
    """The symbol has nodes that cannot be imported; `nodes` lists all of them."""

    def __init__(self, nodes: Sequence[RefusedNode]) -> None:
        self.nodes = tuple(nodes)
        super().__init__("the symbol cannot be imported:\n" + "\n".join(f"  {n}" for n in nodes))


def from_mxnet(
    symbol_json: str | os.PathLike[str],
    params: Mapping[str, Any] | bytes | str | os.PathLike[str] | None = None,
    shapes: Shapes | None = None,
    dtypes: Mapping[str, str | DType] | None = None,
) -> ImportedSymbol:
    """Imports a symbol of MXNet's for inference: dropout keeps everything, batch norms use their moving statistics.

    Args:
        symbol_json: the JSON text, or the path of a ``-symbol.json`` file.
        params: arrays by name, the bytes of a ``.params`` file, or its path.
        shapes: of the variables that are no params; a str is a symbolic size. Not wanted where the file tells them.
        dtypes: element types of such variables; float32 where nothing is said.

    Raises:
        SymbolError: the text is no symbol. ParamsError: the bytes are no arrays.
        UnsupportedSymbol: lists everything that cannot be imported.
    """
    if isinstance(symbol_json, os.PathLike) or "{" not in symbol_json:
        symbol_json = Path(symbol_json).read_text("utf-8")
    if isinstance(params, (str, os.PathLike)):
        params = Path(params).read_bytes()
    arrays = load_params(params) if isinstance(params, bytes) else {n: _numpy(a) for n, a in (params or {}).items()}
    return _Importer(symbol_json, arrays, shapes or {}, dtypes or {}).run()


def _numpy(array: Any) -> Array:
    return np.ascontiguousarray(array.asnumpy() if hasattr(array, "asnumpy") else array)


class _Importer:
    def __init__(self, text: str, params: Mapping[str, Array], shapes: Shapes, dtypes: Mapping[str, Any]) -> None:
        self.symbol = read_symbol(text)
        self.params, self.shapes, self.dtypes = params, shapes, dtypes
        self.values: dict[int, tuple[NodeEntry, ...]] = {}
        self.inputs: dict[str, Node] = {}
        self.refused: list[RefusedNode] = []

    def run(self) -> ImportedSymbol:
        for position in self._used():
            node = self.symbol.nodes[position]
            if node.op == "null":
                self._variable(position, node)
            else:
                self._operator(position, node)
        outputs, names = [], []
        for position, index in self.symbol.heads:
            node = self.symbol.nodes[position]
            if (entry := self._value(position, index)) is not None:
                entry = apply("identity", [entry])[0] if entry.node.is_variable or entry.node.is_constant else entry
                outputs.append(entry)
                names.append(node.name if node.op == "null" else f"{node.name}_output{index or ''}")
        if self.refused:
            raise UnsupportedSymbol(self.refused)
        reached = {n.name for n in Graph(tuple(outputs), ()).nodes if n.is_variable}
        inputs = [v for v in self.inputs.values() if v.attrs["kind"] == "input"]
        weights = [v for v in self.inputs.values() if v.attrs["kind"] == "param" and v.name in reached]
        graph = Graph(tuple(outputs), (*inputs, *weights))
        return ImportedSymbol(graph, {v.name: self.params[v.name] for v in weights}, tuple(names))

    def _used(self) -> list[int]:
        """The nodes that outputs depend on, in order. Labels, which only training reads, are not among them."""
        used: set[int] = set()
        stack = [p for p, _ in self.symbol.heads]
        while stack:
            position = stack.pop()
            if position not in used:
                used.add(position)
                node = self.symbol.nodes[position]
                stack += [p for p, _ in _read(node)]
        return sorted(used)

    def _variable(self, position: int, node: SymbolNode) -> None:
        if node.name in self.inputs:
            self._refuse(node, "another variable has this name")
            return
        try:
            entry = self._typed(node)
        except (SymbolError, Refused) as e:
            self._refuse(node, str(e))
            return
        self.inputs[node.name] = entry.node
        self.values[position] = (entry,)

    def _typed(self, node: SymbolNode) -> NodeEntry:
        name = node.name
        if name in self.params:
            array = self.params[name]
            dtype = BF16 if self.dtypes.get(name) in (BF16, "bfloat16") else as_dtype(array.dtype.name)
            return variable(name, TensorType(array.shape, dtype), "param")
        told: Any = self.dtypes.get(name, F32)
        shape: Any = self.shapes.get(name)
        if shape is None:
            shape = node.attrs.integers("__shape__", None)
            if shape is None or any(d is None or d < 1 for d in shape):
                raise Refused("it is no param, and its shape is not known: give shapes={'" + name + "': (...)}")
        dims = tuple(symbol(d) if isinstance(d, str) else d if isinstance(d, SymDim) else int(d) for d in shape)
        return variable(name, TensorType(dims, told if isinstance(told, DType) else as_dtype(told)))

    def _operator(self, position: int, node: SymbolNode) -> None:
        converter = CONVERTERS.get(node.op)
        if converter is None:
            self._refuse(node, "no converter")
            return
        entries = [self._value(p, i) for p, i in _read(node)]
        if any(e is None for e in entries):
            return  # what broke there is listed already
        context = Context(node.op, [e for e in entries if e is not None], node.attrs)
        try:
            result = converter(context)
        except (Refused, SymbolError, Unsupported, TypeInferenceError) as e:
            self._refuse(node, str(e))
            return
        except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError, MemoryError) as e:
            self._refuse(node, f"its attributes do not fit its inputs: {type(e).__name__}: {e}")
            return
        self.values[position] = (result,) if isinstance(result, NodeEntry) else tuple(result)

    def _value(self, position: int, index: int) -> NodeEntry | None:
        values = self.values.get(position)
        if values is None:
            return None
        if index >= len(values):
            node = self.symbol.nodes[position]
            self._refuse(node, f"its output {index} is wanted, and it has {len(values)} in inference")
            return None
        return values[index]

    def _refuse(self, node: SymbolNode, reason: str) -> None:
        self.refused.append(RefusedNode("variable" if node.op == "null" else node.op, node.name, reason))


#: Operators whose further inputs only training reads (labels) -> how many inputs inference reads.
_LOSSES = dict.fromkeys(("SoftmaxOutput", "Softmax", "LogisticRegressionOutput", "LinearRegressionOutput",
                         "MAERegressionOutput", "SVMOutput"), 1)  # fmt: skip


def _read(node: SymbolNode) -> tuple[tuple[int, int], ...]:
    return node.inputs[: _LOSSES.get(node.op, len(node.inputs))]
