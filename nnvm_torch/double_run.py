"""A graph of ATen calls in float64, as the reference that both eager and compiled results are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

__all__ = ["run_in_double"]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def run_in_double(gm: fx.GraphModule, args: Sequence[Any]) -> list[Any] | None:
    """The results of `gm` with every floating-point value in float64; None where an operator does not allow for it.

    `args` are not written to.
    """
    try:
        results = _Doubled(gm).run(*(_doubled(a) for a in args))
    except Exception:  # any operator may refuse; there is then no reference
        return None
    return list(results) if isinstance(results, (tuple, list)) else [results]


class _Doubled(fx.Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(_wide_dtype, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _doubled(super().get_attr(target, args, kwargs))


def _doubled(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return value.to(torch.float64) if value.dtype in _NARROW else value.clone()


def _wide_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
