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
        rtol, atol = _tolerance(b.dtype)
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        except AssertionError as e:
            raise VerifyError(f"verify: {what} {i} differs from eager: {e}") from None


def _tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Twice the usual tolerance of one operator, as a graph is many."""
    by_dtype = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-7, 1e-7), torch.float16: (1e-2, 1e-3),
                torch.bfloat16: (3.2e-2, 1e-2)}  # fmt: skip
    return by_dtype.get(dtype, (0.0, 0.0))
