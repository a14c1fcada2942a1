"""``nnvm::recurrent``: one layer of an LSTM, a GRU or an RNN in one direction, as an operator that a trace keeps whole.

PyTorch's own traces take recurrent layers apart step by step, so that a graph is as long as its sequence, and each
length has a graph of its own. Layers become this operator instead, which has a kernel for sequences of any length
(ops/recurrent.py); where the graph is left to ATen it is eager's layer. Its gradient is eager's, which runs the layer
once more for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

__all__ = ["MAX_STEPS", "RECURRENCES", "eager_layer", "lstm_layers"]

#: Gradients of so many steps, at most, are computed step by step by operators of ours.
MAX_STEPS = 128

State = tuple[torch.Tensor, ...]
_EAGER: dict[str, Any] = {"lstm": torch.lstm, "gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}

_library: Any = torch.library.Library("nnvm", "DEF")  # type: ignore[no-untyped-call]
_library.define("recurrent(Tensor x, Tensor[] params, Tensor hidden, Tensor? cells, str kind, bool reverse) "
                "-> (Tensor, Tensor, Tensor)")  # fmt: skip
_library.define("recurrent_backward(Tensor[] grads, Tensor x, Tensor[] params, Tensor hidden, Tensor? cells, str kind, "
                "bool reverse) -> Tensor[]")  # fmt: skip


def eager_layer(x: torch.Tensor, params: Sequence[torch.Tensor], hidden: torch.Tensor, cells: torch.Tensor | None,
              kind: str, reverse: bool) -> State:  # fmt: skip
    """x [T, N, I], params as of the layer, hidden and (of an LSTM) cells [N, H] -> outputs [T, N, H], last hidden and
    cells (of another kind than an LSTM nothing)."""
    data = x.flip(0) if reverse else x
    state = [hidden.unsqueeze(0), *(() if cells is None else (cells.unsqueeze(0),))]
    given = state if kind == "lstm" else state[0]
    out, *last = _EAGER[kind](data, given, list(params), len(params) == 4, 1, 0.0, False, False, False)
    last = [s.squeeze(0) for s in last]
    return out.flip(0) if reverse else out, last[0], last[1] if kind == "lstm" else hidden.new_empty(0)


def _traced(x: torch.Tensor, params: Sequence[torch.Tensor], hidden: torch.Tensor, cells: torch.Tensor | None,
            kind: str, reverse: bool) -> State:  # fmt: skip
    last = None if cells is None else cells.new_empty(cells.shape)
    return (x.new_empty((*x.shape[:2], hidden.shape[1])), hidden.new_empty(hidden.shape),
            hidden.new_empty(0) if last is None else last)  # fmt: skip


def _backward_in_eager(grads: Sequence[torch.Tensor], x: torch.Tensor, params: Sequence[torch.Tensor],
                       hidden: torch.Tensor, cells: torch.Tensor | None, kind: str,
                       reverse: bool) -> list[torch.Tensor]:  # fmt: skip
    """Gradients of x, the params, hidden and (of an LSTM) cells, from those of the three results."""
    inputs = [t.detach().requires_grad_() for t in (x, *params, hidden, *(() if cells is None else (cells,)))]
    with torch.enable_grad():
        made = eager_layer(inputs[0], inputs[1 : 1 + len(params)], inputs[1 + len(params)],
                         None if cells is None else inputs[-1], kind, reverse)  # fmt: skip
    count = 3 if kind == "lstm" else 2
    return [g.clone() for g in torch.autograd.grad(made[:count], inputs, list(grads[:count]))]


def _backward_traced(grads: Sequence[torch.Tensor], x: torch.Tensor, params: Sequence[torch.Tensor],
                     hidden: torch.Tensor, cells: torch.Tensor | None, kind: str,
                     reverse: bool) -> list[torch.Tensor]:  # fmt: skip
    return [t.new_empty(t.shape) for t in (x, *params, hidden, *(() if cells is None else (cells,)))]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, params, hidden, cells, ctx.kind, ctx.reverse = inputs
    ctx.count, ctx.has_cells = len(params), cells is not None
    ctx.save_for_backward(x, *params, hidden, *(() if cells is None else (cells,)))


def _gradient(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
    x, *params, hidden = ctx.saved_tensors[: ctx.count + 2]
    cells = ctx.saved_tensors[-1] if ctx.has_cells else None
    of_x, *rest = torch.ops.nnvm.recurrent_backward(list(grads), x, params, hidden, cells, ctx.kind, ctx.reverse)
    return of_x, rest[: ctx.count], rest[ctx.count], rest[-1] if ctx.has_cells else None, None, None


for _name, _eager, _fake in (("recurrent", eager_layer, _traced),
                             ("recurrent_backward", _backward_in_eager, _backward_traced)):  # fmt: skip
    _library.impl(_name, _eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"nnvm::{_name}", _fake, lib=_library)
torch.library.register_autograd("nnvm::recurrent", _gradient, setup_context=_save, lib=_library)


def lstm_layers(x: torch.Tensor, hx: Sequence[torch.Tensor], *how: Any) -> State | None:
    """As ``aten::lstm.input``, in layers of `nnvm::recurrent`; None where that cannot be, or where eager's has a
    gradient of its own."""
    if x.dtype == torch.float32 and _wants_gradients(x, *hx, *how[0]):
        return None
    found = _layers("lstm", x, tuple(hx), *how) if hx[0].shape[2] == hx[1].shape[2] else None
    return None if found is None else (found[0], *found[1])


def _recurrence(kind: str, x: torch.Tensor, hx: torch.Tensor, *how: Any) -> Any:
    """As ``aten::gru.input``, ``aten::rnn_tanh.input`` and ``aten::rnn_relu.input``: in layers of `nnvm::recurrent`,
    or as PyTorch's decomposition, step by step: so where gradients of a few steps are wanted, which then are native."""
    steps = x.shape[1 if how[-1] else 0] if x.dim() == 3 else None
    few = isinstance(steps, int) and steps <= MAX_STEPS
    found = None if few and _wants_gradients(x, hx, *how[0]) else _layers(kind, x, (hx,), *how)
    return _step_by_step(kind)(x, hx, *how) if found is None else (found[0], found[1][0])


