"""Ops whose own tests have no case for a GPU: kernels in Triton's interpreter against the ops' definitions.

(`conv2d_winograd` is made for CPUs only, by ChooseAlgorithm.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnvm.dtype import F32
from nnvm.graph.types import TensorType
from nnvm.testing.run_op import run_op

RNG = np.random.default_rng(61)
LINE, BOX = (2, 3, 13), (2, 3, 5, 6, 7)
CASES: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "adaptive_avg_pool3d": ((BOX,), {"output_size": (2, 3, 4)}),
    "adaptive_max_pool1d": ((LINE,), {"output_size": (4,)}),
    "adaptive_max_pool3d": ((BOX,), {"output_size": (2, 3, 4)}),
    "global_avg_pool1d": ((LINE,), {}),
    "global_max_pool1d": ((LINE,), {}),
    "global_avg_pool3d": ((BOX,), {}),
    "global_max_pool3d": ((BOX,), {}),
    "dropout": ((LINE,), {"rate": 0.3}),
    "optimization_barrier": ((LINE,), {}),
    "ones": ((), {"shape": (3, 40)}),
    "zeros": ((), {"shape": (3, 40)}),
}


@pytest.mark.triton
@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    shapes, attrs = CASES[name]
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    types = [TensorType(s, F32) for s in shapes]
    (found,), (expected,) = (run_op(name, arrays, types, attrs, route) for route in ("triton", "reference"))
    assert found.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * scale)
