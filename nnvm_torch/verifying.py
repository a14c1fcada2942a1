"""`verify=N`: the first N calls of a graph run in eager too, and must give the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["Verified", "VerifyError", "is_random"]


class VerifyError(RuntimeError):
    """A compiled graph and eager differ; the message names the output."""


def is_random(gm: fx.GraphModule) -> bool:
    """Does the graph draw random numbers, so that running it twice gives different answers?"""
    targets = (n.target for n in gm.graph.nodes if isinstance(n.target, torch._ops.OpOverload))
    return any(torch.Tag.nondeterministic_seeded in t.tags for t in targets)


class Verified:
    """Calls `run`, and for the first `calls` calls also `gm`, on copies of the arguments."""

    def __init__(self, run: Callable[[list[Any]], Any], gm: fx.GraphModule, calls: int) -> None:
        self.run, self.gm, self.left = run, gm, calls

    def __call__(self, args: list[Any]) -> Any:
        if self.left <= 0:
            return self.run(args)
        self.left -= 1
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        kept = list(args)
        got = self.run(args)
        want = self.gm.forward(*before)
        _compare("output", got, want)
        _compare("argument", kept, before)
        return got


def _compare(what: str, got: Sequence[Any], want: Sequence[Any]) -> None:
    for i, (a, b) in enumerate(zip(got, want)):
        if not isinstance(b, torch.Tensor):
            continue
        rtol, atol = _tolerance(b)
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        except AssertionError as e:
            raise VerifyError(f"verify: {what} {i} differs from eager: {e}") from None


def _tolerance(wanted: torch.Tensor) -> tuple[float, float]:
    """(relative, absolute): 1e-4 in float32, of each element or of the largest one. Sums of many terms that cancel
    are as far off as the terms are large, and Winograd's convolutions promise no more than this. Integers are equal."""
    by_dtype = {torch.float32: 1e-4, torch.float64: 1e-7, torch.float16: 1e-2, torch.bfloat16: 3.2e-2}
    relative = by_dtype.get(wanted.dtype, 0.0)
    if not relative:
        return 0.0, 0.0
    finite = wanted[wanted.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return relative, relative * max(largest, 0.1)
