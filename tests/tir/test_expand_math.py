"""Expanded functions against float64 (float32) and 80-bit (float64) references: at most 2 ulp over the whole range."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import pytest

from nnvm.dtype import BF16, F32, F64, DType
from nnvm.te.expr import Binary, Broadcast, Buffer, Cast, Const, Expr, Fma, Load, Ramp, Unary, Var, const
from nnvm.tir.interpreter import evaluate_expr, run
from nnvm.tir.passes.expand_math import FUNCTIONS, PAIRS, expand_expr, expand_math
from nnvm.tir.passes.math.exponential import exp_to_one
from nnvm.tir.passes.math.vector import Vector
from nnvm.tir.stmt import PrimFunc, Store
from nnvm.tir.verify import verify
from nnvm.tir.visitor import post_order

Array = np.ndarray[Any, Any]
QUICK, DENSE = 1 << 18, 1 << 20

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 2.0, -0.5, 0.65, 0.6499999, 1.0000001, 0.99999994,
           -0.99999994, -1.0000001, 88.72283, 88.72284, -87.33655, -103.27893, -103.97208, -103.97209, 127.99999, 128.0,
           -126.0, -149.0, -149.5, -150.0, -150.5, 1e-45, -1e-45, 1.1754942e-38, -1.1754942e-38, 1.1754944e-38,
           3.4028235e38, -3.4028235e38, 709.78271, 709.7828, -708.4, -745.13, -745.14, 1e-310, 2.2250738585072014e-308,
           5e-324, 1.7976931348623157e308, 71476.0, 71477.0, 8193.0, 1e10, 1e22, 1e30]  # fmt: skip


def arguments(t: DType, n: int, seed: str) -> Array:
    """Random bit patterns over all exponents, as many numbers of ordinary size, and the corners."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    word = np.uint32 if t == F32 else np.uint64
    bits = rng.integers(0, np.iinfo(word).max, n // 2, dtype=word, endpoint=True).view(t.numpy)
    usual = (rng.standard_normal(n // 2) * 10.0 ** rng.uniform(-3, 2.2, n // 2)).astype(t.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([bits, usual, np.array(SPECIAL).astype(t.numpy)])


def errors(got: Array, exact: Array) -> Array:
    """Distance of each value from the exact one, in units in the last place of that; inf where the kind differs."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(got.dtype)
        finite = np.isfinite(nearest)
        unit = np.spacing(np.abs(np.where(finite, nearest, np.finfo(got.dtype).max))).astype(exact.dtype)
        distance = np.abs(got.astype(exact.dtype) - exact) / unit
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    distance = np.where(same & ~finite, 0, distance)
    signs = (got == 0) & (exact == 0) & (np.signbit(got) != np.signbit(exact))
    return np.where(np.isnan(distance) | signs, np.inf, distance)


def reference(op: str, *x: Array) -> Array:
    """Values in the wider type of the arguments."""
    functions = {
        "sigmoid": lambda v: np.where(v > 0, 1 / (1 + np.exp(-v)), np.exp(v) / (1 + np.exp(v))),
        "exp2": lambda v: np.power(v.dtype.type(2), v),
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "erf": lambda v: np.array([math.erf(y) for y in v], np.float64),
        "erfc": lambda v: np.array([math.erfc(y) for y in v], np.float64),
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        "asinh": np.arcsinh,
        "acosh": np.arccosh,
        "atanh": np.arctanh,
        "pow": np.power,
    }
    with np.errstate(all="ignore"):
        wide = [v.astype(np.float64 if v.dtype == np.float32 else np.longdouble) for v in x]
        out: Array = (functions.get(op) or getattr(np, op))(*wide)
    return out


def worst(op: str, t: DType, fma: bool, *x: Array) -> str:
    """Says where the error is greatest; '' where it is at most 2 ulp everywhere."""
    variables = [Var(f"x{k}", t) for k in range(len(x))]
    e: Expr = Unary(op, variables[0]) if len(x) == 1 else Binary(op, variables[0], variables[1])
    got = evaluate_expr(expand_expr(e, fma), dict(zip(variables, x)))
    assert got.dtype == t.numpy
    exact = reference(op, *x)
    found = errors(got, exact)
    k = int(np.argmax(found))
    at = ", ".join(repr(v[k]) for v in x)
    return "" if found[k] <= 2 else f"{op}({at}) gave {got[k]!r}, not {exact[k]!r}: {found[k]:.3f} ulp"


def _check(op: str, t: DType, n: int) -> None:
    for fma in (True, False):
        x = arguments(t, n, op)
        assert worst(op, t, fma, x) == ""


@pytest.mark.parametrize("op", FUNCTIONS[F32])
def test_float32(op: str) -> None:
    _check(op, F32, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("op", FUNCTIONS[F32])
def test_float32_dense(op: str) -> None:
    _check(op, F32, DENSE)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit long double for the reference")
@pytest.mark.parametrize("op", FUNCTIONS[F64])
def test_float64(op: str) -> None:
    _check(op, F64, QUICK // 8)


@pytest.mark.slow
@pytest.mark.parametrize("op", FUNCTIONS[F64])
def test_float64_dense(op: str) -> None:
    _check(op, F64, DENSE)


def _pairs(n: int) -> tuple[Array, Array]:
    x, y = arguments(F32, n, "x"), arguments(F32, n, "y")
    rng = np.random.default_rng(5)
    middle = n // 4
    x[:middle] = np.exp(rng.uniform(-10, 10, middle))  # most random pairs over- or underflow; these do not
    y[:middle] = rng.uniform(-20, 20, middle)
    y[: middle // 4] = np.round(y[: middle // 4])
    x[: middle // 8] *= -1
    near = slice(middle, middle + middle // 2)  # bases near 1 with great exponents
    x[near] = 1 + rng.uniform(-1, 1, middle // 2) * 2.0 ** rng.uniform(-23, -3, middle // 2)
    y[near] = rng.uniform(-1, 1, middle // 2) * 2.0 ** rng.uniform(0, 28, middle // 2)
    corners = np.array([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-45, 3e38, 2**24,
                        2**24 + 2, 5, 1e30], np.float32)  # fmt: skip
    a, b = (v.ravel() for v in np.meshgrid(corners, corners))
    return np.concatenate([x, a]), np.concatenate([y, b])


@pytest.mark.parametrize("fma", [True, False])
def test_pow(fma: bool) -> None:
    assert worst("pow", F32, fma, *_pairs(QUICK)) == ""


@pytest.mark.slow
def test_pow_dense() -> None:
    assert worst("pow", F32, True, *_pairs(DENSE)) == ""


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, -1.0, 0.5])
def test_constant_powers(power: float) -> None:
    x = Var("x", F32)
    e = expand_expr(Binary("pow", x, Const(power, F32)))
    assert len(post_order(e)) < 12
    values = arguments(F32, 4096, "power")
    with np.errstate(all="ignore"):
        exact = np.power(values.astype(np.float64), np.full(len(values), power))
    assert errors(np.asarray(evaluate_expr(e, {x: values})), exact).max() <= 2


def _operations(e: Expr) -> int:
    """Arithmetic operations, each counted once however often its value is used."""
    free = ("Bitcast", "Const", "Var", "Load", "Broadcast", "Ramp")
    return sum(type(x).__name__ not in free for x in post_order(e))


@pytest.mark.parametrize(
    ("op", "most"), [("exp", 18), ("sigmoid", 18), ("tanh", 27), ("erf", 31), ("exp2", 17), ("expm1", 18), ("log", 31)]
)
def test_hot_functions_stay_short(op: str, most: int) -> None:
    e = expand_expr(Unary(op, Var("x", F32)))
    assert _operations(e) <= most
    assert sum(getattr(x, "op", "") == "div" for x in post_order(e)) <= (op in ("sigmoid", "tanh"))


def one_plus(op: str, t: DType, x: Expr) -> Expr:
    return Binary("add", Const(1.0, t), Unary(op, x))


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("t", [F32, F64])
def test_one_plus_exp(t: DType, sign: int, fma: bool) -> None:
    x = Var("x", t)
    e = expand_expr(one_plus("exp", t, x if sign == 1 else Unary("neg", x)), fma)
    values = arguments(t, QUICK if t == F32 else QUICK // 8, "one plus exp")
    with np.errstate(all="ignore"):
        exact = 1 + np.exp(sign * values.astype(np.float64 if t == F32 else np.longdouble))
    assert errors(np.asarray(evaluate_expr(e, {x: values})), exact).max() <= 2
    assert t == F64 or not fma or _operations(e) <= 15


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("t", [F32, F64])
def test_exp_of_what_is_at_most_0(t: DType, fma: bool) -> None:
    """Within 2 units near 1, a few where the result is tiny beside 1; 0 or a denormal below; NaN stays NaN."""
    x = Var("x", t)
    e = exp_to_one(Vector(t, 1, fma), x)
    values = -np.abs(arguments(t, QUICK if t == F32 else QUICK // 8, "exp to one"))
    with np.errstate(all="ignore"):
        exact = np.exp(values.astype(np.float64 if t == F32 else np.longdouble))
    got, least = np.asarray(evaluate_expr(e, {x: values})), float(np.finfo(t.numpy).tiny)
    normal = (exact >= 2 * least) | np.isnan(exact)
    allowed = 2 - np.where(np.isfinite(values), values, 0)[normal] / (20 if t == F32 else 3)
    assert (errors(got[normal], exact[normal]) <= allowed).all()
    assert (got[~normal] >= 0).all() and (got[~normal] < 4 * least).all()
    assert got[np.isneginf(values)].max() == 0
    assert t == F64 or not fma or _operations(e) <= 12


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("t", [F32, F64])
def test_one_plus_tanh(t: DType, fma: bool) -> None:
    """Also where tanh itself is -1: nothing cancels."""
    x = Var("x", t)
    e = expand_expr(one_plus("tanh", t, x), fma)
    values = arguments(t, QUICK if t == F32 else QUICK // 8, "one plus tanh")
    with np.errstate(all="ignore"):
        exact = 2 / (1 + np.exp(-2 * values.astype(np.float64 if t == F32 else np.longdouble)))
    assert errors(np.asarray(evaluate_expr(e, {x: values})), exact).max() <= 2
    assert evaluate_expr(e, {x: np.array([-math.inf], t.numpy)}) == 0
    assert t == F64 or not fma or _operations(e) <= 18


@pytest.mark.parametrize("fma", [True, False])
def test_one_plus_erf(fma: bool) -> None:
    x = Var("x", F32)
    e = expand_expr(one_plus("erf", F32, x), fma)
    values = arguments(F32, QUICK, "one plus erf")
    got = np.asarray(evaluate_expr(e, {x: values})).astype(np.float64)
    exact = np.array([math.erfc(-v) for v in values.astype(np.float64)])
    assert (np.isnan(got) == np.isnan(values)).all()
    wrong = np.nan_to_num(np.abs(got - exact))
    assert wrong.max() <= 2.0**-22 and wrong[values < 0].max() <= 2.0**-23
    near = (values < 0) & (values > -3.9)  # where the sum with erf itself has no correct digit left
    assert (wrong[near] / exact[near]).max() < 0.05
    assert not fma or _operations(e) <= 24


def test_one_plus_what_is_no_function_stays() -> None:
    x = Var("x", F32)
    for e in (Binary("add", Const(2.0, F32), Unary("exp", x)), Binary("add", Unary("exp", x), x)):
        plain = expand_expr(e)
        assert isinstance(plain, Binary) and plain.op == "add"
    vector = expand_expr(Binary("add", Unary("exp", Var("y", F32, 8)), Broadcast(Const(1.0, F32), 8)))
    assert isinstance(vector, Fma) and vector.lanes == 8


def _kernel(value: Expr, lanes: int, t: DType = F32) -> PrimFunc:
    x, y = Buffer("x", (lanes,), t), Buffer("y", (lanes,), t)
    index = Ramp(const(0), 1, lanes) if lanes > 1 else const(0)
    return PrimFunc("f", (x, y), 1, (), Store(y, (index,), value_of(value, Load(x, (index,)))))


def value_of(e: Expr, x: Expr) -> Expr:
    return Unary(e.op, x) if isinstance(e, Unary) else Binary("pow", x, x)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("op", [*FUNCTIONS[F32], *PAIRS[F32]])
def test_kernels_of_scalars_and_vectors(op: str, lanes: int) -> None:
    placeholder = Var("p", F32)
    func = _kernel(Unary(op, placeholder) if op != "pow" else Binary("pow", placeholder, placeholder), lanes)
    expanded = expand_math(func)
    verify(expanded)
    assert expand_math(expanded).body is not None
    low, high = (1.5, 3) if op == "acosh" else (0.1, 0.9)
    values = np.linspace(low, high, lanes).astype(np.float32)
    before, after = np.zeros(lanes, np.float32), np.zeros(lanes, np.float32)
    run(func, [values, before])
    run(expanded, [values, after])
    np.testing.assert_allclose(after, before, rtol=3e-7)


def test_without_fma_none_is_written() -> None:
    for t in (F32, F64):
        for op in FUNCTIONS[t]:
            assert not any(isinstance(x, Fma) for x in post_order(expand_expr(Unary(op, Var("x", t)), fma=False)))


def test_half_types_go_through_float32() -> None:
    func = _kernel(Unary("exp", Var("p", F32)), 8, BF16)
    expanded = expand_math(func)
    verify(expanded)
    assert isinstance(expanded.body, Store) and isinstance(expanded.body.value, Cast)
    assert expanded.body.value.dtype == BF16


def test_what_has_no_expansion_stays_the_same_object() -> None:
    x = Var("x", F32)
    for e in (Unary("lgamma", x), Unary("sqrt", x), Binary("add", x, x), Unary("erf", Var("y", F64))):
        assert expand_expr(e) is e
    whole = Unary("neg", Var("i", F32))
    func = _kernel(whole, 4)
    assert expand_math(func) is func


def test_shared_arguments_stay_shared() -> None:
    x = Var("x", F32)
    once = Unary("exp", x)
    both = expand_expr(Binary("add", once, once))
    assert isinstance(both, Binary) and both.a is both.b
    assert expand_expr(Broadcast(once, 4)).lanes == 4


@pytest.mark.parametrize("divisor", [6.0, 3.0, 7.0, 0.1, 12.5, 1e20, 1.1e-20])
def test_quotients_by_constants_are_rounded_correctly(divisor: float) -> None:
    d = const(float(np.float32(divisor)), F32)
    x = Var("x", F32)
    e = expand_expr(Binary("div", x, d))
    assert not any(isinstance(n, Binary) and n.op == "div" for n in post_order(e))
    values = arguments(F32, QUICK, f"quotient {divisor}")
    with np.errstate(all="ignore"):
        exact = values / np.float32(divisor)
        got = np.asarray(evaluate_expr(e, {x: values}))
        usual = ~(np.abs(values) < 2.0**-100) | (values == 0)
    np.testing.assert_array_equal(got[usual], exact[usual])
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(exact[got == 0]))
    assert errors(got, exact.astype(np.float64)).max() <= 1


@pytest.mark.parametrize("divisor", [4.0, 0.25, -6.0, 0.0, math.inf, math.nan, 1e35])
def test_other_quotients_stay(divisor: float) -> None:
    e = Binary("div", Var("x", F32), const(divisor, F32))
    assert expand_expr(e) is e
    other = Binary("div", Var("x", F32), const(6.0, F32))
    assert expand_expr(other, fma=False) is other
