"""The choice of layouts over whole graphs: where it is exact, what it weighs, and what it leaves alone."""

import itertools
import random

import numpy as np
import pytest

from nnvm.dim import symbol
from nnvm.graph.dependence import Fixed
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.layout_plan import Machine, Way, keeps_order, plan_layouts
from nnvm.target import Target
from tests.graph.build import graph, op, param, scalar, var
from tests.graph.test_alter_op_layout import alter, conv, layouts, work

HASWELL, SERVER = (Machine(Target.parse(f"llvm -mcpu={cpu}")) for cpu in ("haswell", "skylake-avx512"))


def plan(g, machine=HASWELL):
    """(op name, way) of the nodes that are planned, in order."""
    found = plan_layouts(g, Fixed(), machine)
    return [(n.op.name, found[n]) for n in g.nodes if n in found]


def seconds(g, ways, machine):
    """What the plan is to cost, counted on the graph itself."""
    fixed, total = Fixed(), 0.0
    wanted = {}
    for node in g.nodes:
        if node.is_variable or node.is_constant or fixed(node):
            continue
        way = ways.get(node, Way((1,) * len(node.inputs), 1))
        cost = node.op.attr("layout_cost")
        total += cost(node, [way], machine)[0] if cost else 0.0
        for e, b in zip(node.inputs, way.inputs):
            if not fixed(e.node):
                wanted.setdefault(e, set()).add(b)
    for e in g.outputs:
        wanted.setdefault(e, set()).add(1)
    for e, blocks in wanted.items():
        given = ways[e.node].block if e.node in ways else 1
        total += sum(machine.transforms(e.type, [given], sorted(blocks))[0])
    return total


def random_graph(seed):
    rng = random.Random(seed)
    values = [var("x", 1, 8, 8, 8)]
    for k in range(rng.randint(3, 5)):
        a = rng.choice(values[-2:])
        kind = rng.randrange(4)
        if kind < 2:
            values.append(conv(a, f"w{k}", rng.choice([4, 8, 12, 16, 32]), rng.choice([1, 3])))
        elif kind == 2:
            same = [v for v in values if v.type.shape == a.type.shape]
            values.append(op("add", a, rng.choice(same)))
        else:
            values.append(op("max_pool2d", a, pool_size=(3, 3), padding=((1, 1), (1, 1))))
    return graph([values[-1], *rng.sample(values[1:-1], k=rng.randrange(2))])


@pytest.mark.parametrize("seed", range(12))
def test_no_other_plan_costs_less(seed):
    g = random_graph(seed)
    found = plan_layouts(g, Fixed(), HASWELL)
    nodes = [n for n in g.nodes if n.op.attr("layout_rule") and not Fixed()(n)]
    options = [[Way((1,) * len(n.inputs), 1), *n.op.attr("layout_rule").ways(n, Fixed(), HASWELL)] for n in nodes]
    assert np.prod([len(o) for o in options]) < 60_000
    best = min(seconds(g, dict(zip(nodes, ways)), HASWELL) for ways in itertools.product(*options))
    assert seconds(g, found, HASWELL) == pytest.approx(best, rel=1e-3, abs=1e-11)


def test_a_transform_that_two_readers_share_counts_once():
    """One 1x1 convolution gains less than the transform takes, two that share it gain more."""
    x = op("reshape", var("x", 784 * 256), shape=(1, 256, 28, 28))

    def head(name):
        return op("sum", conv(x, name, 72, 1), axis=(2, 3))

    assert plan(graph(head("a")))[0] == ("conv2d", Way((1, 1), 8))
    both = plan(graph([head("a"), head("b")]))
    assert [way for name, way in both if name == "conv2d"] == [Way((8, 1), 8)] * 2


def test_the_whole_graph_decides_not_the_next_node():
    """A few plain ops between convolutions are blocked too, a long way around by transposes is not."""
    x = conv(var("x", 1, 3, 16, 16), "a", 16)
    y = op("add", op("relu", x), var("r", 1, 16, 16, 16))
    between = plan(graph(conv(op("max_pool2d", y, pool_size=(2, 2), strides=(2, 2)), "b", 32)))
    assert all(way.block == 8 for _, way in between)
    # softmax over the channels has to have them side by side
    ends = alter(graph(op("softmax", conv(conv(x, "b", 32), "c", 21), axis=1)))
    assert work(ends)[-2:] == ["layout_transform", "softmax"] and work(ends).count("layout_transform") == 1


