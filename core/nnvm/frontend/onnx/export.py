"""Graphs to ONNX models: the reverse of `from_onnx`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dim import Dim
from nnvm.dtype import BF16, DType
from nnvm.frontend.onnx.protos import element_code, type_proto
from nnvm.graph import Graph, Node, NodeEntry, TensorType

__all__ = ["OPSET", "Exporter", "UnsupportedGraph", "exports", "to_onnx"]

Array = np.ndarray[Any, Any]

#: The opset of exported models.
OPSET = 21
#: The version of the file format that goes with it.
IR_VERSION = 10


class CannotExport(Exception):
    """Why a node has no counterpart."""


class UnsupportedGraph(ValueError):
    """The graph has nodes without a counterpart in ONNX; `nodes` lists all of them as (name, op, reason)."""

    def __init__(self, nodes: Sequence[tuple[str, str, str]]) -> None:
        self.nodes = tuple(nodes)
        listed = "\n".join(f"  {op} at {name}: {why}" for name, op, why in nodes)
        super().__init__(f"the graph cannot be written as an ONNX model:\n{listed}")


#: (exporter, node) -> names of its outputs
Rule = Callable[["Exporter", Node], "str | Sequence[str]"]
RULES: dict[str, Rule] = {}


def exports(*ops: str) -> Callable[[Rule], Rule]:
    """Registers how `ops` are written."""

    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return add


def to_onnx(graph: Graph, params: Mapping[str, Array] | None = None, name: str = "nnvm") -> Any:
    """The graph as an `onnx.ModelProto` of opset `OPSET`.

    Args:
        graph: typed, as an importer gives it: before passes that fuse nodes or change layouts.
        params: arrays of variables (bfloat16 as its uint16 bits); they become initialisers. The others are inputs.

    Raises:
        UnsupportedGraph: lists every node that cannot be written.
        ValueError: a name in `params` is no variable of the graph, or an array does not fit.
    """
    from nnvm.frontend.onnx import (  # noqa: F401  they register the rules
        export_derived,
        export_indexing,
        export_layers,
        export_rules,
    )

    return Exporter(graph, params or {}, name).run()


def _reason(op: str) -> str:
    from nnvm.frontend.onnx.export_derived import NOT_IN_ONNX

    return NOT_IN_ONNX.get(op, "no rule")


class Exporter:
    """What a rule sees: names of values, and what adds nodes and constants."""

    def __init__(self, graph: Graph, params: Mapping[str, Array], name: str) -> None:
        self.graph, self.params, self.name = graph, params, name
        self.nodes: list[Any] = []
        self.initialisers: list[Any] = []
        self.names: dict[NodeEntry, str] = {}
        self.taken: set[str] = set()

    def run(self) -> Any:
        import onnx
        from onnx import helper

        self._check_params()
        inputs = [v for v in self.graph.inputs if v.name not in self.params]
        self.taken.update(v.name for v in self.graph.inputs)
        for v in self.graph.inputs:
            self.names[v[0]] = v.name
            if v.name in self.params:
                self.initialisers.append(_tensor(v.name, self.params[v.name], v[0].type.dtype))
        failed = self._write_nodes()
        if failed:
            raise UnsupportedGraph(failed)
        outputs = [self._output(e, i) for i, e in enumerate(self.graph.outputs)]
        graph = helper.make_graph(
            self.nodes, self.name, [_info(v.name, v[0].type) for v in inputs],
            [_info(n, e.type) for n, e in zip(outputs, self.graph.outputs)], initializer=self.initialisers,
        )  # fmt: skip
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="nnvm"
        )
        onnx.checker.check_model(model)
        return model

    def _check_params(self) -> None:
        variables = {v.name: v[0].type for v in self.graph.inputs}
        for name, array in self.params.items():
            if name not in variables:
                raise ValueError(f"params has {name}, which is no variable of the graph")
            t = variables[name]
            if array.shape != t.shape or array.dtype != t.dtype.numpy:
                raise ValueError(f"params[{name!r}] is {array.dtype}{list(array.shape)}, the graph has {t}")

    def _write_nodes(self) -> list[tuple[str, str, str]]:
        failed = []
        for node in self.graph.nodes:
            if node.is_variable:
                continue
            rule = RULES.get(node.op.name)
            if rule is None:
                failed.append((node.name, node.op.name, _reason(node.op.name)))
                self.names.update((e, "?") for e in node.outputs)
                continue
            try:
                written = rule(self, node)
            except CannotExport as e:
                failed.append((node.name, node.op.name, str(e)))
                written = ["?"] * node.num_outputs
            names = [written] if isinstance(written, str) else written
            self.names.update(zip(node.outputs, names))
        return failed

    def _output(self, entry: NodeEntry, i: int) -> str:
        """An output has a name of its own, also where it is an input or stands twice."""
        name = self.unique(f"output{i}")
        self._add("Identity", [self[entry]], [name], {})
        return name

    def unique(self, wanted: str) -> str:
        name, count = wanted, 0
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name

    def __getitem__(self, entry: NodeEntry) -> str:
        return self.names[entry]

    def inputs(self, node: Node) -> list[str]:
        return [self[e] for e in node.inputs]

    def _add(self, op: str, inputs: Sequence[str], outputs: Sequence[str], attrs: Mapping[str, Any]) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, outputs, name=self.unique(f"{op}_node"), **attrs))

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A node with one output; "" stands for an input that is left out."""
        return self.emit_many(op, inputs, 1, **attrs)[0]

    def emit_many(self, op: str, inputs: Sequence[str], count: int, **attrs: Any) -> list[str]:
        outputs = [self.unique(op.lower()) for _ in range(count)]
        self._add(op, inputs, outputs, {k: v for k, v in attrs.items() if v is not None})
        return outputs

    def constant(self, array: Any, dtype: DType) -> str:
        """A constant; `array` holds bfloat16 as bits."""
        name = self.unique("constant")
        self.initialisers.append(_tensor(name, np.asarray(array, dtype.numpy), dtype))
        return name

    def scalar(self, number: float, dtype: DType) -> str:
        if dtype == BF16:
            from nnvm.dtype import f32_to_bf16

            return self.constant(f32_to_bf16(np.float32(number)), BF16)
        return self.constant(np.asarray(number).astype(dtype.numpy), dtype)

    def ints(self, values: Sequence[int]) -> str:
        from nnvm.dtype import I64

        return self.constant(np.asarray(values, np.int64), I64)

    def reshaped(self, x: str, t: TensorType, shape: Sequence[Dim]) -> str:
        """`x` of type `t` in another shape, of which one size may be symbolic, or more where they stay in place."""
        target: list[int] = []
        for i, d in enumerate(shape):
            if isinstance(d, int):
                target.append(d)
            elif i < t.rank and t.shape[i] == d:
                target.append(0)
            elif -1 not in target:
                target.append(-1)
            else:
                raise CannotExport(f"the shape {list(map(str, shape))} has several sizes that must be computed")
        zeros = [d == 0 and shape[i] == 0 for i, d in enumerate(target)]
        if any(zeros) and any(d == 0 and not z for d, z in zip(target, zeros)):
            raise CannotExport("a shape with a size of 0 and one that is copied")
        return self.emit("Reshape", x, self.ints(target), allowzero=1 if any(zeros) else None)


def _tensor(name: str, array: Array, dtype: DType) -> Any:
    from onnx import helper

    little = np.ascontiguousarray(array)
    return helper.make_tensor(name, element_code(dtype), array.shape, little.tobytes(), raw=True)


def _info(name: str, t: TensorType) -> Any:
    import onnx

    return onnx.ValueInfoProto(name=name, type=type_proto(t))
