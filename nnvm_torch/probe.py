"""Whether ATen takes a call at all. Some of its checks are in its kernels only, where tracing does not come by: an
operator that does not exist for bool, an integer to the power of -1. Such a call is left to ATen, which raises when it
is run, as in eager."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import fx

__all__ = ["refusal"]

#: Operators besides pointwise ones whose kernels take one element as they take many.
_ALONG_AXES = frozenset({
    "amax", "amin", "aminmax", "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp", "logsumexp",
    "mean", "prod", "sort", "std", "sum", "var", "var_mean", "_softmax", "_log_softmax",
})  # fmt: skip


def refusal(node: fx.Node) -> str | None:
    """What ATen says against the call, tried on tensors of one element; None where it has nothing against it.

    Only calls with integers or bool among their tensors are tried: all operators that we convert have kernels for
    floating point."""
    target: Any = node.target
    if torch.Tag.pointwise not in target.tags and target._schema.name.removeprefix("aten::") not in _ALONG_AXES:
        return None
    kinds: list[Any] = []
    for a in (*node.args, *node.kwargs.values()):
        if (kind := _kind(a)) is None:
            return None
        kinds.append(kind)
    if not any(k[0] == "tensor" and not (k[1].is_floating_point or k[1].is_complex) for k in kinds):
        return None
    return _tried(target, tuple(kinds[: len(node.args)]), tuple(zip(node.kwargs, kinds[len(node.args) :])))


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
