"""Recurrent layers: eager's results and gradients; those of LSTMs in native code alone."""

import copy

import pytest
import torch
from torch import nn

import nnvm_torch

CASES = {
    "plain": ({}, (3, 2, 4), False),
    "batch_first": ({"batch_first": True}, (2, 3, 4), False),
    "two_layers": ({"num_layers": 2}, (3, 2, 4), True),
    "bidirectional": ({"num_layers": 2, "bidirectional": True, "batch_first": True}, (2, 3, 4), True),
    "no_bias": ({"bias": False}, (3, 2, 4), True),
    "one_step": ({}, (1, 2, 4), True),
    "unbatched": ({"bidirectional": True}, (3, 4), False),
    "projections": ({"proj_size": 2}, (3, 2, 4), False),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    nnvm_torch.reset()


def states(lstm, x, seed):
    """Hidden and cell states to begin with."""
    g = torch.Generator().manual_seed(seed)
    lead = (lstm.num_layers * (2 if lstm.bidirectional else 1),)
    batch = () if x.dim() == 2 else (x.shape[0 if lstm.batch_first else 1],)
    return [torch.randn(*lead, *batch, n, generator=g) for n in (lstm.proj_size or lstm.hidden_size, lstm.hidden_size)]


def gradients(call, lstm, x, given, parts):
    """Of a loss of `parts` (outputs, hidden state, cell state): the results, and all gradients."""
    x, given = x.clone().requires_grad_(), [t.clone().requires_grad_() for t in given]
    y, (h, c) = call(x, tuple(given)) if given else call(x)
    weights = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape) for t in (y, h, c)]
    sum((t * w).sum() for i, (t, w) in enumerate(zip((y, h, c), weights)) if i in parts).backward()
    return [y, h, c, x.grad, *(t.grad for t in given), *(p.grad for p in lstm.parameters())]


@pytest.mark.parametrize("name, parts", [*((n, (0, 1, 2)) for n in CASES), ("two_layers", (0,)), ("plain", (1, 2))])
def test_gradients(name, parts):
    options, shape, with_states = CASES[name]
    torch.manual_seed(0)
    lstm, x = nn.LSTM(4, 6, **options), torch.randn(shape)
    given = states(lstm, x, 1) if with_states else []
    mine, exact = copy.deepcopy(lstm), copy.deepcopy(lstm).double()
    got = gradients(torch.compile(mine, backend="nnvm"), mine, x, given, parts)
    want = gradients(lstm, lstm, x, given, parts)
    right = gradients(exact, exact, x.double(), [t.double() for t in given], parts)
    for a, b, r in zip(got, want, right, strict=True):
        if r is None:
            assert a is None and b is None
            continue
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        assert (a - r).abs().max() <= 2 * (b - r).abs().max() + 1e-6
    assert nnvm_torch.report().native_fraction == 1.0


def test_one_tensor_is_kept_of_a_layer():
    """Not the results of each step."""
    lstm = nn.LSTM(4, 6)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        torch.compile(lstm, backend="nnvm")(torch.randn(9, 3, 4))
    assert (45, 3, 6) in kept and len(kept) < 12


def test_dropout_between_layers():
    """It is drawn as eager draws it, in training only."""
    torch.manual_seed(0)
    lstm, x = nn.LSTM(4, 6, num_layers=2, dropout=0.5), torch.randn(3, 2, 4)
    call = torch.compile(lstm, backend="nnvm")
    torch.testing.assert_close(_drawn(call, x), _drawn(lstm, x))
    assert not torch.equal(_drawn(call, x), _drawn(call, x, 1))
    lstm.eval()
    torch.testing.assert_close(call(x)[0], lstm(x)[0])


def _drawn(call, x, seed=0):
    torch.manual_seed(seed)
    return call(x)[0]


