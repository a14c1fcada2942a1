"""The whole pipeline on random graphs and on small networks, against the reference executor; each pass switched off."""

import random
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnvm.compiler.pipeline import pipeline
from nnvm.graph.graph_attrs import GRAPH_ATTRIBUTES
from nnvm.graph.pass_manager import PASSES, PassContext, apply_passes, get_pass
from nnvm.target import Target
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, op, param, scalar, var
from tests.graph.compare import run_main
from tests.graph.test_plan_memory import run_in_arena


def run(g, disabled=(), cpu="haswell", **options):
    context = PassContext(verify=True, disabled=frozenset(disabled), options=options,
                          target=Target.parse(f"llvm -mcpu={cpu}"))  # fmt: skip
    return apply_passes(g, pipeline(), context)


def check(g, rtol=1e-3, atol=1e-3, **kw):
    main = run(g, **kw)
    arrays = random_inputs(g)
    by_name = dict(zip((v.name for v in g.inputs), arrays))
    prepare = main.attrs["prepare"]
    early = run_in_arena(prepare, prepare.attrs["memory_plan"], [by_name[v.name] for v in prepare.inputs])
    got = run_in_arena(main, main.attrs["memory_plan"], [*arrays, *early])
    for a, b in zip(got, run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    return main


def conv(x, name, out, k=3, **attrs):
    groups = attrs.get("groups", 1)
    return op("conv2d", x, param(name, out, x.type.shape[1] // groups, k, k), padding=((k // 2,) * 2,) * 2, **attrs)


def bn(x, name):
    c = x.type.shape[1]
    # the variance is squared: random parameters are of either sign
    v = op("add", op("square", param(name + ".v", c)), scalar(0.5))
    return op("batch_norm", x, param(name + ".g", c), param(name + ".b", c), param(name + ".m", c), v)


def residual_network():
    x = op("relu", bn(conv(var("x", 1, 3, 8, 8), "stem", 16, strides=(2, 2)), "n0"))
    y = op("relu", bn(conv(x, "a", 16), "n1"))
    x = op("relu", op("add", bn(conv(y, "b", 16), "n2"), x))
    down = op("add", bn(conv(x, "c", 32, strides=(2, 2)), "n3"), bn(conv(x, "d", 32, 1, strides=(2, 2)), "n4"))
    gate = op("sigmoid", conv(op("mean", down, axis=(2, 3), keepdims=True), "se", 32, 1))
    pooled = op("mean", op("multiply", down, gate), axis=(2, 3))
    return graph(op("dense", pooled, param("fc", 10, 32), param("fcb", 10)))


def transformer_layer():
    x = var("x", 2, 5, 16)

    def linear(e, name, n):
        rows = op("reshape", e, shape=(10, e.type.shape[-1]))
        weight = op("transpose", param(name, n, e.type.shape[-1]), axes=(1, 0))
        return op("reshape", op("add", op("matmul", rows, weight), param(name + "b", n)), shape=(2, 5, n))

    def heads(e, axes=(0, 2, 1, 3)):
        return op("transpose", op("reshape", e, shape=(2, 5, 4, 4)), axes=axes)

    h = op("layer_norm", x, param("g", 16), param("b", 16))
    q, k, v = heads(linear(h, "q", 16)), heads(linear(h, "k", 16), (0, 2, 3, 1)), heads(linear(h, "v", 16))
    a, b, c = (op("reshape", e, shape=(8, *e.type.shape[2:])) for e in (q, k, v))
    s = op("reshape", op("matmul", a, b), shape=(2, 4, 5, 5))
    p = op("softmax", op("divide", s, scalar(2.0)), axis=-1)
    o = op("reshape", op("matmul", op("reshape", p, shape=(8, 5, 5)), c), shape=(2, 4, 5, 4))
    o = op("reshape", op("transpose", o, axes=(0, 2, 1, 3)), shape=(2, 5, 16))
    x = op("add", linear(o, "o", 16), x)
    h = op("layer_norm", x, param("g2", 16), param("b2", 16))
    return graph(op("add", linear(op("gelu", linear(h, "up", 64)), "down", 16), x))


@pytest.mark.parametrize("build", [residual_network, transformer_layer])
@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "nehalem"])
def test_networks_keep_their_values(build, cpu):
    check(build(), cpu=cpu)


def test_the_networks_become_few_kernels():
    fused = [[n.op.name for n in k.attrs["graph"].nodes if not n.is_variable and not n.is_constant]
             for k in check(residual_network()).nodes if k.op.name == "group"]  # fmt: skip
    assert fused[0] == ["conv2d", "relu"] and ["conv2d", "add", "relu"] in fused
    assert not any("layout_transform" in names for names in fused)
    fused = [[n.op.name for n in k.attrs["graph"].nodes if not n.is_variable and not n.is_constant]
             for k in check(transformer_layer()).nodes if k.op.name == "group"]  # fmt: skip
    assert ["attention"] in fused and ["dense", "gelu"] in fused and ["dense", "add"] in fused


@pytest.mark.parametrize("name", sorted(set(pipeline())))
def test_each_pass_can_be_left_out(name):
    check(residual_network(), disabled=[name])
    check(transformer_layer(), disabled=[name])


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_levels(level):
    for g in (residual_network(), transformer_layer()):
        context = PassContext(opt_level=level, verify=True)
        main = apply_passes(g, pipeline(), context)
        arrays = random_inputs(g)
        np.testing.assert_allclose(run_main(main, g, arrays)[0], run_graph(g, arrays)[0], rtol=1e-3, atol=1e-3)


def test_passes_declare_documented_attributes():
    for p in PASSES.values():
        assert p.doc.strip() and set(p.requires) | set(p.provides) <= set(GRAPH_ATTRIBUTES), p.name
    assert all(get_pass(name) for name in pipeline())


def test_running_it_again_changes_nothing_more():
    once = apply_passes(transformer_layer(), pipeline()[: pipeline().index("PrecomputePrune")], PassContext())
    again = apply_passes(once, pipeline()[: pipeline().index("PrecomputePrune")], PassContext())
    assert [n.op.name for n in again.nodes] == [n.op.name for n in once.nodes]


UNARY = ["exp", "relu", "sigmoid", "tanh", "negative", "gelu", "square"]


@st.composite
def graphs(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    values = [var("x", 2, 8, 4, 4), var("y", 2, 8, 4, 4)]
    for count in range(rng.randint(2, 16)):
        a = rng.choice(values[-5:])
        kind, rank, shape = rng.randrange(10), a.type.rank, a.type.shape
        if kind == 0 and rank == 4:
            groups = rng.choice([1, 1, shape[1]])
            out = shape[1] if groups > 1 else rng.choice([4, 8, 12, 16])
            values.append(conv(op("multiply", a, scalar(0.1)), f"w{count}", out, rng.choice([1, 3]), groups=groups))
        elif kind == 1:
            scaled = op("multiply", a, scalar(0.1))
            values.append(op("dense", scaled, param(f"w{count}", rng.choice([4, 8, 16]), shape[-1])))
        elif kind == 2:
            same = [v for v in values if v.type.shape == shape]
            values.append(op(rng.choice(["add", "subtract", "maximum"]), a, rng.choice(same)))
        elif kind == 3 and rank == 4:
            values.append(op(rng.choice(["add", "multiply"]), a, param(f"c{count}", shape[1], 1, 1)))
        elif kind == 4:
            axes = list(range(rank))
            rng.shuffle(axes)
            values.append(op("transpose", a, axes=tuple(axes)))
        elif kind == 5 and rank > 1:
            values.append(op("reshape", a, shape=(shape[0], -1) if rng.random() < 0.5 else (-1, shape[-1])))
        elif kind == 6:
            values.append(op("softmax", a, axis=rank - 1))
        elif kind == 7 and rank == 4:
            values.append(op("concatenate", a, a, axis=1))
        elif kind == 8:
            values.append(op("add", a, op("mean", a, axis=rng.randrange(rank), keepdims=True)))
        else:
            values.append(op("tanh", op(rng.choice(UNARY), op("tanh", a))))
    return graph(rng.sample(values[2:], k=min(len(values) - 2, rng.randint(1, 3))))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs())
def test_random_graphs_keep_their_values(g):
    check(g, rtol=2e-3, atol=2e-3)


def test_a_deep_graph_takes_seconds_not_minutes():
    x = var("x", 2, 16)
    w = param("w", 16, 16)
    for i in range(400):
        x = op("add", op("relu", op("dense", x, w)), scalar(float(i)))
    start = time.perf_counter()
    apply_passes(graph(x), pipeline(), PassContext())
    assert time.perf_counter() - start < 30
