"""What happens at a fault of our own: one warning that says how to report it, and eager's result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from nnvm import config
from nnvm.tir.numeric import KernelError
from nnvm_torch.tensors import WithoutMemory
from nnvm_torch.verifying import VerifyError
from nnvm_torch.weights import WeightsOfAnotherKind

__all__ = ["Guard", "guarded", "runtime_faults", "text_of", "warn_of_fault", "warn_once"]

Compiled = Callable[[list[Any]], Any]

_warned: set[str] = set()
#: Faults at the run of a graph, as the report tells them.
runtime_faults: list[str] = []
#: Of these the caller is told: an index out of range, a difference found by `verify=`, changed parameters.
_PASSED_ON = (KernelError, VerifyError, WeightsOfAnotherKind)


def warn_of_fault(what: str, why: str) -> None:
    """A warning, once for each message, that asks for a report."""
    warn_once(f"{what}. Please report this, with the traceback that NNVM_DEBUG=1 gives: {why}")


def warn_once(message: str) -> None:
    """A warning, once for each message."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=4)


def text_of(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"[:500]


class Guard:
    """Of a compiled graph: if it fails, `gm` runs in ATen, now and from then on. What ATen refuses too is the caller's
    error.

    The graph has no effects before its last step, so that it can run again.

    Attributes:
        broken: has it failed?
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm, self.broken = gm, False

    def in_aten(self, args: Sequence[Any]) -> Any:
        """The graph's results by ATen: it says itself what is cast, and gradients are the business of others."""
        with torch.no_grad(), torch._C._DisableAutocast():
            return self.gm.forward(*args)

    def after(self, error: Exception, args: Sequence[Any]) -> Any:
        """The results of a call that failed with `error`, or the error that the caller is to see."""
        if isinstance(error, _PASSED_ON) or config.debug_level() or not args or self.broken:
            raise error
        results = self.in_aten(args)
        if isinstance(error, WithoutMemory):
            return results
        self.broken = True
        runtime_faults.append(text_of(error))
        warn_of_fault("nnvm could not run a graph that it compiled, which runs in ATen from now on", text_of(error))
        return results


def guarded(run: Compiled, guard: Guard) -> Compiled:
    """`run` with `guard`."""

    def call(args: list[Any]) -> Any:
        if guard.broken:
            return guard.in_aten(args)
        try:
            return run(args)
        except Exception as e:
            return guard.after(e, args)

    return call
