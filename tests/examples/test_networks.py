"""The networks of nnvm.testing, built by names and run, against the same networks in PyTorch with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nnvm
import nnvm.symbol
from nnvm.compiler.graph_util import get_gradient_graph
from nnvm.compiler.pipeline import pipeline
from nnvm.testing import dcgan, dqn, init, mlp, mobilenet, resnet, squeezenet, vgg
from nnvm.testing.workload import Params

Weights = dict[str, torch.Tensor]


def bn(w: Weights, x: torch.Tensor, name: str, eps: float = 1e-5) -> torch.Tensor:
    mean, var, gamma, beta = (w[f"{name}_{k}"] for k in ("moving_mean", "moving_var", "gamma", "beta"))
    return F.batch_norm(x, mean, var, gamma, beta, eps=eps)


def conv(w: Weights, x: torch.Tensor, name: str, stride: int = 1, padding: int = 0, groups: int = 1) -> torch.Tensor:
    return F.conv2d(x, w[f"{name}_weight"], w.get(f"{name}_bias"), stride, padding, groups=groups)


def dense(w: Weights, x: torch.Tensor, name: str) -> torch.Tensor:
    return F.linear(x, w[f"{name}_weight"], w.get(f"{name}_bias"))


def torch_mlp(w: Weights, x: torch.Tensor) -> torch.Tensor:
    x = dense(w, x.flatten(1), "fc1").relu()
    return dense(w, dense(w, x, "fc2").relu(), "fc3").softmax(-1)


def torch_dqn(w: Weights, x: torch.Tensor) -> torch.Tensor:
    for name, stride in (("conv1", 4), ("conv2", 2), ("conv3", 1)):
        x = conv(w, x, name, stride).relu()
    return dense(w, dense(w, x.flatten(1), "fc1").relu(), "fc2")


def torch_resnet(units: list[int], bottle_neck: bool, large: bool) -> Callable[[Weights, torch.Tensor], torch.Tensor]:
    def run(w: Weights, x: torch.Tensor) -> torch.Tensor:
        x = bn(w, x, "bn_data", 2e-5)
        if large:
            x = F.max_pool2d(bn(w, conv(w, x, "conv0", 2, 3), "bn0", 2e-5).relu(), 3, 2, 1)
        else:
            x = conv(w, x, "conv0", 1, 1)
        for s, count in enumerate(units, 1):
            for u in range(1, count + 1):
                name, stride = f"stage{s}_unit{u}", 2 if s > 1 and u == 1 else 1
                act = bn(w, x, f"{name}_bn1", 2e-5).relu()
                y = act
                for i, padding in enumerate((0, 1, 0) if bottle_neck else (1, 1), 1):
                    y = y if i == 1 else bn(w, y, f"{name}_bn{i}", 2e-5).relu()
                    y = conv(w, y, f"{name}_conv{i}", stride if i == 1 else 1, padding)
                x = y + (conv(w, act, f"{name}_sc", stride) if u == 1 else x)
        return dense(w, bn(w, x, "bn1", 2e-5).relu().mean((2, 3)), "fc1").softmax(-1)

    return run


def torch_vgg(counts: list[int], batch_norm: bool) -> Callable[[Weights, torch.Tensor], torch.Tensor]:
    def run(w: Weights, x: torch.Tensor) -> torch.Tensor:
        for i, count in enumerate(counts, 1):
            for j in range(1, count + 1):
                x = conv(w, x, f"conv{i}_{j}", 1, 1)
                x = (bn(w, x, f"bn{i}_{j}") if batch_norm else x).relu()
            x = F.max_pool2d(x, 2)
        x = dense(w, dense(w, x.flatten(1), "fc6").relu(), "fc7").relu()
        return dense(w, x, "fc8").softmax(-1)

    return run


def torch_mobilenet(w: Weights, x: torch.Tensor) -> torch.Tensor:
    x = bn(w, conv(w, x, "conv_block_1_conv", 2, 1), "conv_block_1_bn").relu()
    for i, stride in enumerate([1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1], 1):
        name = f"separable_conv_block_{i}"
        x = conv(w, x, f"{name}_depthwise_conv", stride, 1, x.shape[1])
        x = conv(w, bn(w, x, f"{name}_depthwise_bn").relu(), f"{name}_pointwise_conv")
        x = bn(w, x, f"{name}_pointwise_bn").relu()
    return dense(w, x.mean((2, 3)), "fc").softmax(-1)


def torch_squeezenet(w: Weights, x: torch.Tensor) -> torch.Tensor:
    x = F.max_pool2d(conv(w, x, "conv1", 2).relu(), 3, 2)
    for i in (2, 3, 0, 5, 6, 0, 8, 9, 10, 11):
        if i == 0:
            x = F.max_pool2d(x, 3, 2)
            continue
        x = conv(w, x, f"fire{i}_squeeze").relu()
        one, three = conv(w, x, f"fire{i}_expand1x1"), conv(w, x, f"fire{i}_expand3x3", 1, 1)
        x = torch.cat([one.relu(), three.relu()], 1)
    return conv(w, x, "conv_last").relu().mean((2, 3)).softmax(-1)


def torch_dcgan(w: Weights, x: torch.Tensor) -> torch.Tensor:
    x = dense(w, x, "g1").relu().reshape(len(x), -1, 4, 4)
    for i in (2, 3, 4):
        x = bn(w, F.conv_transpose2d(x, w[f"g{i}_weight"], None, 2, 1), f"gbn{i}").relu()
    return F.conv_transpose2d(x, w["g5_weight"], None, 2, 1).tanh()


def trained(params: Params) -> Params:
    """As if trained: shifts, scales and running statistics that are not 0 and 1."""
    rng = np.random.default_rng(4)
    out = {}
    for name, a in params.items():
        if name.endswith(("bias", "beta", "moving_mean")):
            a = (0.1 * rng.standard_normal(a.shape)).astype(a.dtype)
        elif name.endswith(("gamma", "moving_var")):
            a = rng.uniform(0.5, 1.5, a.shape).astype(a.dtype)
        out[name] = a
    return out


CASES: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "mlp": (lambda: mlp.get_workload(2, 10, (3, 8, 8)), torch_mlp, (2, 3, 8, 8)),
    "dqn": (lambda: dqn.get_workload(2), torch_dqn, (2, 4, 84, 84)),
    "resnet18": (
        lambda: resnet.get_workload(1, 10, 18, (3, 64, 64)),
        torch_resnet([2, 2, 2, 2], False, True),
        (1, 3, 64, 64),
    ),
    "resnet20": (
        lambda: resnet.get_workload(2, 10, 20, (3, 28, 28)),
        torch_resnet([3, 3, 3], False, False),
        (2, 3, 28, 28),
    ),
    "resnet50": (
        lambda: resnet.get_workload(1, 10, 50, (3, 32, 32)),
        torch_resnet([3, 4, 6, 3], True, False),
        (1, 3, 32, 32),
    ),
    "vgg11": (lambda: vgg.get_workload(1, 10, (3, 32, 32)), torch_vgg([1, 1, 2, 2, 2], False), (1, 3, 32, 32)),
    "vgg13_bn": (
        lambda: vgg.get_workload(1, 10, (3, 32, 32), num_layers=13, batch_norm=True),
        torch_vgg([2, 2, 2, 2, 2], True),
        (1, 3, 32, 32),
    ),
    "mobilenet": (lambda: mobilenet.get_workload(1, 10, (3, 32, 32), alpha=0.5), torch_mobilenet, (1, 3, 32, 32)),
    "squeezenet": (lambda: squeezenet.get_workload(1, 10, (3, 48, 48)), torch_squeezenet, (1, 3, 48, 48)),
    "dcgan": (lambda: dcgan.get_workload(2, ngf=16), torch_dcgan, (2, 100)),
}


#: Networks that take long to compile.
SLOW = ("resnet50", "vgg13_bn")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CASES])
def test_network(name: str) -> None:
    workload, expected, shape = CASES[name]
    net, params = workload()
    params = trained(params)
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    graph, lib, built = nnvm.compiler.build(net, "llvm", shape={"data": shape}, params=params)
    module = nnvm.runtime.create(graph, lib)
    module.set_input("data", data)
    module.set_input(**built)
    module.run()
    wanted = expected({k: torch.from_numpy(v) for k, v in params.items()}, torch.from_numpy(data)).numpy()
    assert wanted.std() > 1e-3, "an output that does not depend on anything tests nothing"
    np.testing.assert_allclose(module.get_output(0), wanted, rtol=2e-3, atol=2e-5)


def test_workloads_are_the_same_for_a_seed() -> None:
    (_, a), (_, b), (_, c) = (mlp.get_workload(1, 10, (1, 4, 4), seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(a["fc1_weight"], b["fc1_weight"])
    assert not np.array_equal(a["fc1_weight"], c["fc1_weight"]) and not a["fc1_bias"].any()
    _, double = mlp.get_workload(1, 10, (1, 4, 4), dtype="float64")
    assert double["fc1_weight"].dtype == np.float64


def test_initializers() -> None:
    rng = np.random.default_rng(0)
    w = init.Xavier().__call__("a_weight", (200, 100, 3, 3), rng)
    limit = np.sqrt(3 / (9 * 150))
    assert np.abs(w).max() <= limit and np.abs(w).max() > 0.99 * limit
    assert abs(init.Normal(0.5)("w", (300, 300), rng).std() - 0.5) < 0.01
    assert (init.Xavier()("bn_moving_var", (4,), rng) == 1).all()
    x = nnvm.sym.dense(nnvm.sym.Variable("data"), nnvm.sym.Variable("w", init="ones"), units=3, use_bias=False)
    x = x + nnvm.sym.Variable("half", shape=(2, 3), init=0.5)
    values = init.initialize(x.infer_type(data=nnvm.graph.TensorType((2, 4))))
    assert (values["w"] == 1).all() and (values["half"] == 0.5).all() and "data" not in values
    y = nnvm.sym.Variable("w", shape=(2,), init="onez")
    with pytest.raises(ValueError, match="no initializer 'onez'; there are zeros, ones"):
        init.initialize(y.infer_type())
    with pytest.raises(ValueError, match="two axes"):
        init.Xavier()("w", (3,), rng)


def test_networks_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="no network of 20 layers; there are 18, 34"):
        resnet.get_symbol(10, 20)
    with pytest.raises(ValueError, match="small images"):
        resnet.get_symbol(10, 21, (3, 28, 28))
    with pytest.raises(ValueError, match="there are 11, 13, 16, 19"):
        vgg.get_symbol(num_layers=12)


@pytest.mark.parametrize(
    ("net", "ratio"),
    [(resnet.get_symbol(10, 18, (3, 64, 64)), 0.55), (mobilenet.get_symbol(10, 0.5), 0.35)],
    ids=["resnet18", "mobilenet"],
)
def test_memory_of_gradients_with_recomputation(net: nnvm.symbol.Symbol, ratio: float) -> None:
    """The planned arena of all gradients, with and without checkpoints."""
    weights = [n for n in net.list_input_names("read_only") if n != "data"]

    def peak(policy: str) -> int:
        g = get_gradient_graph(net, weights, data=(8, 3, 64, 64), mirrored=policy)
        size: int = g.apply(pipeline()).attrs["memory_plan"].arena_bytes
        return size

    assert peak("sqrt") < ratio * peak("marked")
