"""Reading by index. An index out of bounds fails the kernel, with eager PyTorch's message; it is never read with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape
from nnvm.dtype import I64
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, read_broadcast
from nnvm.ops.params import choice, dim, element_type, integer, integers
from nnvm.ops.shape_rules import broadcast_shapes, check_kind, resolve_axis, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__ = ["IN_SELF", "bounded", "index_shape", "indexed_shape", "out_of_bounds", "split_result", "within",
           "wrapped_arrays"]  # fmt: skip

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]

#: What eager's embedding and index_select say of an index that is out of range.
IN_SELF = "IndexError: index out of range in self"


def out_of_bounds(axis: int, size: Dim) -> str:
    """What eager's gather and scatter say, without the index."""
    return f"index is out of bounds for dimension {axis} with size {size}"


def _indexing_message(axis: int, size: Dim) -> str:
    """The same of indexing by tensors, which is an IndexError there."""
    return f"IndexError: {out_of_bounds(axis, size)}"


def bounded(index: Expr, size: Dim, mode: str, message: str) -> tuple[Expr, Expr]:
    """The position that `index` means in an axis of `size`, and whether it lies in it.

    Mode `raise` takes 0 .. size - 1, `wrap` also -size .. -1, `clip` everything.
    """
    i, n = te.cast(index, I64), te.const(size)
    if mode == "clip":
        return te.maximum(te.minimum(i, n - 1), 0), te.const(True, "bool")
    if mode == "wrap":
        i = te.select(i < 0, i + n, i)
    return i, (i >= 0) & (i < n)


def _read_checked(data: Tensor, at: Sequence[Expr], checks: Sequence[tuple[int, Expr, str]]) -> Expr:
    """`data[at]`, whose index along each axis in `checks` must fulfil its condition."""
    if any(data.shape[axis] == 0 for axis, _, _ in checks):
        # no index is right, and there is nothing that could be read
        axis, _, message = checks[0]
        return te.Check(te.const(0, data.dtype), te.const(False, "bool"), message)
    indices = list(at)
    for axis, inside, message in checks:
        indices[axis] = te.check(indices[axis], inside, message)
    return data[tuple(indices)]


def within(index: Sequence[Expr], sizes: Shape, bounds: Shape, but: int = -1) -> list[tuple[int, Expr, str]]:
    """Checks that positions below `sizes` are below `bounds`, for the axes other than `but` where only the call can
    tell: (axis, condition, message)."""
    checks = []
    for d, (i, n, m) in enumerate(zip(index, sizes, bounds)):
        room = m - n
        if d != but and not (isinstance(room, int) and room >= 0):
            checks.append((d, i < te.const(m), f"an index tensor is larger than its data along dimension {d} ({m})"))
    return checks


def _check_bounds_array(index: Array, size: int, mode: str, message: str) -> Array:
    if mode == "clip":
        return np.clip(index, 0, max(size - 1, 0))
    low = -size if mode == "wrap" else 0
    if index.size and (index.min() < low or index.max() >= size):
        raise IndexError(message)
    return np.where(index < 0, index + size, index)


def _take_type(attrs: Attrs, inputs: Types) -> Types:
    data, indices = inputs
    check_kind(indices, "iu", "indices")
    axis = resolve_axis(attrs["axis"], data.rank)
    if data.rank == 0:
        raise ValueError("a scalar has no axis to take from")
    return (data.with_shape((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])),)


def _take_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    data, indices = inputs
    axis, rank = resolve_axis(attrs["axis"], len(data.shape)), len(indices.shape)
    message = _indexing_message(axis, data.shape[axis]) if attrs["mode"] == "wrap" else IN_SELF

    def element(*i: Expr) -> Expr:
        where, inside = bounded(indices[i[axis : axis + rank]], data.shape[axis], attrs["mode"], message)
        return _read_checked(data, (*i[:axis], where, *i[axis + rank :]), [(axis, inside, message)])

    return [over(outputs[0].shape, "take", element, {"gather_axis": axis})]


