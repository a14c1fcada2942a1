"""Loads and stores in every form, against the interpreter, and never outside a buffer: arrays end at a guard page."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm.dim import symbol
from nnvm.dtype import BOOL, F16, F32, F64, I8, I32, I64, U8, DType, dtype
from nnvm.kernel_error import KernelError, KernelIndexError
from nnvm.runtime.llvm_jit import assembly, compile_funcs
from nnvm.target import Target
from nnvm.te.expr import (
    Binary,
    Broadcast,
    Buffer,
    Cast,
    Check,
    Expr,
    Load,
    Ramp,
    Select,
    Unary,
    Var,
    VectorReduce,
    binary,
    const,
    load,
)
from nnvm.testing.fence import fenced
from nnvm.tir import interpreter
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store, seq


def compare(func: PrimFunc, *inputs: np.ndarray, symbols: dict[str, int] | None = None, threads: int = 1) -> np.ndarray:
    """The kernel's last output, the same as the interpreter's, with every array at a guard page."""
    sizes = dict(symbols or {})
    from nnvm.dim import evaluate

    shapes = [tuple(evaluate(d, sizes) for d in p.shape) for p in func.params[len(inputs) :]]
    outs = [np.zeros(s, p.dtype.numpy) for s, p in zip(shapes, func.params[len(inputs) :])]
    expected = [o.copy() for o in outs]
    interpreter.run(func, [*inputs, *expected], sizes)
    kernel = compile_funcs([func])[0]
    for before in (False, True):
        found = [fenced(o, before) for o in outs]
        kernel(*(fenced(a, before) for a in inputs), *found, symbols=sizes, threads=threads)
        for f, e in zip(found, expected):
            np.testing.assert_array_equal(f, e)
    return expected[-1]


def data(t: DType, *shape: int) -> np.ndarray:
    n = int(np.prod(shape))
    return (np.arange(n) % 2 == 0 if t.is_bool else np.arange(n) % 100 + 1).astype(t.numpy).reshape(shape)


def vector_copy(t: DType, size: int, index: Expr, lanes: int, mask: Expr | None = None) -> PrimFunc:
    x, y = Buffer("x", (size,), t), Buffer("y", (lanes,), t)
    return PrimFunc("copy", (x, y), 1, (), Store(y, (Ramp(const(0), 1, lanes),), Load(x, (index,), mask)))


@pytest.mark.parametrize("t", (F32, F64, F16, I8, I64, BOOL), ids=str)
@pytest.mark.parametrize("step", (1, -1, 2, 3, 4, -2, 5, 40, 0))
def test_strided_loads(t: DType, step: int) -> None:
    size = abs(step) * 7 + 1
    index = Ramp(const(0 if step >= 0 else size - 1), step, 8)
    compare(vector_copy(t, size, index, 8), data(t, size))


@pytest.mark.parametrize("t", (F32, F16, I8, I64, BOOL), ids=str)
@pytest.mark.parametrize("step", (1, -1, 3, 0))
def test_masked_loads_leave_lanes_unread(t: DType, step: int) -> None:
    """The first five lanes are inside the buffer; the others would fault."""
    size = abs(step) * 4 + 1
    index = Ramp(const(0 if step >= 0 else size - 1), step, 8)
    i, n = Var("i"), Buffer("n", (1,), I64)
    x, y = Buffer("x", (size,), t), Buffer("y", (8,), t)
    mask = Binary("lt", Ramp(i, 1, 8), Broadcast(load(n, (const(0),)), 8))
    body = For(i, const(1), Store(y, (Ramp(i, 1, 8),), Load(x, (index,), mask)))
    compare(PrimFunc("masked", (x, n, y), 1, (), body), data(t, size), np.array([5]))


@pytest.mark.parametrize("t", (F32, I64, BOOL), ids=str)
def test_a_mask_of_its_own_does_not_save_a_load_from_its_condition(t: DType) -> None:
    """What is left of a row, of which padding takes a part: the row of padding is outside the buffer."""
    i, x, y = Var("i"), Buffer("x", (3, 3), t), Buffer("y", (5, 8), t)
    lane = Ramp(const(0), 1, 8)
    rest = Binary("lt", lane, Broadcast(const(3), 8))
    row = binary("sub", i, const(1))
    inside = Broadcast(binary("and", binary("ge", row, const(0)), binary("lt", row, const(3))), 8)
    value = Select(inside, Load(x, (Broadcast(row, 8), lane), rest), Broadcast(const(0, t), 8))
    compare(
        PrimFunc("padded", (x, y), 1, (), For(i, const(5), Store(y, (Broadcast(i, 8), lane), value))), data(t, 3, 3)
    )


@pytest.mark.parametrize("t", (F32, I8, F64, BOOL), ids=str)
@pytest.mark.parametrize("step", (1, -1, 2, 7))
def test_strided_stores(t: DType, step: int) -> None:
    size = abs(step) * 7 + 1
    x, y = Buffer("x", (8,), t), Buffer("y", (size,), t)
    index = Ramp(const(0 if step >= 0 else size - 1), step, 8)
    compare(PrimFunc("s", (x, y), 1, (), Store(y, (index,), Load(x, (Ramp(const(0), 1, 8),)))), data(t, 8))


@pytest.mark.parametrize("t", (F32, I8, F64, BOOL), ids=str)
@pytest.mark.parametrize("step", (1, -1, 2))
def test_masked_stores_leave_lanes_unwritten(t: DType, step: int) -> None:
    size = abs(step) * 4 + 1
    x, n, y = Buffer("x", (8,), t), Buffer("n", (1,), I64), Buffer("y", (size,), t)
    index = Ramp(const(0 if step >= 0 else size - 1), step, 8)
    mask = Binary("lt", Ramp(const(0), 1, 8), Broadcast(load(n, (const(0),)), 8))
    body = Store(y, (index,), Load(x, (Ramp(const(0), 1, 8),)), mask)
    compare(PrimFunc("s", (x, n, y), 1, (), body), data(t, 8), np.array([5]))


@pytest.mark.parametrize("t", (F32, F64, I8, F16), ids=str)
def test_gather_and_scatter(t: DType) -> None:
    table, index, y = Buffer("table", (20,), t), Buffer("index", (8,), I64), Buffer("y", (20,), t)
    lanes = Load(index, (Ramp(const(0), 1, 8),))
    func = PrimFunc("gs", (table, index, y), 1, (), Store(y, (lanes,), Load(table, (lanes,))))
    compare(func, data(t, 20), np.array([19, 0, 3, 7, 11, 2, 5, 6]))


def test_gather_through_strides_and_a_column() -> None:
    table, index, y = Buffer("t", (5, 3), F32), Buffer("index", (8,), I32), Buffer("y", (8,), F32)
    rows = Cast(Load(index, (Ramp(const(0), 1, 8),)), I64)
    body = Store(y, (Ramp(const(0), 1, 8),), Load(table, (rows, const(2))))
    compare(
        PrimFunc("g", (table, index, y), 1, (), body), data(F32, 5, 3), np.array([4, 0, 1, 2, 3, 4, 4, 0], np.int32)
    )


def test_vector_along_an_outer_dimension() -> None:
    x, y, j = Buffer("x", (8, 5), F32), Buffer("y", (5, 8), F32), Var("j")
    body = For(j, const(5), Store(y, (j, Ramp(const(0), 1, 8)), Load(x, (Ramp(const(0), 1, 8), j))))
    assert (compare(PrimFunc("t", (x, y), 1, (), body), data(F32, 8, 5)) == data(F32, 8, 5).T).all()


def test_explicit_strides() -> None:
    x, y = Buffer("x", (3, 4), F32, strides=(1, 3)), Buffer("y", (3, 4), F32)
    i, j = Var("i"), Var("j")
    func = PrimFunc("st", (x, y), 1, (), For(i, const(3), For(j, const(4), Store(y, (i, j), load(x, (i, j))))))
    a, out = np.asfortranarray(data(F32, 3, 4)), np.zeros((3, 4), np.float32)
    kernel = compile_funcs([func])[0]
    kernel(a, out)
    np.testing.assert_array_equal(out, a)
    with pytest.raises(ValueError, match="strides"):
        kernel(np.ascontiguousarray(a), out)


@pytest.mark.parametrize("lanes", (1, 8))
def test_padding_by_select(lanes: int) -> None:
    """Reads x[i - 2] only where it exists."""
    i, x, y = Var("i"), Buffer("x", (12,), F32), Buffer("y", (16,), F32)
    at: Expr = i if lanes == 1 else Ramp(i * lanes, 1, lanes)
    shift = const(2) if lanes == 1 else Broadcast(const(2), lanes)
    zero, end = const(0), const(12)
    if lanes > 1:
        zero, end = Broadcast(zero, lanes), Broadcast(end, lanes)
    source = Binary("sub", at, shift)
    inside = Binary("and", Binary("ge", source, zero), Binary("lt", source, end))
    nothing = const(-1.0, F32) if lanes == 1 else Broadcast(const(-1.0, F32), lanes)
    body = For(i, const(16 // lanes), Store(y, (at,), Select(inside, Load(x, (source,)), nothing)))
    compare(PrimFunc("pad", (x, y), 1, (), body), data(F32, 12))


@pytest.mark.parametrize("lanes", (1, 4))
def test_concatenation_by_nested_selects(lanes: int) -> None:
    parts = [Buffer(f"x{k}", (8,), F32) for k in range(3)]
    i, y = Var("i"), Buffer("y", (24,), F32)
    at: Expr = i if lanes == 1 else Ramp(i * lanes, 1, lanes)

    def wide(v: int) -> Expr:
        return const(v) if lanes == 1 else Broadcast(const(v), lanes)

    value: Expr = Load(parts[2], (Binary("sub", at, wide(16)),))
    for k in (1, 0):
        value = Select(Binary("lt", at, wide(8 * k + 8)), Load(parts[k], (Binary("sub", at, wide(8 * k)),)), value)
    func = PrimFunc("cat", (*parts, y), 1, (), For(i, const(24 // lanes), Store(y, (at,), value)))
    arrays = [data(F32, 8) + 100 * k for k in range(3)]
    assert (compare(func, *arrays) == np.concatenate(arrays)).all()


def test_select_divides_only_in_lanes_taken() -> None:
    a, b, y = Buffer("a", (8,), I32), Buffer("b", (8,), I32), Buffer("y", (8,), I32)
    lanes = (Ramp(const(0), 1, 8),)
    zero = Broadcast(const(0, I32), 8)
    divisor = Load(b, lanes)
    value = Select(Binary("eq", divisor, zero), zero, Binary("floordiv", Load(a, lanes), divisor))
    func = PrimFunc("d", (a, b, y), 1, (), Store(y, lanes, value))
    compare(func, np.arange(8, dtype=np.int32) * 10, np.array([0, 1, 2, 0, 4, 5, 0, 7], np.int32))


def test_lanes_of_another_length_under_a_select() -> None:
    """Four lanes choose; the branch reduces eight lanes that are there only if one of them takes it."""
    x, c, y = Buffer("x", (8,), F32), Buffer("c", (4,), BOOL), Buffer("y", (4,), F32)
    at, start = (Ramp(const(0), 1, 4),), Buffer("start", (1,), I64)
    total = VectorReduce("sum", Load(x, (Ramp(load(start, (const(0),)), 1, 8),)))
    value = Select(Load(c, at), Broadcast(total, 4), Broadcast(const(-1.0, F32), 4))
    func = PrimFunc("l", (x, c, start, y), 1, (), Store(y, at, value))
    (kernel,) = compile_funcs([func])
    for lane, first, expected in ((1, 0, [-1, 36, -1, -1]), (None, 1 << 40, [-1] * 4)):
        cond, out = np.arange(4) == lane, np.zeros(4, np.float32)
        kernel(data(F32, 8), cond, np.array([first]), out)
        assert out.tolist() == expected


def test_masked_store_fails_only_for_its_lanes() -> None:
    a, b, y = Buffer("a", (8,), I32), Buffer("b", (8,), I32), Buffer("y", (8,), I32)
    lanes = (Ramp(const(0), 1, 8),)
    value = Binary("floordiv", Load(a, lanes), Load(b, lanes))
    mask = Binary("lt", lanes[0], Broadcast(const(5), 8))
    func = PrimFunc("d", (a, b, y), 1, (), Store(y, lanes, value, mask))
    compare(func, np.arange(8, dtype=np.int32), np.array([1, 1, 1, 1, 2, 0, 0, 0], np.int32))


# -- statements


def test_tail_mask_over_a_symbolic_size() -> None:
    n, i = symbol("n"), Var("i")
    x, y = Buffer("x", (n,), F32), Buffer("y", (n,), F32)
    at = Ramp(i * 8, 1, 8)
    mask = Binary("lt", at, Broadcast(Var("n"), 8))
    value = Binary("mul", Load(x, (at,), mask), Broadcast(const(2.0, F32), 8))
    func = PrimFunc(
        "scale", (x, y), 1, ("n",), For(i, binary("floordiv", Var("n") + 7, 8), Store(y, (at,), value, mask))
    )
    for size in (0, 1, 7, 8, 9, 64, 100):
        compare(func, data(F32, size), symbols={"n": size})


def test_symbolic_strides_and_index_arithmetic() -> None:
    n, m = symbol("n"), symbol("m")
    x, y, i = Buffer("x", (n, m), F32), Buffer("y", (m, n), F32), Var("i")
    row, column = binary("floordiv", i, Var("m")), binary("floormod", i, Var("m"))
    func = PrimFunc("tr", (x, y), 1, ("n", "m"),
                    For(i, Var("n") * Var("m"), Store(y, (column, row), load(x, (row, column)))))  # fmt: skip
    for a, b in ((1, 1), (3, 5), (4, 0), (7, 2)):
        compare(func, data(F32, a, b), symbols={"n": a, "m": b})


def test_unflattening_by_constants() -> None:
    x, y, i = Buffer("x", (4, 6, 5), F32), Buffer("y", (120,), F32), Var("i")
    indices = (binary("floordiv", i, 30), binary("floormod", binary("floordiv", i, 5), 6), binary("floormod", i, 5))
    out = compare(
        PrimFunc("u", (x, y), 1, (), For(i, const(120), Store(y, (i,), load(x, indices)))), data(F32, 4, 6, 5)
    )
    assert (out == data(F32, 120)).all()


@pytest.mark.parametrize("op", ("floordiv", "floormod", "truncdiv", "truncmod", "min", "max"))
def test_index_arithmetic_below_zero(op: str) -> None:
    i, y = Var("i"), Buffer("y", (41, 6), I64)
    stores = [Store(y, (i, const(k)), binary(op, i * 3 - 60, d)) for k, d in enumerate((1, 2, 3, 7, 8, 60))]
    compare(PrimFunc("f", (y,), 1, (), For(i, const(41), seq(stores))))


@pytest.mark.parametrize("op", ("lt", "le", "gt", "ge", "eq", "ne"))
def test_lane_comparisons_near_and_far(op: str) -> None:
    """Lane index against a bound that is far beyond 32 bits, or just at the lane."""
    bound, y, i = Buffer("bound", (7,), I64), Buffer("y", (7, 8), BOOL), Var("i")
    n = Var("n")
    at = Ramp(i * 8, 1, 8)
    value = Binary(op, at, Broadcast(n + load(bound, (i,)) - n, 8))
    func = PrimFunc("c", (bound, y), 1, ("n",), For(i, const(7), Store(y, (i, Ramp(const(0), 1, 8)), value)))
    compare(func, np.array([0, 1 << 40, -(1 << 40), 24, 31, 44, 55]), symbols={"n": 3})
    sized = PrimFunc("c", (y,), 1, ("n",), For(i, const(7), Store(y, (i, Ramp(const(0), 1, 8)),
                                                                  Binary(op, at, Broadcast(n, 8)))))  # fmt: skip
    for size in (0, 5, 30, 1 << 35):
        compare(sized, symbols={"n": size})


def test_register_tile_and_unrolled_loops() -> None:
    x, y, tile = Buffer("x", (6, 16), F32), Buffer("y", (6, 16), F32), Buffer("tile", (6, 16), F32, scope="local")
    i, v, k = Var("i"), Var("v"), Var("k")

    def each(body: Stmt) -> Stmt:
        return For(i, const(6), For(v, const(2), body, "unrolled"), "unrolled")

    at = (i, Ramp(v * 8, 1, 8))
    twice = Store(tile, at, Binary("add", Load(tile, at), Load(x, at)))
    body = Seq((each(Store(tile, at, Load(x, at))), For(k, const(5), each(twice)), each(Store(y, at, Load(tile, at)))))
    assert (compare(PrimFunc("t", (x, y), 1, (), Allocate(tile, body)), data(F32, 6, 16)) == 6 * data(F32, 6, 16)).all()


def test_scratch_is_reloaded_after_stores() -> None:
    """A load of memory that changes between statements, in and across loops."""
    y, s = Buffer("y", (4,), I32), Buffer("s", (4,), I32, scope="scratch")
    i, j = Var("i"), Var("j")
    first = load(s, (const(0),))
    body = Seq((
        For(i, const(4), Store(s, (i,), const(1, I32))),
        For(i, const(4), Seq((Store(y, (i,), first), Store(s, (const(0),), first + 1),
                              For(j, const(2), Store(s, (const(0),), first + first))))),
        If(Binary("gt", load(s, (const(0),)), const(3, I32)), Store(y, (const(3),), load(s, (const(0),)))),
    ))  # fmt: skip
    out = compare(PrimFunc("r", (y,), 1, (), Allocate(s, body)))
    assert out.tolist()[:3] == [1, 8, 36]


def test_if_let_and_else() -> None:
    x, y, i, v = Buffer("x", (10,), F32), Buffer("y", (10,), F32), Var("i"), Var("v", F32)
    j = Var("j")
    branch = If(Binary("gt", v, const(5.0, F32)), Store(y, (j,), v * 2.0), Store(y, (j,), v + 1.0))
    compare(PrimFunc("i", (x, y), 1, (), For(i, const(10), Let(j, const(9) - i, Let(v, load(x, (j,)), branch)))),
            data(F32, 10))  # fmt: skip


def test_empty_loops_write_nothing() -> None:
    y, i, n = Buffer("y", (4,), F32), Var("i"), Var("n")
    for extent in (const(0), n, n - 3):
        compare(PrimFunc("e", (y,), 1, ("n",), For(i, extent, Store(y, (i,), const(1.0, F32)))), symbols={"n": 0})


def test_scalar_shapes() -> None:
    x, y = Buffer("x", (), F32), Buffer("y", (), F32)
    compare(PrimFunc("s", (x, y), 1, (), Store(y, (), load(x, ()) * 3.0)), np.array(2.0, np.float32))


def test_in_place_output_may_be_the_input() -> None:
    x, y, i = Buffer("x", (64,), F32), Buffer("y", (64,), F32), Var("i")
    at = (Ramp(i * 8, 1, 8),)
    body = For(i, const(8), Store(y, at, Binary("add", Load(x, at), Load(x, at))))
    kernel = compile_funcs([PrimFunc("ip", (x, y), 1, (), body, {"inplace": {"y": "x"}})])[0]
    a = data(F32, 64)
    kernel(a, a)
    assert (a == 2 * data(F32, 64)).all()


# -- failures


def embedding(lanes: int, check_load: bool) -> PrimFunc:
    """y[i] = table[checked index[i]]; the check is around the index or around the load."""
    table, index, y, i = Buffer("table", (10,), F32), Buffer("index", (8,), I64), Buffer("y", (8,), F32), Var("i")
    at: Expr = i if lanes == 1 else Ramp(i * lanes, 1, lanes)

    def wide(v: int) -> Expr:
        return const(v) if lanes == 1 else Broadcast(const(v), lanes)

    k = Load(index, (at,))
    inside = Binary("and", Binary("ge", k, wide(0)), Binary("lt", k, wide(10)))
    message = "IndexError: index out of range in self"
    value = Check(Load(table, (k,)), inside, message) if check_load else Load(table, (Check(k, inside, message),))
    return PrimFunc("embedding", (table, index, y), 1, (), For(i, const(8 // lanes), Store(y, (at,), value)))


@pytest.mark.parametrize("check_load", (True, False))
@pytest.mark.parametrize("lanes", (1, 8))
def test_an_index_out_of_range_fails_and_is_not_read(lanes: int, check_load: bool) -> None:
    func = embedding(lanes, check_load)
    good = np.array([0, 9, 1, 8, 2, 7, 3, 6])
    compare(func, data(F32, 10), good)
    kernel = compile_funcs([func])[0]
    for bad in (-1, 10, 1 << 40, -(1 << 62)):
        for position in (0, 5, 7):
            index = good.copy()
            index[position] = bad
            with pytest.raises(KernelIndexError, match="index out of range in self"):
                kernel(fenced(data(F32, 10)), index, np.zeros(8, np.float32))


def test_the_first_failure_wins() -> None:
    x, y = Buffer("x", (2,), I32), Buffer("y", (1,), I32)
    first, second = (Assert(Binary("gt", load(x, (const(k),)), const(0, I32)), f"number {k}") for k in (0, 1))
    kernel = compile_funcs([PrimFunc("a", (x, y), 1, (), Seq((first, second, Store(y, (const(0),), const(7, I32)))))])[
        0
    ]
    assert kernel.messages == ("number 0", "number 1")
    for values, message in (([0, 0], "number 0"), ([1, 0], "number 1"), ([0, 1], "number 0")):
        with pytest.raises(KernelError, match=message):
            kernel(np.array(values, np.int32), np.zeros(1, np.int32))
    kernel(np.array([1, 1], np.int32), out := np.zeros(1, np.int32))
    assert out[0] == 7


def test_prefetch_of_what_does_not_exist() -> None:
    x, y, i = Buffer("x", (4, 8), F32), Buffer("y", (4, 8), F32), Var("i")
    row = Ramp(const(0), 1, 8)
    hints = [Prefetch(x, (i * step, const(3))) for step in (1, 1 << 40, -(1 << 40))]
    copy = Store(y, (i, row), Load(x, (i, row)))
    func = PrimFunc("p", (x, y), 1, (), For(i, const(4), seq([*hints, copy])))
    compare(func, data(F32, 4, 8))
    assert "prefetcht1" in assembly(func, Target.parse("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu"))


def test_bool_and_half_in_memory() -> None:
    x, y, z = Buffer("x", (16,), F16), Buffer("y", (16,), BOOL), Buffer("z", (16,), F16)
    at = (Ramp(const(0), 1, 16),)
    value = Load(x, at)
    body = seq([Store(y, at, Binary("gt", Cast(value, F32), Broadcast(const(5.0, F32), 16))),
                Store(z, at, Cast(Unary("sqrt", Cast(value, F32)), F16))])  # fmt: skip
    compare(PrimFunc("h", (x, y, z), 2, (), body), data(F16, 16))


def test_reduction_of_a_vector_in_a_loop() -> None:
    x, y, i = Buffer("x", (4, 8), F32), Buffer("y", (4,), F32), Var("i")
    body = For(i, const(4), Store(y, (i,), VectorReduce("sum", Load(x, (i, Ramp(const(0), 1, 8))))))
    compare(PrimFunc("r", (x, y), 1, (), body), data(F32, 4, 8))


def test_uint8_wraps_before_it_is_widened() -> None:
    x, y = Buffer("x", (8,), U8), Buffer("y", (8,), I32)
    at = (Ramp(const(0), 1, 8),)
    value = Cast(Binary("add", Load(x, at), Broadcast(const(200, U8), 8)), dtype("int32"))
    out = compare(PrimFunc("w", (x, y), 1, (), Store(y, at, value)), np.full(8, 100, np.uint8))
    assert (out == 44).all()


@pytest.mark.parametrize("start", [-(1 << 20), 1 << 20])
def test_an_index_that_is_read_under_a_condition(start: int) -> None:
    """Where an element lies is not asked outside of the condition that says whether its index may be read."""
    table, index, wanted = Buffer("table", (4,), F32), Buffer("index", (2,), I64), Buffer("wanted", (2,), BOOL)
    row, y, i = Buffer("row", (3,), I64), Buffer("y", (3,), F32), Var("i")
    k = load(row, (i,))
    place = load(index, (k,))
    inside = binary("and", binary("ge", place, 0), binary("lt", place, 4))
    element = Load(table, (Check(place, inside, "index is out of bounds"),))
    value: Expr = Select(load(wanted, (k,)), Unary("neg", element), const(0.0, F32))
    valid = binary("and", binary("ge", k, 0), binary("lt", k, 2))
    value = Select(valid, value, const(0.0, F32))
    func = PrimFunc("f", (table, index, wanted, row, y), 1, (), For(i, const(3), Store(y, (i,), value)))
    rows = np.array([start, 1, 0])
    out = compare(func, data(F32, 4), np.array([3, 2]), np.array([True, True]), rows)
    np.testing.assert_array_equal(out, [0, -3, -4])
    out = compare(func, data(F32, 4), np.array([9, 2]), np.array([False, True]), np.array([start, 1, start]))
    np.testing.assert_array_equal(out, [0, -3, 0])
