"""Matrix products. Half types are multiplied and summed in float32 and rounded once, after the bias.

The master stage sums a product of two reads over one reduce axis; axes are plain, so that a schedule sees which are
rows, columns and batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, ceildiv
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, read, rounded
from nnvm.ops.params import boolean, integer, optional
from nnvm.ops.shape_rules import broadcast_shapes, check_kind, known, same_dtype, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _kernel_layout(value: Any) -> str:
    layout = str(value)
    if layout != "NK" and not (layout.startswith("NK") and layout.endswith("n") and layout[2:-1].isdigit()):
        raise ValueError("expected NK or NK with a block of columns, as in NK16n")
    return layout


def _block(attrs: Attrs) -> int | None:
    """Columns of one block of a packed weight; None for a plain one."""
    layout = attrs["kernel_layout"]
    return None if layout == "NK" else int(layout[2:-1])


def _dense_type(attrs: Attrs, inputs: Types) -> Types:
    data, weight, *bias = inputs
    same_dtype(data, weight)
    check_kind(data, "fiu", "data")
    block, units = _block(attrs), attrs["units"]
    if data.rank < 1 or weight.rank != (2 if block is None else 3):
        raise ValueError(
            f"data {show(data.shape)} and weight {show(weight.shape)} ({attrs['kernel_layout']}) do not fit"
        )
    if weight.shape[1] != data.shape[-1]:
        raise ValueError(f"data {show(data.shape)} has {data.shape[-1]} features, weight {show(weight.shape)} takes "
                         f"{weight.shape[1]}")  # fmt: skip
    columns: Dim = weight.shape[0]
    if block is not None:
        if weight.shape[2] != block:
            raise ValueError(f"weight {show(weight.shape)} is not packed by {block} as {attrs['kernel_layout']} says")
        padded = columns * block
        columns = padded if units is None else units
        if isinstance(columns, int) and isinstance(padded, int) and ceildiv(columns, block) * block != padded:
            raise ValueError(f"{columns} units do not fill the {weight.shape[0]} blocks of weight {show(weight.shape)}")
    elif units is not None and units != columns:
        raise ValueError(f"units={units}, but weight {show(weight.shape)} has {columns}")
    if bias and bias[0].shape != (columns,):
        raise ValueError(f"bias {show(bias[0].shape)} must have shape {show((columns,))}")
    return (TensorType((*data.shape[:-1], columns), data.dtype, data.device),)


def _dense_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    data, weight = inputs[:2]
    at = data.dtype.compute
    k = te.reduce_axis(data.shape[-1], "k")
    block = _block(attrs)
    rows = data.shape[:-1]

    def product(row: tuple[Expr, ...], w: Expr) -> Expr:
        if k.extent == 0:
            return te.const(0, at)
        return te.sum(te.cast(read(data, *row, k.var), at) * te.cast(w, at), [k])

    if block is None:
        dense = over((*rows, weight.shape[0]), "dense", lambda *i: product(i[:-1], weight[i[-1], k]))
        out = dense
    else:
        # columns as (block, column in it), in the order of the packed weight: contiguous in it and in memory
        dense = over((*rows, weight.shape[0], block), "dense", lambda *i: product(i[:-2], weight[i[-2], k, i[-1]]))
        out = over(outputs[0].shape, "columns", lambda *i: read(dense, *i[:-1], i[-1] // block, i[-1] % block))
    if len(inputs) > 2:
        bias, before = inputs[2], out
        out = over(before.shape, "bias", lambda *i: before[i] + te.cast(bias[i[-1]], at))
    return [rounded(out, data.dtype)]


def _dense_array(attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> tuple[Any]:
    if weight.ndim == 3:
        blocks, width, block = weight.shape
        weight = weight.transpose(0, 2, 1).reshape(blocks * block, width)[: attrs["units"]]
    out = np.matmul(data, weight.T)
    return (out if bias is None else out + bias,)


def _combine_dense(nodes: Sequence[Node]) -> list[NodeEntry] | None:
    """Dense layers on the same data as one with all their units, and its columns."""
    weights, units = [n.inputs[1] for n in nodes], [n.inputs[1].type.shape[0] for n in nodes]
    if any(n.attrs["kernel_layout"] != "NK" or not isinstance(u, int) for n, u in zip(nodes, units)):
        return None
    first = nodes[0]
    wide = [apply("concatenate", weights, {"axis": 0})[0]]
    if len(first.inputs) > 2:
        wide.append(apply("concatenate", [n.inputs[2] for n in nodes], {"axis": 0})[0])
    out = apply(first.op, [first.inputs[0], *wide], {**first.attrs, "units": None}, first.name, first.source)[0]
    whole = (None,) * (out.type.rank - 1)
    made, start = [], 0
    for n, u in zip(nodes, units):
        bounds = {"begin": (*whole, start), "end": (*whole, start + known(u))}
        made.append(apply("slice", [out], bounds, f"{n.name}.part", n.source)[0])
        start += known(u)
    return made


register(
    "dense", inputs=["data", "weight", "bias?"],
    doc="data [..., K] times the transpose of weight [N, K] (packed: [N/p, K, p]), plus bias [N]: [..., N].",
    params={"kernel_layout": Param("NK, or NK with a block of columns: NK16n is [N/16, K, 16]", _kernel_layout, "NK"),
            "units": Param("N, where a packed weight is padded; None: all of its columns", optional(integer), None)},
    infer_type=_dense_type, pattern=OpPattern.OUT_FUSABLE, compute=_dense_compute, reference=_dense_array, linear_in=0,
    flops=lambda attrs, inputs, outputs: outputs[0].numel * inputs[0].shape[-1] * 2, combine=_combine_dense,
)  # fmt: skip


def _matrix_dims(t: TensorType, transposed: bool) -> tuple[Dim, Dim]:
    rows, columns = t.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _matmul_type(attrs: Attrs, inputs: Types) -> Types:
    a, b = inputs
    same_dtype(a, b)
    check_kind(a, "fiu", "inputs")
    if a.rank < 2 or b.rank < 2:
        raise ValueError(f"matmul needs matrices, got {show(a.shape)} and {show(b.shape)}")
    m, k = _matrix_dims(a, attrs["transpose_a"])
    k2, n = _matrix_dims(b, attrs["transpose_b"])
    if k != k2:
        raise ValueError(f"matrices {show(a.shape)}{'ᵀ' * attrs['transpose_a']} and {show(b.shape)}"
                         f"{'ᵀ' * attrs['transpose_b']} do not fit: {k} columns against {k2} rows")  # fmt: skip
    return (TensorType((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n), a.dtype, a.device),)


def _matmul_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    a, b = inputs
    at = a.dtype.compute
    shape = outputs[0].shape
    k = te.reduce_axis(a.shape[-2 if attrs["transpose_a"] else -1], "k")

    def element(*i: Expr) -> Expr:
        if k.extent == 0:
            return te.const(0, at)
        left = (k.var, i[-2]) if attrs["transpose_a"] else (i[-2], k.var)
        right = (i[-1], k.var) if attrs["transpose_b"] else (k.var, i[-1])
        x = te.cast(_read_matrix(a, i[:-2], left, shape), at)
        return te.sum(x * te.cast(_read_matrix(b, i[:-2], right, shape), at), [k])

    return [rounded(over(shape, "matmul", element), a.dtype)]


def _read_matrix(t: Tensor, batch: tuple[Expr, ...], matrix: tuple[Expr, Expr], shape: tuple[Dim, ...]) -> Expr:
    skip = len(shape) - len(t.shape)
    own = tuple(te.const(0) if d == 1 and shape[skip + i] != 1 else batch[skip + i] for i, d in enumerate(t.shape[:-2]))
    return read(t, *own, *matrix)


def _matmul_array(attrs: Attrs, a: Array, b: Array) -> tuple[Any]:
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    return (np.matmul(a, np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b),)


register(
    "matmul", inputs=["a", "b"], doc="Matrix products of [..., M, K] and [..., K, N]; leading dimensions broadcast.",
    params={"transpose_a": Param("a is [..., K, M]", boolean, False),
            "transpose_b": Param("b is [..., N, K]", boolean, False)},
    infer_type=_matmul_type, pattern=OpPattern.OUT_FUSABLE, compute=_matmul_compute, reference=_matmul_array,
    aliases=["batch_matmul"], linear_in=0,
    flops=lambda attrs, inputs, outputs: outputs[0].numel * _matrix_dims(inputs[0], attrs["transpose_a"])[1] * 2,
)  # fmt: skip
