"""ElideCopies: parts written where the whole lies, slices read where the data lies; in an arena and natively."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.dim import evaluate, symbol
from nnvm.graph import OpPattern, apply, register
from nnvm.graph.aliases import aliases, restrided
from nnvm.graph.op import known
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.graph_fuse import fuse_graph
from nnvm.graph.passes.plan_memory import plan_memory
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.target import Target
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, groups, op, ops, param, scalar, var
from tests.graph.test_plan_memory import run_in_arena

if "t_host" not in known():
    register("t_host", inputs=["x"], pattern=OpPattern.OPAQUE, infer_type=lambda attrs, t: t)


def elide(g, arrays=None):
    """The fused graph after the pass and its plan; run in an arena full of garbage, compared with what `g` gives."""
    marked = apply_passes(g.with_attrs(typed=True), ["ElideCopies"], PassContext(verify=True))
    fused = fuse_graph(marked)
    plan = plan_memory(fused)
    no_overlap(plan)
    if not any(n.op.name == "t_host" for n in g.nodes):
        arrays = arrays or random_inputs(g)
        for got, want in zip(run_in_arena(fused, plan, arrays), run_graph(g, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return fused, plan


def no_overlap(plan):
    """Values in the arena that are alive at one step lie apart, whatever lies inside them."""
    spans = [(plan.places[e].offset, e.type.nbytes, *life) for e, life in plan.lives.items()]
    if not all(isinstance(s[0], int) and isinstance(s[1], int) for s in spans):
        return
    for i, (a, size_a, first_a, last_a) in enumerate(spans):
        for b, size_b, first_b, last_b in spans[:i]:
            apart = a + size_a <= b or b + size_b <= a
            over = (a, first_a) == (b, last_b) or (b, first_b) == (a, last_a)  # written over in place
            assert apart or last_a < first_b or last_b < first_a or over


def native(g, rtol=1e-4, symbols=None):
    """Compiled as usual: values as the reference's; gives the names of ops by kernel."""
    compiled = compile_graph(g.with_attrs(typed=True), BuildOptions(verify=True, disabled_passes=frozenset(
        {"AlterOpLayout"})))  # fmt: skip
    arrays = random_inputs(g, symbols=symbols)
    by_name = dict(zip((v.name for v in g.inputs), arrays))
    constants = [e.node.attrs["value"] for e in compiled.plan.constants]
    early = []
    if compiled.prepare is not None:
        plan = compiled.prepare.plan
        run = Executor(plan, NumpyMemory(), [e.node.attrs["value"] for e in plan.constants])
        early = run.run([by_name[v.name] for v in plan.graph.inputs])
    got = Executor(compiled.plan, NumpyMemory(), constants).run([*arrays, *early])
    for a, b in zip(got, run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5 * max(10, np.abs(b).max(initial=0)))
    return [list(k.ops) for k in compiled.kernels]


def marked(fused):
    return [n for n in fused.nodes if n.attrs.get("in_place")]


