"""Nodes with subgraphs: `If`, `Loop` and `Scan`, replaced by the nodes of the bodies that run.

What decides how often a body runs must be known while importing, so a branch that is taken stands in the node's place
and a loop is written out step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from nnvm.dtype import BOOL, I64
from nnvm.frontend.onnx.protos import element_type
from nnvm.frontend.onnx.table import Context, Tensors, Unsupported, Value, axis_of, emit, materialise, of_array
from nnvm.graph import NodeEntry

__all__ = ["CONTROL", "LONGEST", "Scope"]

#: Steps of a loop, at most: each of them leaves its nodes in the graph.
LONGEST = 1024


class Scope(Protocol):
    """What a converter of a node with subgraphs needs of the importer."""

    def body(self, graph: Any, bound: Mapping[str, Value | None]) -> list[Value]:
        """Imports a subgraph whose inputs have the given values; its outputs."""


def _if(scope: Scope, c: Context, graphs: Mapping[str, Any]) -> list[Value]:
    taken = bool(c.value(0, "the condition").ravel()[0])
    return scope.body(graphs["then_branch" if taken else "else_branch"], {})


def _loop(scope: Scope, c: Context, graphs: Mapping[str, Any]) -> list[Value]:
    """``for (i = 0; i < trip count && condition; i++) body(i, condition, *states)``."""
    body = graphs["body"]
    trips = c.ints(0, "the trip count")[0] if c.has(0) else LONGEST + 1
    going = bool(c.value(1, "the condition").ravel()[0]) if c.has(1) else True
    states: list[Value] = [_given(v) for v in c.inputs[2:]]
    count = len(states)
    names = [i.name for i in body.input]
    scans: list[list[NodeEntry]] = [[] for _ in range(len(body.output) - 1 - count)]
    step = 0
    while going and step < trips:
        if step == LONGEST:
            raise Unsupported(f"more than {LONGEST} steps")
        first: list[Value] = [of_array(np.asarray(step), I64), of_array(np.asarray(going), BOOL)]
        results = scope.body(body, dict(zip(names, [*first, *states])))
        going = _condition(results[0], c)
        states = results[1 : 1 + count]
        for kept, value in zip(scans, results[1 + count :]):
            kept.append(materialise(value))
        step += 1
    return [*states, *(_stacked(s, 0, info) for s, info in zip(scans, body.output[1 + count :]))]


def _given(value: Value | None) -> Value:
    if value is None:
        raise Unsupported("a state without a value")
    return value


def _condition(value: Value, c: Context) -> bool:
    inner = Context("Loop", [value], {}, c.opset, [], c.params)
    return bool(inner.value(0, "the condition after a step").ravel()[0])


def _stacked(parts: Sequence[NodeEntry], axis: int, info: Any) -> NodeEntry:
    """The outputs of all steps along a new axis; `info` tells the type where there was no step."""
    if not parts:
        tensor = info.type.tensor_type
        sizes = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
        if not tensor.HasField("shape") or len(sizes) != len(tensor.shape.dim):
            raise Unsupported(f"a loop without steps whose output {info.name} has no declared shape")
        dtype = element_type(tensor.elem_type)
        return of_array(np.zeros((0, *sizes), dtype.numpy), dtype)
    if any(p.type != parts[0].type for p in parts):
        raise Unsupported(f"steps whose outputs {info.name} have different types")
    axis = axis_of(axis, parts[0].type.rank + 1)
    rows = [emit("expand_dims", p, axis=axis) for p in parts]
    return emit("concatenate", *rows, axis=axis) if len(rows) > 1 else rows[0]


def _scan(scope: Scope, c: Context, graphs: Mapping[str, Any]) -> list[Value]:
    """One step for each position of the scanned inputs."""
    body, attrs = graphs["body"], c.attrs
    if c.opset < 9:
        return _batched_scan(scope, c, body)
    return _scanned(scope, body, c.inputs, attrs)


def _scanned(scope: Scope, body: Any, inputs: Sequence[Value | None], attrs: Mapping[str, Any]) -> list[Value]:
    count = attrs["num_scan_inputs"]
    states = [_given(v) for v in inputs[: len(inputs) - count]]
    outputs = len(body.output) - len(states)
    rows = [materialise(_given(v)) for v in inputs[len(states) :]]
    axes = [axis_of(a, r.type.rank) for a, r in zip(attrs.get("scan_input_axes", (0,) * count), rows)]
    backwards = attrs.get("scan_input_directions", (0,) * count)
    lengths = {r.type.shape[a] for r, a in zip(rows, axes)}
    (length, *others) = lengths
    if others or not isinstance(length, int) or not 1 <= length <= LONGEST:
        raise Unsupported(f"a scan over {', '.join(map(str, lengths))} positions")
    names = [i.name for i in body.input]
    scans: list[list[NodeEntry]] = [[] for _ in range(outputs)]
    for step in range(length):
        parts: list[Value] = [
            _position(r, a, length - 1 - step if b else step) for r, a, b in zip(rows, axes, backwards)
        ]
        results = scope.body(body, dict(zip(names, [*states, *parts])))
        states = results[: len(states)]
        for kept, value in zip(scans, results[len(states) :]):
            kept.append(materialise(value))
    directions = attrs.get("scan_output_directions", (0,) * outputs)
    output_axes = attrs.get("scan_output_axes", (0,) * outputs)
    infos = body.output[len(states) :]
    stacked = [_stacked(s[::-1] if b else s, a, i) for s, a, b, i in zip(scans, output_axes, directions, infos)]
    return [*states, *stacked]


def _position(x: NodeEntry, axis: int, i: int) -> NodeEntry:
    """`x` at one position of an axis, without the axis."""
    s = x.type.shape
    begin, end = [0] * len(s), list(s)
    begin[axis], end[axis] = i, i + 1
    row = emit("slice", x, begin=tuple(begin), end=tuple(end), step=(1,) * len(s))
    return emit("reshape", row, shape=(*s[:axis], *s[axis + 1 :]))


def _batched_scan(scope: Scope, c: Context, body: Any) -> list[Value]:
    """Opset 8: every value has a batch axis in front, and its entries are scanned one by one."""
    if c.has(0):
        raise Unsupported("lengths of sequences")
    values = [materialise(_given(v)) for v in c.inputs[1:]]
    batch = values[0].type.shape[0]
    if not isinstance(batch, int) or not 1 <= batch <= LONGEST:
        raise Unsupported(f"a batch of {batch} sequences")
    attrs = {"num_scan_inputs": c.attrs["num_scan_inputs"]}
    if "directions" in c.attrs:
        attrs["scan_input_directions"] = c.attrs["directions"]
    results = [_scanned(scope, body, [_position(v, 0, b) for v in values], attrs) for b in range(batch)]
    columns = [[materialise(v) for v in column] for column in zip(*results)]
    return [_stacked(column, 0, info) for column, info in zip(columns, body.output)]


def _sequence_map(scope: Scope, c: Context, graphs: Mapping[str, Any]) -> list[Value]:
    """The body for each tensor of the first sequence, with those at the same place of the others."""
    body, first = graphs["body"], c.inputs[0]
    if not isinstance(first, Tensors):
        raise Unsupported("input 0 is no sequence")
    names, results = [i.name for i in body.input], []
    for i in range(len(first.items)):
        given = [v.items[i] if isinstance(v, Tensors) else v for v in c.inputs]
        results.append(scope.body(body, dict(zip(names, given))))
    return [Tensors(tuple(r[k] for r in results)) for k in range(len(body.output))]


#: op type -> (importer, node, its subgraphs by attribute) -> outputs
CONTROL = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
