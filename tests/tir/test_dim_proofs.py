"""What is certain of sizes: proofs under ranges, each made once."""

import itertools

import pytest

from nnvm.dim import dim_max, dim_min, evaluate, known_ranges, symbol
from nnvm.tir.dim_proofs import constant_upper, dim_nonnegative

N, M = symbol("n"), symbol("m")


def test_a_proof_holds_for_the_ranges_that_it_was_made_under():
    d = N % 7 - 6 + dim_max(N, 9) - 9 + (N - 3) * 2
    for _ in range(2):  # proved, and looked up
        assert not dim_nonnegative(d)
        with known_ranges([("n", 6, None)]):
            assert dim_nonnegative(d)
        with known_ranges([("n", 5, None)]):
            assert not dim_nonnegative(d)


@pytest.mark.parametrize("d", [
    N % 8 + M % 3 - N % 8 % 4, 7 - N % 8, dim_min(N, M) - dim_min(N, M) % 2, dim_max(N, M) - N, N // 3 * 3 - N + 2,
    N % 8 - 1, N - M, 6 - N % 8, dim_min(N, 4) - 4, N // 2 - M % 5,
    N % (M - 30), M % (N - 30) + 5, N // (M - 30), -(N // (M - 30)), N // -3 + N, N % -3 + 2,
])  # fmt: skip
def test_what_is_proved_is_so(d):
    least = min(evaluate(d, {"n": n, "m": m}) for n, m in itertools.product(range(20), repeat=2))
    if dim_nonnegative(d):
        assert least >= 0
    else:
        assert least < 0 or constant_upper(-d) is None


def test_a_proof_is_made_once():
    """Every block of a loop nest asks the same."""
    from nnvm.tir import dim_proofs

    dim_proofs._proved.cache_clear()
    for _ in range(5):
        d = sum((N + k) % (k + 3) - (N + k) % (k + 3) % 2 for k in range(1, 8)) - 1
        assert not dim_nonnegative(d)
        made = dim_proofs._proved.cache_info()
        assert made.misses <= 255
    assert made.hits == 4