def test_batch_size_that_changes():
    lstm = nn.LSTM(4, 6, num_layers=2)
    mine = copy.deepcopy(lstm)
    call = torch.compile(mine, backend="nnvm", dynamic=True)
    for n in (2, 3, 5):
        x = torch.randn(3, n, 4)
        for a, b in zip(gradients(call, mine, x, [], (0, 1)), gradients(lstm, lstm, x, [], (0, 1)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


KINDS = {
    "lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}  # fmt: skip
OPTIONS = {name: CASES[name][0] for name in ("plain", "bidirectional", "no_bias")}


def tensors(results):
    """Of a layer: its outputs and its one or two states."""
    y, last = results
    return [y, *(last if isinstance(last, tuple) else (last,))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_inference(kind, name):
    """One compilation serves all lengths and batch sizes, natively."""
    torch.manual_seed(0)
    model = KINDS[kind](4, 19, **OPTIONS[name]).eval()
    call = torch.compile(model, backend="nnvm", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for steps, batch in ((5, 3), (9, 2), (150, 3), (4, 17)):
            x = torch.randn(*((batch, steps) if model.batch_first else (steps, batch)), 4)
            for a, b in zip(tensors(call(x)), tensors(model(x)), strict=True):
                assert a.stride() == b.stride()
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    report = nnvm_torch.report()
    assert report.native_fraction == 1.0 and len(report.graphs) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_states_and_float64(kind):
    torch.manual_seed(0)
    model = KINDS[kind](4, 8, num_layers=2, bidirectional=True).double().eval()
    state = [torch.randn(4, 3, 8, dtype=torch.float64) for _ in range(2 if kind == "lstm" else 1)]
    given = tuple(state) if kind == "lstm" else state[0]
    x = torch.randn(6, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        got = torch.compile(model, backend="nnvm")(x, given)
        for a, b in zip(tensors(got), tensors(model(x, given)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert nnvm_torch.report().native_fraction == 1.0


def test_lengths_are_not_compiled_one_by_one():
    """Nor is any length traced step by step."""
    torch.manual_seed(0)
    model = nn.GRU(4, 8).eval()
    call = torch.compile(model, backend="nnvm")
    with torch.no_grad():
        for steps in (7, 11, 900, 2, 33):
            x = torch.randn(steps, 2, 4)
            torch.testing.assert_close(call(x)[0], model(x)[0], rtol=1e-5, atol=1e-6)
    graphs = nnvm_torch.report().graphs
    assert len(graphs) == 2 and all(g.total < 20 for g in graphs)


@pytest.mark.parametrize("kind", ["gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("name", ["plain", "bidirectional", "no_bias"])
def test_gradients_of_other_kinds(kind, name):
    torch.manual_seed(0)
    model = KINDS[kind](4, 6, **OPTIONS[name])
    mine = copy.deepcopy(model)
    call = torch.compile(mine, backend="nnvm")
    for steps in (5, 8, 13):
        x = torch.randn(3, steps, 4)
        got, want = (_with_gradients(c, m, x) for c, m in ((call, mine), (model, model)))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert sum(g.kind == "forward" for g in nnvm_torch.report().graphs) == 2


def _with_gradients(call, model, x):
    model.zero_grad()
    x = x.clone().requires_grad_()
    y, h = call(x)
    ((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() + h.square().sum()).backward()
    return [y, h, x.grad, *(p.grad.clone() for p in model.parameters())]


def test_other_backends_trace_as_ever():
    """What Dynamo is told of a layer's results concerns no graph of another backend."""
    model, seen = nn.GRU(3, 4).eval(), []

    def backend(gm, inputs):
        def compiler(graph, _):
            seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
            return graph.forward

        from torch._dynamo.backends.common import aot_autograd

        return aot_autograd(fw_compiler=compiler)(gm, inputs)

    x = torch.randn(3, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend)(x)[0], model(x)[0])
    assert seen and not any("nnvm" in name for name in seen)


def test_other_types_run_as_before():
    model = nn.GRU(3, 4).bfloat16().eval()
    x = torch.randn(3, 2, 3).bfloat16()
    with torch.no_grad():
        got = torch.compile(model, backend="nnvm")(x)[0]
        torch.testing.assert_close(got, model(x)[0], rtol=2e-2, atol=2e-2)


def test_weights_that_change():
    model = nn.GRU(4, 6).eval()
    call, x = torch.compile(model, backend="nnvm"), torch.randn(5, 2, 4)
    with torch.no_grad():
        call(x)
        for p in model.parameters():
            p.mul_(0.5)
        torch.testing.assert_close(call(x)[0], model(x)[0], rtol=1e-5, atol=1e-6)


def test_the_operator_in_eager():
    """What runs where a graph is left to ATen."""
    model = nn.GRU(4, 6, bidirectional=True).eval()
    x, h = torch.randn(5, 2, 4), torch.randn(2, 2, 6)
    right = model(x, h)[0].split(6, -1)
    for i, reverse in enumerate((False, True)):
        params = [p for n, p in model.named_parameters() if n.endswith("_reverse") == reverse]
        out, last, _ = torch.ops.nnvm.recurrent(x, params, h[i], None, "gru", reverse)
        torch.testing.assert_close(out, right[i])
        torch.testing.assert_close(last, out[0 if reverse else -1])
        torch.library.opcheck(torch.ops.nnvm.recurrent.default, (x, [p.detach() for p in params], h[i], None, "gru",
                                                                reverse))  # fmt: skip