def test_where_nothing_gains_nothing_is_planned():
    x = var("x", 2, 16, 8, 8)
    assert plan(graph(op("relu", op("add", x, op("mean", x, axis=(2, 3), keepdims=True))))) == []
    assert plan(graph(op("concatenate", x, op("exp", x), axis=1))) == []
    runtime = op("conv2d", x, var("w", 16, 16, 3, 3))
    assert plan(graph(op("relu", runtime))) == [], "a weight that changes at each call is not packed"
    far = op("softmax", op("relu", x), axis=1)
    g = graph([far, conv(var("y", 1, 16, 8, 8), "w", 16)])
    assert not any(name == "relu" for name, _ in plan(g)), "another region"


def test_symbolic_batches_and_images():
    n, h = symbol("n"), symbol("h")
    y = conv(conv(var("x", n, 3, h, h), "a", 16), "b", 16)
    assert [way for _, way in plan(graph(y))] == [Way((1, 1), 8), Way((8, 1), 8)]
    assert [way.block for _, way in plan(graph(y), SERVER)] == [16, 16]
    wide = op("relu", var("c", 1, n, 8, 8))
    assert plan(graph([wide, y]))[0][0] == "conv2d", "channels of unknown number stay plain"


def test_views_keep_their_place():
    assert keeps_order((1, 16, 1, 1), 8) and keeps_order((4, 16, 7, 7), 1)
    assert not keeps_order((1, 20, 1, 1), 8) and not keeps_order((1, 16, 2, 1), 8)
    pooled = op("global_avg_pool2d", conv(var("x", 1, 3, 16, 16), "a", 16))
    main = alter(graph(op("dense", op("reshape", pooled, shape=(1, 16)), param("w", 8, 16))))
    assert work(main) == ["conv2d", "global_avg_pool2d", "dense"]


def dense_block(x, growth, layers):
    for i in range(layers):
        y = op("relu", op("multiply", x, param(f"s{i}", x.type.shape[1], 1, 1)))
        y = op("relu", op("multiply", conv(y, f"a{i}", 4 * growth, 1), scalar(0.05)))
        x = op("concatenate", x, op("multiply", conv(y, f"b{i}", growth), scalar(0.05)), axis=1)
    return x


@pytest.mark.parametrize("growth", [8, 10])
def test_dense_blocks(growth):
    """Parts of whole blocks stay blocked all along; others cannot be put together in blocks."""
    main = alter(graph(conv(dense_block(conv(var("x", 1, 3, 12, 12), "in", 16), growth, 3), "out", 32)))
    ranks = [n.types[0].rank for n in main.nodes if n.op.name == "concatenate"]
    if growth == 8:
        assert work(main).count("layout_transform") == 1 and ranks == [5, 5, 5]
    else:
        assert ranks[1] == 4, "of 26 and 10 channels"


def test_fire_modules_and_skips():
    x = op("relu", conv(var("x", 1, 3, 16, 16), "stem", 32))
    s = op("relu", conv(x, "squeeze", 16, 1))
    fire = op("concatenate", op("relu", conv(s, "e1", 32, 1)), op("relu", conv(s, "e3", 32)), axis=1)
    low = conv(op("max_pool2d", fire, pool_size=(2, 2), strides=(2, 2)), "low", 64)
    up = op("conv2d_transpose", low, param("up", 64, 64, 2, 2), strides=(2, 2))
    skip = op("resize", op("concatenate", fire, up, axis=1), size=(32, 32))
    out = op("add", conv(op("clip", skip, a_min=0.0, a_max=6.0), "out", 16), scalar(1.0))
    main = alter(graph(out), rtol=2e-2)  # clipped out of sums of thousands
    assert work(main).count("layout_transform") == 1, "at the end"
    assert all(data in ("NCHW", "NCHW8c") for data, _, _ in layouts(main))


def test_plans_again_are_the_same():
    g = random_graph(3).with_attrs(typed=True)
    context = PassContext(target=HASWELL.target)
    once = apply_passes(g, ["AlterOpLayout"], context)
    assert once is not g
    assert apply_passes(once, ["AlterOpLayout"], context) is once
