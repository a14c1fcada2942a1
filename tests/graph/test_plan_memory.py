"""PlanMemory: liveness, offsets, in-place reuse, views and outputs; run on a real arena full of garbage."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnvm.dim import evaluate, symbol
from nnvm.graph import Graph, OpPattern, apply, register
from nnvm.graph.evaluate import bind_symbols, evaluate_node
from nnvm.graph.op import known
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.graph_fuse import fuse_graph
from nnvm.graph.passes.plan_memory import plan_memory
from nnvm.graph.passes.storage import Block, assign_offsets, peak_bytes
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, groups, op, param, scalar, var


def run_in_arena(g: Graph, plan, arrays):
    """Runs the steps with all values of the arena in one buffer that starts as garbage."""
    sizes = bind_symbols(g, arrays)
    arena = np.full(evaluate(plan.arena_bytes, sizes) + 64, 0xA5, np.uint8)
    memory: dict[object, np.ndarray] = {}

    def look(e):
        place, offset = plan.locate(e)
        shape, dtype = tuple(evaluate(d, sizes) for d in e.type.shape), e.type.dtype.numpy
        count = int(np.prod(shape)) * dtype.itemsize
        if place.kind in ("input", "param", "prepared"):
            raw = np.ascontiguousarray(arrays[place.index])
        elif place.kind == "arena":
            raw = arena[evaluate(place.offset, sizes) :]
        elif place.kind == "constant":
            return e.node.attrs["value"]
        else:
            root = e
            while plan.places[root].kind == "view":
                root = plan.places[root].base
            need = int(np.prod([evaluate(d, sizes) for d in root.type.shape])) * dtype.itemsize
            raw = memory.setdefault(root, np.full(max(need, 1), 0xA5, np.uint8))
        start = evaluate(offset, sizes)
        data = raw.view(np.uint8).reshape(-1)[start:]
        if e in plan.strides:
            steps = [evaluate(d, sizes) * dtype.itemsize for d in plan.strides[e]]
            return np.ndarray(shape, dtype, data, 0, steps)
        return data[:count].view(dtype).reshape(shape)

    for node in plan.steps:
        inputs = [look(e).copy() for e in node.inputs]
        for e, value in zip(node.outputs, evaluate_node(node, inputs, sizes), strict=True):
            look(e)[...] = value
    return [look(e).copy() for e in g.outputs]


def check(g: Graph, arrays=None, **options):
    """Plans the fused graph, checks that live blocks do not overlap, runs it, compares."""
    fused = fuse_graph(g)
    plan = plan_memory(fused, **options)
    arrays = arrays or random_inputs(fused)
    for got, want in zip(run_in_arena(fused, plan, arrays), run_graph(fused, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    if plan.lower_bound_bytes is not None:
        assert plan.lower_bound_bytes <= plan.arena_bytes <= plan.unplanned_bytes
    return fused, plan


def chain(n, size=16):
    x, w = var("x", 4, size), param("w", size, size)
    for _ in range(n):
        x = op("dense", x, w)
    return x


def test_a_chain_needs_two_blocks():
    _, plan = check(graph(chain(9)))
    assert plan.arena_bytes == 2 * 4 * 16 * 4 == plan.lower_bound_bytes
    assert plan.unplanned_bytes == 8 * 4 * 16 * 4


def test_outputs_are_not_in_the_arena():
    x = chain(2)
    fused, plan = check(graph([op("dense", x, param("v", 16, 16)), x]))
    assert [plan.places[e].kind for e in fused.outputs] == ["output", "output"]
    assert plan.copies == ()


def test_a_returned_view_is_written_in_place():
    fused, plan = check(graph(op("reshape", chain(1), shape=(64,))))
    root, offset = plan.locate(fused.outputs[0])
    assert (root.kind, root.index, offset) == ("output", 0, 0) and plan.arena_bytes == 0 and plan.copies == ()


def test_what_is_handed_through_is_copied_by_the_executor():
    x = var("x", 4)
    _, plan = check(graph([x, op("exp", x), op("exp", x)]))
    assert plan.copies == (0,)


def test_outputs_with_strides_that_others_read_are_written_apart():
    x = chain(1)
    g = graph([x, op("dense", x, param("v", 16, 16)), op("reshape", x, shape=(64,)), op("exp", x)])
    g = g.with_attrs(typed=True, output_strides=((1, 4), (1, 4), (2,), None))
    own = apply_passes(g, ["OwnOutputs"], PassContext())
    assert [e.node.op.name for e in own.outputs] == ["identity", "dense", "identity", "exp"]
    fused = fuse_graph(own)
    assert plan_memory(fused).copies == ()
    # a product has one epilogue: the copy that the caller wants and the other reader are kernels after it
    assert groups(fused)[:2] == [["dense"], ["identity"]] and ["exp"] in groups(fused)
    plain = graph([x, op("dense", x, param("v", 16, 16))]).with_attrs(typed=True, output_strides=(None, (1, 4)))
    assert apply_passes(plain, ["OwnOutputs"], PassContext()) is plain


def test_views_keep_their_base_alive():
    a = chain(1)
    b = op("dense", chain(3), param("v", 16, 16))
    check(graph(op("add", op("softmax", b), op("reshape", op("reshape", a, shape=(64,)), shape=(4, 16)))))


def test_contiguous_slices_are_views():
    x = op("dense", var("x", 4, 16), param("w", 16, 16))
    rows = op("slice", x, begin=(1, 0), end=(3, 16))
    fused, plan = check(graph(op("softmax", rows, axis=0)))
    assert groups(fused) == [["dense"], ["slice"], ["softmax"]]
    assert plan.locate(fused.outputs[0].node.inputs[0])[1] == 16 * 4
    part = op("slice", op("reshape", x, shape=(1, 8, 8)), begin=(0, 2, 0), end=(1, 4, 8))
    fused, plan = check(graph(op("softmax", part, axis=1)))
    assert plan.locate(fused.outputs[0].node.inputs[0])[1] == 2 * 8 * 4
    for attrs in ({"begin": (0, 1), "end": (4, 3)}, {"begin": (0, 0), "end": (4, 16), "step": (2, 1)}):
        fused, _ = check(graph(op("softmax", op("slice", x, **attrs), axis=0)))
        assert [n.op.name for n in plan_memory(fused).steps] == ["group"] * 3
    fused, plan = check(graph(rows))
    assert plan.copies == (0,), "a part of a value is copied out"


def test_inplace_only_where_the_input_dies():
    x, w = var("x", 64, 64), param("w", 64, 64)
    a = op("dense", x, w)
    s = op("sum", a, axis=0)
    y = op("multiply", op("exp", a), s)
    fused, plan = check(graph(op("dense", y, w)))
    assert groups(fused) == [["dense"], ["sum"], ["exp", "multiply"], ["dense"]]
    assert plan.places[plan.steps[2][0]].offset == plan.places[plan.steps[0][0]].offset
    _, without = check(graph(op("dense", y, w)), inplace=False)
    assert without.arena_bytes > plan.arena_bytes
    kept = op("dense", op("add", op("dense", y, w), a), w)
    _, plan = check(graph(kept))


def test_host_nodes_bring_their_own_memory():
    if "t_host" not in known():
        register("t_host", inputs=["x"], pattern=OpPattern.OPAQUE, infer_type=lambda attrs, t: t)
    h = apply("t_host", [chain(1)])
    g = fuse_graph(graph(op("dense", h[0], param("v", 16, 16))))
    plan = plan_memory(g)
    assert [n.op.name for n in plan.steps] == ["group", "t_host", "group"]
    assert [plan.places[n[0]].kind for n in plan.steps] == ["arena", "host", "output"]


def test_symbolic_sizes_share_storages():
    n = symbol("n")
    x, w = var("x", n, 16), param("w", 16, 16)
    y = x
    for _ in range(6):
        y = op("dense", y, w)
    g = graph(op("dense", op("sum", y, axis=0, keepdims=True), w))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((5, 16), (16, 16))]
    _, plan = check(g, arrays)
    assert plan.lower_bound_bytes is None and len(plan.storage_bytes) <= 3
    assert evaluate(plan.arena_bytes, {"n": 5}) < evaluate(plan.unplanned_bytes, {"n": 5})


@st.composite
def graphs(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    values = [var("x", 4, 8), var("y", 4, 8)]
    w = {8: param("w8", 16, 8), 16: param("w16", 8, 16)}
    for _ in range(rng.randint(1, 30)):
        a = rng.choice(values[-6:])
        kind = rng.randrange(6)
        if kind == 0:
            values.append(op("dense", a, w[a.type.shape[1]]))
        elif kind == 1:
            values.append(op(rng.choice(["exp", "relu", "negative"]), op("multiply", a, scalar(0.1))))
        elif kind == 2:
            b = rng.choice([v for v in values if v.type.shape == a.type.shape])
            values.append(op("subtract", a, b))
        elif kind == 3:
            flat = op("reshape", a, shape=(a.type.numel,))
            values.append(op("reshape", op("multiply", flat, scalar(0.5)), shape=a.type.shape))
        elif kind == 4:
            values.append(op("reshape", op("transpose", a, axes=(1, 0)), shape=a.type.shape))
        else:
            values.append(op("add", a, op("mean", a, axis=1, keepdims=True)))
    return graph(rng.sample(values[2:], k=min(len(values) - 2, rng.randint(1, 3))))


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_random_graphs_run_in_their_plan(g):
    check(g)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 12)), max_size=60))
def test_live_blocks_never_overlap(spec):
    blocks = [Block(64 * size, first, first + life) for size, first, life in spec]
    layout = assign_offsets(blocks, 44)
    for i, a in enumerate(blocks):
        for j in range(i):
            b = blocks[j]
            if a.size and b.size and a.first <= b.last and b.first <= a.last:
                lo, hi = (i, j) if layout.offsets[i] <= layout.offsets[j] else (j, i)
                assert layout.offsets[lo] + blocks[lo].size <= layout.offsets[hi]
    assert layout.total >= max(peak_bytes(blocks, 44), default=0)


@pytest.mark.parametrize("seed", range(3))
def test_network_like_lifetimes_stay_near_the_bound(seed):
    rng = np.random.default_rng(seed)
    blocks, steps = [], 200
    for i in range(steps):
        life = int(rng.choice([1, 1, 1, 2, 3, 8]))
        blocks.append(
            Block(64 * int(rng.choice([16, 32, 64, 256])) * (4 if i < 50 else 1), i, min(steps - 1, i + life))
        )
    assert assign_offsets(blocks, steps).total <= 1.05 * max(peak_bytes(blocks, steps))
