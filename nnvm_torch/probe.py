"""Whether ATen takes a call at all. Some of its checks are in its kernels only, where tracing does not come by: an
operator that does not exist for bool, an integer to the power of -1. Such a call is left to ATen, which raises when it
is run, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import fx

from nnvm_torch.convert.table import holds
from nnvm_torch.tensors import dtype_of, torch_dtype

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
    for a number: all operators that we convert have kernels for it. Of a number that only the call knows, the one that
    was traced is tried, and guards say between which ones ATen's answer is the same."""
    target: Any = node.target
    name = target._schema.name.removeprefix("aten::")
    if torch.Tag.pointwise not in target.tags and name not in _ALONG_AXES and name not in _UNMARKED:
        return None
    kinds: list[Any] = []
    open_numbers: dict[int, torch.SymInt] = {}
    for i, a in enumerate((*node.args, *node.kwargs.values())):
        val = a.meta.get("val") if isinstance(a, fx.Node) else None
        if isinstance(val, torch.SymInt) and val.node.hint is not None:
            open_numbers[i] = val
            a = int(val.node.hint)
        if (kind := _kind(a)) is None:
            return None
        kinds.append(kind)
    types = [k[1] for k in kinds if k[0] == "tensor"]
    numbers = [k[-1] for k in kinds if k[0] == "plain" and isinstance(k[-1], (int, float))]
    numbers += [v for _ in open_numbers for v in (_LARGEST, -_LARGEST)]
    if all(t.is_floating_point or t.is_complex for t in types) and not any(_is_odd(v, types) for v in numbers):
        return None

    def answer(given: list[Any]) -> str | None:
        return _tried(target, tuple(given[: len(node.args)]), tuple(zip(node.kwargs, given[len(node.args) :])))

    def is_taken(i: int, number: int) -> bool:
        return answer([*kinds[:i], _kind(number), *kinds[i + 1 :]]) is None

    why = answer(kinds)
    if why is None:
        for i, size in open_numbers.items():
            _keep_within(size, types, partial(is_taken, i))
    return why


#: The largest number that a `torch.SymInt` can be.
_LARGEST = (1 << 63) - 1


def _keep_within(size: torch.SymInt, types: Sequence[torch.dtype], is_taken: Callable[[int], bool]) -> None:
    """Guards that keep a number between those that ATen takes too, which are bounds of types, and 0 for exponents."""
    known = [d for t in types if (d := dtype_of(t)) is not None]
    held = [int(torch.finfo(torch_dtype(d)).max) if d.is_float else int(d.max) for d in known if not d.is_bool]
    above = [n for n in (_LARGEST, *sorted(held, reverse=True), 1) if n <= _LARGEST]
    below = [*sorted({-_LARGEST, *(-n - k for n in above for k in (0, 1) if n < _LARGEST)}), 0]
    hint = int(size.node.hint)
    low = next((n for n in below if n <= hint and is_taken(n)), hint)
    high = next((n for n in above if n >= hint and is_taken(n)), hint)
    if low > -_LARGEST:
        bool(size >= low)
    if high < _LARGEST:
        bool(size <= high)


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
