"""LSTMs as operators that we have: the steps of a layer one by one, and their gradient.

oneDNN's operator for a layer is what a trace keeps, as eager runs it. Taken apart, its fourth result, which only its
gradient reads, is what the steps computed: of each step the gates i, f, g, o and the cell's state, in a row, so that
training keeps one tensor a layer, and the gradients of the weights are one product each over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nnvm_torch.recurrent_layer import MAX_STEPS, lstm_layers

__all__ = ["lstm", "lstm_layer", "lstm_layer_backward"]

#: oneDNN's number for an LSTM.
_LSTM = 2
#: What is kept of a step: its gates and the state of its cell.
_KEPT = 5

Pair = tuple[torch.Tensor, torch.Tensor]


def lstm(x: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], has_biases: bool, layers: int,
         dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> Any:  # fmt: skip
    """As eager: each layer and direction by oneDNN's operator, also where gradients are wanted; PyTorch's trace takes
    these apart step by step, in operators that each keep their results. Dropout is between the layers."""
    how = params, has_biases, layers, dropout, train, bidirectional, batch_first
    if (found := lstm_layers(x, hx, *how)) is not None:
        return found
    if not _fits(x, hx, params, batch_first):
        return torch._decomp.decompositions.lstm_impl(x, hx, params, has_biases, layers, dropout, train, bidirectional,
                                                      batch_first)  # fmt: skip
    group, directions = (4 if has_biases else 2), (2 if bidirectional else 1)
    data = x.transpose(0, 1) if batch_first else x
    states: list[Pair] = []
    for layer in range(layers):
        outputs = []
        for reverse in range(directions):
            place = layer * directions + reverse
            own = params[group * place : group * (place + 1)]
            y, state = _layer(data, own, hx[0][place], hx[1][place], reverse == 1)
            outputs.append(y)
            states.append(state)
        data = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout != 0 and train and layer < layers - 1:
            data = torch.dropout(data, dropout, True)
    h, c = (torch.stack(s) for s in zip(*states))
    return data.transpose(0, 1) if batch_first else data, h, c


def _fits(x: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], batch_first: bool) -> bool:
    """Is it an LSTM of float32 on the CPU, without projections, of few steps?"""
    tensors = (x, *hx, *params)
    steps = x.shape[1 if batch_first else 0] if x.dim() == 3 else None
    plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    return (torch._C._get_mkldnn_enabled() and plain and isinstance(steps, int) and 0 < steps <= MAX_STEPS
            and hx[0].shape[2] == hx[1].shape[2] and 0 not in x.shape)  # fmt: skip


def _layer(x: torch.Tensor, params: Sequence[torch.Tensor], h: torch.Tensor, c: torch.Tensor,
           reverse: bool) -> tuple[torch.Tensor, Pair]:  # fmt: skip
    """One layer in one direction: outputs, last hidden and cell state."""
    w_ih, w_hh, *biases = params
    b_ih, b_hh = biases or (torch.zeros(w_ih.size()), torch.zeros(w_hh.size()))
    y, hy, cy, _ = torch.ops.aten.mkldnn_rnn_layer.default(
        x.contiguous(), w_ih, w_hh, b_ih, b_hh, h.unsqueeze(0).contiguous(), c.unsqueeze(0).contiguous(), reverse, [],
        _LSTM, h.shape[-1], 1, bool(biases), False, False, False,
    )  # fmt: skip
    return y, (hy.squeeze(0), cy.squeeze(0))


def lstm_layer(
    x: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor, reverse: bool, batch_sizes: Sequence[int], mode: int, hidden: int, layers: int, has_biases: bool,
    bidirectional: bool, batch_first: bool, train: bool,
) -> Any:  # fmt: skip
    """One LSTM layer, step by step: x [T, N, I] -> outputs [T, N, H], last hidden and cell state [1, N, H], and what
    the gradient reads, [5 T, N, H]."""
    steps = x.shape[0]
    if mode != _LSTM or layers != 1 or bidirectional or batch_sizes or not isinstance(steps, int) or steps > MAX_STEPS:
        return NotImplemented
    bias = b_ih + b_hh if has_biases else None
    gates = torch.nn.functional.linear(x, w_ih, bias).unbind(0)
    h, c = hx.squeeze(0), cx.squeeze(0)
    outputs: list[torch.Tensor] = []
    kept: list[tuple[torch.Tensor, ...]] = []
    for gate in reversed(gates) if reverse else gates:
        i, f, g, o = torch.chunk(gate + torch.mm(h, w_hh.t()), 4, 1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        outputs.append(h)
        kept.append((i, f, g, o, c))
    if reverse:
        outputs, kept = outputs[::-1], kept[::-1]
    return torch.stack(outputs), h.unsqueeze(0), c.unsqueeze(0), torch.stack([t for step in kept for t in step])


def lstm_layer_backward(
    x: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor, y: torch.Tensor, hy: torch.Tensor, cy: torch.Tensor, grad_y: torch.Tensor | None,
    grad_h: torch.Tensor | None, grad_c: torch.Tensor | None, reverse: bool, mode: int, hidden: int, layers: int,
    has_biases: bool, train: bool, bidirectional: bool, batch_sizes: Sequence[int], batch_first: bool,
    kept: torch.Tensor,
) -> Any:  # fmt: skip
    """Gradients of x, both weights, both biases and both states of a layer that `lstm_layer` took apart."""
    steps = x.shape[0]
    if kept.dim() != 3 or not isinstance(steps, int) or kept.shape[0] != _KEPT * steps:
        return NotImplemented
    parts, along = kept.unbind(0), None if grad_y is None else grad_y.unbind(0)
    dh = torch.zeros_like(hx[0]) if grad_h is None else grad_h.squeeze(0)
    dc = torch.zeros_like(cx[0]) if grad_c is None else grad_c.squeeze(0)
    grads: list[torch.Tensor] = []
    before = 1 if reverse else -1  # where the step before lies
    for t in range(steps) if reverse else reversed(range(steps)):
        i, f, g, o, c = parts[_KEPT * t : _KEPT * (t + 1)]
        is_first = t == (steps - 1 if reverse else 0)
        c_before = cx.squeeze(0) if is_first else parts[_KEPT * (t + before) + 4]
        dh = dh if along is None else dh + along[t]
        bent = torch.tanh(c)
        dc = dc + dh * o * (1 - bent * bent)
        grad = torch.cat([dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g),
                          dh * bent * o * (1 - o)], 1)  # fmt: skip
        grads.append(grad)
        dc, dh = dc * f, torch.mm(grad, w_hh)
    rows = torch.stack(grads if reverse else grads[::-1]).reshape(-1, w_ih.shape[0])
    h_before = torch.cat([y[1:], hx]) if reverse else torch.cat([hx, y[:-1]])
    of_bias = rows.sum(0)
    return (torch.mm(rows, w_ih).view(x.shape), torch.mm(rows.t(), x.reshape(len(rows), -1)),
            torch.mm(rows.t(), h_before.reshape(len(rows), -1)), of_bias, of_bias.clone(), dh.unsqueeze(0),
            dc.unsqueeze(0))  # fmt: skip
