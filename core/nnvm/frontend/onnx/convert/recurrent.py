"""LSTM, GRU and RNN: as the op ``recurrent`` where its cell is ONNX's; else the steps one after another, of sequences
of a known length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, scalar
from nnvm.graph import NodeEntry, apply

__all__: list[str] = []

State = tuple[NodeEntry, ...]
Activation = Callable[[NodeEntry], NodeEntry]
#: (projection of the input of one step, state) -> new state; the first of the state is the output
Cell = Callable[[NodeEntry, State], State]
LONGEST = 512

ACTIVATIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "softplus": "softplus"}


def _part(x: NodeEntry, axis: int, i: int, n: int = 1) -> NodeEntry:
    """The `i`-th of pieces of `n` along an axis."""
    return cut(x, axis, i * n, (i + 1) * n)


def _direction(x: NodeEntry, d: int) -> NodeEntry:
    return emit("reshape", _part(x, 0, d), shape=x.type.shape[1:])


def _activations(c: Context, names: Sequence[str]) -> list[Activation]:
    """The functions called `names`, of all directions; those with an alpha or beta take the next of the attribute."""
    alphas, betas = (iter(c.attrs.get(f"activation_{k}", ())) for k in ("alpha", "beta"))
    limit = c.attrs.get("clip", 0.0)
    out: list[Activation] = []
    for name in names:
        key = name.lower()
        if key in ACTIVATIONS:
            function = partial(emit, ACTIVATIONS[key])
        elif key in SCALED:
            build, *defaults = SCALED[key]
            values = [next(source, default) for source, default in zip((alphas, betas), defaults)]
            function = partial(build, *values)
        else:
            raise Unsupported(f"the activation {name}")
        out.append(partial(_limited, function, limit) if limit else function)
    return out


def _limited(function: Activation, limit: float, x: NodeEntry) -> NodeEntry:
    return function(emit("clip", x, a_min=-limit, a_max=limit))


def _line(alpha: float, beta: float, x: NodeEntry) -> NodeEntry:
    t = x.type.dtype
    return emit("add", emit("multiply", x, scalar(alpha, t)), scalar(beta, t))


def _hard_sigmoid(alpha: float, beta: float, x: NodeEntry) -> NodeEntry:
    return emit("clip", _line(alpha, beta, x), a_min=0.0, a_max=1.0)


def _scaled_tanh(alpha: float, beta: float, x: NodeEntry) -> NodeEntry:
    t = x.type.dtype
    return emit("multiply", emit("tanh", emit("multiply", x, scalar(beta, t))), scalar(alpha, t))


#: name -> (function of its parameters and data, their values where none are given)
SCALED: dict[str, tuple[Any, ...]] = {
    "affine": (_line, 1.0, 0.0), "hardsigmoid": (_hard_sigmoid, 0.2, 0.5), "scaledtanh": (_scaled_tanh, 1.0, 1.0),
    "leakyrelu": (lambda alpha, x: emit("leaky_relu", x, alpha=alpha), 0.01),
    "elu": (lambda alpha, x: emit("elu", x, alpha=alpha), 1.0),
}  # fmt: skip


@converts("LSTM", "GRU", "RNN")
def recurrent(c: Context) -> list[NodeEntry | None]:
    x, weights, hidden = c[0], c[1], c.attrs["hidden_size"]
    batch_first = bool(c.attrs.get("layout", 0))
    x = emit("transpose", x, axes=(1, 0, 2)) if batch_first else x
    length, batch = x.type.shape[:2]
    if (op := _cell_of_ours(c)) is not None:
        return _layers(c, op, x, batch_first)
    if not isinstance(length, int) or not 1 <= length <= LONGEST:
        raise Unsupported(f"a sequence of {length} steps")
    kind = c.attrs.get("direction", "forward")
    count = 2 if kind == "bidirectional" else 1
    states = 2 if c.op == "LSTM" else 1
    names = c.attrs.get("activations") or CELLS[c.op][1] * count
    each, functions = len(names) // count, _activations(c, names)
    outputs: list[list[NodeEntry]] = []
    last: list[list[NodeEntry]] = []
    for d in range(count):
        w, r = _direction(weights, d), _direction(c[2], d)
        bias = _direction(c[3], d) if c.has(3) else None
        zero = emit("full", shape=(batch, hidden), dtype=x.type.dtype, value=0)
        given = [_direction(_initial(c[5 + s], batch_first), d) if c.has(5 + s) else zero for s in range(states)]
        state: State = tuple(given)
        acts = functions[d * each : (d + 1) * each]
        cell, projected = CELLS[c.op][0](c, x, w, r, bias, acts, d)
        steps: list[NodeEntry] = []
        backwards = kind == "reverse" or d == 1
        for t in reversed(range(length)) if backwards else range(length):
            new = cell(emit("reshape", _part(projected, 0, t), shape=projected.type.shape[1:]), state)
            if c.has(4):  # sequences that end before keep their state, and their output is 0
                runs = emit("less", scalar(t, c[4].type.dtype), emit("reshape", c[4], shape=(batch, 1)))
                steps.append(emit("where", runs, new[0], zero))
                state = tuple(emit("where", runs, n, old) for n, old in zip(new, state))
            else:
                state = new
                steps.append(state[0])
        outputs.append(steps[::-1] if backwards else steps)
        last.append(list(state))
    return _given(_stacked(outputs, (length, count, batch, hidden)), last, (count, batch, hidden), batch_first)


#: Of the op ``recurrent``, by ONNX's name, and where ONNX has its gates.
_OURS = {"LSTM": ("lstm", (0, 2, 3, 1)), "GRU": ("gru", (1, 0, 2)), "RNN": ("rnn_tanh", (0,))}


def _cell_of_ours(c: Context) -> str | None:
    """The kind of ``recurrent`` that all directions are; None: another activation, a bound, a way through the cells,
    or sequences of different lengths."""
    names = [n.lower() for n in c.attrs.get("activations") or CELLS[c.op][1]]
    plain = [n.lower() for n in CELLS[c.op][1]]
    kind = _OURS[c.op][0]
    if c.op == "RNN" and set(names) == {"relu"}:
        kind, plain = "rnn_relu", ["relu"]
    standard = names in (plain, plain * 2)
    bound = c.attrs.get("clip", 0) or c.attrs.get("input_forget", 0)
    other = c.op == "GRU" and not c.attrs.get("linear_before_reset", 0)
    fits = c[0].type.dtype.name in ("float32", "float64")
    return kind if standard and fits and not (bound or other or c.has(4) or c.has(7)) else None


def _layers(c: Context, kind: str, x: NodeEntry, batch_first: bool) -> list[NodeEntry | None]:
    """The results, from a layer of ``recurrent`` a direction."""
    n, order = c.attrs["hidden_size"], _OURS[c.op][1]
    length, batch = x.type.shape[:2]
    direction = c.attrs.get("direction", "forward")
    count, states = 2 if direction == "bidirectional" else 1, 2 if kind == "lstm" else 1

    def ordered(parameter: NodeEntry) -> NodeEntry:
        return emit("concatenate", *(_part(parameter, 0, k, n) for k in order), axis=0)

    outputs, last = [], []
    for d in range(count):
        zero = emit("full", shape=(batch, n), dtype=x.type.dtype, value=0)
        state = [_direction(_initial(c[5 + s], batch_first), d) if c.has(5 + s) else zero for s in range(states)]
        bias = []
        if c.has(3):
            of_input, of_state = map(ordered, _halves(_direction(c[3], d), len(order), n))  # type: ignore[arg-type]
            if kind == "gru":
                state.append(_part(of_state, 0, 2, n))
                of_state = emit("pad", cut(of_state, 0, 0, 2 * n), pad_width=((0, n),))
            bias = [emit("add", of_input, of_state)]
        gates = emit("dense", x, ordered(_direction(c[1], d)), *bias)
        made = apply("recurrent", [gates, ordered(_direction(c[2], d)), *state],
                     {"kind": kind, "reverse": direction == "reverse" or d == 1}).outputs  # fmt: skip
        outputs.append(emit("reshape", made[0], shape=(length, 1, batch, n)))
        last.append(made[1:])
    return _given(emit("concatenate", *outputs, axis=1), last, (count, batch, n), batch_first)


def _given(y: NodeEntry, last: Sequence[Sequence[NodeEntry]], shape: tuple[object, ...],
           batch_first: bool) -> list[NodeEntry | None]:  # fmt: skip
    """ONNX's results: of the outputs [T, D, N, H], and the states [N, H] of each direction at its end."""
    final = [emit("reshape", emit("concatenate", *each, axis=0), shape=shape) for each in zip(*last)]
    if batch_first:
        return [emit("transpose", y, axes=(2, 0, 1, 3)), *(emit("transpose", v, axes=(1, 0, 2)) for v in final)]
    return [y, *final]


