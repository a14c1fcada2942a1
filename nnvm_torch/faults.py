"""What happens at a fault of our own: one warning that says how to report it, and eager's result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import fx

from nnvm import config
from nnvm.tir.numeric import KernelError
from nnvm_torch.verifying import VerifyError
from nnvm_torch.weights import WeightsOfAnotherKind

__all__ = ["guarded", "runtime_faults", "text_of", "warn_of_fault", "warn_once"]

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


def guarded(run: Compiled, gm: fx.GraphModule) -> Compiled:
    """`run`; where it fails `gm` runs in ATen, now and from then on. What ATen refuses too is the caller's error.

    The graph has no effects before its last step, so that it can run again.
    """
    chosen = [run]

    def call(args: list[Any]) -> Any:
        try:
            return chosen[0](args)
        except _PASSED_ON:
            raise
        except Exception as e:
            if config.debug_level() or not args or chosen[0] is not run:
                raise
            results = gm.forward(*args)
            chosen[0] = lambda args: gm.forward(*args)
            runtime_faults.append(text_of(e))
            warn_of_fault("nnvm could not run a graph that it compiled, which runs in ATen from now on", text_of(e))
            return results

    return call
