"""Random graphs through all passes, and through all of the compiler, against the reference executor.

By hand: ``python -m tests.graph.test_random_graphs passes FIRST COUNT`` (or ``native``) prints faults with their seeds.
"""

import sys
import time
import traceback
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnvm.compiler.pipeline import pipeline
from nnvm.frontend.onnx.session import Session
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.target import Target
from nnvm.testing.reference import run_graph
from tests.graph.build import graph, op, param, var
from tests.graph.lifetimes import assert_no_overlap
from tests.graph.random_graphs import arrays_for, random_graph
from tests.graph.test_plan_memory import run_in_arena

SEEDS = st.integers(0, 2**32)
CPUS = ("haswell", "skylake-avx512", "nehalem")
SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def same(got, want, g):
    """Equal in what is exact; floats up to rounding, which half types make coarse."""
    halves = any(t.dtype.is_half for n in g.nodes for t in n.types)
    tolerance = 3e-2 if halves else 2e-3
    assert len(got) == len(want)
    for i, (a, b) in enumerate(zip(got, want)):
        assert a.shape == b.shape and a.dtype == b.dtype, f"output {i}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b, err_msg=f"output {i}")
            continue
        assert np.isfinite(b).all(), "the generator makes finite values only"
        scale = max(1.0, float(np.abs(b).max(initial=0.0)))
        np.testing.assert_allclose(a / scale, b / scale, rtol=tolerance, atol=tolerance, err_msg=f"output {i}")


def check_passes(seed: int) -> None:
    check_passes_of(random_graph(seed), seed)


def check_passes_of(g, seed):
    """All passes, verified after each; then every step in one arena that begins as garbage."""
    arrays = arrays_for(g, seed)
    want = run_graph(g, arrays)
    context = PassContext(verify=True, target=Target.parse(f"llvm -mcpu={CPUS[seed % 3]}"))
    main = apply_passes(g, pipeline(), context)
    prepare = main.attrs["prepare"]
    for planned in (main, prepare):
        assert_no_overlap(planned, planned.attrs["memory_plan"])
    by_name = dict(zip((v.name for v in g.inputs), arrays))
    early = run_in_arena(prepare, prepare.attrs["memory_plan"], [by_name[v.name] for v in prepare.inputs])
    same(run_in_arena(main, main.attrs["memory_plan"], [*arrays, *early]), want, g)


def check_native(seed: int) -> None:
    check_native_of(random_graph(seed), seed)


def check_native_of(g, seed):
    """Compiled and run, twice, the second time on other inputs; outputs sometimes with strides of their own."""
    if seed % 4 == 0:
        g = g.with_attrs(output_strides=tuple(turned(e.type.shape) for e in g.outputs))
    params = {v.name: a for v, a in zip(g.inputs, arrays_for(g, seed)) if v.attrs["kind"] == "param"}
    session = Session(g, params)
    for again in range(2):
        arrays = [params.get(v.name, a) for v, a in zip(g.inputs, arrays_for(g, seed + again))]
        got = session.run([a for v, a in zip(g.inputs, arrays) if v.name not in params])
        same(got, run_graph(g, arrays), g)


def turned(shape):
    """Strides of the last axis first; None for what is contiguous in any case."""
    if len(shape) < 2 or 0 in shape:
        return None
    return (1, *(int(np.prod((shape[0], *shape[i + 1 :]))) for i in range(1, len(shape))))


@settings(max_examples=500, **SETTINGS)
@given(SEEDS)
def test_passes_keep_the_meaning(seed):
    check_passes(seed)


@settings(max_examples=40, **SETTINGS)
@given(SEEDS)
def test_compiled_graphs_keep_the_meaning(seed):
    check_native(seed)


EVERY = (
    "conv2d", "conv2d_transpose", "max_pool2d", "avg_pool2d", "batch_norm", "layer_norm", "group_norm", "softmax",
    "dense", "matmul", "attention", "concatenate", "split", "slice", "transpose", "reshape", "broadcast_to", "pad",
    "flip", "sum", "mean", "max", "any", "where", "take", "cumsum", "cast", "floor_divide", "bitwise_and", "logical_or",
)  # fmt: skip


def dense_over_nothing():
    return graph(op("relu", op("dense", var("x", 9, 2, 0), param("w", 12, 0), param("b", 12))))


def convolution_of_nothing():
    y = op("conv1d_transpose", var("x", 0, 3, 4), param("w", 3, 5, 2), padding=((1, 1),))
    z = op("conv2d_transpose", var("u", 2, 0, 3, 4), param("t", 0, 5, 2, 2), param("b", 5))
    return graph([op("sigmoid", y), op("relu", z), op("conv2d", var("z", 0, 3, 4, 4), param("v", 8, 3, 3, 3))])


def product_of_nothing():
    x = var("x", 2, 0, 4)
    return graph([op("matmul", x, x, transpose_a=True), op("matmul", x, x, transpose_b=True)])


def view_of_nothing():
    x, y = var("x", 5, 3, 2, 4, 0), var("y", 5, 2, 0)
    product = op("matmul", op("reshape", y, shape=(3, 2, 0)), op("reshape", x, shape=(3, 0, 4)))
    return graph([op("matmul", op("tanh", op("flatten", x)), param("w", 0, 20)), product,
                  op("softmax", op("reshape", x, shape=(7, 0)), axis=-1)])  # fmt: skip


@pytest.mark.parametrize("build", [view_of_nothing, dense_over_nothing, convolution_of_nothing, product_of_nothing])
def test_axes_of_length_0(build):
    check_passes_of(build(), 1)
    check_native_of(build(), 1)


def test_the_graphs_are_of_every_kind():
    ops, sizes, ranks, outputs = Counter(), Counter(), Counter(), Counter()
    for seed in range(800):
        g = random_graph(seed)
        ops.update({n.op.name for n in g.nodes})
        outputs[len(g.outputs)] += 1
        for n in g.nodes:
            for t in n.types:
                sizes.update(set(t.shape) & {0, 1})
                ranks[t.rank] += 1
    assert min(sizes[0], sizes[1], *(ranks[r] for r in range(6)), *(outputs[k] for k in (2, 3, 4))) > 10
    for name in EVERY:
        assert ops[name] >= 3, f"{name} occurs {ops[name]} times in 800 graphs"


def run_by_hand(kind: str, first: int, count: int) -> int:
    check, faults, start = {"passes": check_passes, "native": check_native}[kind], 0, time.time()
    for seed in range(first, first + count):
        try:
            check(seed)
        except Exception as error:
            faults += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:300]
            print(f"seed {seed}: {type(error).__name__} at {where.filename}:{where.lineno}: {text}", flush=True)
        if (seed - first) % 500 == 499:
            print(f"{seed - first + 1} graphs, {faults} faults, {time.time() - start:.0f} s", flush=True)
    print(f"{kind}: {count} graphs from {first}, {faults} faults, {time.time() - start:.0f} s", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(run_by_hand(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) != 0)
