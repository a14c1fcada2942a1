"""Is a result as right as eager's?"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def assert_as_accurate(
    got: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], roundings: int = 4
) -> None:
    """The greatest error is at most twice eager's, both held against `exact` in float64, plus `roundings` of the
    greatest value, as eager's may be exact by chance. Types and strides are eager's, axes of one element aside."""
    for a, b, r in zip(got, eager, exact, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.squeeze().stride() == b.squeeze().stride()
        mine, theirs = ((t.double() - r).abs().max() for t in (a, b))
        allowed = 2 * theirs + roundings * torch.finfo(a.dtype).eps * r.abs().max()
        assert mine <= allowed, f"an error of {mine}, eager's is {theirs}"
