"""Running sums and products, sorting, and the k greatest.

Sorting is a stable merge sort; NaN counts as greater than every number, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape, numel
from nnvm.dtype import F64, I64, U8, DType
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.nests import argument_buffers, assert_index, function, loop, store
from nnvm.ops.params import boolean, element_type, integer, optional
from nnvm.ops.shape_rules import resolve_axis, show
from nnvm.te.expr import Buffer, Expr
from nnvm.tir.stmt import Allocate, If, PrimFunc, Stmt, seq

__all__ = ["sort_key", "unravel"]

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def unravel(linear: Expr, shape: Sequence[Dim]) -> tuple[Expr, ...]:
    """Indices into dimensions `shape` of a row-major position."""
    out: list[Expr] = []
    for size in reversed(shape[1:]):
        out.append(te.const(0) if size == 1 else linear % te.const(size))
        linear = linear if size == 1 else linear // te.const(size)
    return (linear, *reversed(out)) if shape else ()


def _line(shape: Shape, axis: int, row: Expr, k: Expr) -> tuple[Expr, ...]:
    """Indices of element `k` of a line along `axis`; lines are numbered by `row`."""
    if not shape:
        return ()
    others = [d for i, d in enumerate(shape) if i != axis]
    at = unravel(row, others)
    return (*at[:axis], k, *at[axis:])


def _lines(shape: Shape, axis: int) -> Dim:
    return numel(tuple(d for i, d in enumerate(shape) if i != axis))


def _scan_type(attrs: Attrs, inputs: Types) -> Types:
    x = inputs[0]
    resolve_axis(attrs["axis"], x.rank)
    return (x.with_dtype(attrs["dtype"] or (x.dtype if x.dtype.is_float else I64)),)


def _accumulator(t: DType) -> DType:
    """float32 accumulates in float64, half types in float32, as eager does on the CPU."""
    return F64 if t.is_float and not t.is_half else t.compute


def _scan(name: str, op: str, start: int, reference: Callable[..., Any], doc: str) -> None:
    def build_tir(attrs: Attrs, inputs: Types, outputs: Types, func_name: str) -> PrimFunc:
        (x,), (out,) = argument_buffers(inputs, outputs)
        axis, rank = resolve_axis(attrs["axis"], len(x.shape)), len(x.shape)
        if rank == 0:
            return function(func_name, [x], [out], [store(out, (), te.load(x, ()))])
        t = _accumulator(out.dtype)
        inner = x.shape[axis + 1 :]
        acc = Buffer("acc", (numel(inner),), t, scope="scratch")

        def element(i: tuple[Expr, ...], k: Expr, j: Expr) -> list[Stmt]:
            at = (*i, k, *unravel(j, inner))
            # a value is converted to the result's type before it is summed
            value = te.cast(te.cast(te.load(x, at), out.dtype), t)
            total = te.binary(op, te.load(acc, (j,)), value)
            return [store(acc, (j,), total), store(out, at, te.load(acc, (j,)))]

        def line(row: Expr) -> Stmt:
            i = unravel(row, x.shape[:axis])
            begin = loop("j", numel(inner), lambda j: store(acc, (j,), te.const(start, t)))
            steps = loop("k", x.shape[axis], lambda k: loop("l", numel(inner), lambda j: element(i, k, j)))
            return Allocate(acc, seq([begin, steps]))

        return function(func_name, [x], [out], [loop("row", numel(x.shape[:axis]), line, "parallel")])

    def in_numpy(attrs: Attrs, x: Array) -> tuple[Any]:
        t = attrs["dtype"]
        kind = t.compute.numpy if t else x.dtype if x.dtype.kind == "f" else np.dtype(np.int64)
        wide = np.float64 if kind.kind == "f" else kind
        return (reference(x.astype(kind), axis=attrs["axis"], dtype=wide) if x.ndim else x,)

    register(
        name, inputs=["data"], doc=doc, infer_type=_scan_type, pattern=OpPattern.OPAQUE, build_tir=build_tir,
        reference=in_numpy, running=lambda attrs, inputs: op if inputs[0].rank > 0 else None,
        params={"axis": Param("along which", integer),
                "dtype": Param("of the result; None: the input's, int64 for ints and bools",
                               optional(element_type), None)},
    )  # fmt: skip


_scan("cumsum", "add", 0, np.cumsum, "Running sums along an axis.")
_scan("cumprod", "mul", 1, np.cumprod, "Running products along an axis.")


def sort_key(value: Expr) -> Expr:
    """A value as it is compared: bools as numbers, half types as float32."""
    return te.cast(value, U8 if value.dtype.is_bool else value.dtype.compute)


def _before(a: Expr, b: Expr, descending: bool) -> Expr:
    """Whether `a` comes strictly before `b`."""
    if descending:
        a, b = b, a
    if not a.dtype.is_float:
        return a < b
    return (a < b) | (te.unary("isnan", b) & ~te.unary("isnan", a))


def _doublings(n: Dim) -> Expr:
    """How often 1 must be doubled to reach `n`."""
    if isinstance(n, int):
        return te.const(max(n - 1, 0).bit_length())
    out: Expr = te.const(0)
    for k in range(48):
        out = out + te.cast(te.const(n) > (1 << k), I64)
    return out


def _sorted_line(
    n: Dim, key: Callable[[Expr], Expr], key_type: DType, descending: bool,
    then: Callable[[Buffer, Buffer], Sequence[Stmt]],
) -> Stmt:  # fmt: skip
    """`then(keys, order)` with the sorted keys of a line of n elements and where each came from.

    Bottom-up merges of runs of width 1, 2, 4, ... into a second pair of buffers and back.
    """
    keys, order = Buffer("keys", (n,), key_type, scope="scratch"), Buffer("order", (n,), I64, scope="scratch")
    keys2, order2 = Buffer("keys2", (n,), key_type, scope="scratch"), Buffer("order2", (n,), I64, scope="scratch")
    heads = Buffer("heads", (2,), I64, scope="scratch")
    size = te.const(n)

    def merge(width: Expr, run: Expr) -> Stmt:
        low = run * width * 2
        middle, high = te.minimum(low + width, size), te.minimum(low + width * 2, size)

        def step(k: Expr) -> list[Stmt]:
            left, right = te.load(heads, (0,)), te.load(heads, (1,))
            # heads that have run out point at an element that exists, and are not chosen
            a = te.load(keys, (te.minimum(left, size - 1),))
            b = te.load(keys, (te.minimum(right, size - 1),))
            take_right = (right < high) & ((left >= middle) | _before(b, a, descending))
            source = Buffer("source", (1,), I64, scope="scratch")
            chosen = te.load(source, (0,))
            moved = te.cast(chosen >= middle, I64)
            return [Allocate(source, seq([
                store(source, (0,), te.select(take_right, right, left)),
                store(keys2, (low + k,), te.load(keys, (chosen,))),
                store(order2, (low + k,), te.load(order, (chosen,))),
                store(heads, (0,), left + (te.const(1) - moved)),
                store(heads, (1,), right + moved),
            ]))]  # fmt: skip

        return seq([store(heads, (0,), low), store(heads, (1,), middle), loop("k", high - low, step)])

    def level(s: Expr) -> list[Stmt]:
        width = te.binary("shl", te.const(1), s)
        runs = (size + width * 2 - 1) // (width * 2)
        back = loop("b", n, lambda k: [store(keys, (k,), te.load(keys2, (k,))),
                                       store(order, (k,), te.load(order2, (k,)))])  # fmt: skip
        return [loop("run", runs, lambda run: merge(width, run)), back]

    fill = loop("f", n, lambda k: [store(keys, (k,), key(k)), store(order, (k,), k)])
    body: Stmt = seq([fill, loop("s", _doublings(n), level), *then(keys, order)])
    for buffer in (heads, order2, keys2, order, keys):
        body = Allocate(buffer, body)
    return body


def _sort_tir(attrs: Attrs, inputs: Types, outputs: Types, name: str) -> PrimFunc:
    (x,), outs = argument_buffers(inputs, outputs)
    axis = resolve_axis(attrs["axis"], len(x.shape))
    count: Dim = attrs["k"] if "k" in attrs else (x.shape[axis] if x.shape else 1)
    values, indices = (None, outs[0]) if len(outs) == 1 else outs
    n: Dim = x.shape[axis] if x.shape else 1
    out_shape = outs[0].shape
    key_type = sort_key(te.load(x, [te.const(0)] * len(x.shape))).dtype

    def line(row: Expr) -> Stmt:
        def write(keys: Buffer, order: Buffer) -> list[Stmt]:
            def element(k: Expr) -> list[Stmt]:
                at = _line(out_shape, axis, row, k)
                out = [store(indices, at, te.load(order, (k,)))]
                return [*out, store(values, at, te.load(keys, (k,)))] if values is not None else out

            return [loop("w", count, element)]

        descending = attrs["largest"] if "largest" in attrs else attrs["descending"]
        if "k" in attrs and isinstance(attrs["k"], int) and 0 < attrs["k"] <= _INSERTED:
            return _best(
                n, attrs["k"], lambda k: sort_key(te.load(x, _line(x.shape, axis, row, k))), key_type, descending, write
            )
        return _sorted_line(
            n, lambda k: sort_key(te.load(x, _line(x.shape, axis, row, k))), key_type, descending, write
        )

    body = loop("row", _lines(x.shape, axis), line, "parallel")
    room = n - count
    if not (isinstance(room, int) and room >= 0):  # only the call can tell
        body = assert_index(te.const(count) <= te.const(n), f"selected index k out of range: k={count} of {n}", body)
    return function(name, [x], outs, [body])


#: Up to this many best elements are kept sorted by insertion; more are had by sorting everything.
_INSERTED = 64


def _best(
    n: Dim, count: int, key: Callable[[Expr], Expr], key_type: DType, descending: bool,
    then: Callable[[Buffer, Buffer], Sequence[Stmt]],
) -> Stmt:  # fmt: skip
    """`then(keys, order)` with the first `count` of the sorted line: each element is inserted where it belongs."""
    keys, order = Buffer("keys", (count,), key_type, scope="scratch"), Buffer("order", (count,), I64, scope="scratch")
    place = Buffer("place", (1,), I64, scope="scratch")

    def element(k: Expr) -> Stmt:
        last = te.minimum(k, count - 1)
        value = key(k)

        def shift(q: Expr) -> Stmt:
            """One step towards the front, as long as the neighbour there comes after the element."""
            at = last - q
            behind = te.load(place, (0,)).equal(at) & _before(value, te.load(keys, (at - 1,)), descending)
            return If(behind, seq([
                store(keys, (at,), te.load(keys, (at - 1,))),
                store(order, (at,), te.load(order, (at - 1,))),
                store(place, (0,), at - 1),
            ]))  # fmt: skip

        insert = seq([
            store(place, (0,), last),
            loop("q", last, shift),
            store(keys, (te.load(place, (0,)),), value),
            store(order, (te.load(place, (0,)),), k),
        ])  # fmt: skip
        full = _before(value, te.load(keys, (te.const(count - 1),)), descending)
        return If(k < count, insert, If(full, insert))

    body: Stmt = seq([loop("f", n, element), *then(keys, order)])
    for buffer in (place, order, keys):
        body = Allocate(buffer, body)
    return body


def _order_array(x: Array, axis: int, descending: bool) -> Array:
    """A stable argsort with NaN greatest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # sorting the reversed line and reversing the result keeps equal elements in order
    n = x.shape[axis]
    order: Array = n - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return order


