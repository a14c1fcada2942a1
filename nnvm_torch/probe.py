"""Whether ATen takes a call at all. Some of its checks are in its kernels only, where tracing does not come by: an
operator that does not exist for bool, an integer to the power of -1. Such a call is left to ATen, which raises when it
is run, as in eager."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from nnvm_torch.convert.table import holds
from nnvm_torch.tensors import dtype_of

__all__ = ["refusal"]

#: Pointwise operators that torch does not mark as such.
_UNMARKED = frozenset({"fill", "floor_divide", "masked_fill", "rsub", "true_divide", "__and__", "__or__"})

#: Operators besides pointwise ones whose kernels take one element as they take many.
_ALONG_AXES = frozenset({
    "amax", "amin", "aminmax", "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp", "logsumexp",
    "mean", "prod", "sort", "std", "sum", "var", "var_mean", "_softmax", "_log_softmax",
})  # fmt: skip


def refusal(node: fx.Node) -> str | None:
    """What ATen says against the call, tried on tensors of one element; None where it has nothing against it.

    Of calls on floating point only those are tried with a number that a tensor's type does not hold, or with a bool
    for a number: all operators that we convert have kernels for it."""
    target: Any = node.target
    name = target._schema.name.removeprefix("aten::")
    if torch.Tag.pointwise not in target.tags and name not in _ALONG_AXES and name not in _UNMARKED:
        return None
    kinds: list[Any] = []
    for a in (*node.args, *node.kwargs.values()):
        if (kind := _kind(a)) is None:
            return None
        kinds.append(kind)
    types = [k[1] for k in kinds if k[0] == "tensor"]
    numbers = [k[-1] for k in kinds if k[0] == "plain" and isinstance(k[-1], (int, float))]
    if all(t.is_floating_point or t.is_complex for t in types) and not any(_is_odd(v, types) for v in numbers):
        return None
    return _tried(target, tuple(kinds[: len(node.args)]), tuple(zip(node.kwargs, kinds[len(node.args) :])))


def _is_odd(number: int | float, types: Sequence[torch.dtype]) -> bool:
    """Is it a bool, or beyond what one of the types holds?"""
    known = [d for t in types if (d := dtype_of(t)) is not None]
    return isinstance(number, bool) or not all(holds(d, number) for d in known)


def _kind(a: Any) -> tuple[Any, ...] | None:
    """What of an argument matters, as a key; None where the call cannot be tried with it."""
    if isinstance(a, fx.Node):
        val = a.meta.get("val")
        if not isinstance(val, torch.Tensor) or val.device.type != "cpu":
            return None
        return "tensor", val.dtype, val.dim()
    if isinstance(a, (list, tuple)):
        return ("list", *a) if all(isinstance(x, int) for x in a) else None
    # 1, 1.0 and True are equal, and -0.0 is 0.0: the type and the text tell them apart
    return "plain", type(a), repr(a), a


@lru_cache(maxsize=4096)
def _tried(target: Any, args: tuple[Any, ...], kwargs: tuple[Any, ...]) -> str | None:
    try:
        with torch.no_grad():
            target(*map(_made, args), **{name: _made(kind) for name, kind in kwargs})
    except Exception as e:
        return f"ATen refuses the call: {str(e).strip().partition(chr(10))[0]}"
    return None


def _made(kind: tuple[Any, ...]) -> Any:
    if kind[0] == "tensor":
        return torch.ones((1,) * kind[2], dtype=kind[1])
    return list(kind[1:]) if kind[0] == "list" else kind[-1]
