"""Values of dimensions by generated code, against their definition."""

from __future__ import annotations

import random

import pytest

from nnvm.dim import Dim, ceildiv, dim_max, dim_min, evaluate, symbol
from nnvm.dim_values import DimValues


def expression(rng: random.Random, depth: int) -> Dim:
    """A random dimension that divides by constants only."""
    if depth == 0:
        return rng.choice([symbol("s"), symbol("t"), symbol("a.b"), rng.randint(-9, 9)])
    a, b = expression(rng, depth - 1), expression(rng, depth - 1)
    made = (a + b, a - b, a * b, a // rng.randint(1, 9), a % rng.randint(1, 9), dim_max(a, b), dim_min(a, b))
    return rng.choice(made)


@pytest.mark.parametrize("seed", range(20))
def test_random_expressions(seed: int) -> None:
    rng = random.Random(seed)
    dims = [expression(rng, rng.randint(0, 4)) for _ in range(30)]
    values = DimValues(dims)
    for _ in range(5):
        env = {name: rng.randint(0, 300) for name in ("s", "t", "a.b")}
        value = values(env)
        assert [value(d) for d in dims] == [evaluate(d, env) for d in dims]


def test_a_division_by_a_size() -> None:
    s, t = symbol("s"), symbol("t")
    d = ceildiv(s, t + 1)
    values = DimValues([d, s // t])
    assert values({"s": 7, "t": 2})(d) == 3
    with pytest.raises(ZeroDivisionError):
        values({"s": 7, "t": 0})


def test_what_is_missing_has_no_value() -> None:
    s = symbol("s")
    values = DimValues([s * 2, 5])
    assert values({"s": 3, "other": 1})(5) == 5 and values({"s": 3})(7) == 7
    with pytest.raises(KeyError, match="s"):
        values({})
    with pytest.raises(KeyError):
        values({"s": 3})(s * 4)
    assert DimValues([])({})(4) == 4