def _initial(state: NodeEntry, batch_first: bool) -> NodeEntry:
    return emit("transpose", state, axes=(1, 0, 2)) if batch_first else state


def _stacked(outputs: Sequence[Sequence[NodeEntry]], shape: tuple[object, ...]) -> NodeEntry:
    every = [direction[t] for t in range(len(outputs[0])) for direction in outputs]
    return emit("reshape", emit("concatenate", *every, axis=0), shape=shape)


def _halves(bias: NodeEntry | None, gates: int, hidden: int) -> tuple[NodeEntry | None, NodeEntry | None]:
    """Biases of the input's and of the state's products."""
    return (None, None) if bias is None else (_part(bias, 0, 0, gates * hidden), _part(bias, 0, 1, gates * hidden))


def _affine(x: NodeEntry, w: NodeEntry, bias: NodeEntry | None) -> NodeEntry:
    return emit("dense", x, w, *([] if bias is None else [bias]))


def _lstm(c: Context, x: NodeEntry, w: NodeEntry, r: NodeEntry, bias: NodeEntry | None,
          acts: Sequence[Activation], d: int) -> tuple[Cell, NodeEntry]:  # fmt: skip
    n = c.attrs["hidden_size"]
    if c.attrs.get("input_forget", 0):
        raise Unsupported("input_forget")
    if c.attrs.get("clip", 0):
        raise Unsupported("clip: whether it bounds the cell's activation too, as ONNX says, implementations differ")
    peep = _direction(c[7], d) if c.has(7) else None
    wb, rb = _halves(bias, 4, n)
    f, g, h = acts

    def peeped(gate: NodeEntry, i: int, state: NodeEntry) -> NodeEntry:
        return gate if peep is None else emit("add", gate, emit("multiply", _part(peep, 0, i, n), state))

    def cell(projected: NodeEntry, state: State) -> State:
        hidden, memory = state
        gates = emit("add", projected, _affine(hidden, r, rb))
        i, o, forget, new = (_part(gates, 1, k, n) for k in range(4))
        kept = emit("multiply", f(peeped(forget, 2, memory)), memory)
        memory = emit("add", kept, emit("multiply", f(peeped(i, 0, memory)), g(new)))
        return emit("multiply", f(peeped(o, 1, memory)), h(memory)), memory

    return cell, _affine(x, w, wb)


