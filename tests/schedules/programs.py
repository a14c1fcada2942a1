"""Groups with reductions as te programs, with numpy's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, numel
from nnvm.dtype import F32, DType
from nnvm.te.expr import Expr, cast, const, dim_expr, unary
from nnvm.te.tensor import Tensor

Array = np.ndarray[Any, Any]


def reduction(x: Tensor, axes: Sequence[int], op: str, keepdims: bool = False, element: Any = None) -> Tensor:
    """`op` of the elements of x (or of `element(x's indices)`) over `axes`."""
    rs = {a: te.reduce_axis(x.shape[a], f"r{a}") for a in axes}
    shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes]

    def body(*i: Expr) -> Expr:
        kept = iter(i)
        at: list[Expr] = []
        for d in range(len(x.shape)):
            if d in rs:
                at.append(rs[d].var)
                if keepdims:
                    next(kept)
            else:
                at.append(next(kept))
        value = x[tuple(at)] if element is None else element(*at)
        if op in ("argmax", "argmin"):
            flat: Any = const(0)
            for d in axes:
                flat = flat * x.shape[d] + rs[d].var
            return getattr(te, op)(value, flat, list(rs.values()))
        return getattr(te, op)(value, list(rs.values()))

    return te.compute(shape, body, op)


def mean(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    total = reduction(x, axes, "sum", keepdims)
    count = numel(tuple(x.shape[a] for a in axes))
    return te.compute(total.shape, lambda *i: total[i] / as_float(count), "mean")


def as_float(count: Dim) -> Expr:
    return const(count, F32) if isinstance(count, int) else cast(dim_expr(count), F32)


def _kept(i: Sequence[Expr], axis: int) -> tuple[Expr, ...]:
    return tuple(e for d, e in enumerate(i) if d != axis)


def softmax(x: Tensor, axis: int) -> Tensor:
    top = reduction(x, [axis], "max")
    e = te.compute(x.shape, lambda *i: unary("exp", x[i] - top[_kept(i, axis)]), "e")
    total = reduction(e, [axis], "sum")
    return te.compute(x.shape, lambda *i: e[i] / total[_kept(i, axis)], "softmax")


def softmax_numpy(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    last = len(x.shape) - 1
    m = mean(x, [last])
    var = reduction(x, [last], "sum", element=lambda *i: (x[i] - m[i[:-1]]) * (x[i] - m[i[:-1]]))
    n = x.shape[-1]
    rstd = te.compute(m.shape, lambda *i: unary("rsqrt", var[i] / as_float(n) + eps), "rstd")
    return te.compute(x.shape, lambda *i: (x[i] - m[i[:-1]]) * rstd[i[:-1]] * gamma[i[-1]] + beta[i[-1]], "ln")


def layer_norm_numpy(x: Array, gamma: Array, beta: Array) -> Array:
    x = x.astype(np.float64)
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def group_norm(x: Tensor, groups: int, gamma: Tensor) -> Tensor:
    """Statistics over [n, g | c/g, h, w]."""
    n, c, h, w = x.shape
    assert isinstance(c, int)
    size = c // groups
    rs = [te.reduce_axis(d, f"r{k}") for k, d in enumerate((size, h, w))]
    count = numel((size, h, w))
    total = te.compute((n, groups), lambda i, g: te.sum(x[i, g * size + rs[0].var, rs[1], rs[2]], rs), "total")
    m = te.compute((n, groups), lambda i, g: total[i, g] / as_float(count), "mean")
    qs = [te.reduce_axis(d, f"q{k}") for k, d in enumerate((size, h, w))]

    def squared(i: Expr, g: Expr) -> Expr:
        d = x[i, g * size + qs[0].var, qs[1], qs[2]] - m[i, g]
        return te.sum(d * d, qs)

    var = te.compute((n, groups), squared, "var")
    rstd = te.compute((n, groups), lambda i, g: unary("rsqrt", var[i, g] / as_float(count) + 1e-5), "rstd")
    return te.compute(
        x.shape, lambda i, j, y, z: (x[i, j, y, z] - m[i, j // size]) * rstd[i, j // size] * gamma[j], "gn"
    )


def placeholders(dtype: DType = F32, **shapes: tuple[Dim, ...]) -> list[Tensor]:
    return [te.placeholder(s, dtype, n) for n, s in shapes.items()]
