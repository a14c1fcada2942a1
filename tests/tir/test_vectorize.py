"""Vectorized loops become vector operations; what does not depend on the lane stays scalar."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm.dtype import F32
from nnvm.te.expr import Binary, Broadcast, Buffer, Const, Load, Ramp, Select, Var, binary, const, load
from nnvm.tir.interpreter import run
from nnvm.tir.passes.vectorize import vectorize
from nnvm.tir.stmt import Allocate, For, If, PrimFunc, Seq, Stmt, Store
from nnvm.tir.verify import verify
from nnvm.tir.visitor import stmts

X, OUT = Buffer("x", (4, 8), F32), Buffer("out", (4, 8), F32)
ROW, LANE = Var("i"), Var("j")


def lanes(body: Stmt, extent: int = 8) -> Stmt:
    return For(LANE, const(extent), body, "vectorized")


def result(body: Stmt, x: np.ndarray) -> np.ndarray:
    """Output of the loop nest as it is, after checking that its vector form is legal and gives the same."""
    outs = []
    for s in (body, vectorize(body)):
        func = PrimFunc("f", (X, OUT), 1, (), For(ROW, const(4), s))
        if s is not body:
            verify(func)
        out = np.full((4, 8), 7, np.float32)
        run(func, [x, out])
        outs.append(out)
    np.testing.assert_array_equal(*outs)
    return outs[0]


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def test_the_variable_becomes_a_ramp_and_constants_are_spread(x):
    body = lanes(Store(OUT, (ROW, LANE), load(X, (ROW, LANE)) * 2.0))
    store = vectorize(body)
    assert isinstance(store, Store) and isinstance(store.indices[1], Ramp) and store.indices[0] is ROW
    assert isinstance(store.value, Binary) and isinstance(store.value.b, Const) and store.value.b.lanes == 8
    np.testing.assert_array_equal(result(body, x), x * 2)


def test_index_arithmetic_stays_a_ramp(x):
    body = lanes(Store(OUT, (ROW, LANE * 2 + 1), load(X, (ROW, 6 - LANE * 2 + 1))), 4)
    store = vectorize(body)
    assert isinstance(store, Store)
    assert isinstance(store.indices[1], Ramp) and store.indices[1].stride == 2
    result(body, x)


def test_what_is_the_same_in_all_lanes_is_loaded_once(x):
    body = lanes(Store(OUT, (ROW, LANE), load(X, (ROW, const(3))) + load(X, (ROW, LANE))))
    store = vectorize(body)
    assert isinstance(store, Store) and isinstance(store.value, Binary)
    assert isinstance(store.value.a, Broadcast) and isinstance(store.value.a.a, Load)
    result(body, x)


def test_a_condition_on_the_lane_becomes_a_mask(x):
    body = lanes(
        If(
            binary("lt", LANE, 5),
            Store(OUT, (ROW, LANE), load(X, (ROW, LANE))),
            Store(OUT, (ROW, LANE), const(0.0, F32)),
        )
    )
    made = vectorize(body)
    assert not [s for s in stmts(made) if isinstance(s, If)]
    assert all(s.mask is not None for s in stmts(made) if isinstance(s, Store))
    result(body, x)


def test_a_condition_that_all_lanes_share_stays_a_branch(x):
    body = lanes(If(binary("lt", ROW, 2), Store(OUT, (ROW, LANE), load(X, (ROW, LANE)))))
    assert isinstance(vectorize(body), If)
    result(body, x)


def test_masked_loads_stay_inside_the_buffer(x):
    # lanes 6 and 7 would read beyond the row
    body = lanes(If(binary("lt", LANE, 6), Store(OUT, (ROW, LANE), load(X, (ROW, LANE + 2)))))
    np.testing.assert_array_equal(result(body, x)[:, :6], x[:, 2:])


def test_select_reads_only_in_the_lanes_of_its_branch(x):
    value = Select(binary("ge", LANE, 3), load(X, (ROW, LANE - 3)), const(0.0, F32))
    np.testing.assert_array_equal(result(lanes(Store(OUT, (ROW, LANE), value)), x), np.pad(x, [(0, 0), (3, 0)])[:, :8])


def test_a_loop_inside_and_its_accumulator(x):
    acc, k = Buffer("acc", (1,), F32, None, "local"), Var("k")
    zero = (const(0),)
    inside = Seq((
        Store(acc, zero, const(0.0, F32)),
        For(k, const(4), Store(acc, zero, Load(acc, zero) + load(X, (k, LANE)))),
        Store(OUT, (ROW, LANE), Load(acc, zero)),
    ))  # fmt: skip
    body = lanes(Allocate(acc, inside))
    made = vectorize(body)
    assert isinstance(made, Allocate) and made.buffer.shape == (1, 8)
    np.testing.assert_allclose(result(body, x), np.broadcast_to(x.sum(0), (4, 8)), rtol=1e-5)


def test_a_nest_without_vectorized_loops_is_the_same_object():
    body = For(LANE, const(8), Store(OUT, (ROW, LANE), const(0.0, F32)))
    assert vectorize(body) is body


class TestErrors:
    def test_extent_that_is_not_constant(self):
        with pytest.raises(ValueError, match="not a constant"):
            vectorize(For(LANE, ROW, Store(OUT, (ROW, LANE), const(0.0, F32)), "vectorized"))

    def test_all_lanes_store_to_one_element(self):
        with pytest.raises(ValueError, match="one element"):
            vectorize(lanes(Store(OUT, (ROW, const(0)), load(X, (ROW, LANE)))))

    def test_a_loop_that_runs_differently_in_each_lane(self):
        with pytest.raises(ValueError, match="differs between lanes"):
            vectorize(lanes(For(Var("k"), LANE, Store(OUT, (ROW, LANE), const(0.0, F32)))))

    def test_a_vectorized_loop_inside_another(self):
        k = Var("k")
        inner = For(k, const(2), Store(OUT, (ROW, LANE + k), const(0.0, F32)), "vectorized")
        with pytest.raises(ValueError, match="inside the vectorized loop"):
            vectorize(lanes(inner))
