"""Memory as numpy arrays."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm.runtime.memory import ALIGNMENT, NumpyMemory, address_of, aligned

RNG = np.random.default_rng(83)
WHOLE = RNG.standard_normal((6, 8)).astype(np.float32)
READ_ONLY = WHOLE.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize("array", [
    WHOLE, READ_ONLY, WHOLE[2:], WHOLE[:, 3:], WHOLE[::-1], WHOLE.T, WHOLE[:0], np.array(2.5),
    np.array([True, False]), WHOLE.astype(np.float16), np.array(["2020-01-01"], "datetime64[D]"), np.empty((0, 3)),
])  # fmt: skip
def test_addresses_of_all_kinds_of_arrays(array):
    assert address_of(array) == array.ctypes.data


def test_arenas_begin_on_a_cache_line():
    for size in (1, 64, 1000, 1 << 20):
        arena = NumpyMemory().arena(size)
        assert arena.nbytes == size and address_of(arena) % ALIGNMENT == 0
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
