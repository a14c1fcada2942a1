"""Dimensions: one form for equal expressions, and the values that Python's integers have."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nnvm.dim import ceildiv, dim_abs, dim_max, dim_min, estimate, evaluate, likely_sizes, substitute, symbol, symbols

S, T = symbol("s"), symbol("t")


def test_equal_expressions_are_equal() -> None:
    assert (S + 1) * 2 == 2 * S + 2
    assert S - S == 0 and S // S == 1 and (S * T) // T == S
    assert (S - 1) // 2 + 1 == (S + 1) // 2 == ceildiv(S, 2)
    assert ((S - 1) // 2) // 2 == (S - 1) // 4
    assert ((S - 1) // 4 + 1 - 1) // 2 + 1 == (S + 7) // 8  # two convolutions of stride 2 after one of stride 4
    assert (4 * S + 6) // 4 == S + 1
    assert hash((S + 5) // 4) == hash((S + 1) // 4 + 1)
    assert dim_max(S, T) == dim_max(T, S) and dim_min(S + 1, S) == S


def test_what_is_not_equal() -> None:
    assert (S + 1) // 2 != S // 2
    assert (2 * (S // 2)) // 2 == S // 2 and (3 * (S // 2)) // 2 != S


def test_substitution_and_symbols() -> None:
    d = dim_max((S + T - 1) // 3, T % 5)
    assert symbols(d) == {"s", "t"}
    assert substitute(d, {"t": 7}) == dim_max((S + 6) // 3, 2) and symbols(substitute(d, {"t": 7})) == {"s"}


@st.composite
def expressions(draw, depth=4):
    """(Dim, function of s and t that computes it with Python's integers)."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        n = draw(st.integers(-5, 5))
        return draw(st.sampled_from([(S, lambda s, t: s), (T, lambda s, t: t), (S + n, lambda s, t: s + n)]))
    a, fa = draw(expressions(depth=depth - 1))
    kind = draw(st.sampled_from(["add", "sub", "mul", "div", "mod", "max", "min"]))
    if kind in ("div", "mod"):
        n = draw(st.integers(1, 9))
        return (a // n, lambda s, t: fa(s, t) // n) if kind == "div" else (a % n, lambda s, t: fa(s, t) % n)
    b, fb = draw(expressions(depth=depth - 1))
    made = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}.get(kind)
    if made is not None:
        return made(a, b), lambda s, t: made(fa(s, t), fb(s, t))
    fold, plain = (dim_max, max) if kind == "max" else (dim_min, min)
    return fold(a, b), lambda s, t: plain(fa(s, t), fb(s, t))


@settings(deadline=None, max_examples=300)
@given(expressions(), st.integers(1, 40), st.integers(1, 40))
def test_values(expression, s, t) -> None:
    d, expected = expression
    assert evaluate(d, {"s": s, "t": t}) == expected(s, t)


def test_estimates_go_by_the_sizes_of_a_first_call() -> None:
    d = (S + 15) // 16 * T
    assert estimate(7, 128) == 7 and estimate(d, 32) == 2 * 32
    with likely_sizes([("s", 160), ("unused", 3)]):
        assert estimate(d, 32) == 10 * 32
        with likely_sizes([("t", 0)]):  # sizes of 0 divide nothing
            assert estimate(64 // T + S, 5) == 64 + 5
    assert estimate(S, 9) == 9


def test_an_estimate_that_divides_by_zero_is_not_known() -> None:
    assert estimate(T // (S % 3), 6) == 6 and estimate(T % (S - 8), 8) == 8
    with likely_sizes([("s", 4), ("t", 10)]):
        assert estimate(T // (S % 3), 6) == 10


def test_absolute_values() -> None:
    assert dim_abs(-3) == 3 and dim_abs(S) == dim_abs(-S) == S and dim_abs(-2 * S - T) == 2 * S + T
    for d in (S - T, S // 2 - 3, (T - 5) // 3, 3 - S * T):
        for s in range(8):
            assert evaluate(dim_abs(d), {"s": s, "t": 4}) == abs(evaluate(d, {"s": s, "t": 4}))
