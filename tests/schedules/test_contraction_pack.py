"""Rows of a transposed matrix, packed by the kernel: right whatever is left over, and only where that pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nnvm import te
from nnvm.dim import symbol
from nnvm.dtype import F16, F32
from nnvm.te.expr import cast, maximum
from nnvm.te.tensor import compute, placeholder, reduce_axis
from nnvm.tir import interpreter
from nnvm.tir.stmt import Allocate
from nnvm.tir.visitor import stmts
from tests.schedules.test_contraction import TARGETS, contraction, execute, lowered, target, whole

#: Caches in which few steps of a reduction fit.
SMALL = replace(target(), l1_bytes=4 << 10, l2_bytes=64 << 10)


def gradient(m, n, k, batch=None, dtype=F32, wide=None):
    """x [k, m], w [k, n], bias [n] -> max(xᵀ w + bias, 0); `wide`: the columns that x really has."""
    lead = () if batch is None else (batch,)
    x, w = placeholder((*lead, k, wide or m), dtype, "x"), placeholder((*lead, k, n), dtype, "w")
    bias, r = placeholder((n,), F32, "bias"), reduce_axis(k, "r")

    def element(*at):
        *b, i, j = at
        return te.sum(cast(x[(*b, r.var, i)], F32) * cast(w[(*b, r.var, j)], F32), [r])

    y = compute((*lead, m, n), element, "y")
    return [x, w, bias], compute((*lead, m, n), lambda *at: maximum(y[at] + bias[at[-1]], 0.0), "o")


def scratch(func):
    return {s.buffer.name for s in stmts(func.body) if isinstance(s, Allocate) and s.buffer.scope == "scratch"}


def right(x, w, bias):
    return np.maximum(np.swapaxes(x, -1, -2).astype(np.float32) @ w.astype(np.float32) + bias, 0)


@pytest.mark.parametrize("where", [*map(target, TARGETS), SMALL], ids=[*TARGETS, "small"])
@pytest.mark.parametrize("m,n,k", [(1024, 64, 32), (1027, 72, 40), (1025, 100, 33), (1152, 96, 500)])
def test_rows_a_page_apart_are_packed(where, m, n, k):
    inputs, o = gradient(m, n, k)
    func = contraction(inputs, [o], where, "f", {})
    assert func is not None and {"x_packed", "w_packed"} <= scratch(func)
    x, w, bias = whole(k, m), whole(k, n), whole(n)
    (out,) = execute(inputs, [o], [x, w, bias], where)
    np.testing.assert_array_equal(out, right(x, w, bias))


@pytest.mark.parametrize("m", [30, 35, 64, 97])
@pytest.mark.parametrize("batch", [None, 3])
def test_steps_that_share_sets_of_the_second_cache(m, batch):
    """Rows of 1024 bytes: 64 of them fill their part of a cache of 64 KiB."""
    inputs, o = gradient(m, 80, 130, batch, wide=256)
    func = contraction(inputs, [o], SMALL, "f", {})
    assert func is not None and "x_packed" in scratch(func)
    lead = () if batch is None else (batch,)
    x, w, bias = whole(*lead, 130, 256), whole(*lead, 130, 80), whole(80)
    (out,) = execute(inputs, [o], [x, w, bias], SMALL)
    np.testing.assert_array_equal(out, right(x[..., :m], w, bias))


def test_half_types_are_packed_as_they_are():
    inputs, o = gradient(2050, 64, 33, dtype=F16)
    func = contraction(inputs, [o], SMALL, "f", {})
    assert func is not None and "x_packed" in scratch(func)
    x, w, bias = whole(33, 2050).astype(np.float16), whole(33, 64).astype(np.float16), whole(64)
    (out,) = execute(inputs, [o], [x, w, bias], SMALL)
    np.testing.assert_array_equal(out, right(x, w, bias))


def test_in_the_interpreter():
    """Which fails where something behind the last row is read."""
    inputs, o = gradient(26, 64, 32, wide=1024)
    func = contraction(inputs, [o], SMALL, "f", {})
    assert func is not None and "x_packed" in scratch(func)
    x, w, bias = whole(32, 1024), whole(32, 64), whole(64)
    out = np.full((26, 64), np.nan, np.float32)
    interpreter.run(func, [x, w, bias, out])
    np.testing.assert_array_equal(out, right(x[:, :26], w, bias))


@pytest.mark.parametrize("m,n,k", [(96, 96, 200), (1024, 48, 64), (1024, 96, 16), (symbol("m"), 96, 64)])
def test_rows_are_not_packed(m, n, k):
    """Where steps stay in the cache, where few columns or steps share the copy, where only the call knows the rows."""
    inputs, o = gradient(m, n, k)
    assert "x_packed" not in scratch(lowered(inputs, [o]))


@pytest.mark.parametrize("where", [*map(target, TARGETS), SMALL], ids=[*TARGETS, "small"])
@pytest.mark.parametrize("m,n,k,together", [(31, 1024, 40, 4), (48, 1100, 600, 1), (24, 1056, 33, 3)])
def test_columns_a_page_apart_are_packed_several_tiles_at_a_time(where, m, n, k, together):
    x, w, r = placeholder((m, k), F32, "x"), placeholder((k, n), F32, "w"), reduce_axis(k, "r")
    y = compute((m, n), lambda i, j: te.sum(x[i, r.var] * w[r.var, j], [r]), "y")
    func = contraction([x, w], [y], where, "f", {})
    assert func is not None
    (copy,) = (s.buffer for s in stmts(func.body) if isinstance(s, Allocate) and s.buffer.name == "w_packed")
    if where.lanes() == 16:
        assert copy.shape == (together, k, 32)
    a, b = whole(m, k), whole(k, n)
    (out,) = execute([x, w], [y], [a, b], where)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("n,packed", [(1, False), (4, False), (8, True)])
def test_columns_that_fill_little_of_a_vector_are_not_packed(n, packed):
    """Vectors lie along the reduction there: of packed columns most lanes would hold nothing."""
    x, w, r = placeholder((140, 130), F32, "x"), placeholder((n, 130), F32, "w"), reduce_axis(130, "r")
    y = compute((140, n), lambda i, j: te.sum(x[i, r.var] * w[j, r.var], [r]), "y")
    func = contraction([x, w], [y], target(TARGETS[2]), "f", {})
    assert func is not None and ("w_packed" in scratch(func)) == packed
    a, b = whole(140, 130), whole(n, 130)
    (out,) = execute([x, w], [y], [a, b], target(TARGETS[2]))
    np.testing.assert_array_equal(out, a @ b.T)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "rows,n,k,packed",
    [(32, 160, 528, False), (64, 160, 528, False), (64, 160, 130, True), (128, 160, 528, True), (32, 1024, 528, True)],
)
def test_columns_of_few_rows_are_not_packed(rows, n, k, packed, transposed):
    """A copy that few rows use costs more than it saves, unless steps are few or a page apart."""
    shape = (n, k) if transposed else (k, n)
    x, w, r = placeholder((rows, k), F32, "x"), placeholder(shape, F32, "w"), reduce_axis(k, "r")
    y = compute((rows, n), lambda i, j: te.sum(x[i, r.var] * (w[j, r.var] if transposed else w[r.var, j]), [r]), "y")
    func = contraction([x, w], [y], target(TARGETS[2]), "f", {})
    expected = packed and (n < 1024 or not transposed)
    assert func is not None and ("w_packed" in scratch(func)) == expected
    a, b = whole(rows, k), whole(*shape)
    (out,) = execute([x, w], [y], [a, b], target(TARGETS[2]))
    np.testing.assert_array_equal(out, a @ (b.T if transposed else b))
