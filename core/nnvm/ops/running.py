"""Running extremes with where they are, and running log-sum-exp, along an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import numel
from nnvm.dtype import F64, I64
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.nests import argument_buffers, function, loop, store
from nnvm.ops.params import integer
from nnvm.ops.scan_sort import sort_key, unravel
from nnvm.ops.shape_rules import check_kind, resolve_axis
from nnvm.te.expr import Buffer, Expr
from nnvm.tir.stmt import Allocate, If, PrimFunc, Stmt, seq

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]

_AXIS = {"axis": Param("along which", integer)}


def _along(x: Buffer, axis: int, step: Callable[[tuple[Expr, ...], Expr, Expr], Stmt]) -> Stmt:
    """`step(indices of an element, its place along the axis, number of its line)`, lines side by side, in order."""
    inner = x.shape[axis + 1 :]

    def rows(row: Expr) -> Stmt:
        outer = unravel(row, x.shape[:axis])
        return loop("k", x.shape[axis], lambda k: loop("l", numel(inner), lambda j: step(
            (*outer, k, *unravel(j, inner)), k, j)))  # fmt: skip

    return loop("row", numel(x.shape[:axis]), rows, "parallel")


def _with_scratch(nest: Stmt, *buffers: Buffer) -> Stmt:
    """The nest of `_along` with scratch memory for each of its rows."""
    body: Stmt = nest.body  # type: ignore[attr-defined]
    for buffer in buffers:
        body = Allocate(buffer, body)
    return type(nest)(nest.var, nest.extent, body, nest.kind)  # type: ignore[attr-defined,call-arg]


def _extreme(name: str, compare: str, doc: str) -> None:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        resolve_axis(attrs["axis"], inputs[0].rank)
        return (inputs[0], inputs[0].with_dtype(I64))

    def build_tir(attrs: Attrs, inputs: Types, outputs: Types, func_name: str) -> PrimFunc:
        (x,), (values, places) = argument_buffers(inputs, outputs)
        if not x.shape:
            body = [store(values, (), te.load(x, ())), store(places, (), te.const(0))]
            return function(func_name, [x], [values, places], body)
        axis = resolve_axis(attrs["axis"], len(x.shape))
        lines = numel(x.shape[axis + 1 :])
        best = Buffer("best", (lines,), x.dtype, scope="scratch")
        place = Buffer("place", (lines,), I64, scope="scratch")

        def step(at: tuple[Expr, ...], k: Expr, j: Expr) -> Stmt:
            value = te.load(x, at)
            new, old = sort_key(value), sort_key(te.load(best, (j,)))
            wins = te.binary(compare, new, old)
            if x.dtype.is_float:
                wins = te.unary("isnan", new) | (wins & ~te.unary("isnan", old))
            take = seq([store(best, (j,), value), store(place, (j,), k)])
            first = k.equal(0)
            return seq([
                If(first, take, If(wins, take)),
                store(values, at, te.load(best, (j,))), store(places, at, te.load(place, (j,))),
            ])  # fmt: skip

        nest = _with_scratch(_along(x, axis, step), best, place)
        return function(func_name, [x], [values, places], [nest])

    def reference(attrs: Attrs, x: Array) -> tuple[Array, Array]:
        if not x.ndim:
            return x, np.zeros((), np.int64)
        moved = np.moveaxis(x, attrs["axis"], 0)
        values, places = moved.copy(), np.zeros(moved.shape, np.int64)
        for k in range(1, len(moved)):
            new, old = moved[k], values[k - 1]
            wins = new >= old if compare == "ge" else new <= old
            if x.dtype.kind == "f":
                wins = np.isnan(new) | (wins & ~np.isnan(old))
            values[k], places[k] = np.where(wins, new, old), np.where(wins, k, places[k - 1])
        return np.moveaxis(values, 0, attrs["axis"]), np.moveaxis(places, 0, attrs["axis"])

    register(
        name, inputs=["data"], num_outputs=2, params=_AXIS, doc=doc, infer_type=infer_type, pattern=OpPattern.OPAQUE,
        build_tir=build_tir, reference=reference,
    )  # fmt: skip


_extreme("cummax", "ge", "The greatest element so far and where it is: the last of equal ones; NaN once there is one.")
_extreme("cummin", "le", "The least element so far and where it is: the last of equal ones; NaN once there is one.")


def _float_type(attrs: Attrs, inputs: Types) -> Types:
    check_kind(inputs[0], "f")
    resolve_axis(attrs["axis"], inputs[0].rank)
    return inputs


def _logcumsumexp_tir(attrs: Attrs, inputs: Types, outputs: Types, name: str) -> PrimFunc:
    (x,), (out,) = argument_buffers(inputs, outputs)
    if not x.shape:
        return function(name, [x], [out], [store(out, (), te.load(x, ()))])
    axis = resolve_axis(attrs["axis"], len(x.shape))
    total = Buffer("total", (numel(x.shape[axis + 1 :]),), F64, scope="scratch")

    def step(at: tuple[Expr, ...], k: Expr, j: Expr) -> Stmt:
        value, sofar = te.cast(te.load(x, at), F64), te.load(total, (j,))
        high, low = te.maximum(value, sofar), te.minimum(value, sofar)
        # equal infinities have no difference
        rest = te.unary("log1p", te.unary("exp", low - high))
        both = te.select(te.unary("isinf", high), high, high + rest)
        first = k.equal(0)
        return seq([
            If(first, store(total, (j,), value), store(total, (j,), both)), store(out, at, te.load(total, (j,)))
        ])  # fmt: skip

    return function(name, [x], [out], [_with_scratch(_along(x, axis, step), total)])


def _logcumsumexp_array(attrs: Attrs, x: Array) -> tuple[Array]:
    return (np.logaddexp.accumulate(x.astype(np.float64), axis=attrs["axis"]) if x.ndim else x,)


register(
    "logcumsumexp", inputs=["data"], params=_AXIS, doc="Running log(sum(exp(x))) along an axis, summed in float64.",
    infer_type=_float_type, pattern=OpPattern.OPAQUE, build_tir=_logcumsumexp_tir, reference=_logcumsumexp_array,
)  # fmt: skip
