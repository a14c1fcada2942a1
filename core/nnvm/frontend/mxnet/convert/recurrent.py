"""The fused `RNN` operator: layers of one kind with all parameters in one vector."""

from __future__ import annotations

from nnvm.dim import Dim
from nnvm.frontend.mxnet.table import Context, Refused, Results, converts, cut, emit
from nnvm.frontend.onnx import table as onnx_table
from nnvm.frontend.onnx.convert.recurrent import recurrent
from nnvm.graph import NodeEntry

__all__: list[str] = []

#: mode -> (ONNX's operator, its activation, MXNet's gates in ONNX's order)
_MODES = {
    "rnn_relu": ("RNN", ("Relu",), (0,)), "rnn_tanh": ("RNN", ("Tanh",), (0,)),
    "lstm": ("LSTM", (), (0, 3, 1, 2)),  # i f g o -> i o f g
    "gru": ("GRU", (), (1, 0, 2)),  # r z n -> z r n
}  # fmt: skip


class _Vector:
    """Takes one matrix or bias after the other out of the vector of parameters."""

    def __init__(self, flat: NodeEntry, gates: tuple[int, ...], hidden: int) -> None:
        self.flat, self.gates, self.hidden, self.at = flat, gates, hidden, 0

    def take(self, columns: int | None) -> NodeEntry:
        """[gates * hidden, columns], or [gates * hidden] for None; gates in ONNX's order."""
        rows = len(self.gates) * self.hidden
        size = rows * (1 if columns is None else columns)
        total = self.flat.type.shape[0]
        if not isinstance(total, int) or self.at + size > total:
            raise Refused(f"a vector of {total} parameters, which is too short for its layers")
        piece = cut(self.flat, 0, self.at, self.at + size)
        self.at += size
        shape = (len(self.gates), self.hidden) if columns is None else (len(self.gates), self.hidden, columns)
        apart = emit("reshape", piece, shape=shape)
        ordered = [cut(apart, 0, g, g + 1) for g in self.gates]
        joined = emit("concatenate", *ordered, axis=0) if len(ordered) > 1 else apart
        return emit("reshape", joined, shape=(1, rows) if columns is None else (1, rows, columns))


@converts("RNN")
def _rnn(c: Context) -> Results:
    """Data [steps, batch, features]; with state_outputs also the last states [layers * directions, batch, hidden]."""
    op, activations, gates = _MODES[c.attrs.choice("mode", tuple(_MODES))]
    hidden, layers = c.attrs.integer("state_size"), c.attrs.integer("num_layers")
    if c.attrs.has("projection_size") or c.attrs.flag("use_sequence_length", False):
        raise Refused("projections, or lengths of sequences")
    if c.attrs.has("lstm_state_clip_min") or c.attrs.has("lstm_state_clip_max"):
        raise Refused("clipped states")
    if not 1 <= layers <= 64 or hidden < 1:
        raise Refused(f"{layers} layers of {hidden}")
    directions = 2 if c.attrs.flag("bidirectional", False) else 1
    x, vector, states = c[0], _Vector(c[1], gates, hidden), 2 if op == "LSTM" else 1
    features: Dim = x.type.shape[2]
    weights = []
    for layer in range(layers):
        width = features if layer == 0 else directions * hidden
        if not isinstance(width, int):
            raise Refused("a symbolic number of features")
        weights.append([(vector.take(width), vector.take(hidden)) for _ in range(directions)])
    biases = [[(vector.take(None), vector.take(None)) for _ in range(directions)] for _ in range(layers)]
    if vector.at != vector.flat.type.shape[0]:
        raise Refused(f"a vector of {vector.flat.type.shape[0]} parameters where its layers have {vector.at}")
    last: list[list[NodeEntry]] = [[] for _ in range(states)]
    for layer in range(layers):
        given = [cut(c[2 + s], 0, layer * directions, (layer + 1) * directions) for s in range(states)]
        w, r, b = (
            _joined([pair[k] for pair in weights[layer]]) if k < 2 else
            _joined([emit("concatenate", *pair, axis=1) for pair in biases[layer]]) for k in range(3)
        )  # fmt: skip
        attrs = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward",
                 "linear_before_reset": 1}  # fmt: skip
        if activations:
            attrs["activations"] = activations * directions
        node = onnx_table.Context(op, [x, w, r, b, None, *given], attrs, 14, [True] * (1 + states), {})
        y, *final = recurrent(node)
        assert y is not None
        steps, _, batch, _ = y.type.shape  # [steps, directions, batch, hidden]
        x = emit("reshape", emit("transpose", y, axes=(0, 2, 1, 3)), shape=(steps, batch, directions * hidden))
        for kept, state in zip(last, final):
            assert state is not None
            kept.append(state)
    if not c.attrs.flag("state_outputs", False):
        return x
    return [x, *(_joined(kept) for kept in last)]


def _joined(parts: list[NodeEntry]) -> NodeEntry:
    return emit("concatenate", *parts, axis=0) if len(parts) > 1 else parts[0]
