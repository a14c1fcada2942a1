"""Mirror: recomputed values give the same gradients, bit by bit, and need less memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import nnvm.symbol as sym
from nnvm.attribute import AttrScope
from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.compiler.pipeline import pipeline
from nnvm.dim import symbol
from nnvm.graph import Graph, TensorType, apply, constant
from nnvm.graph.op import register
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.gradient import gradient
from nnvm.graph.passes.mirror import Policy
from nnvm.graph.verify import verify
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.testing.assert_graph_equal import assert_graph_equal
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, op, ops, param, var

register(
    "test.noise", inputs=["data"], doc="as if random", infer_type=lambda attrs, t: (t[0],), stateful=True,
    reference=lambda attrs, x: (x * 2,), gradient=lambda node, g: [apply("add", [g[0], g[0]])[0]],
)  # fmt: skip


def mlp(depth: int = 16, width: int = 32, batch: int = 256) -> Graph:
    x = sym.Variable("x")
    for i in range(depth):
        x = sym.tanh(sym.dense(x, units=width, name=f"layer{i}"))
    return sym.mean(sym.square(x)).infer_type(x=TensorType((batch, width)))


def cnn(depth: int = 10, channels: int = 4, size: int = 16) -> Graph:
    x = sym.conv2d(sym.Variable("x"), channels=channels, kernel_size=(3, 3), padding=(1, 1), name="stem")
    for i in range(depth):
        y = sym.conv2d(x, channels=channels, kernel_size=(3, 3), padding=(1, 1), name=f"conv{i}")
        y = sym.silu(sym.group_norm(y, num_groups=2))
        x = x + y if i % 2 else y
    return sym.mean(sym.square(x)).infer_type(x=TensorType((2, 3, size, size)))


def transformer(layers: int = 4, width: int = 16, length: int = 24) -> Graph:
    x = sym.Variable("x")
    for i in range(layers):
        y = sym.layer_norm(x)
        q, k, v = (sym.reshape(sym.dense(y, units=width, use_bias=False, name=f"{n}{i}"), shape=(2, length, 2, 8))
                   for n in "qkv")  # fmt: skip
        q, k, v = (sym.transpose(t, axes=(0, 2, 1, 3)) for t in (q, k, v))
        y = sym.reshape(sym.transpose(sym.attention(q, k, v), axes=(0, 2, 1, 3)), shape=(2, length, width))
        x = x + sym.dense(y, units=width, name=f"out{i}")
        y = sym.gelu(sym.dense(sym.layer_norm(x), units=2 * width, name=f"up{i}"))
        x = x + sym.dense(y, units=width, name=f"down{i}")
    return sym.mean(sym.square(x)).infer_type(x=TensorType((2, length, width)))


NETWORKS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def training(forward: Graph, policy: Policy = "marked") -> Graph:
    """Loss and gradients of all weights as one graph."""
    one = constant(np.float32(1).reshape(()), TensorType(()))
    backward = gradient(forward, [v.name for v in forward.inputs if v.attrs["kind"] == "param"], [one], policy)
    return verify(Graph((*forward.outputs, *backward.outputs), backward.inputs, {"typed": True}))


def peak(g: Graph) -> int:
    return apply_passes(g, pipeline(), PassContext(verify=True)).attrs["memory_plan"].arena_bytes


def barriers(g: Graph) -> int:
    return ops(g).count("optimization_barrier")


def small(name: str) -> Graph:
    return {"mlp": lambda: mlp(6, 8, 4), "cnn": lambda: cnn(4, 4, 6), "transformer": lambda: transformer(2, 16, 5)}[
        name
    ]()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("policy", ["sqrt", "cheap", lambda n: True], ids=["sqrt", "cheap", "all"])
def test_gradients_are_equal_bit_by_bit(name: str, policy: Policy) -> None:
    forward = small(name)
    plain, mirrored = training(forward), training(forward, policy)
    assert barriers(plain) == 0 and barriers(mirrored) > 0
    arrays = random_inputs(forward)
    for a, b in zip(run_graph(plain, arrays), run_graph(mirrored, arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def run_compiled(g: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    compiled = compile_graph(g, BuildOptions(verify=True, options={"precompute": False}))
    plan = compiled.plan
    return Executor(plan, NumpyMemory(), [e.node.attrs["value"] for e in plan.constants]).run(arrays)


@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_gradients(name: str) -> None:
    forward = small(name)
    arrays = random_inputs(forward)
    plain, mirrored = (run_compiled(training(forward, p), arrays) for p in ("marked", "sqrt"))
    for a, b in zip(plain, mirrored, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "ratio"), [("mlp", 0.5), ("cnn", 0.55), ("transformer", 0.7)])
def test_peak_memory_falls(name: str, ratio: float) -> None:
    """The planned arena of loss and gradients, after all passes: what was merged again would be seen here."""
    forward = NETWORKS[name]()
    assert peak(training(forward, "sqrt")) < ratio * peak(training(forward))


def test_memory_grows_like_the_root_of_the_depth() -> None:
    deep, deeper = (peak(training(mlp(depth, 16, 256), "sqrt")) for depth in (16, 64))
    assert deeper < 2.6 * deep
    plain, plainer = (peak(training(mlp(depth, 16, 256))) for depth in (16, 64))
    assert plainer > 3.5 * plain


def test_merging_leaves_copies_apart() -> None:
    forward = small("mlp")
    before = training(forward, lambda n: n.op.name == "tanh")
    after = apply_passes(before, ["EliminateCommon", "EliminateIdentity", "ReplaceOp"], PassContext(verify=True))
    counts = Counter(ops(after))
    assert counts["tanh"] == 2 * 6 - 1  # the last one's gradient is the first to come
    assert counts["optimization_barrier"] == 5


def test_one_piece() -> None:
    x = var("x", 3)
    a = op("exp", op("tanh", x, at="t"), at="e")
    forward = graph(op("sin", op("multiply", a, a)), x).with_attrs(typed=True)
    after = gradient(forward, ["x"], mirrored=lambda n: n.op.name == "exp")
    head = var("y_grad", 3)
    t = op("tanh", x)
    e = op("exp", t)
    g = op("multiply", head, op("cos", op("multiply", e, e)))
    again = op("exp", op("optimization_barrier", t, g))
    d = op("multiply", op("add", op("multiply", g, again), op("multiply", g, again)), again)
    one = constant(np.ones((), np.float32), TensorType(()))
    dx = op("multiply", d, op("subtract", one, op("multiply", t, t)))
    assert_graph_equal(after, graph(dx, x, head).with_attrs(typed=True))


def test_sizes_with_names() -> None:
    n = symbol("n")
    x = sym.Variable("x", (n, 8))
    for i in range(9):
        x = sym.tanh(sym.dense(x, units=8, name=f"l{i}"))
    forward = sym.mean(sym.square(x)).infer_type()
    plain, mirrored = training(forward), training(forward, "sqrt")
    assert barriers(mirrored) > 0
    rng = np.random.default_rng(0)
    shapes = [tuple(5 if d == n else d for d in v[0].type.shape) for v in forward.inputs]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    for a, b in zip(run_graph(plain, arrays), run_graph(mirrored, arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(run_compiled(plain, arrays), run_compiled(mirrored, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_marks_of_the_user() -> None:
    def net(**mark: bool) -> Graph:
        x = sym.Variable("x", (4, 8))
        for i in range(3):
            with AttrScope(**mark):
                x = sym.tanh(sym.dense(x, units=8, name=f"l{i}"))
        return sym.sum(x * x).infer_type()

    assert barriers(training(net())) == 0
    assert barriers(training(net(mirror=True))) > 0
    assert barriers(training(net(mirror=False), "sqrt")) == barriers(training(net(mirror=False), lambda n: True)) == 0


def test_must_not_fire() -> None:
    x, w = var("x", 3), param("w", 3)
    noise = op("test.noise", op("exp", x), at="noise")
    shared = op("exp", op("multiply", w, w), at="shared")
    y = op("multiply", op("tanh", op("multiply", noise, shared), at="mid"), op("sin", noise))
    forward = graph([op("exp", op("exp", y), at="end"), y], x, w).with_attrs(typed=True)
    everything = Counter(ops(forward))
    after = gradient(forward, ["x", "w"], mirrored=lambda n: True)
    names = [n.name for n in Graph((*forward.outputs, *after.outputs), after.inputs).nodes]
    assert sum("noise" in n and "mirror" in n for n in names) == 0, "random numbers would differ"
    assert not any(n.startswith("shared.mirror") for n in names), "it depends on parameters only"
    assert not any(n.startswith("end") and "mirror" in n for n in names), "it is returned"
    assert "mid.mirror" in names
    assert everything["test.noise"] == 1


def test_what_is_needed_at_once_is_kept() -> None:
    x = var("x", 3)
    forward = graph(op("sin", op("exp", op("square", x))), x).with_attrs(typed=True)
    plain = gradient(forward, ["x"])
    after = gradient(forward, ["x"], mirrored=lambda n: n.op.name == "exp")
    assert_graph_equal(after, plain)


def test_option_of_the_pass_and_wrong_policies() -> None:
    forward = small("mlp")
    context = PassContext(options={"mirror": "sqrt"}, verify=True)
    assert barriers(apply_passes(forward, ["Gradient"], context)) > 0
    with pytest.raises(ValueError, match=r"no mirror policy 'root'; there are sqrt, cheap, marked"):
        gradient(forward, ["layer0_weight"], mirrored="root")


def test_second_derivatives() -> None:
    x = var("x", 3)
    forward = graph(op("exp", op("sin", op("exp", op("multiply", x, x)))), x).with_attrs(typed=True)

    def second(policy: Policy) -> list[np.ndarray]:
        first = gradient(forward, ["x"], mirrored=policy)
        ones = np.ones(3, np.float32)
        return run_graph(gradient(first, ["x"], mirrored=policy), [np.float32([0.2, -0.4, 0.6]), ones, ones])

    # the contributions are summed in another order
    np.testing.assert_allclose(second("marked")[0], second(lambda n: True)[0], rtol=1e-6)


def random_network(rng: np.random.Generator, size: int) -> Graph:
    """Values of one shape that branch and join, with shared weights and several outputs."""
    x, w = var("x", 3, 4), param("w", 4, 4)
    values = [x]
    for _ in range(size):
        kind = rng.choice(["tanh", "sin", "softmax", "multiply", "add", "matmul"])
        near = values[-4:]  # mostly long chains
        a = near[rng.integers(len(near))]
        b = values[rng.integers(len(values))]
        more = {"multiply": [b], "add": [b], "matmul": [op("tanh", w) if rng.random() < 0.3 else w]}.get(kind, [])
        values.append(op(kind, a, *more))
    outputs = [values[-1], values[rng.integers(1, len(values))]]
    return graph(outputs, x, w).with_attrs(typed=True)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    """Whatever is chosen, the graph stays without cycles and the gradients are equal bit by bit."""
    rng = np.random.default_rng(seed)
    for _ in range(4):
        forward = random_network(rng, int(rng.integers(5, 30)))
        chosen = {n.name for n in forward.nodes if rng.random() < rng.choice([0.3, 0.8])}
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (4, 4), (3, 4), (3, 4))]
        plain = gradient(forward, ["x", "w"])
        for policy in (lambda n, chosen=chosen: n.name in chosen, "sqrt", "cheap"):
            mirrored = verify(gradient(forward, ["x", "w"], mirrored=policy))
            given = arrays[: len(mirrored.inputs)]
            for a, b in zip(run_graph(plain, given), run_graph(mirrored, given), strict=True):
                np.testing.assert_array_equal(a, b)