def _sort_array(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    order = _order_array(x, attrs["axis"], attrs["descending"])
    return np.take_along_axis(x, order, attrs["axis"]), order


def _sort_type(attrs: Attrs, inputs: Types) -> Types:
    resolve_axis(attrs["axis"], inputs[0].rank)
    return (inputs[0], inputs[0].with_dtype(I64))


_SORT = {
    "axis": Param("along which", integer, -1),
    "descending": Param("greatest first; NaN counts as greatest", boolean, False),
    "stable": Param("equal elements keep their order (they always do)", boolean, False),
}
register(
    "sort", inputs=["data"], num_outputs=2, params=_SORT, doc="Sorted values along an axis, and where each came from.",
    infer_type=_sort_type, pattern=OpPattern.OPAQUE, build_tir=_sort_tir, reference=_sort_array,
)  # fmt: skip
register(
    "argsort", inputs=["data"], params=_SORT, doc="Where the elements of the sorted axis come from.",
    infer_type=lambda attrs, inputs: _sort_type(attrs, inputs)[1:], pattern=OpPattern.OPAQUE, build_tir=_sort_tir,
    reference=lambda attrs, x: _sort_array(attrs, x)[1:],
)  # fmt: skip


def _topk_type(attrs: Attrs, inputs: Types) -> Types:
    x, k = inputs[0], attrs["k"]
    axis = resolve_axis(attrs["axis"], x.rank)
    n = x.shape[axis] if x.rank else 1
    if k < 0 or (isinstance(n, int) and k > n):
        raise ValueError(f"selected index k out of range: k={k} along axis {axis} of {show(x.shape)}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :]) if x.rank else ()
    return (x.with_shape(shape), x.with_shape(shape).with_dtype(I64))


def _topk_array(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    order = np.take(_order_array(x, attrs["axis"], attrs["largest"]), range(attrs["k"]), attrs["axis"])
    return np.take_along_axis(x, order, attrs["axis"]), order


register(
    "topk", inputs=["data"], num_outputs=2,
    doc="The k greatest (or least) elements along an axis, sorted, and where they are.",
    params={"k": Param("how many", integer), "axis": Param("along which", integer, -1),
            "largest": Param("the greatest; NaN counts as such", boolean, True)},
    infer_type=_topk_type, pattern=OpPattern.OPAQUE, build_tir=_sort_tir, reference=_topk_array,
)  # fmt: skip
