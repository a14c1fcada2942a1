"""Means and squared deviations on a GPU: long rows are read once, short ones stay in registers, both are accurate."""

from __future__ import annotations

import numpy as np
import pytest

import nnvm.ops  # noqa: F401  registers the ops
from nnvm.compiler.lower_group import lower_group_for_gpu
from nnvm.compiler.pipeline import pipeline
from nnvm.dim import evaluate, symbol
from nnvm.dtype import F16, F32
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.runtime.triton_launch import TritonKernel
from nnvm.schedules.gpu import split
from nnvm.target import Target
from nnvm.testing.run_op import run_launches
from nnvm.tir import interpreter
from nnvm.tir.verify import verify

RNG = np.random.default_rng(83)
CUDA = Target.parse("cuda -arch=sm_90")


def op(name, *inputs, **attrs):
    return apply(name, list(inputs), attrs)[0]


def lowered(build, *shapes, dtype=F32):
    inputs = [variable(f"p{i}", TensorType(s, dtype)) for i, s in enumerate(shapes)]
    outputs = build(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    kernel = lower_group_for_gpu(Graph(outputs, tuple(v.node for v in inputs)), "k")
    for step in kernel.steps:
        verify(step)
    return kernel, outputs


def sources(kernel):
    return [s.text for s in TritonKernel.of(kernel, CUDA).sources]


def loops(build, *shapes, **more):
    """Loops over blocks of rows in the source of a group that is one launch."""
    (text,) = sources(lowered(build, *shapes, **more)[0])
    return text.count("for r_block")


def run(build, *arrays, symbols=None, shapes=None):
    kernel, outputs = lowered(build, *(shapes or [a.shape for a in arrays]))
    results = [np.empty([evaluate(d, symbols or {}) for d in o.type.shape], np.float32) for o in outputs]
    run_launches(kernel, [*arrays, *results], symbols)
    return kernel, results


def far(*shape):
    """Numbers whose mean is ten thousand times as large as their deviation."""
    return (RNG.standard_normal(shape) + 1e4).astype(np.float32)


def variance(axis):
    return lambda x: op("variance", x, axis=(axis,), correction=0.0)


def norm(x):
    return op("layer_norm", x, axis=-1)


def test_a_long_row_is_read_once():
    (text,) = sources(lowered(variance(1), (300, 20000))[0])
    assert (text.count("for r_block"), text.count("tl.load")) == (1, 1)
    assert "mean_sum" not in text  # nobody asks for the sum


def test_norms_of_long_rows_read_them_once_for_the_statistics():
    assert loops(norm, (300, 20000)) == 2
    assert loops(lambda x: op("group_norm", x, num_groups=2), (200, 4, 80, 80)) == 2
    assert loops(lambda x: op("instance_norm", x), (100, 4, 120, 120)) == 2
    assert loops(lambda x: op("rms_norm", x, axis=-1), (300, 20000)) == 2


def test_mean_and_variance_of_one_tensor_share_what_they_sum():
    def build(x):
        return op("mean", x, axis=(1,)), op("variance", x, axis=(1,), correction=0.0)

    (text,) = sources(lowered(build, (300, 20000))[0])
    assert (text.count("for r_block"), text.count("tl.load")) == (1, 1)
    assert text.count("sum_acc = (") == 1


def test_statistics_of_batch_norm_are_one_group_that_reads_once():
    x = variable("x", TensorType((32, 64, 56, 56)))
    mean = op("mean", x, axis=(0, 2, 3), keepdims=True)
    scale = op("rsqrt", op("variance", x, axis=(0, 2, 3), correction=0.0, keepdims=True))
    out = op("multiply", op("subtract", x, mean), scale)
    fused = apply_passes(Graph((out,), (x.node,)), pipeline(), PassContext(target=CUDA))
    statistics, normalised = [n.attrs["graph"] for n in fused.nodes if n.op.name == "group"]
    assert len(normalised.inputs) == 3
    reading = sources(lower_group_for_gpu(statistics, "k"))[0]
    assert (reading.count("for r_block"), reading.count("tl.load")) == (1, 1)


def test_a_row_in_registers_has_two_passes():
    (text,) = sources(lowered(norm, (300, 1000))[0])
    assert "for " not in text
    assert text.count("tl.load") == 1
    assert text.count("tl.sum") == 2


def test_deviations_from_anything_else_take_a_pass_of_their_own():
    def squares(x, around):
        d = op("broadcast_sub", x, around)
        return op("sum", op("multiply", d, d), axis=(1,))

    def about_another(x, y):
        return squares(x, op("mean", y, axis=(1,), keepdims=True))

    def not_the_mean(x):
        return squares(x, op("multiply", op("mean", x, axis=(1,), keepdims=True), op("sum", x, axis=(1,),
                                                                                     keepdims=True)))  # fmt: skip

    shape = (300, 20000)
    assert loops(about_another, shape, shape) == 2
    assert loops(not_the_mean, shape) == 2
    assert loops(lambda x: squares(x, op("mean", x, axis=(1,), keepdims=True)), shape) == 1
    # rounded to half, it is not the mean of what is summed
    wide = lambda x: op("cast", x, dtype="float32")  # noqa: E731
    rounded = lambda x: squares(wide(x), wide(op("mean", x, axis=(1,), keepdims=True)))  # noqa: E731
    assert loops(rounded, shape, dtype=F16) == 2


#: Several rows in one launch; in parts, all as long and not; rows that lie side by side, in one launch and in parts.
SHAPES = [((2, 20000), 1, False), ((3, 8192 * 2), 1, True), ((2, 21003), 1, True), ((9000, 3), 0, False),
          ((9001, 2), 0, True), ((2, 140001), 1, True)]  # fmt: skip


@pytest.mark.triton
@pytest.mark.parametrize(("shape", "axis", "parts"), SHAPES)
def test_variance_far_from_zero(shape, axis, parts, monkeypatch):
    if not parts:
        monkeypatch.setattr(split, "BUSY", 0)
    x = far(*shape)
    kernel, (found,) = run(variance(axis), x)
    assert len(kernel.steps) == 1 + parts
    np.testing.assert_allclose(found, x.astype(np.float64).var(axis), rtol=3e-4)


@pytest.mark.triton
@pytest.mark.parametrize(("length", "steps"), [(9001, 1), (70001, 3)])
def test_layer_norm_far_from_zero(length, steps):
    x = far(2, length)
    kernel, (found,) = run(norm, x)
    assert len(kernel.steps) == steps
    wide = x.astype(np.float64)
    right = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    # the mean, a sum of some thousand float32, is known to a unit of its last place
    np.testing.assert_allclose(found, right, rtol=3e-4, atol=1.5 * float(np.spacing(np.float32(1e4))))


@pytest.mark.triton
def test_long_softmax_in_parts():
    x = (RNG.standard_normal((2, 70001)) * 3).astype(np.float32)
    kernel, (found,) = run(lambda x: op("softmax", x, axis=-1), x)
    assert len(kernel.steps) == 5
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.triton
@pytest.mark.parametrize("length", [3, 2048, 5000])
def test_rows_whose_length_is_known_at_the_call_only(length):
    x = far(2, length)
    _, (found,) = run(variance(1), x, symbols={"n": length}, shapes=[(2, symbol("n"))])
    np.testing.assert_allclose(found, x.astype(np.float64).var(1), rtol=3e-4)


@pytest.mark.triton
def test_infinities_and_nans():
    def build(x):
        return op("mean", x, axis=(1,)), op("variance", x, axis=(1,), correction=0.0)

    x = RNG.standard_normal((3, 9000)).astype(np.float32)
    x[0, 5000], x[1, 8999] = np.inf, np.nan
    _, (mean, spread) = run(build, x)
    assert mean[0] == np.inf
    assert np.isnan(spread[:2]).all()
    assert np.isnan(mean[1])
    np.testing.assert_allclose([mean[2], spread[2]], [x[2].mean(dtype=float), x[2].var(dtype=float)], rtol=1e-4,
                               atol=1e-6)  # fmt: skip


def test_the_tensor_ir_gives_the_same():
    """One element at a time, as the definition of tiles has it."""
    kernel, _ = lowered(variance(1), (1, 8500))
    x = far(1, 8500)
    memory = dict(zip(kernel.params, [x.reshape(-1), np.empty(1, np.float32)]))
    memory.update((b, np.full(b.shape, np.nan, np.float32)) for b in kernel.scratch)
    for step in kernel.steps:
        interpreter.run(step, [memory[b] for b in step.params])
    np.testing.assert_allclose(memory[kernel.params[-1]], x.astype(np.float64).var(1), rtol=3e-4)
