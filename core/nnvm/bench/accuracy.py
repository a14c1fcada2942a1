"""How far an engine's answer is from the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .engine import Array
from .errors import BenchError

__all__ = ["ABSOLUTE_TOLERANCE", "is_accurate", "output_error"]

#: An error up to this part of the output's range is accepted even where the baseline's is smaller: fast convolution
#: algorithms (Winograd) cost a few digits.
ABSOLUTE_TOLERANCE = 1e-4


def output_error(actual: Sequence[Array], reference: Sequence[Array]) -> float:
    """The largest difference relative to the range of its output, over all outputs.

    Infinite where one side has a NaN or an infinity that the other has not. An output whose reference is constant has
    no range; its largest magnitude stands in, or 1.

    Raises:
        BenchError: the number of outputs or a shape differs.
    """
    if len(actual) != len(reference):
        raise BenchError(f"{len(actual)} outputs where the reference has {len(reference)}")
    return max((tensor_error(i, a, r) for i, (a, r) in enumerate(zip(actual, reference, strict=True))), default=0.0)


def tensor_error(index: int, actual: Array, reference: Array) -> float:
    if actual.shape != reference.shape:
        raise BenchError(f"output {index} has shape {actual.shape} where the reference has {reference.shape}")
    if actual.size == 0:
        return 0.0
    actual, reference = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(reference)
    if not np.array_equal(np.where(finite, 0.0, actual), np.where(finite, 0.0, reference), equal_nan=True):
        return float("inf")
    actual, reference = actual[finite], reference[finite]
    if reference.size == 0:
        return 0.0
    if not np.isfinite(actual).all():
        return float("inf")
    scale = float(reference.max() - reference.min()) or float(np.abs(reference).max()) or 1.0
    return float(np.abs(actual - reference).max()) / scale


def is_accurate(error: float, baseline_error: float | None) -> bool:
    """At most twice the baseline's own error, or within ABSOLUTE_TOLERANCE."""
    return error <= max(2.0 * (baseline_error or 0.0), ABSOLUTE_TOLERANCE)
