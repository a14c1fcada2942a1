"""Search in sorted rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dtype import I64
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.nests import argument_buffers, function, loop, nest, store
from nnvm.ops.params import boolean
from nnvm.ops.scan_sort import sort_key
from nnvm.ops.shape_rules import same_dtype, show
from nnvm.te.expr import Buffer, Expr
from nnvm.tir.stmt import Allocate, If, PrimFunc, Stmt, seq

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _infer(attrs: Attrs, inputs: Types) -> Types:
    edges, values = inputs
    same_dtype(edges, values)
    if not edges.rank or not isinstance(edges.shape[-1], int):
        raise ValueError(f"boundaries {show(edges.shape)} must have a known number in each row")
    if edges.rank > 1 and edges.shape[:-1] != values.shape[:-1]:
        raise ValueError(f"boundaries {show(edges.shape)} must be one row, or one for each of values "
                         f"{show(values.shape)}")  # fmt: skip
    return (values.with_dtype(I64),)


def _build(attrs: Attrs, inputs: Types, outputs: Types, name: str) -> PrimFunc:
    """By halving, as eager halves: where rows are not sorted (by a NaN), what is found depends on it."""
    (edges, values), (out,) = argument_buffers(inputs, outputs)
    n = edges.shape[-1]
    assert isinstance(n, int)
    beyond = "gt" if attrs["right"] else "ge"

    def element(at: tuple[Expr, ...]) -> Stmt:
        row = at[:-1] if len(edges.shape) > 1 else ()
        bounds, middle = (Buffer(b, (k,), I64, scope="scratch") for b, k in (("bounds", 2), ("middle", 1)))
        begin, end, half = te.load(bounds, (0,)), te.load(bounds, (1,)), te.load(middle, (0,))
        edge = sort_key(te.load(edges, (*row, te.minimum(half, n - 1))))
        # a comparison with NaN is false: it counts as below, and all counts as below it
        reached = te.binary(beyond, edge, sort_key(te.load(values, at)))
        step = seq([
            store(middle, (0,), begin + te.binary("shr", end - begin, 1)),
            If(begin < end, If(reached, store(bounds, (1,), half), store(bounds, (0,), half + 1))),
        ])  # fmt: skip
        body = seq([store(bounds, (0,), te.const(0)), store(bounds, (1,), te.const(n)),
                    loop("k", n.bit_length(), lambda k: step), store(out, at, begin)])  # fmt: skip
        return Allocate(bounds, Allocate(middle, body))

    return function(name, [edges, values], [out], [nest(values.shape, element, parallel=True)])


def _reference(attrs: Attrs, edges: Array, values: Array) -> tuple[Array]:
    compare = np.greater if attrs["right"] else np.greater_equal
    n = edges.shape[-1]
    rows = np.broadcast_to(edges, (*values.shape[:-1], n))
    begin, end = np.zeros(values.shape, np.int64), np.full(values.shape, n)
    for _ in range(n.bit_length()):
        middle = begin + (end - begin) // 2
        found = np.take_along_axis(rows, np.minimum(middle, n - 1), axis=-1)
        below, more = ~compare(found, values), begin < end
        begin, end = np.where(more & below, middle + 1, begin), np.where(more & ~below, middle, end)
    return (begin,)


register(
    "searchsorted", inputs=["boundaries", "data"], doc="How many boundaries of a sorted row are below each value.",
    params={"right": Param("count those that are equal, too", boolean, False)}, infer_type=_infer,
    pattern=OpPattern.OPAQUE, build_tir=_build, reference=_reference,
)  # fmt: skip
