"""Writing by index. Contributions to one element are combined in the order of the index tensor, as eager does on one
thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim
from nnvm.dtype import F32, F64, I32, I64, DType
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.index import bounded, index_shape, indexed_shape, out_of_bounds, split_result, within, wrapped_arrays
from nnvm.ops.nests import argument_buffers, assert_index, function, nest, store
from nnvm.ops.params import boolean, choice, integer, integers
from nnvm.ops.shape_rules import broadcast_shapes, check_kind, resolve_axis, same_dtype, show
from nnvm.te.expr import Buffer, Expr
from nnvm.tir.stmt import Allocate, For, PrimFunc, Seq, Stmt, seq

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]

#: Reductions of scatter: te operator and the value they start from without `include_self`.
_REDUCE: dict[str, tuple[str, Callable[[DType], Any]]] = {
    "add": ("add", lambda t: 0),
    "prod": ("mul", lambda t: 1),
    "amax": ("max", lambda t: t.min),
    "amin": ("min", lambda t: t.max),
    "mean": ("add", lambda t: 0),
}


def _is_atomic(inputs: Types) -> bool:
    """Whether a GPU adds to elements of the first input in memory, and compares with them."""
    return inputs[0].dtype in (F32, F64, I32, I64)


def _scatters_in_any_order(attrs: Attrs, inputs: Types) -> bool:
    """Of several values for one element PyTorch leaves any one on a GPU."""
    return attrs["reduce"] == "none" or (attrs["reduce"] != "prod" and _is_atomic(inputs))


def _combine(reduce: str, old: Expr, new: Expr) -> Expr:
    """One contribution, in the compute type; of bools `add` is or, `mul` and."""
    op = _REDUCE[reduce][0]
    if old.dtype.is_bool:
        return te.binary({"add": "or", "max": "or", "mul": "and", "min": "and"}[op], old, new)
    return te.binary(op, te.cast(old, old.dtype.compute), te.cast(new, new.dtype.compute))


def _scatter_type(attrs: Attrs, inputs: Types) -> Types:
    data, index, src = inputs
    same_dtype(data, src)
    check_kind(index, "iu", "index")
    axis = resolve_axis(attrs["axis"], data.rank)
    if index.rank != data.rank or src.rank != data.rank:
        raise ValueError(
            f"data {show(data.shape)}, index {show(index.shape)} and src {show(src.shape)} must have as many axes"
        )
    for d, (n, m, s) in enumerate(zip(index.shape, data.shape, src.shape)):
        too_large = d != axis and isinstance(n, int) and isinstance(m, int) and n > m
        if too_large or (isinstance(n, int) and isinstance(s, int) and n > s):
            raise ValueError(f"index {show(index.shape)} is larger than src {show(src.shape)}, or than data "
                             f"{show(data.shape)} outside axis {axis}")  # fmt: skip
    return (data,)


def _scatter_tir(attrs: Attrs, inputs: Types, outputs: Types, name: str) -> PrimFunc:
    (data, index, src), (out,) = argument_buffers(inputs, outputs)
    axis, rank = resolve_axis(attrs["axis"], len(data.shape)), len(data.shape)
    reduce, include_self = attrs["reduce"], attrs["include_self"]
    size: Dim = data.shape[axis] if rank else 1
    message = out_of_bounds(axis, size)
    # along the axis writes may meet; rows of another leading axis never do
    rows = rank > 1 and axis != 0

    def scattered(write: Callable[[tuple[Expr, ...], Expr], Stmt]) -> Stmt:
        def body(i: tuple[Expr, ...]) -> Stmt:
            where, inside = bounded(te.load(index, i), size, "raise", message)
            at = (*i[:axis], where, *i[axis + 1 :]) if rank else ()
            then = assert_index(inside, message, write(at, te.load(src, i)))
            for _, fits, larger in (*within(i, index.shape, data.shape, axis), *within(i, index.shape, src.shape)):
                then = assert_index(fits, larger, then)
            return then

        return nest(index.shape, body, "j", parallel=rows)

    body = [nest(data.shape, lambda i: store(out, i, te.load(data, i)), parallel=rank > 0)]
    if reduce == "none":
        body.append(scattered(lambda at, value: store(out, at, value)))
        return function(name, [data, index, src], [out], body)
    start = te.const(_REDUCE[reduce][1](out.dtype), out.dtype)
    if not include_self:
        body.append(scattered(lambda at, value: store(out, at, start)))
    body.append(scattered(lambda at, value: store(out, at, _combine(reduce, te.load(out, at), value))))
    if reduce != "mean":
        return function(name, [data, index, src], [out], body)
    count = Buffer("count", data.shape, I64, scope="scratch")
    body.insert(0, nest(data.shape, lambda i: store(count, i, te.const(int(include_self), I64)), "c"))
    body.append(scattered(lambda at, value: store(count, at, te.load(count, at) + 1)))
    body.append(nest(data.shape, lambda i: store(out, i, _divided(te.load(out, i), te.load(count, i))), "d"))
    # scratch belongs to one thread, so nothing here may be parallel
    return function(name, [data, index, src], [out], [Allocate(count, _serial(seq(body)))])


def _serial(stmt: Stmt) -> Stmt:
    """The same loops, none of them parallel."""
    if isinstance(stmt, Seq):
        return Seq(tuple(map(_serial, stmt.body)))
    return For(stmt.var, stmt.extent, stmt.body, "serial") if isinstance(stmt, For) else stmt


def _divided(total: Expr, count: Expr) -> Expr:
    """The mean of `count` contributions; integers are rounded down, and nothing is divided by 0."""
    at = total.dtype.compute
    n = te.cast(te.maximum(count, 1), at)
    return te.cast(total, at) / n if at.is_float else te.cast(total, at) // n


def _scatter_array(attrs: Attrs, data: Array, index: Array, src: Array) -> tuple[Array]:
    out = data.copy()
    flat_out, rank = out.reshape(-1) if not data.ndim else out, data.ndim
    axis, size = (attrs["axis"] % rank, data.shape[attrs["axis"] % rank]) if rank else (0, 1)
    if index.size and (index.min() < 0 or index.max() >= size):
        raise IndexError(out_of_bounds(axis, size))
    where: list[Any] = list(np.indices(index.shape, sparse=True)) if rank else [0]
    where[axis] = index.astype(np.int64)
    at, values = tuple(where), src[tuple(map(slice, index.shape))]
    if attrs["reduce"] == "none":
        for i in np.ndindex(*index.shape):  # in order: the last one wins
            target = list(i) if rank else [0]
            target[axis] = int(index[i])
            flat_out[tuple(target)] = src[i]
        return (out,)
    op, start = _REDUCE[attrs["reduce"]]
    kind = DType(str(out.dtype), out.dtype.kind, out.dtype.itemsize * 8)
    if not attrs["include_self"]:
        flat_out[at] = start(kind)
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    ufunc.at(flat_out, at, values)
    if attrs["reduce"] == "mean":
        count = np.full(flat_out.shape, int(attrs["include_self"]))
        np.add.at(count, at, 1)
        count = np.maximum(count, 1).reshape(out.shape)
        out = out / count if out.dtype.kind == "f" else out // count
    return (out,)


register(
    "scatter", inputs=["data", "index", "src"], infer_type=_scatter_type, pattern=OpPattern.OPAQUE,
    doc="data with data[i, index[i, j], ...] (axis 1) set to src[i, j, ...], or combined with it (scatter_reduce).",
    params={"axis": Param("indexed", integer),
            "reduce": Param("none (the last one wins), add, prod, amax, amin or mean",
                            choice("none", "add", "prod", "amax", "amin", "mean"), "none"),
            "include_self": Param("whether data's own elements are combined too", boolean, True)},
    build_tir=_scatter_tir, reference=_scatter_array, inplace=((0, 0),),
    any_order=_scatters_in_any_order,
)  # fmt: skip


def _index_put_type(attrs: Attrs, inputs: Types) -> Types:
    data, values, *indices = inputs
    same_dtype(data, values)
    axes, common, place = index_shape(attrs, data, tuple(indices))
    shape = indexed_shape(data, axes, common, place)
    if broadcast_shapes(values.shape, shape) != shape:
        raise ValueError(f"values {show(values.shape)} do not broadcast to the elements indexed, {show(shape)}")
    return (data,)


def _index_put_tir(attrs: Attrs, inputs: Types, outputs: Types, name: str) -> PrimFunc:
    (data, values, *indices), (out,) = argument_buffers(inputs, outputs)
    axes, common, place = index_shape(attrs, inputs[0], inputs[2:])
    shape = indexed_shape(inputs[0], axes, common, place)

    def body(i: tuple[Expr, ...]) -> Stmt:
        at, kept = split_result(i, len(data.shape), axes, len(common), place)
        checks = []
        for axis, t in zip(axes, indices):
            kept[axis], inside = bounded(te.load(t, broadcast_index(t, at, common)), data.shape[axis], "wrap", "")
            checks.append((inside, f"IndexError: {out_of_bounds(axis, data.shape[axis])}"))
        where = tuple(kept[d] for d in range(len(data.shape)))
        value = te.load(values, broadcast_index(values, i, shape))
        out_value = _combine("add", te.load(out, where), value) if attrs["accumulate"] else value
        write = store(out, where, out_value)
        for inside, message in reversed(checks):
            write = assert_index(inside, message, write)
        return write

    copy = nest(data.shape, lambda i: store(out, i, te.load(data, i)), parallel=True)
    return function(name, [data, values, *indices], [out], [copy, nest(shape, body, "j")])


def broadcast_index(b: Buffer, indices: Sequence[Expr], shape: Sequence[Dim]) -> tuple[Expr, ...]:
    """Indices into `b` of the element that broadcasting to `shape` puts at `indices`."""
    skip = len(shape) - len(b.shape)
    return tuple(te.const(0) if d == 1 else indices[skip + k] for k, d in enumerate(b.shape))


def _index_put_array(attrs: Attrs, data: Array, values: Array, *indices: Array) -> tuple[Array]:
    out = data.copy()
    where = wrapped_arrays(attrs, data, indices)
    if attrs["accumulate"]:
        (np.logical_or if out.dtype.kind == "b" else np.add).at(out, where, values)
    else:
        out[where] = values
    return (out,)


register(
    "index_put", inputs=["data", "values", "*indices"], infer_type=_index_put_type, pattern=OpPattern.OPAQUE,
    doc="data with data[..., indices, ...] set to values, or values added to them.",
    params={"axes": Param("axis of each index tensor, rising", integers),
            "accumulate": Param("add, each time an element is named", boolean, False)},
    build_tir=_index_put_tir, reference=_index_put_array, inplace=((0, 0),),
    any_order=lambda attrs, inputs: not attrs["accumulate"] or _is_atomic(inputs),
)  # fmt: skip