def _take_array(attrs: Attrs, data: Array, indices: Array) -> tuple[Array]:
    axis = attrs["axis"] % data.ndim
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    if 0 in shape:
        return (np.empty(shape, data.dtype),)  # no index is used
    where = _check_bounds_array(indices, data.shape[axis], attrs["mode"], IN_SELF)
    return (np.take(data, where, axis),)


register(
    "take", inputs=["data", "indices"], doc="Slices of an axis by index, as in embedding and index_select.",
    params={"axis": Param("indexed", integer, 0),
            "mode": Param("raise (0 .. n - 1), wrap (negative ones from the end) or clip",
                          choice("raise", "wrap", "clip"), "raise")},
    infer_type=_take_type, pattern=OpPattern.INJECTIVE, compute=_take_compute, reference=_take_array,
)  # fmt: skip


def _gather_type(attrs: Attrs, inputs: Types) -> Types:
    data, index = inputs
    check_kind(index, "iu", "index")
    axis = resolve_axis(attrs["axis"], data.rank)
    if index.rank != data.rank:
        raise ValueError(f"index {show(index.shape)} must have as many axes as data {show(data.shape)}")
    for d, (n, m) in enumerate(zip(index.shape, data.shape)):
        if d != axis and isinstance(n, int) and isinstance(m, int) and n > m:
            raise ValueError(f"index {show(index.shape)} is larger than data {show(data.shape)} outside axis {axis}")
    return (data.with_shape(index.shape),)


def _gather_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    data, index = inputs
    if not data.shape:
        return [over((), "gather", lambda: te.check(data[()], te.cast(index[()], I64).equal(0), out_of_bounds(0, 1)))]
    axis = resolve_axis(attrs["axis"], len(data.shape))
    message = out_of_bounds(axis, data.shape[axis])

    def element(*i: Expr) -> Expr:
        where, inside = bounded(index[i], data.shape[axis], "raise", message)
        checks = [(axis, inside, message), *within(i, index.shape, data.shape, axis)]
        return _read_checked(data, (*i[:axis], where, *i[axis + 1 :]), checks)

    return [over(outputs[0].shape, "gather", element)]


def _gather_array(attrs: Attrs, data: Array, index: Array) -> tuple[Array]:
    if not data.ndim:
        _check_bounds_array(index, 1, "raise", out_of_bounds(0, 1))
        return (data,)
    axis = attrs["axis"] % data.ndim
    where = _check_bounds_array(index, data.shape[axis], "raise", out_of_bounds(axis, data.shape[axis]))
    part = data[tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(index.shape))]
    return (np.take_along_axis(part, where.astype(np.int64), axis) if index.size else data[:0].reshape(index.shape),)


register(
    "gather", inputs=["data", "index"], params={"axis": Param("indexed", integer)}, infer_type=_gather_type,
    doc="out[i, j, k] = data[i, index[i, j, k], k] for axis 1: torch.gather.", pattern=OpPattern.INJECTIVE,
    compute=_gather_compute, reference=_gather_array,
)  # fmt: skip


def index_shape(attrs: Attrs, data: TensorType, indices: Types) -> tuple[tuple[int, ...], Shape, int]:
    """Axes indexed, the common shape of the indices, and where it stands in the result of data[..., indices, ...].

    Where the axes are neighbours, in their place; otherwise in front, as in numpy and PyTorch.
    """
    axes = tuple(resolve_axis(a, data.rank) for a in attrs["axes"])
    if len(axes) != len(indices) or not axes or list(axes) != sorted(set(axes)) or data.rank == 0:
        given = f"{len(indices)} index tensors for axes {attrs['axes']} of {show(data.shape)}"
        raise ValueError(f"{given}; the axes must rise")
    for t in indices:
        check_kind(t, "iu", "an index")
    together = axes[-1] - axes[0] == len(axes) - 1
    return axes, broadcast_shapes(*(t.shape for t in indices)), axes[0] if together else 0


