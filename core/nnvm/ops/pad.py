"""Borders: the op `pad`, and the stage that convolutions and poolings read their data through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over
from nnvm.ops.params import choice, pairs, scalar
from nnvm.ops.shape_rules import show
from nnvm.ops.transform import inject
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__ = ["padded_stage"]

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _pad_type(attrs: Attrs, inputs: Types) -> Types:
    x, widths, mode = inputs[0], attrs["pad_width"], attrs["mode"]
    if len(widths) != x.rank:
        raise ValueError(f"pad_width {widths} has {len(widths)} pairs for shape {show(x.shape)}")
    out: list[Dim] = []
    for d, (low, high) in zip(x.shape, widths):
        size = d + low + high
        if isinstance(size, int) and size < 0:
            raise ValueError(f"cropping {(low, high)} leaves less than nothing of {show(x.shape)}")
        if isinstance(d, int) and isinstance(low, int) and isinstance(high, int):
            most = {"reflect": d - 1, "wrap": d, "edge": 1 << 62 if d else 0}.get(mode, 1 << 62)
            if max(low, high) > max(most, 0):
                raise ValueError(f"{mode} padding {(low, high)} is too wide for extent {d} of {show(x.shape)}")
        out.append(size)
    return (x.with_shape(tuple(out)),)


def padded_stage(
    x: Tensor, widths: Sequence[tuple[Dim, Dim]], value: int | float | bool, name: str = "pad"
) -> Tensor:
    """`x` with a border of `value`; or x itself."""
    if all(w == (0, 0) for w in widths):
        return x
    shape = tuple(d + low + high for d, (low, high) in zip(x.shape, widths))

    def element(*i: Expr) -> Expr:
        at: list[Expr] = []
        inside: Expr = te.const(True, "bool")
        for e, d, (low, high) in zip(i, x.shape, widths):
            j = e - te.const(low)
            if _may_be_positive(low):
                inside = inside & (j >= 0)
            if _may_be_positive(high):
                inside = inside & (j < te.const(d))
            at.append(j)
        return te.select(inside, x[tuple(at)], te.const(value, x.dtype))

    return over(shape, name, element, {"pad": (tuple(widths), value), "cheap": True})


def _may_be_positive(width: Dim) -> bool:
    return not isinstance(width, int) or width > 0


def _pad_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,), widths, mode = inputs, attrs["pad_width"], attrs["mode"]
    if mode == "constant":
        out = padded_stage(x, widths, attrs["value"])
        return [out] if out is not x else inject("pad", x.shape, x, lambda i: i)

    def source(e: Expr, low: Dim, high: Dim, d: Dim) -> Expr:
        j = mirrored(e, low, high, d)
        if isinstance(d, int):
            return j
        # only the call tells whether the border is wider than the data allow
        return te.check(j, (j >= 0) & (j < te.const(d)), f"a border of {low} and {high} by {mode} around {d} elements")

    def mirrored(e: Expr, low: Dim, high: Dim, d: Dim) -> Expr:
        j, last = e - te.const(low), te.const(d - 1)
        if mode == "edge":
            return te.minimum(te.maximum(j, 0), last)
        if mode == "wrap":
            j = te.select(j < 0, j + te.const(d), j) if _may_be_positive(low) else j
            return te.select(j >= te.const(d), j - te.const(d), j) if _may_be_positive(high) else j
        j = te.maximum(j, -j) if _may_be_positive(low) else j
        return te.minimum(j, last * 2 - j) if _may_be_positive(high) else j

    return inject("pad", outputs[0].shape, x, lambda i: [source(e, w[0], w[1], d) if w != (0, 0) else e
                                                          for e, w, d in zip(i, widths, x.shape)])  # fmt: skip


def _pad_array(attrs: Attrs, x: Array) -> tuple[Array]:
    widths, mode = attrs["pad_width"], attrs["mode"]
    x = x[tuple(slice(max(0, -lo), d - max(0, -hi)) for d, (lo, hi) in zip(x.shape, widths))]
    grow = [(max(0, lo), max(0, hi)) for lo, hi in widths]
    if mode == "constant":
        return (np.pad(x, grow, constant_values=np.asarray(attrs["value"]).astype(x.dtype)),)
    return (np.pad(x, grow, mode=mode),)


register(
    "pad", inputs=["data"], infer_type=_pad_type, pattern=OpPattern.INJECTIVE, compute=_pad_compute,
    reference=_pad_array, doc="A border around the data; a negative width crops.",
    params={"pad_width": Param("(low, high) per axis", pairs),
            "mode": Param("constant, reflect (without the edge), edge or wrap",
                          choice("constant", "reflect", "edge", "wrap"), "constant"),
            "value": Param("of a constant border", scalar, 0)},
)  # fmt: skip
