"""Whatever the splits, orders, fusions, kinds and attach points: a schedule does not change the result."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from nnvm import te
from nnvm.dim import evaluate, symbol
from nnvm.dtype import F32
from nnvm.te.expr import maximum, select
from nnvm.te.schedule import Schedule, ScheduleError, Stage
from nnvm.te.tensor import Tensor, compute, placeholder, reduce_axis
from nnvm.tir.interpreter import run
from nnvm.tir.lower import lower
from nnvm.tir.printer import show
from nnvm.tir.stmt import PrimFunc
from nnvm.tir.verify import verify

FEW = settings(
    max_examples=50, deadline=None, derandomize=True, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)


def execute(func: PrimFunc, inputs: list[np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
    note(show(func))
    verify(func)
    outs = [np.full([evaluate(d, sizes) for d in p.shape], np.nan, p.dtype.numpy) for p in func.params[len(inputs) :]]
    run(func, [*inputs, *outs], {n: sizes[n] for n in func.symbols})
    return outs


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def shuffle_loops(data: st.DataObject, stage: Stage, vector: bool = True) -> None:
    """Random splits, order, fusion, unrolling and vectorization of one stage's loops."""
    for axis in list(stage.leaf_axes):
        if data.draw(st.booleans(), label=f"split {axis}"):
            outer, inner = stage.split(axis, data.draw(st.integers(1, 5)))
            if data.draw(st.booleans(), label="again"):
                stage.split(data.draw(st.sampled_from([outer, inner])), data.draw(st.integers(2, 3)))
    stage.reorder(*data.draw(st.permutations(stage.leaf_axes)))
    pairs = [(a, b) for a, b in zip(stage.leaf_axes, stage.leaf_axes[1:]) if a.kind == b.kind]
    if pairs and data.draw(st.booleans(), label="fuse"):
        stage.fuse(*data.draw(st.sampled_from(pairs)))
    constant = [a for a in stage.leaf_axes if isinstance(a.extent, int) and a.extent <= 8]
    if vector and constant and data.draw(st.booleans(), label="vectorize"):
        stage.vectorize(constant.pop(data.draw(st.integers(0, len(constant) - 1))))
    for a in constant:
        if data.draw(st.booleans(), label=f"unroll {a}"):
            stage.unroll(a)


def matmul(m: object, k: object, n: object) -> tuple[Tensor, Tensor, Tensor]:
    x, w = placeholder((m, k), F32, "x"), placeholder((k, n), F32, "w")
    r = reduce_axis(k, "r")
    return x, w, compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], [r]), "y")


def dims(data: st.DataObject, *names: str) -> tuple[list[object], list[int], dict[str, int]]:
    """Some sizes as constants, some as symbols; their values."""
    sizes = [data.draw(st.integers(1, 9), label=n) for n in names]
    shape = [symbol(n) if data.draw(st.booleans(), label=f"{n} symbolic") else s for n, s in zip(names, sizes)]
    return shape, sizes, dict(zip(names, sizes))


@FEW
@given(st.data())
def test_one_reduction(data):
    (m, k, n), (vm, vk, vn), sizes = dims(data, "m", "k", "n")
    x, w, y = matmul(m, k, n)
    s = Schedule([y])
    shuffle_loops(data, s[y])
    a, b = values(1, vm, vk), values(2, vk, vn)
    (out,) = execute(lower(s, [x, w, y], "f"), [a, b], sizes)
    np.testing.assert_array_equal(out, a @ b)


@FEW
@given(st.data())
def test_reduction_attached_to_its_epilogue(data):
    (m, k, n), (vm, vk, vn), sizes = dims(data, "m", "k", "n")
    x, w, y = matmul(m, k, n)
    o = compute((m, n), lambda i, j: maximum(y[i, j] - 1.0, 0.0), "o")
    s = Schedule([o])
    shuffle_loops(data, s[o], vector=data.draw(st.booleans()))
    vectorised = [i for i, a in enumerate(s[o].leaf_axes) if s[o].kinds.get(a) == "vectorized"]
    # a vector loop around another nest with vectors is no vector
    places = s[o].leaf_axes[: vectorised[0]] if vectorised else s[o].leaf_axes
    if places:
        s[y].compute_at(s[o], data.draw(st.sampled_from(places)))
    shuffle_loops(data, s[y])
    a, b = values(3, vm, vk), values(4, vk, vn)
    (out,) = execute(lower(s, [x, w, o], "f"), [a, b], sizes)
    np.testing.assert_array_equal(out, np.maximum(a @ b - 1, 0))


@FEW
@given(st.data())
def test_padded_stencil(data):
    (h, w), (vh, vw), sizes = dims(data, "h", "w")
    x = placeholder((h, w), F32, "x")
    a = compute((h, w), lambda i, j: x[i, j] + 1.0, "a")
    p = compute(
        (h + 2, w + 2), lambda i, j: select((i >= 1) & (i <= h) & (j >= 1) & (j <= w), a[i - 1, j - 1], 0.0), "p"
    )
    r, q = reduce_axis(3, "r"), reduce_axis(2, "q")
    y = compute((h, w), lambda i, j: te.sum(p[i + r.var, j + q.var], [r, q]), "y")
    s = Schedule([y])
    shuffle_loops(data, s[y])
    vectorised = [i for i, b in enumerate(s[y].leaf_axes) if s[y].kinds.get(b) == "vectorized"]
    places = s[y].leaf_axes[: vectorised[0]] if vectorised else s[y].leaf_axes
    choice = data.draw(st.sampled_from(["inline", "attach", "root"]))
    if choice == "inline":
        s[p].inline()
    elif choice == "attach" and places:
        s[p].compute_at(s[y], data.draw(st.sampled_from(places)))
        shuffle_loops(data, s[p])
        if data.draw(st.booleans()):
            s[a].compute_at(s[y], data.draw(st.sampled_from(places)))
    v = values(5, vh, vw)
    padded = np.pad(v + 1, 1)
    want = sum(padded[i : i + vh, j : j + vw] for i in range(3) for j in range(2))
    try:
        func = lower(s, [x, y], "f")
    except ScheduleError as e:  # the tensor read inside `p` may stand in a loop further in than `p` itself
        assert "outside of" in str(e)
        return
    np.testing.assert_array_equal(execute(func, [v], sizes)[0], want)


@FEW
@given(st.data())
def test_elementwise_of_three_axes(data):
    shape, size, sizes = dims(data, "a", "b", "c")
    x = placeholder((shape[1], shape[0], shape[2]), F32, "x")
    y = compute(tuple(shape), lambda i, j, k: x[j, i, k] * 2.0, "y")
    s = Schedule([y])
    shuffle_loops(data, s[y])
    v = values(6, size[1], size[0], size[2])
    np.testing.assert_array_equal(execute(lower(s, [x, y], "f"), [v], sizes)[0], v.transpose(1, 0, 2) * 2)


@FEW
@given(st.data())
def test_reshape_by_division(data):
    size = [data.draw(st.integers(1, 6)) for _ in range(3)]
    x = placeholder(tuple(size), F32, "x")
    total = math.prod(size)
    n1, n2 = size[1], size[2]
    y = compute((total,), lambda i: x[i // (n1 * n2), i // n2 % n1, i % n2], "y")
    s = Schedule([y])
    shuffle_loops(data, s[y])
    v = values(7, *size)
    np.testing.assert_array_equal(execute(lower(s, [x, y], "f"), [v], {})[0], v.ravel())
