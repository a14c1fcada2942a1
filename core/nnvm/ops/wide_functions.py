"""Functions of a float that are computed in float64, written once for expressions and for arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dtype import F64
from nnvm.te.expr import Expr

__all__ = ["Functions", "in_float64"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Functions:
    """What a formula needs beside operators: constants, functions by their name in te, and choice."""

    number: Callable[[float], Any]
    unary: Callable[[str, Any], Any]
    select: Callable[[Any, Any, Any], Any]


_ON_EXPRESSIONS = Functions(lambda v: te.const(v, F64), te.unary, te.select)
_erf, _erfc = (np.vectorize(fn, otypes=[np.float64]) for fn in (math.erf, math.erfc))
_NUMPY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs, "cos": np.cos, "erf": lambda x: _erf(x) if np.size(x) else x,
    "erfc": lambda x: _erfc(x) if np.size(x) else x, "exp": np.exp, "isinf": np.isinf, "isnan": np.isnan,
    "log": np.log, "log1p": np.log1p, "round": np.rint, "sin": np.sin, "sqrt": np.sqrt,
}  # fmt: skip
_ON_ARRAYS = Functions(np.float64, lambda name, x: _NUMPY[name](x), np.where)


def in_float64(formula: Callable[..., Any]) -> tuple[Callable[..., Expr], Callable[..., Array]]:
    """Body and reference, for `define_unary`, of `formula(x, functions, **params)`, which works on float64."""

    def body(x: Expr, **params: Any) -> Expr:
        return te.cast(formula(te.cast(x, F64), _ON_EXPRESSIONS, **params), x.dtype)

    def reference(x: Array, **params: Any) -> Array:
        result: Array = np.asarray(formula(x.astype(np.float64), _ON_ARRAYS, **params)).astype(x.dtype)
        return result

    return body, reference
