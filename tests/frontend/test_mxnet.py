"""Symbols of MXNet's with their arrays, against PyTorch and numpy."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from nnvm.frontend.mxnet import ParamsError, SymbolError, UnsupportedSymbol, from_mxnet, load_params
from nnvm.frontend.onnx.session import Session
from nnvm.testing.reference import run_graph

torch = pytest.importorskip("torch")
F = torch.nn.functional

_spec = importlib.util.spec_from_file_location("mxnet_files", Path(__file__).with_name("mxnet_files.py"))
files = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(files)
Net, params_bytes = files.Net, files.params_bytes


def t(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def run(net, arrays, *heads, params=None, symbolic=False, compiled=True):
    """The outputs for arrays by name; those whose name begins with ``data`` are inputs. Not `compiled`: by the
    definition of each operator."""
    inputs = {n: a for n, a in arrays.items() if n.startswith("data")}
    shapes = {n: (("batch", *a.shape[1:]) if symbolic else a.shape) for n, a in inputs.items()}
    stored = params_bytes({f"arg:{n}": a for n, a in net.params.items()}) if params is None else params
    found = from_mxnet(net.json(*heads), stored, shapes, {n: a.dtype.name for n, a in inputs.items()})
    if not compiled:
        return run_graph(found.graph, {**inputs, **found.params})
    session = Session(found.graph, found.params)
    return session.run([inputs[v.name] for v in session.inputs])


def one(op, attrs, tensors, outputs, compiled):
    """The outputs of one operator; the first tensor is data, the others are params."""
    net = Net()
    arrays = {"data" if i == 0 else f"p{i}": x.numpy() for i, x in enumerate(tensors)}
    node = net.op(op, *(net.variable(n, a) for n, a in arrays.items()), **attrs)
    return run(net, arrays, *([node[0], i, 0] for i in range(outputs)), compiled=compiled)


def check(op, attrs, tensors, *expected, compiled=False):
    got = one(op, attrs, tensors, len(expected), compiled)
    for g, e in zip(got, expected, strict=True):
        assert g.shape == tuple(e.shape), (op, g.shape, e.shape)
        np.testing.assert_allclose(g, e.numpy(), rtol=1e-4, atol=1e-5)


X, POSITIVE = t(2, 6, 5, 7), t(2, 3, 4, seed=1).abs() + 0.5

CASES = [
    ("Activation", {"act_type": "softrelu"}, [X], F.softplus(X)),
    ("Activation", {"act_type": "softsign"}, [X], F.softsign(X)),
    ("LeakyReLU", {"act_type": "leaky", "slope": 0.1}, [X], F.leaky_relu(X, 0.1)),
    ("LeakyReLU", {}, [X], F.leaky_relu(X, 0.25)),
    ("LeakyReLU", {"act_type": "elu", "slope": 0.3}, [X], F.elu(X, 0.3)),
    ("LeakyReLU", {"act_type": "prelu"}, [X, t(6)], F.prelu(X, t(6))),
    ("LeakyReLU", {"act_type": "rrelu", "lower_bound": 0.1, "upper_bound": 0.3}, [X], F.leaky_relu(X, 0.2)),
    ("LeakyReLU", {"act_type": "selu"}, [X], F.selu(X)),
    ("Convolution", {"kernel": "(3, 2)", "num_filter": 4, "stride": "(2, 1)", "pad": "(1, 0)"},
     [X, t(4, 6, 3, 2), t(4)], F.conv2d(X, t(4, 6, 3, 2), t(4), (2, 1), (1, 0))),
    ("Convolution", {"kernel": "(3L, 3L)", "num_filter": 6, "num_group": 3, "dilate": "(2, 1)", "no_bias": "True",
                     "workspace": 1024}, [X, t(6, 2, 3, 3)], F.conv2d(X, t(6, 2, 3, 3), None, 1, 0, (2, 1), 3)),
    ("Convolution", {"kernel": "(3,)", "num_filter": 2}, [X[..., 0], t(2, 6, 3), t(2)],
     F.conv1d(X[..., 0], t(2, 6, 3), t(2))),
    ("Deconvolution", {"kernel": "(4, 4)", "num_filter": 4, "stride": "(2, 2)", "pad": "(1, 1)", "num_group": 2},
     [X, t(6, 2, 4, 4)], F.conv_transpose2d(X, t(6, 2, 4, 4), None, 2, 1, 0, 2)),
    ("Deconvolution", {"kernel": "(3, 3)", "num_filter": 4, "stride": "(2, 2)", "pad": "(1, 1)", "adj": "(1, 1)",
                       "no_bias": "False"}, [X, t(6, 4, 3, 3), t(4)],
     F.conv_transpose2d(X, t(6, 4, 3, 3), t(4), 2, 1, 1)),
    ("Deconvolution", {"kernel": "(4, 4)", "num_filter": 4, "stride": "(2, 2)", "target_shape": "(10, 14)"},
     [X, t(6, 4, 4, 4)], F.conv_transpose2d(X, t(6, 4, 4, 4), None, 2, 1)),
    ("FullyConnected", {"num_hidden": 3}, [X, t(3, 210), t(3)], F.linear(X.flatten(1), t(3, 210), t(3))),
    ("FullyConnected", {"num_hidden": 3, "flatten": "False", "no_bias": 1}, [X, t(3, 7)], F.linear(X, t(3, 7))),
    ("BatchNorm", {"eps": 0.01, "fix_gamma": "False"}, [X, t(6), t(6, seed=2), t(6, seed=3), t(6).abs()],
     F.batch_norm(X, t(6, seed=3), t(6).abs(), t(6), t(6, seed=2), eps=0.01)),
    ("BatchNorm", {}, [X, t(6), t(6, seed=2), t(6, seed=3), t(6).abs()],
     F.batch_norm(X, t(6, seed=3), t(6).abs(), None, t(6, seed=2), eps=1e-3)),
    ("Pooling", {"kernel": "(3, 2)", "stride": "(2, 2)", "pad": "(1, 1)", "pool_type": "max"}, [X],
     F.max_pool2d(X, (3, 2), 2, 1)),
    ("Pooling", {"kernel": "(3, 3)", "stride": "(2, 2)", "pooling_convention": "full", "pool_type": "avg"},
     [t(1, 2, 6, 8)], F.avg_pool2d(t(1, 2, 6, 8), 3, 2, ceil_mode=True)),
    ("Pooling", {"kernel": "(3, 3)", "pad": "(1, 1)", "pool_type": "avg", "count_include_pad": "False"}, [X],
     F.avg_pool2d(X, 3, 1, 1, count_include_pad=False)),
    ("Pooling", {"kernel": "(2, 2)", "pool_type": "sum"}, [X], F.avg_pool2d(X, 2, 1) * 4),
    ("Pooling", {"kernel": "(2, 2)", "pool_type": "lp", "p_value": 2}, [X], F.lp_pool2d(X, 2.0, 2, 1)),
    ("Pooling", {"kernel": "(1, 1)", "global_pool": "True", "pool_type": "avg"}, [X], X.mean((2, 3), keepdim=True)),
    ("_contrib_AdaptiveAvgPooling2D", {"output_size": "(3,)"}, [X], F.adaptive_avg_pool2d(X, 3)),
    ("_contrib_BilinearResize2D", {"height": 9, "width": 4}, [X],
     F.interpolate(X, (9, 4), mode="bilinear", align_corners=True)),
    ("UpSampling", {"scale": 2, "sample_type": "nearest", "num_args": 1}, [X], F.interpolate(X, scale_factor=2)),
    ("UpSampling", {"scale": 2, "sample_type": "bilinear", "num_args": 2}, [X, t(6, 1, 4, 4)],
     F.conv_transpose2d(X, t(6, 1, 4, 4), None, 2, 1, 0, 6)),
    ("softmax", {"axis": 1, "temperature": 2.0}, [X], (X / 2).softmax(1)),
    ("softmin", {}, [X], (-X).softmax(-1)), ("log_softmax", {"axis": -1}, [X], X.log_softmax(-1)),
    ("SoftmaxActivation", {"mode": "channel"}, [X], X.softmax(1)),
    ("SoftmaxActivation", {}, [X], X.flatten(1).softmax(1).reshape(X.shape)),
    ("LRN", {"nsize": 5, "alpha": 0.1, "beta": 0.6, "knorm": 1.5}, [X], F.local_response_norm(X, 5, 0.1, 0.6, 1.5)),
    ("InstanceNorm", {"eps": 0.01}, [X, t(6), t(6, seed=2)],
     F.instance_norm(X, None, None, t(6), t(6, seed=2), eps=0.01)),
    ("LayerNorm", {}, [X, t(7), t(7, seed=2)], F.layer_norm(X, (7,), t(7), t(7, seed=2))),
    ("LayerNorm", {"axis": 1}, [X, t(6), t(6, seed=2)],
     F.layer_norm(X.movedim(1, -1), (6,), t(6), t(6, seed=2)).movedim(-1, 1)),
    ("GroupNorm", {"num_groups": 3}, [X, t(6), t(6, seed=2)], F.group_norm(X, 3, t(6), t(6, seed=2))),
    ("GroupNorm", {"num_groups": 3}, [X, t(3), t(3, seed=2)],
     F.group_norm(X, 3, t(3).repeat_interleave(2), t(3, seed=2).repeat_interleave(2))),
    ("L2Normalization", {"mode": "channel"}, [X], X / X.square().sum(1, True).sqrt()),
    ("L2Normalization", {"mode": "instance", "eps": 1.0}, [X], X / (X.square().sum((1, 2, 3), True) + 1).sqrt()),
    ("L2Normalization", {"mode": "spatial"}, [X], X / X.square().sum((2, 3), True).sqrt()),
    ("Flatten", {}, [X], X.flatten(1)), ("Dropout", {"p": 0.9}, [X], X),
    ("Reshape", {"shape": "(0, -1)"}, [X], X.reshape(2, -1)), ("Reshape", {"shape": "(-2,)"}, [X], X),
    ("Reshape", {"shape": "(0, -3, -2)"}, [X], X.reshape(2, 30, 7)),
    ("Reshape", {"shape": "(0, -4, 3, -1, -2)"}, [X], X.reshape(2, 3, 2, 5, 7)),
    ("Reshape", {"shape": "(-4, -1, 2, 0, 0, 0)"}, [X], X.reshape(1, 2, 6, 5, 7)),
    ("Reshape", {"shape": "(-1, 0)", "reverse": "True"}, [X], X.reshape(-1, 7)),
    ("Reshape", {"target_shape": "(2, 0)"}, [X], X.reshape(2, -1)),
    ("expand_dims", {"axis": -1}, [X], X.unsqueeze(-1)),
    ("squeeze", {"axis": "(0,)"}, [t(1, 3, 1)], t(1, 3, 1).squeeze(0)),
    ("squeeze", {}, [t(1, 3, 1)], t(3)), ("transpose", {}, [X], X.permute(3, 2, 1, 0)),
    ("transpose", {"axes": "(0, 2, 3, 1)"}, [X], X.permute(0, 2, 3, 1)),
    ("SwapAxis", {"dim1": 1, "dim2": 3}, [X], X.transpose(1, 3)),
    ("Concat", {"dim": 1, "num_args": 2}, [X, t(2, 3, 5, 7)], torch.cat([X, t(2, 3, 5, 7)], 1)),
    ("stack", {"axis": 1, "num_args": 2}, [X, t(2, 6, 5, 7, seed=9)], torch.stack([X, t(2, 6, 5, 7, seed=9)], 1)),
    ("slice_axis", {"axis": 1, "begin": -4, "end": "None"}, [X], X[:, -4:]),
    ("slice", {"begin": "(None, 4, 1)", "end": "(None, 0, 4)", "step": "(None, -2, 1)"}, [X], X[:, [4, 2], 1:4]),
    ("slice_like", {"axes": "(2, 3)"}, [X, t(1, 1, 3, 4)], X[:, :, :3, :4]),
    ("Crop", {"num_args": 2, "offset": "(1, 2)"}, [X, t(1, 1, 3, 4)], X[:, :, 1:4, 2:6]),
    ("Crop", {"num_args": 1, "h_w": "(3, 3)", "center_crop": "True"}, [X], X[:, :, 1:4, 2:5]),
    ("SliceChannel", {"num_outputs": 3}, [X], *X.split(2, 1)),
    ("SliceChannel", {"num_outputs": 2, "axis": 0, "squeeze_axis": "True"}, [X], *X.unbind(0)),
    ("_split_v2", {"indices": "(0, 2, 3)", "axis": 1}, [X[:, :5]], X[:, :2], X[:, 2:3], X[:, 3:5]),
    ("broadcast_to", {"shape": "(0, 4, 3)"}, [t(2, 1, 3)], t(2, 1, 3).expand(2, 4, 3)),
    ("broadcast_axis", {"axis": "(1,)", "size": "(4,)"}, [t(2, 1, 3)], t(2, 1, 3).expand(2, 4, 3)),
    ("tile", {"reps": "(2, 3)"}, [t(2, 2, 3)], t(2, 2, 3).tile(2, 3)),
    ("repeat", {"repeats": 2, "axis": 1}, [t(2, 3)], t(2, 3).repeat_interleave(2, 1)),
    ("reverse", {"axis": "(1,)"}, [t(2, 3)], t(2, 3).flip(1)),
    ("Pad", {"mode": "edge", "pad_width": "(0, 0, 0, 0, 1, 2, 0, 1)"}, [X], F.pad(X, (0, 1, 1, 2), "replicate")),
    ("Pad", {"mode": "reflect", "pad_width": "(0, 0, 0, 0, 1, 2, 0, 1)"}, [X], F.pad(X, (0, 1, 1, 2), "reflect")),
    ("Pad", {"mode": "constant", "constant_value": 2.5, "pad_width": "(0, 0, 0, 0, 1, 2, 0, 1)"}, [X],
     F.pad(X, (0, 1, 1, 2), value=2.5)),
    ("clip", {"a_min": -0.5, "a_max": 1e0}, [X], X.clamp(-0.5, 1)),
    ("depth_to_space", {"block_size": 2}, [t(1, 8, 2, 3)],
     t(1, 8, 2, 3).reshape(1, 2, 2, 2, 2, 3).permute(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6)),
    ("space_to_depth", {"block_size": 2}, [t(1, 2, 4, 6)],
     t(1, 2, 4, 6).reshape(1, 2, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3)),
    ("sum", {"axis": "(1, 2)"}, [X], X.sum((1, 2))), ("sum", {}, [X], X.sum().reshape(1)),
    ("mean", {"axis": 1, "keepdims": "True"}, [X], X.mean(1, True)),
    ("max", {"axis": "(0,)", "exclude": "True"}, [X], X.amax((1, 2, 3))), ("min", {"axis": -1}, [X], X.amin(-1)),
    ("prod", {"axis": 0}, [X], X.prod(0)), ("norm", {"ord": 2, "axis": 1}, [X], X.norm(dim=1)),
    ("norm", {"ord": 1, "axis": 1}, [X], X.abs().sum(1)),
    ("argmax", {"axis": 1}, [X], X.argmax(1).float()), ("argmin", {}, [X], X.argmin().float().reshape(1)),
    ("topk", {"k": 3, "axis": 1, "ret_typ": "both"}, [X], *(v.float() for v in X.topk(3, 1))),
    ("topk", {"k": 2, "ret_typ": "value", "is_ascend": "True"}, [X], X.topk(2, largest=False)[0]),
    ("sort", {"axis": 1, "is_ascend": "False"}, [X], X.sort(1, True)[0]),
    ("argsort", {"axis": 1}, [X], X.argsort(1).float()),
    ("dot", {"transpose_a": "True"}, [t(4, 3), t(4, 5)], t(4, 3).T @ t(4, 5)),
    ("dot", {}, [t(2, 4, 3), t(3, 5)], t(2, 4, 3) @ t(3, 5)),
    ("dot", {}, [t(4), t(4, seed=5)], (t(4) @ t(4, seed=5)).reshape(1)),
    ("batch_dot", {"transpose_b": "True"}, [t(2, 4, 3), t(2, 5, 3)], t(2, 4, 3) @ t(2, 5, 3).mT),
    ("_linalg_gemm2", {"alpha": 0.5}, [t(2, 4, 3), t(2, 3, 5)], t(2, 4, 3) @ t(2, 3, 5) * 0.5),
    ("cumsum", {"axis": 1}, [X], X.cumsum(1)),
    ("Embedding", {"input_dim": 5, "output_dim": 3}, [torch.tensor([[1.0, 4.0, 9.0]]), t(5, 3)],
     t(5, 3)[[1, 4, 4]][None]),
    ("take", {"axis": 1}, [X, torch.tensor([0.0, 5.0, 7.0])], X[:, [0, 5, 5]]),
    ("take", {"axis": 1, "mode": "wrap"}, [X, torch.tensor([0.0, -1.0, 7.0])], X[:, [0, 5, 1]]),
    ("pick", {"axis": 1}, [t(3, 4), torch.tensor([0.0, 3.0, 2.0])], t(3, 4)[[0, 1, 2], [0, 3, 2]]),
    ("gather_nd", {}, [X, torch.tensor([[0, 1], [2, 5]])], X[[0, 1], [2, 5]]),
    ("one_hot", {"depth": 4, "on_value": 2, "off_value": -1}, [torch.tensor([0.0, 3.0, 5.0])],
     torch.tensor([[2.0, -1, -1, -1], [-1, -1, -1, 2], [-1, -1, -1, -1]])),
    ("where", {}, [torch.tensor([1.0, 0.0]), t(2, 3), t(2, 3, seed=4)], torch.stack([t(2, 3)[0], t(2, 3, seed=4)[1]])),
    ("SequenceReverse", {}, [X], X.flip(0)), ("SequenceLast", {}, [X], X[-1]),
    ("SequenceMask", {"use_sequence_length": "True", "value": -1}, [t(3, 2, 4), torch.tensor([1.0, 3.0])],
     torch.where(torch.arange(3)[:, None, None] < torch.tensor([1, 3])[None, :, None], t(3, 2, 4), -1.0)),
    ("broadcast_mod", {}, [X, torch.tensor([[[[1.5]], [[-2.0]], [[0.0]], [[3.0]], [[0.7]], [[-1.0]]]])],
     torch.where(torch.tensor([1.5, -2, 0, 3, 0.7, -1])[:, None, None] == 0, torch.zeros(()),
                 X.remainder(torch.tensor([1.5, -2, 1, 3, 0.7, -1])[:, None, None]))),
    ("smooth_l1", {"scalar": 2.0}, [X], torch.where(X.abs() < 0.25, 2 * X * X, X.abs() - 0.125)),
    ("hard_sigmoid", {}, [X], (0.2 * X + 0.5).clamp(0, 1)),
    ("round", {}, [torch.tensor([-2.5, -1.5, -0.4, 0.5, 1.5, 2.4])], torch.tensor([-3.0, -2, 0, 1, 2, 2])),
    ("rint", {}, [torch.tensor([-2.5, -1.5, -0.4, 0.5, 1.5, 2.6])], torch.tensor([-3.0, -2, 0, 0, 1, 3])),
    ("cbrt", {}, [torch.tensor([-8.0, 27.0])], torch.tensor([-2.0, 3.0])),
    ("Cast", {"dtype": "int32"}, [X * 3], (X * 3).int()),
    ("elemwise_add", {}, [X, t(2, 6, 5, 7, seed=8)], X + t(2, 6, 5, 7, seed=8)),
    ("_Mul", {}, [X, t(2, 6, 5, 7, seed=8)], X * t(2, 6, 5, 7, seed=8)),
    ("broadcast_maximum", {}, [X, t(6, 1, 1)[None]], torch.maximum(X, t(6, 1, 1))),
    ("broadcast_lesser", {}, [X, t(6, 1, 1)[None]], torch.lt(X, t(6, 1, 1)).float()),
    ("broadcast_logical_and", {}, [X.round(), t(6, 1, 1).round()[None]],
     ((X.round() != 0) & (t(6, 1, 1).round() != 0)).float()),
    ("ElementWiseSum", {"num_args": 3}, [X, X * 2, X * 3], X * 6),
    ("_RMinusScalar", {"scalar": "1.5"}, [X], 1.5 - X), ("_rdiv_scalar", {"scalar": 2}, [POSITIVE], 2 / POSITIVE),
    ("_power_scalar", {"scalar": 1.7}, [POSITIVE], POSITIVE**1.7), ("_rpower_scalar", {"scalar": 2}, [X], 2**X),
    ("_maximum_scalar", {"scalar": 0.1}, [X], X.clamp(min=0.1)),
    ("_greater_scalar", {"scalar": 0.1}, [X], (X > 0.1).float()),
    ("_mod_scalar", {"scalar": -1.5}, [X], X.remainder(-1.5)), ("_plus_scalar", {"scalar": 3}, [X.int()], X.int() + 3),
    ("log", {}, [POSITIVE], POSITIVE.log()), ("gammaln", {}, [POSITIVE], POSITIVE.lgamma()),
    ("arctan", {}, [X], X.atan()), ("logical_not", {}, [X.round()], (X.round() == 0).float()),
    ("BlockGrad", {}, [X], X), ("nansum", {"axis": 1}, [torch.tensor([[1.0, math.nan, 2.0]])], torch.tensor([3.0])),
]  # fmt: skip


@pytest.mark.parametrize("op, attrs, tensors, expected", [(c[0], c[1], c[2], c[3:]) for c in CASES],
                         ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])  # fmt: skip
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_operators(op, attrs, tensors, expected, compiled):
    check(op, attrs, tensors, *expected, compiled=compiled)


@pytest.mark.parametrize("mode, make", [("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU), ("rnn_tanh", torch.nn.RNN)])
@pytest.mark.parametrize("both", [False, True])
def test_fused_recurrent_layers(mode, make, both):
    torch.manual_seed(0)
    net = make(5, 4, 2, bidirectional=both)
    weights, biases = [], []
    for name, p in net.named_parameters():
        (weights if name.startswith("weight") else biases).append(p.detach().flatten())
    flat = torch.cat([*weights, *biases])
    ways = 2 if both else 1
    states = [t(2 * ways, 3, 4, seed=i) for i in range(1 + (mode == "lstm"))]
    x = t(6, 3, 5)
    with torch.no_grad():
        y, last = net(x, tuple(states) if mode == "lstm" else states[0])
    attrs = {"mode": mode, "state_size": 4, "num_layers": 2, "bidirectional": both, "state_outputs": True}
    check("RNN", attrs, [x, flat, *states], y, *(last if mode == "lstm" else (last,)))


def small_net(form):
    """A network as MXNet writes it, its arrays, and what it is in PyTorch."""
    net = Net(form)
    arrays = {"conv0_weight": t(4, 3, 3, 3, seed=1), "conv0_bias": t(4, seed=2), "bn0_gamma": t(4, seed=3),
              "bn0_beta": t(4, seed=4), "bn0_moving_mean": t(4, seed=5), "bn0_moving_var": t(4, seed=6).abs() + 0.1,
              "fc_weight": t(5, 4, seed=7), "fc_bias": t(5, seed=8)}  # fmt: skip
    given = lambda *names: [net.variable(n, arrays[n].numpy()) for n in names]  # noqa: E731
    data = net.variable("data")
    x = net.op("Convolution", data, *given("conv0_weight", "conv0_bias"), kernel="(3, 3)", num_filter=4, pad="(1, 1)")
    x = net.op("BatchNorm", x, *given("bn0_gamma", "bn0_beta", "bn0_moving_mean", "bn0_moving_var"), fix_gamma=False)
    x = net.op("Activation", x, act_type="relu")
    pooled = net.op("Pooling", x, kernel="(2, 2)", stride="(2, 2)", pool_type="max")
    pooled = net.op("Pooling", pooled, kernel="(1, 1)", global_pool=True, pool_type="avg")
    x = net.op("FullyConnected", net.op("Flatten", pooled), *given("fc_weight", "fc_bias"), num_hidden=5)
    net.op("SoftmaxOutput", x, net.variable("softmax_label"), name="softmax")

    def torch_net(x):
        a = arrays
        x = F.conv2d(x, a["conv0_weight"], a["conv0_bias"], padding=1)
        x = F.batch_norm(x, a["bn0_moving_mean"], a["bn0_moving_var"], a["bn0_gamma"], a["bn0_beta"], eps=1e-3).relu()
        return F.linear(F.max_pool2d(x, 2).mean((2, 3)), a["fc_weight"], a["fc_bias"]).softmax(1)

    stored = {("aux:" if "moving" in n else "arg:") + n: a.numpy() for n, a in arrays.items()}
    return net, stored, torch_net


@pytest.mark.parametrize("form, version", [("attrs", 2), ("attrs", 3), ("attr", 1), ("param", 0)])
def test_networks_of_all_times(form, version):
    net, stored, torch_net = small_net(form)
    x = t(3, 3, 8, 8, seed=11)
    (got,) = run(net, {"data": x.numpy()}, params=params_bytes(stored, version), symbolic=True)
    np.testing.assert_allclose(got, torch_net(x).numpy(), rtol=1e-4, atol=1e-6)
    found = from_mxnet(net.json(), params_bytes(stored, version), {"data": x.shape})
    assert found.outputs == ("softmax_output",)
    assert [v.name for v in found.graph.inputs if v.attrs["kind"] == "input"] == ["data"]


def test_files(tmp_path):
    net, stored, torch_net = small_net("attrs")
    (tmp_path / "net-symbol.json").write_text(net.json())
    (tmp_path / "net-0003.params").write_bytes(params_bytes(stored))
    found = from_mxnet(tmp_path / "net-symbol.json", str(tmp_path / "net-0003.params"), {"data": (2, 3, 8, 8)})
    x = t(2, 3, 8, 8, seed=3)
    (got,) = Session(found.graph, found.params).run([x.numpy()])
    np.testing.assert_allclose(got, torch_net(x).numpy(), rtol=1e-4, atol=1e-6)


def test_everything_that_cannot_be_imported_is_listed():
    net = Net()
    data = net.variable("data")
    net.op("MultiBoxDetection", net.op("Custom", data, op_type="mine"), net.variable("anchors"))
    with pytest.raises(UnsupportedSymbol, match=r"(?s)Custom at .*no converter.*at anchors.*MultiBoxDetection"):
        from_mxnet(net.json(), {}, {"data": (1, 2)})
    for attrs, message in (
        ({"kernel": "(3, 3)"}, "the attribute num_filter is missing"),
        ({"kernel": "(3, 3)", "num_filter": "four"}, "num_filter is 'four'"),
        ({"kernel": "(5, 3)", "num_filter": 4}, "a weight"),
        ({"kernel": "(3, 3)", "num_filter": 4, "layout": "NHWC"}, "layout is 'NHWC'; known"),
    ):
        net = Net()
        weight = net.variable("w", t(4, 3, 3, 3).numpy())
        net.op("Convolution", net.variable("data"), weight, no_bias=True, **attrs)
        with pytest.raises(UnsupportedSymbol, match=message):
            from_mxnet(net.json(), net.params, {"data": (1, 3, 8, 8)})


@pytest.mark.parametrize("text, message", [
    ("{", "no JSON"), ("[" * 100000, "no JSON"), ("{}", "nodes or heads are missing"),
    ('{"nodes": [], "heads": []}', "gives nothing"), ('{"nodes": [1], "heads": [[0, 0]]}', "node 0 has no op"),
    ('{"nodes": [{"op": "relu", "name": "a", "inputs": [[0, 0]]}], "heads": [[0, 0]]}', "no output of a node before"),
    ('{"nodes": [{"op": "null", "name": "a", "inputs": []}], "heads": [[7, 0]]}', "no output of a node before"),
    ('{"nodes": [{"op": "null", "name": "a", "inputs": 3}], "heads": [[0, 0]]}', "inputs is no list"),
    ('{"nodes": [{"op": "null", "name": "a", "attrs": 3}], "heads": [[0, 0]]}', "attrs is no object"),
])  # fmt: skip
def test_what_is_no_symbol(text, message):
    with pytest.raises(SymbolError, match=message):
        from_mxnet(text if "{" in text else "{" + text, {})


def test_arrays_of_all_types():
    rng = np.random.default_rng(0)
    arrays = {f"x{i}": (rng.standard_normal((2, 3)) * 9).astype(name) for i, name in enumerate(files.TYPES)}
    arrays["scalar"] = np.asarray(rng.standard_normal(), "float32").reshape(1)
    for version in range(4):
        got = load_params(params_bytes(arrays, version))
        assert got.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(got[name], array)
            assert got[name].dtype == array.dtype


def test_broken_arrays():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    whole = params_bytes(arrays)
    for end in range(len(whole)):
        with pytest.raises(ParamsError):
            load_params(whole[:end])
    for at, form, value, message in (
        (0, "<Q", 7, "it begins with 0x7"),
        (16, "<Q", 1 << 60, "holds 1152921504606846976 arrays"),
        (28, "<i", 1, "stored as row_sparse; save it dense"),
        (28, "<i", 2, "stored as csr"),
        (32, "<i", 1 << 30, "1073741824 axes"),
        (32, "<i", -1, "-1 axes"),
        (36, "<q", 1 << 62, "the file ends inside array 0 of 4611686018427387904 x 3"),
        (36, "<q", -2, r"sizes \(-2, 3\)"),
        (60, "<i", 99, "unknown type 99"),
    ):
        broken = bytearray(whole)
        broken[at : at + struct.calcsize(form)] = struct.pack(form, value)
        with pytest.raises(ParamsError, match=message):
            load_params(bytes(broken))


def test_random_damage_gives_an_error_or_a_graph():
    """Bits and bytes of both files changed: never an error that is not ours."""
    net, stored, _ = small_net("attrs")
    text, data = net.json(), params_bytes(stored)
    rng = np.random.default_rng(5)
    ours = (SymbolError, ParamsError, UnsupportedSymbol)
    caught = 0
    for i in range(400):
        broken = bytearray(data if i % 2 else text.encode())
        for _ in range(rng.integers(1, 4)):
            broken[rng.integers(len(broken))] = rng.integers(256) if i % 4 else rng.choice([48, 45, 57, 93, 34])
        try:
            if i % 2:
                from_mxnet(text, bytes(broken), {"data": (1, 3, 8, 8)})
            else:
                from_mxnet("{" + broken.decode("utf-8", "replace").lstrip("{"), stored, {"data": (1, 3, 8, 8)})
        except ours:
            caught += 1
    assert 50 < caught < 400


def test_old_and_new_attributes_are_read_alike():
    forms = [json.loads(small_net(form)[0].json())["nodes"][3] for form in ("attrs", "attr", "param")]
    assert [f.get("attrs") or f.get("param") or f["attr"] for f in forms] == [forms[0]["attrs"]] * 3
