"""How far an engine's answer is from the float64 one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .errors import BenchError

__all__ = ["ABSOLUTE_TOLERANCE", "is_accurate", "output_error"]

#: An error up to this part of the output's range is accepted even where eager's is smaller: fast convolution
#: algorithms (Winograd) cost a few digits.
ABSOLUTE_TOLERANCE = 1e-4


def output_error(actual: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> float:
    """The largest difference relative to the range of its output, over all outputs.

    Infinite where one side has a NaN or an infinity that the other has not. An output whose reference is constant has
    no range; its largest magnitude stands in, or 1.

    Raises:
        BenchError: the number of outputs or a shape differs.
    """
    if len(actual) != len(reference):
        raise BenchError(f"{len(actual)} outputs where eager has {len(reference)}")
    return max((tensor_error(i, a, r) for i, (a, r) in enumerate(zip(actual, reference, strict=True))), default=0.0)


def tensor_error(index: int, actual: torch.Tensor, reference: torch.Tensor) -> float:
    if actual.shape != reference.shape:
        raise BenchError(f"output {index} has shape {tuple(actual.shape)} where eager has {tuple(reference.shape)}")
    if actual.numel() == 0:
        return 0.0
    actual, reference = actual.detach().double(), reference.double()
    finite = reference.isfinite()
    if not torch.equal(torch.where(finite, 0.0, actual), torch.where(finite, 0.0, reference)):
        agree = (actual == reference) | (actual.isnan() & reference.isnan()) | finite
        if not bool(agree.all()):
            return float("inf")
    actual, reference = actual[finite], reference[finite]
    if reference.numel() == 0:
        return 0.0
    if not bool(actual.isfinite().all()):
        return float("inf")
    scale = float(reference.max() - reference.min()) or float(reference.abs().max()) or 1.0
    return float((actual - reference).abs().max()) / scale


def is_accurate(error: float, eager_error: float | None) -> bool:
    """At most twice eager's own error, or within ABSOLUTE_TOLERANCE."""
    return error <= max(2.0 * (eager_error or 0.0), ABSOLUTE_TOLERANCE)