def _gru(c: Context, x: NodeEntry, w: NodeEntry, r: NodeEntry, bias: NodeEntry | None,
         acts: Sequence[Activation], d: int) -> tuple[Cell, NodeEntry]:  # fmt: skip
    n = c.attrs["hidden_size"]
    wb, rb = _halves(bias, 3, n)
    f, g = acts
    update_reset, candidate = cut(r, 0, 0, 2 * n), _part(r, 0, 2, n)
    rb_gates = None if rb is None else cut(rb, 0, 0, 2 * n)
    rb_new = None if rb is None else _part(rb, 0, 2, n)
    one = scalar(1, x.type.dtype)

    def cell(projected: NodeEntry, state: State) -> State:
        (hidden,) = state
        gates = f(emit("add", cut(projected, 1, 0, 2 * n), _affine(hidden, update_reset, rb_gates)))
        z, reset = _part(gates, 1, 0, n), _part(gates, 1, 1, n)
        if c.attrs.get("linear_before_reset", 0):
            recurrent_part = emit("multiply", reset, _affine(hidden, candidate, rb_new))
        else:
            recurrent_part = _affine(emit("multiply", reset, hidden), candidate, rb_new)
        new = g(emit("add", _part(projected, 1, 2, n), recurrent_part))
        return (emit("add", emit("multiply", emit("subtract", one, z), new), emit("multiply", z, hidden)),)

    return cell, _affine(x, w, wb)


def _rnn(c: Context, x: NodeEntry, w: NodeEntry, r: NodeEntry, bias: NodeEntry | None,
         acts: Sequence[Activation], d: int) -> tuple[Cell, NodeEntry]:  # fmt: skip
    wb, rb = _halves(bias, 1, c.attrs["hidden_size"])

    def cell(projected: NodeEntry, state: State) -> State:
        return (acts[0](emit("add", projected, _affine(state[0], r, rb))),)

    return cell, _affine(x, w, wb)


CELLS = {"LSTM": (_lstm, ("Sigmoid", "Tanh", "Tanh")), "GRU": (_gru, ("Sigmoid", "Tanh")), "RNN": (_rnn, ("Tanh",))}