def split_result(
    i: Sequence[Expr], rank: int, axes: Sequence[int], common: int, place: int
) -> tuple[tuple[Expr, ...], dict[int, Expr]]:
    """Of an element of an indexing's result: its position in the index tensors, and along the other axes of data."""
    rest = iter([*i[:place], *i[place + common :]])
    return tuple(i[place : place + common]), {d: next(rest) for d in range(rank) if d not in axes}


def indexed_shape(data: TensorType, axes: Sequence[int], common: Shape, place: int) -> Shape:
    rest = [d for a, d in enumerate(data.shape) if a not in axes]
    return (*rest[:place], *common, *rest[place:])


def _index_type(attrs: Attrs, inputs: Types) -> Types:
    data = inputs[0]
    axes, common, place = index_shape(attrs, data, inputs[1:])
    return (data.with_shape(indexed_shape(data, axes, common, place)),)


def _index_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    data, *indices = inputs
    kinds = tuple(TensorType(t.shape, t.dtype) for t in inputs)
    axes, common, place = index_shape(attrs, kinds[0], kinds[1:])

    def element(*i: Expr) -> Expr:
        at, kept = split_result(i, len(data.shape), axes, len(common), place)
        checks: list[tuple[int, Expr, str]] = []
        for axis, t in zip(axes, indices):
            message = _indexing_message(axis, data.shape[axis])
            kept[axis], inside = bounded(read_broadcast(t, at, common), data.shape[axis], "wrap", message)
            checks.append((axis, inside, message))
        return _read_checked(data, [kept[d] for d in range(len(data.shape))], checks)

    return [over(outputs[0].shape, "index", element)]


def wrapped_arrays(attrs: Attrs, data: Array, indices: Sequence[Array]) -> tuple[Any, ...]:
    """numpy's index that means `indices` on the axes; IndexError where one is out of bounds."""
    where: list[Any] = [slice(None)] * data.ndim
    for axis, i in zip((a % data.ndim for a in attrs["axes"]), indices):
        where[axis] = _check_bounds_array(i, data.shape[axis], "wrap", out_of_bounds(axis, data.shape[axis]))
    return tuple(where)


register(
    "index", inputs=["data", "*indices"], params={"axes": Param("axis of each index tensor, rising", integers)},
    doc="data[..., indices, ...]: integer indexing by tensors that broadcast; negative ones count from the end.",
    infer_type=_index_type, pattern=OpPattern.INJECTIVE, compute=_index_compute,
    reference=lambda attrs, data, *indices: (data[wrapped_arrays(attrs, data, indices)],),
)  # fmt: skip


def _one_hot_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (indices,), out = inputs, outputs[0]
    message = "Class values must be smaller than num_classes."

    def element(*i: Expr) -> Expr:
        k, inside = bounded(indices[i[:-1]], attrs["depth"], "raise", message)
        return te.select(te.check(k, inside, message).equal(i[-1]), te.const(1, out.dtype), te.const(0, out.dtype))

    return [over(out.shape, "one_hot", element)]


def _one_hot_type(attrs: Attrs, inputs: Types) -> Types:
    check_kind(inputs[0], "iu", "indices")
    return (TensorType((*inputs[0].shape, attrs["depth"]), attrs["dtype"], inputs[0].device),)


def _one_hot_array(attrs: Attrs, indices: Array) -> tuple[Array]:
    where = _check_bounds_array(indices, attrs["depth"], "raise", "Class values must be smaller than num_classes.")
    return (where[..., None] == np.arange(attrs["depth"]),)


register(
    "one_hot", inputs=["indices"], doc="1 at the index, 0 elsewhere, along a new last axis.", infer_type=_one_hot_type,
    params={"depth": Param("extent of the new axis", dim), "dtype": Param("element type", element_type, I64)},
    pattern=OpPattern.INJECTIVE, compute=_one_hot_compute, reference=_one_hot_array,
)  # fmt: skip
