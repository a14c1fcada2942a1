"""`verify=N`: the first N calls of a graph run in eager and in float64 too, and must agree.

An element of an output passes where it is no further from the float64 result than twice the largest error of eager in
that output, plus a floor: 1e-4 (float32) of the output's largest element, the bound of Winograd's convolutions; 1e-5
with `precise=True`. Integers must be eager's, or those of the float64 run. Without a float64 run (an operator refuses)
eager's results stand for it. Where outputs differ, `nnvm_torch.fault` finds the pass, fused group or call at fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from nnvm_torch.double_run import run_in_double
from nnvm_torch.partition import is_effect

__all__ = ["Verified", "VerifyError", "forced_calls", "is_repeatable", "verify_everything"]

#: By dtype: the floor, relative to the largest element of an output; (default, with precise=True).
_FLOORS = {
    torch.float32: (1e-4, 1e-5), torch.float64: (1e-7, 1e-11), torch.float16: (1e-2, 2e-3),
    torch.bfloat16: (3.2e-2, 1.6e-2),
}  # fmt: skip
#: Outputs whose largest element is below this are compared as if it were this.
_SMALLEST_SCALE = 0.1

Locate = Callable[[Sequence[Any], Callable[[Sequence[Any]], bool]], Any]


class VerifyError(RuntimeError):
    """A compiled graph and eager differ; the message names the output and what is at fault.

    Attributes:
        fault: the `nnvm_torch.fault.Fault`; None where it was not looked for.
        graph, inputs: the graph of ATen calls and its arguments, to run it again.
    """

    def __init__(self, message: str, fault: Any = None, graph: Any = None, inputs: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.fault, self.graph, self.inputs = fault, graph, tuple(inputs)


_forced: list[tuple[int, Callable[[VerifyError], None]]] = []


@contextlib.contextmanager
def verify_everything(calls: int, found: Callable[[VerifyError], None]) -> Iterator[None]:
    """Inside the with block all that is compiled is verified for its first `calls` calls; `found` is told of a
    difference before it is raised."""
    _forced.append((calls, found))
    try:
        yield
    finally:
        _forced.pop()


def forced_calls() -> int:
    """Calls to verify whatever the options say."""
    return max((calls for calls, _ in _forced), default=0)


def is_repeatable(gm: fx.GraphModule) -> bool:
    """Does running the graph twice give the same twice? Not where it draws random numbers or has effects."""
    return not any(is_effect(n) for n in gm.graph.nodes if n.op == "call_function" and not _is_write(n))


def _is_write(node: fx.Node) -> bool:
    """Is it the writing of a result to an argument, which is done on a copy here?"""
    return node.target is torch.ops.aten.copy_.default


class Verified:
    """Calls `run`, and for the first `calls` calls also `gm`, on copies of the arguments.

    Args:
        precise: the floor for compilations that keep every rounding.
        locate: finds what is at fault, of (arguments, are these results right?).
    """

    def __init__(self, run: Callable[[list[Any]], Any], gm: fx.GraphModule, calls: int, precise: bool = False,
                 locate: Locate | None = None) -> None:  # fmt: skip
        self.run, self.gm, self.left, self.precise, self.locate = run, gm, calls, precise, locate

    def __call__(self, args: list[Any]) -> Any:
        if self.left <= 0:
            return self.run(args)
        self.left -= 1
        before, after, given = _copies(args), _copies(args), _copies(args)
        kept = list(args)
        got = list(self.run(args))
        judge = _Judge(self.gm, before, after, self.precise)
        if (difference := judge.difference(got, kept)) is None:
            return got
        fault = None
        if self.locate is not None:
            fault = self.locate(given, lambda results: judge.difference(results, None) is None)
        error = VerifyError(f"verify: {difference}" + (f"\n{fault}" if fault else ""), fault, self.gm, given)
        for _, found in _forced:
            found(error)
        raise error


class _Judge:
    """Eager's results and those in float64 for one call."""

    def __init__(self, gm: fx.GraphModule, before: Sequence[Any], scratch: list[Any], precise: bool) -> None:
        self.exact = run_in_double(gm, before) if isinstance(gm, fx.GraphModule) else None
        self.eager = list(gm.forward(*scratch))
        self.written = scratch  # as eager left them
        self.precise = precise

    def difference(self, got: Sequence[Any], arguments: Sequence[Any] | None) -> str | None:
        """Which output, or argument written to, is wrong, and by how much; None where all are right."""
        exact: Sequence[Any] = self.exact if self.exact is not None else [None] * len(self.eager)
        for i, (a, b, c) in enumerate(zip(got, self.eager, exact)):
            if isinstance(b, torch.Tensor) and (text := self._compare(a, b, c)) is not None:
                return f"output {i} differs from eager: {text}"
        for i, (a, b) in enumerate(zip(arguments or (), self.written)):
            if isinstance(b, torch.Tensor) and (text := self._compare(a, b, None)) is not None:
                return f"argument {i} differs from eager: {text}"
        return None

    def _compare(self, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> str | None:
        if got.shape != eager.shape or got.dtype != eager.dtype:
            return f"{got.dtype}{list(got.shape)} instead of {eager.dtype}{list(eager.shape)}"
        got, eager = got.detach(), eager.detach()
        if eager.layout != torch.strided or eager.is_complex() or eager.is_quantized:
            return None  # native code has no such tensors: ATen made both
        if exact is None or exact.shape != eager.shape:
            exact = eager
        same = (got == eager) | (got != got) & (eager != eager)
        if eager.dtype not in _FLOORS:
            wrong = ~(same | (got == exact))
            return _told(wrong, got, eager, exact, 0.0) if bool(wrong.any()) else None
        wide, reference = got.double(), exact.double()
        bound = self._bound(eager.double(), reference, eager.dtype)
        wrong = ~(same | ((wide - reference).abs() <= bound) | (wide != wide) & (reference != reference))
        return _told(wrong, wide, eager.double(), reference, bound) if bool(wrong.any()) else None

    def _bound(self, eager: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> float:
        finite = exact[exact.isfinite()]
        scale = max(float(finite.abs().max()) if finite.numel() else 0.0, _SMALLEST_SCALE)
        errors = (eager - exact).abs()
        errors = errors[errors.isfinite()]
        error = float(errors.max()) if errors.numel() else 0.0
        return 2 * error + _FLOORS[dtype][self.precise] * scale


def _told(wrong: torch.Tensor, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, bound: float) -> str:
    at = tuple(int(i) for i in wrong.nonzero()[0])
    count = int(wrong.sum())
    return (f"{count} of {wrong.numel()} elements; at {list(at)} {got[at].item():.9g}, eager {eager[at].item():.9g}, "
            f"in float64 {exact[at].item():.17g}, allowed difference {bound:.2g}")  # fmt: skip


def _copies(args: Sequence[Any]) -> list[Any]:
    """Copies that share memory among themselves no more, each laid out as its original."""
    return [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
