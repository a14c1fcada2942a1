"""Orthogonal polynomials of a degree that is given for each element, by their recurrences over three terms.

Inside (-1, 1) Chebyshev polynomials of high degree are had from their trigonometric form (Abramowitz and Stegun, 22.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dtype import F32, F64, I64, DType
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.nests import argument_buffers, function, loop, nest, store
from nnvm.ops.params import boolean, choice
from nnvm.ops.shape_rules import check_kind
from nnvm.te.expr import Buffer, Expr
from nnvm.tir.stmt import Allocate, PrimFunc, Stmt, seq

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]
Unary = Callable[[str, Any], Any]

#: Recurrences stop here; all that do not converge have overflowed before.
_MOST = 1 << 20


@dataclass(frozen=True)
class _Family:
    """`first(x)` is the polynomial of degree 1; `step(x, k)` gives a, b and d of the one of degree k + 1 from those of
    k (q) and k - 1 (p): (a q - b p) / d. Where terms cancel, the last bit of the rounding decides: a q is not rounded
    before b p is taken off, as compilers make it for eager.

    `closed(angle, n, unary)` is the one of degree n at cos(angle), used above degree `above`. Hermite polynomials are
    NaN beyond a degree, as in eager.
    """

    first: Callable[[Any], Any]
    step: Callable[[Any, Any], tuple[Any, Any, Any]]
    closed: Callable[[Any, Any, Unary], Any] | None = None
    above: int = 8
    bounded: bool = False


def _chebyshev(x: Any, k: Any) -> tuple[Any, Any, Any]:
    return x + x, None, None


_FAMILIES = {
    "chebyshev_t": _Family(lambda x: x, _chebyshev, lambda a, n, f: f("cos", a * n), 6),
    "chebyshev_u": _Family(lambda x: x + x, _chebyshev, lambda a, n, f: f("sin", a * (n + 1.0)) / f("sin", a)),
    "chebyshev_v": _Family(lambda x: x + x - 1.0, _chebyshev,
                           lambda a, n, f: f("cos", a * (n + 0.5)) / f("cos", a * 0.5)),
    "chebyshev_w": _Family(lambda x: x + x + 1.0, _chebyshev,
                           lambda a, n, f: f("sin", a * (n + 0.5)) / f("sin", a * 0.5)),
    "hermite_h": _Family(lambda x: x + x, lambda x, k: (x + x, k + k, None), bounded=True),
    "hermite_he": _Family(lambda x: x, lambda x, k: (x, k, None), bounded=True),
    "laguerre_l": _Family(lambda x: x * -1.0 + 1.0, lambda x, k: (k + k + (x * -1.0 + 1.0), k, k + 1.0)),
    "legendre_p": _Family(lambda x: x, lambda x, k: ((k + k + 1.0) * x, k, k + 1.0)),
}  # fmt: skip


def _next(family: _Family, x: Any, k: Any, p: Any, q: Any, fma: Callable[[Any, Any, Any], Any]) -> Any:
    """The polynomial of degree k + 1 at x from those of degree k - 1 and k."""
    a, b, d = family.step(x, k)
    value = fma(a, q, (p if b is None else b * p) * -1.0)
    return value if d is None else value / d


def _bound(t: DType) -> int:
    """Degree beyond which Hermite polynomials are not computed."""
    return 128 if t == F32 else 512


def _infer(attrs: Attrs, inputs: Types) -> Types:
    x, degree = inputs
    check_kind(x, "f")
    if degree.dtype != I64 or degree.shape != x.shape:
        raise ValueError("degrees must be int64, one for each element")
    return (x,)


def _build(attrs: Attrs, inputs: Types, outputs: Types, name: str) -> PrimFunc:
    (x, degree), (out,) = argument_buffers(inputs, outputs)
    family, t = _FAMILIES[attrs["family"]], x.dtype.compute

    def element(at: tuple[Expr, ...]) -> Stmt:
        p, q = (Buffer(b, (1,), t, scope="scratch") for b in ("before", "last"))
        value = te.cast(te.load(x, at), t)
        if attrs["shifted"]:
            value = value + value - 1.0
        n = te.load(degree, at)
        steps = te.maximum(te.minimum(n, _MOST) - 1, 0)
        result = te.select(n < 0, te.const(0, t), te.select(n.equal(0), te.const(1, t), te.load(q, (0,))))
        if family.bounded:
            result = te.select(n > _bound(t), te.const(math.nan, t), result)
        if family.closed is not None:
            inside = (te.unary("abs", value) < te.const(1, t)) & (n > family.above)
            angle = te.unary("acos", te.cast(te.select(inside, value, te.const(0, t)), F64))
            result = te.select(inside, te.cast(family.closed(angle, te.cast(n, F64), te.unary), t), result)
            steps = te.select(inside, te.const(0), steps)
        following = Buffer("following", (1,), t, scope="scratch")

        def step(k: Expr) -> Stmt:
            order = te.cast(k + 1, t)
            last = te.load(q, (0,))
            return Allocate(following, seq([
                store(following, (0,), _next(family, value, order, te.load(p, (0,)), last, te.fma)),
                store(p, (0,), last), store(q, (0,), te.load(following, (0,))),
            ]))  # fmt: skip

        body: Stmt = seq([store(p, (0,), te.const(1, t)), store(q, (0,), family.first(value)), loop("k", steps, step),
                          store(out, at, result)])  # fmt: skip
        return Allocate(p, Allocate(q, body))

    return function(name, [x, degree], [out], [nest(x.shape, element, parallel=True)])


def _reference(attrs: Attrs, x: Array, degree: Array) -> tuple[Array]:
    family = _FAMILIES[attrs["family"]]
    functions = {"cos": np.cos, "sin": np.sin}

    def fma(a: Any, b: Any, c: Any) -> Any:
        return x.dtype.type(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))

    def one(value: Any, n: int) -> Any:
        value = value + value - 1 if attrs["shifted"] else value
        if n <= 0:
            return x.dtype.type(n == 0)
        if family.bounded and n > _bound(F32 if x.dtype == np.float32 else F64):
            return math.nan
        if family.closed is not None and n > family.above and abs(value) < 1:
            return family.closed(np.arccos(np.float64(value)), float(n), lambda name, v: functions[name](v))
        p, q = x.dtype.type(1), family.first(value)
        for k in range(1, min(n, _MOST)):
            p, q = q, x.dtype.type(_next(family, value, x.dtype.type(k), p, q, fma))
        return q

    flat = [one(v, int(n)) for v, n in zip(x.ravel(), degree.ravel())]
    return (np.array(flat, x.dtype).reshape(x.shape),)


register(
    "orthogonal_polynomial", inputs=["data", "degree"], doc="Polynomial of a family, of a degree for each element.",
    infer_type=_infer, pattern=OpPattern.OPAQUE, build_tir=_build, reference=_reference,
    params={"family": Param("which polynomials", choice(*_FAMILIES), "chebyshev_t"),
            "shifted": Param("of 2 x - 1 in place of x", boolean, False)},
)  # fmt: skip
