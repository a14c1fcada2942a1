"""LSTMs in training: eager's results and gradients, in native code alone."""

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