def _wants_gradients(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _step_by_step(kind: str) -> Any:
    return torch._decomp.decomposition_table[getattr(torch.ops.aten, kind).input]


#: What takes the operators of ATen's apart, by their names.
RECURRENCES = {kind: partial(_recurrence, kind) for kind in ("gru", "rnn_tanh", "rnn_relu")}


def _layers(
    kind: str, x: torch.Tensor, states: State, params: Sequence[torch.Tensor], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, State] | None:  # fmt: skip
    """Outputs, and the last states of all layers and directions; None where they are not of one floating point type
    that kernels compute in, on the CPU."""
    tensors = (x, *states, *params)
    plain = all(t.dtype == x.dtype and t.device.type == "cpu" for t in tensors)
    empty = any(isinstance(d, int) and d == 0 for d in x.shape)
    if not plain or x.dtype not in (torch.float32, torch.float64) or x.dim() != 3 or empty:
        return None
    group, directions = (4 if has_biases else 2), (2 if bidirectional else 1)
    data = x.transpose(0, 1) if batch_first else x
    last: list[State] = []
    for layer in range(layers):
        outputs = []
        for place in range(layer * directions, (layer + 1) * directions):
            own = list(params[group * place : group * (place + 1)])
            before = [s[place] for s in states]
            y, h, c = torch.ops.nnvm.recurrent(data, own, before[0], before[1] if kind == "lstm" else None, kind,
                                               place % directions == 1)  # fmt: skip
            outputs.append(y)
            last.append((h, c)[: len(states)])
        data = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout != 0 and train and layer < layers - 1:
            data = torch.dropout(data, dropout, True)
    return data.transpose(0, 1) if batch_first else data, tuple(torch.stack(s) for s in zip(*last))


def _shapes_only(kind: str, x: Any, hx: Any, *how: Any) -> Any:
    """What Dynamo has to know of a layer's results. It would run PyTorch's decomposition on its fake tensors, step by
    step: that takes seconds for a hundred steps, and makes their number that of one sequence."""
    fake = isinstance(x, FakeTensor) and get_proxy_mode() is None
    found = _layers(kind, x, (hx,), *how) if fake else None
    return _step_by_step(kind)(x, hx, *how) if found is None else (found[0], found[1][0])


for _kind in RECURRENCES:
    _kernels = getattr(torch.ops.aten, _kind).input.py_kernels
    for _key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
        if _key in _kernels:
            _kernels[_key] = partial(_shapes_only, _kind)
    getattr(torch.ops.aten, _kind).input._dispatch_cache.clear()
