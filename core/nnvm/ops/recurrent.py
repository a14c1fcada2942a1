"""Recurrent layers in one direction: LSTM, GRU and RNN over sequences of any length, in one kernel.

The products of all steps with the input's weight are a dense layer before (`gates`); a step adds the product of the
hidden state with its own weight and applies the cell, as PyTorch defines it:

    lstm   i, f, g, o = gates;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')
    gru    r, z, n = gates;     h' = n' + sigmoid(z) (h - n'),  n' = tanh(n + sigmoid(r) (W h + bias))
    rnn    h' = tanh(gates), or relu
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm.dim import Dim, ceildiv
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.passes.alter_op_layout import Blocker, LayoutRule, Value, Values
from nnvm.graph.passes.layout_plan import Way
from nnvm.graph.types import TensorType
from nnvm.ops.params import boolean, choice, integer
from nnvm.ops.recurrent_nest import GATES, recurrent_nest
from nnvm.ops.shape_rules import check_kind, same_dtype, show
from nnvm.tir.stmt import PrimFunc

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _infer(attrs: Attrs, inputs: Types) -> Types:
    gates, weight, hidden, *more = inputs
    same_dtype(*inputs)
    check_kind(gates, "f", "gates")
    if gates.dtype.bits < 32:
        raise ValueError(f"expected float32 or float64, not {gates.dtype}")
    count, kind = GATES[attrs["kind"]], attrs["kind"]
    if gates.rank != 3 or hidden.rank != 2 or not isinstance(size := hidden.shape[1], int):
        raise ValueError(f"gates {show(gates.shape)} must be [T, N, {count} H] and hidden {show(hidden.shape)} [N, H]")
    block = attrs["block"]
    plain, packed = (count * size, size), (ceildiv(size, max(block, 1)), size, count, block)
    if gates.shape[1:] != (hidden.shape[0], count * size) or weight.shape != (packed if block else plain):
        raise ValueError(f"{kind}: gates {show(gates.shape)}, weight {show(weight.shape)} (block={block}) and hidden "
                         f"{show(hidden.shape)} do not fit")  # fmt: skip
    wanted: tuple[Dim, ...] = hidden.shape if kind == "lstm" else (size,)
    fits = {"lstm": (1,), "gru": (0, 1)}.get(kind, (0,))
    if len(more) not in fits or any(m.shape != wanted for m in more):
        told = ", ".join(show(m.shape) for m in more) or "missing"
        raise ValueError(f"{kind}: cells or bias {told}; an lstm takes its cells [N, H], a gru may take the bias [H] "
                         "of its candidate, no other kind takes any")  # fmt: skip
    return (gates.with_shape((*gates.shape[:2], size)), hidden, *((hidden,) if kind == "lstm" else ()))


def _build(attrs: Attrs, inputs: Types, outputs: Types, name: str) -> PrimFunc:
    return recurrent_nest(attrs["kind"], attrs["reverse"], attrs["block"], attrs["sums"], inputs, outputs, name)


def _reference(attrs: Attrs, gates: Array, weight: Array, hidden: Array, *more: Array) -> tuple[Array, ...]:
    kind, count, size = attrs["kind"], GATES[attrs["kind"]], hidden.shape[1]
    if attrs["block"]:
        weight = weight.transpose(2, 0, 3, 1).reshape(count, -1, size)[:, :size].reshape(count * size, size)
    h, c = hidden, more[0] if kind == "lstm" else None
    out = np.empty((*gates.shape[:2], size), gates.dtype)
    for t in range(len(gates))[:: -1 if attrs["reverse"] else 1]:
        x, product = (np.split(a, count, -1) for a in (gates[t], h @ weight.T))
        if kind == "gru":
            r, z = (_sigmoid(a + b) for a, b in zip(x[:2], product))
            new = np.tanh(x[2] + r * (product[2] + (more[0] if more else 0)))
            h = new + z * (h - new)
        else:
            x = [a + b for a, b in zip(x, product)]
            if kind == "lstm":
                c = _sigmoid(x[1]) * c + _sigmoid(x[0]) * np.tanh(x[2])
                h = _sigmoid(x[3]) * np.tanh(c)
            else:
                h = np.tanh(x[0]) if kind == "rnn_tanh" else np.maximum(x[0], 0)
        out[t] = h
    return (out, h, *(() if c is None else (c,)))


def _sigmoid(x: Array) -> Array:
    half: Array = np.tanh(x * 0.5) * 0.5 + 0.5  # exp would overflow
    return half


def _pack(node: Node, values: Values, way: Way, blocker: Blocker) -> Values:
    """With the weight in blocks of columns, one vector wide, the gates of a block side by side: [H/p, H, G, p]."""
    entries, target, dtype = [blocker.plain(v) for v in values], blocker.machine.target, node[0].type.dtype
    count, block = GATES[node.attrs["kind"]], target.lanes(dtype.bits)
    attrs = dict(node.attrs)
    if not attrs["block"] and block > 1:
        size = node[0].type.shape[-1]
        assert isinstance(size, int), "the type rule has seen to it"
        blocks = ceildiv(size, block)
        weight = _op("reshape", entries[1], shape=(count, size, size))
        weight = _op("pad", weight, pad_width=((0, 0), (0, blocks * block - size), (0, 0)))
        weight = _op("reshape", weight, shape=(count, blocks, block, size))
        entries[1] = _op("transpose", weight, axes=(1, 3, 0, 2))
        attrs |= {"block": block, "sums": target.vector_registers - count - 2}
    elif tuple(entries) == node.inputs:
        return tuple(Value(e, e.type.shape) for e in node.outputs)
    made = apply(node.op, entries, attrs, node.name, node.source)
    return tuple(Value(e, e.type.shape) for e in made.outputs)


def _op(name: str, data: NodeEntry, **attrs: object) -> NodeEntry:
    return apply(name, [data], attrs)[0]


def _flops(attrs: Attrs, inputs: Types, outputs: Types) -> Dim:
    return inputs[0].numel * outputs[0].shape[-1] * 2


register(
    "recurrent", inputs=["gates", "weight", "hidden", "more?"], num_outputs=lambda attrs: 2 + (attrs["kind"] == "lstm"),
    doc="A recurrent layer in one direction: products of the input and biases [T, N, G H] (G gates), weight [G H, H] "
        "of the hidden state (packed: [H/p, H, G, p]), hidden state [N, H], and of an lstm its cells [N, H], of a gru "
        "the bias [H] of its candidate's product. Gives the hidden state of all steps [T, N, H], the last, and the "
        "last cells.",
    params={"kind": Param("the cell", choice(*GATES), "lstm"),
            "reverse": Param("from the last step to the first", boolean, False),
            "block": Param("p of a packed weight, whose last block is padded with zeros; 0: it is plain", integer, 0),
            "sums": Param("vectors that a packed weight is multiplied to at a time, at most", integer, 8)},
    infer_type=_infer, pattern=OpPattern.OPAQUE, build_tir=_build, reference=_reference, flops=_flops,
    layout_rule=LayoutRule(lambda node, fixed, machine: (), _pack, always=True),
)  # fmt: skip
