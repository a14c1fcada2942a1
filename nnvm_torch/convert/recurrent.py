"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.graph import NodeEntry
from nnvm_torch import recurrent_layer  # noqa: F401  defines the operator
from nnvm_torch.convert.table import Context, Value, converts

__all__: list[str] = []


@converts("nnvm.recurrent.default")
def _recurrent(c: Context, x: NodeEntry, params: Sequence[NodeEntry], hidden: NodeEntry, cells: NodeEntry | None,
               kind: str, reverse: bool) -> Value:  # fmt: skip
    w_ih, w_hh, *biases = params
    more = [] if cells is None else [cells]
    if biases:
        b_ih, b_hh = biases
        if kind == "gru":  # the state's part of the candidate is scaled, with its bias, before it is added
            size = hidden.type.shape[-1]
            more = [c.slice(b_hh, 0, 2 * size, size)]
            b_hh = c.op("pad", c.slice(b_hh, 0, 0, 2 * size), pad_width=((0, size),))
        biases = [c.op("add", b_ih, b_hh)]
    gates = c.op("dense", x, w_ih, *biases)
    made = c.op_outputs("recurrent", gates, w_hh, hidden, *more, kind=kind, reverse=reverse)
    return (*made[:2], made[2] if cells is not None else None)