def conv(x, name, out, k=3):
    return op("conv2d", x, param(name, out, x.type.shape[1], k, k), padding=((k // 2,) * 2,) * 2)


def pool(x):
    return op("max_pool2d", x, pool_size=(2, 2), strides=(2, 2))


def fire(x, left=8, right=12):
    s = op("relu", conv(x, "s", 4, 1))
    return op("concatenate", op("relu", conv(s, "l", left, 1)), op("relu", conv(s, "r", right)), axis=1)


@pytest.mark.parametrize("batch", [1, 3])
def test_parts_are_written_where_the_whole_lies(batch):
    g = graph(pool(fire(var("x", batch, 4, 8, 8))))
    fused, plan = elide(g)
    assert groups(fused) == [
        ["conv2d", "relu"],
        ["conv2d", "relu"],
        ["conv2d", "relu"],
        ["concatenate"],
        ["max_pool2d"],
    ]
    assert [len(n.attrs["graph"].outputs) for n in plan.steps] == [1] * 4
    (whole,) = marked(fused)
    left, right = whole.inputs
    assert plan.root(left) == plan.root(right) == whole[0]
    assert (plan.locate(left)[1], plan.locate(right)[1]) == (0, 8 * 64 * 4)
    assert plan.strides == ({} if batch == 1 else dict.fromkeys((left, right), (20 * 64, 64, 8, 1)))
    assert plan.lives[whole[0]] == (1, 3), "from the first part on"
    assert native(g) == [["conv2d", "relu"]] * 3 + [["max_pool2d"]]


def test_the_last_axis_goes_through_strides():
    x, y = var("x", 6, 16), var("y", 6, 16)
    whole = op("concatenate", op("dense", x, param("a", 16, 16)), op("dense", y, param("b", 32, 16)), axis=1)
    g = graph(op("dense", whole, param("c", 8, 48)))
    _, plan = elide(g)
    assert set(plan.strides.values()) == {(48, 1)} and len(plan.steps) == 3
    assert len(native(g)) == 3


def dense_block(x, layers, flat):
    parts = [x]
    for i in range(layers):
        whole = parts[0] if len(parts) == 1 else op("concatenate", *parts, axis=1)
        y = conv(op("relu", op("multiply", whole, scalar(0.2))), f"w{i}", 4)
        parts = [*parts, y] if flat else [whole, y]
    return op("concatenate", *parts, axis=1)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_dense_blocks_grow_in_one_piece_of_memory(batch, flat):
    x = conv(var("x", batch, 3, 8, 8), "stem", 8)
    g = graph(pool(dense_block(x, 4, flat)))
    fused, plan = elide(g)
    assert len(marked(fused)) == 4 and sum("concatenate" in k for k in groups(fused)) == 4
    assert len({plan.root(e) for n in marked(fused) for e in (*n.outputs, *n.inputs)}) == 1
    assert not any("concatenate" in k for k in native(g))
    without = plan_memory(fuse_graph(g))
    assert plan.arena_bytes < without.arena_bytes


def test_skips_and_deep_ends_of_an_encoder():
    skip = op("relu", conv(var("x", 1, 3, 8, 8), "a", 8))
    deep = op("relu", conv(pool(skip), "b", 16))
    up = op("conv2d_transpose", deep, param("u", 16, 8, 2, 2), strides=(2, 2))
    g = graph(conv(op("concatenate", skip, up, axis=1), "c", 4))
    fused, plan = elide(g)
    assert plan.root(marked(fused)[0].inputs[0]) == marked(fused)[0][0] and len(plan.steps) == 5
    assert not any("concatenate" in k for k in native(g))


def test_a_whole_that_is_returned():
    x = var("x", 1, 3, 8, 8)
    g = graph(op("concatenate", conv(x, "a", 8), conv(x, "b", 4), axis=1))
    fused, plan = elide(g)
    assert plan.places[marked(fused)[0][0]].kind == "output" and plan.arena_bytes == 0 and plan.copies == ()
    assert native(g) == [["conv2d"], ["conv2d"]]


def test_views_of_all_of_a_part():
    x, y = var("x", 4, 16), var("y", 4, 16)
    a = op("reshape", op("dense", x, param("a", 16, 16)), shape=(1, 4, 16))
    b = op("reshape", op("dense", y, param("b", 16, 16)), shape=(1, 4, 16))
    g = graph(op("softmax", op("concatenate", a, b, axis=1), axis=1))
    _, plan = elide(g)
    assert len(plan.steps) == 3
    assert len(native(g)) == 3


def test_what_has_a_place_already_is_copied():
    x = var("x", 1, 8, 8, 8)
    a, b, c = conv(x, "a", 8), conv(x, "b", 8), conv(x, "c", 8)

    def parts(*given, more=()):
        g = graph([pool(op("concatenate", *given, axis=1)), *more])
        fused, _ = elide(g)
        native(g)
        return [[k for k in groups(fused) if "identity" in k], len(marked(fused))]

    assert parts(a, b, c, more=[a]) == [[["conv2d", "identity"]], 1], "returned: the kernel writes it twice"
    assert parts(a, b, x) == [[["identity"]], 1], "an input"
    assert parts(a, b, param("p", 1, 8, 8, 8)) == [[["identity"]], 1]
    assert parts(a, a, b) == [[["conv2d", "identity"]], 1], "twice"
    assert parts(a, b, c, more=[pool(op("concatenate", c, a, b, axis=1))]) in (
        [[["conv2d", "identity"]] * 3, 1], [[], 1]), "in two wholes"  # fmt: skip
    assert parts(a, x) == [[], 0], "half of it would be copied"
    assert parts(a, a) == [[], 0]
    assert parts(x, param("p", 1, 8, 8, 8)) == [[], 0]


def test_where_nothing_is_gained_nothing_is_done():
    x = var("x", 1, 8, 8, 8)
    a, b = conv(x, "a", 8), conv(x, "b", 8)
    whole = op("concatenate", a, b, axis=1)
    g = graph(conv(op("relu", whole), "c", 4)).with_attrs(typed=True)
    assert apply_passes(g, ["ElideCopies"], PassContext()) is g, "computed along with relu"
    g = graph(pool(op("relu", x))).with_attrs(typed=True)
    assert apply_passes(g, ["ElideCopies"], PassContext()) is g
    g = graph(whole).with_attrs(typed=True, output_strides=((1024, 1, 128, 16),))
    assert apply_passes(g, ["ElideCopies"], PassContext()) is g, "the caller wants it in another order"
    g = graph(pool(whole)).with_attrs(typed=True)
    assert apply_passes(g, ["ElideCopies"], PassContext(target=Target.parse("reference"))) is g


def test_parts_that_others_want_contiguous():
    x = var("x", 2, 8, 8, 8)

    def marks(reader):
        a, b = conv(x, "a", 8), conv(x, "b", 8)
        g = graph([pool(op("concatenate", a, b, axis=1)), reader(a)])
        return len(marked(elide(g)[0]))

    assert marks(pool) == 1
    assert marks(lambda a: op("softmax", op("reshape", a, shape=(16, 64)), axis=1)) == 0, "a view"
    assert marks(lambda a: op("softmax", op("reshape", a, shape=(2, 512)), axis=1)) == 1, "a view of whole rows"
    assert marks(lambda a: apply("t_host", [a])[0]) == 0, "the host"
    assert marks(lambda a: op("cumsum", a, axis=1)) == 0, "a loop nest of its own"
    rows = var("r", 64, 4)
    thin = op("concatenate", *(op("dense", rows, param(n, 4, 4)) for n in "ab"), axis=1)
    assert not marked(elide(graph(op("dense", thin, param("c", 8, 8))))[0]), "rows of 16 bytes"


def test_slices_are_read_where_the_data_lies():
    x = conv(var("x", 2, 8, 8, 8), "a", 16)
    left, right = (op("slice", x, begin=(0, b, 0, 0), end=(2, b + 8, 8, 8)) for b in (0, 8))
    g = graph([pool(left), conv(right, "b", 8)])
    fused, plan = elide(g)
    assert len(plan.steps) == 3 and len(marked(fused)) == 2
    assert {plan.locate(n[0])[1] for n in marked(fused)} == {0, 8 * 64 * 4}
    assert set(plan.strides.values()) == {(16 * 64, 64, 8, 1)}
    assert native(g) == [["conv2d"], ["max_pool2d"], ["conv2d"]]
    given = var("y", 6, 96)
    parts = [op("softmax", op("slice", given, begin=(0, b), end=(6, b + 32), step=s), axis=1) for b, s in
             ((0, None), (32, (2, 1)), (64, (1, 2)))]  # fmt: skip
    fused, _ = elide(graph(parts))
    assert [n.attrs["in_place"] for n in marked(fused)] == [True, True], "the last takes every second element"
    assert len(native(graph(parts))) == 4


@pytest.mark.parametrize("batch", [1, 2])
def test_splits_move_nothing(batch):
    x = conv(var("x", batch, 8, 8, 8), "a", 16)
    parts = apply("split", [x], {"indices_or_sections": 4, "axis": 1})
    g = graph([pool(parts[0]), pool(parts[3]), conv(parts[1], "b", 4)])
    assert sorted(native(g)) == [["conv2d"], ["conv2d"], ["max_pool2d"], ["max_pool2d"]]


def test_slices_that_others_want_contiguous_or_compute_along():
    x = conv(var("x", 2, 8, 8, 8), "a", 16)
    part = op("slice", x, begin=(0, 4, 0, 0), end=(2, 12, 8, 8))
    for readers in ([op("exp", part)], [pool(part), part], [pool(part), apply("t_host", [part])[0]],
                    [pool(part), op("softmax", op("reshape", part, shape=(16, 64)), axis=1)]):  # fmt: skip
        assert not marked(elide(graph(readers))[0])
    strided = graph(pool(op("slice", var("v", 2, 8, 8, 8), begin=(0, 2), end=(2, 6)))).with_attrs(
        typed=True, input_strides=((512, 1, 64, 8),))  # fmt: skip
    assert apply_passes(strided, ["ElideCopies"], PassContext()) is strided


def heads(e, name, count=4):
    """[2, 5, 64] projected and as [2, count, 5, 16]."""
    y = op("reshape", op("dense", e, param(name, 64, 64)), shape=(2, 5, count, 16))
    return op("transpose", y, axes=(0, 2, 1, 3))


def test_attention_reads_and_writes_through_strides():
    x, y, z = (var(n, 2, 5, 64) for n in "xyz")
    q, k, v = heads(x, "q"), heads(y, "k"), heads(z, "v")
    o = op("transpose", op("attention", q, k, v), axes=(0, 2, 1, 3))
    g = graph(op("dense", op("reshape", o, shape=(10, 64)), param("o", 64, 64)))
    fused, plan = elide(g)
    assert [n.attrs["in_place"] for n in marked(fused)] == ["input"] * 3 + ["output"]
    assert len(plan.steps) == 5
    assert set(plan.strides.values()) == {(320, 16, 64, 1)}
    assert native(g) == [["dense"]] * 3 + [["attention"], ["dense"]]


def test_one_projection_for_queries_keys_and_values():
    """Views and slices of a transpose follow its strides."""
    x = op("dense", var("x", 2, 5, 64), param("w", 192, 64))
    parts = op("transpose", op("reshape", x, shape=(2, 5, 3, 4, 16)), axes=(2, 0, 3, 1, 4))
    q, k, v = (op("reshape", op("slice", parts, begin=(i,), end=(i + 1,)), shape=(2, 4, 5, 16)) for i in range(3))
    g = graph(op("attention", q, k, v))
    _, plan = elide(g)
    assert len(plan.steps) == 2
    assert [plan.locate(e)[1] for e in plan.steps[1].inputs] == [0, 64 * 4, 128 * 4]
    assert native(g) == [["dense"], ["attention"]]


def test_transposes_that_have_to_move():
    x = var("x", 2, 5, 64)
    y = op("dense", x, param("w", 64, 64))
    turned = op("transpose", y, axes=(0, 2, 1))
    assert not marked(elide(graph(op("softmax", turned, axis=2)))[0]), "single elements"
    kept = op("transpose", op("reshape", y, shape=(2, 5, 4, 16)), axes=(0, 2, 1, 3))
    merged = op("reshape", kept, shape=(2, 4, 80))
    assert not marked(elide(graph(op("softmax", merged, axis=2)))[0]), "rows that do not follow each other"
    assert not marked(elide(graph(kept))[0]), "it is returned, and the kernel before has another shape"
    assert not marked(elide(graph(op("exp", kept)))[0]), "computed along"
    given = op("transpose", var("v", 2, 5, 4, 16), axes=(0, 2, 1, 3))
    strided = graph(op("softmax", given, axis=3)).with_attrs(typed=True, input_strides=((320, 1, 80, 5),))
    assert apply_passes(strided, ["ElideCopies"], PassContext()) is strided


def test_a_kernel_writes_in_the_order_of_the_transpose():
    x = op("reshape", var("x", 10, 64), shape=(2, 5, 4, 16))
    y = op("softmax", x, axis=3)
    for result in (
        [op("transpose", y, axes=(0, 2, 1, 3))],
        [op("transpose", y, axes=(1, 0, 2, 3)), op("mean", y, axis=3)],
    ):
        g = graph(result)
        fused, plan = elide(g)
        assert [n.attrs["in_place"] for n in marked(fused)] == ["output"] and plan.arena_bytes == 0
        assert sum("softmax" in k for k in native(g)) == 1 and not any("transpose" in k for k in native(g))
    both = graph([op("transpose", y, axes=(0, 2, 1, 3)), y])
    assert not marked(elide(both)[0]), "the caller wants both"


@pytest.mark.parametrize(
    ("shape", "strides", "new", "want"),
    [
        ((2, 6), (12, 1), (2, 2, 3), (12, 3, 1)),
        ((2, 6), (12, 1), (12,), None),
        ((2, 3, 4), (12, 4, 1), (6, 4), (4, 1)),
        ((2, 3, 4), (24, 4, 1), (2, 12), (24, 1)),
        ((4, 1, 6), (9, 77, 1), (2, 2, 6), (18, 9, 1)),
        ((4, 6), (12, 2), (4, 2, 3), (12, 6, 2)),
        ((4, 6), (12, 1), (8, 3), None),
        ((symbol("n"), 6), (12, 1), (symbol("n"), 2, 3), None),
    ],
)
def test_strides_of_views(shape, strides, new, want):
    assert restrided(shape, strides, new) == want
    if want:
        memory = np.arange(1000)
        one, other = (
            np.ndarray(s, memory.dtype, memory, 0, [8 * x for x in t]) for s, t in ((shape, strides), (new, want))
        )
        np.testing.assert_array_equal(one.reshape(new), other)


@pytest.mark.parametrize("axis", [0, 1])
def test_symbolic_sizes(axis):
    n = symbol("n")
    x, y = var("x", n, 16), var("y", n, 16)
    whole = op("concatenate", op("dense", x, param("a", 16, 16)), op("dense", y, param("b", 16, 16)), axis=axis)
    g = graph(op("dense", whole, param("c", 8, 32 if axis else 16)))
    fused = fuse_graph(apply_passes(g.with_attrs(typed=True), ["ElideCopies"], PassContext(verify=True)))
    plan = plan_memory(fused)
    assert len(plan.steps) == 3 and evaluate(plan.arena_bytes, {"n": 5}) == 2 * 5 * 16 * 4
    second = marked(fused)[0].inputs[1]
    assert evaluate(plan.locate(second)[1], {"n": 5}) == (16 * 4 if axis else 5 * 16 * 4)
    assert set(plan.strides.values()) == ({(32, 1)} if axis else set())
    assert len(native(g, symbols={"n": 5})) == 3


def test_marks_that_cannot_hold_are_errors():
    x = var("x", 4, 16)
    g = graph(op("softmax", op("concatenate", x, op("exp", x), axis=0, in_place=True), axis=1))
    with pytest.raises(ValueError, match="has a place already"):
        aliases(g)


@st.composite
def graphs(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    values = [var("x", 2, 4, 16), var("y", 2, 4, 16)]
    for k in range(rng.randint(3, 14)):
        a = rng.choice(values[-5:])
        shape, kind = a.type.shape, rng.randrange(7)
        if kind == 0:
            values.append(op("dense", op("multiply", a, scalar(0.3)), param(f"w{k}", 16, shape[-1])))
        elif kind == 1:
            values.append(op(rng.choice(["relu", "negative", "tanh"]), a))
        elif kind in (2, 3):
            axis = rng.randrange(3)
            fits = [
                v for v in values if v.type.shape[:axis] + v.type.shape[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
            ]
            parts = [rng.choice(fits) for _ in range(rng.randint(1, 2))]
            values.append(op("concatenate", a, *parts, axis=axis))
        elif kind == 4:
            axis = rng.randrange(3)
            begin = rng.randrange(shape[axis])
            end = rng.randint(begin + 1, shape[axis])
            bounds = [(begin, end) if i == axis else (0, d) for i, d in enumerate(shape)]
            values.append(op("slice", a, begin=[b for b, _ in bounds], end=[e for _, e in bounds]))
        elif kind == 5:
            values.append(op("softmax", a, axis=rng.randrange(3)))
        else:
            values.append(op("reshape", op("reshape", a, shape=(-1,)), shape=shape))
    return graph(rng.sample(values[2:], k=min(len(values) - 2, rng.randint(1, 3))))


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_random_graphs_run_in_their_plan(g):
    elide(g)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_compiled(seed):
    rng = random.Random(seed)
    x = var("x", rng.choice([1, 2]), 8, 8, 8)
    values = [x]
    for k in range(7):
        a = rng.choice(values[-3:])
        if rng.random() < 0.5:
            y = conv(op("multiply", a, scalar(0.2)), f"w{k}", rng.choice([4, 8]), rng.choice([1, 3]))
        else:
            y = op("concatenate", a, rng.choice(values[-4:]), axis=1)
        values.append(y)
    native(graph([pool(values[-1]), values[-2]]))


def test_without_fusion_the_marks_hold_too():
    g = graph(pool(fire(var("x", 2, 4, 8, 8))))
    compiled = compile_graph(g.with_attrs(typed=True), BuildOptions(opt_level=2))
    assert not any("concatenate" in k.ops for k in compiled.kernels)
    assert any("concatenate" in ops(n.attrs["graph"]) for n in compile_graph(
        g.with_attrs(typed=True), BuildOptions(opt_level=1)).graph.nodes if n.op.name == "group")  # fmt: skip
