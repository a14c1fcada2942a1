"""Changes of layout: axes reordered, split into blocks and padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, ceildiv
from nnvm.graph.layout import Layout
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over
from nnvm.ops.channels import coordinates, read_at
from nnvm.ops.nn_conv import from_plain, layout_name, to_plain
from nnvm.ops.params import dims, optional
from nnvm.ops.shape_rules import known
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Types = tuple[TensorType, ...]


def _layouts(attrs: Attrs) -> tuple[Layout, Layout]:
    src, dst = Layout.parse(attrs["src_layout"]), Layout.parse(attrs["dst_layout"])
    if sorted(src.names) != sorted(dst.names):
        raise ValueError(f"layouts {src} and {dst} have different axes")
    return src, dst


def _sizes(attrs: Attrs, data: TensorType) -> dict[str, Dim]:
    """Plain sizes of the result: the data's, or those given, where the data's blocks are padded."""
    src, _ = _layouts(attrs)
    found = src.sizes(data.shape)
    if attrs["sizes"] is None:
        return found
    given = dict(zip(src.names, attrs["sizes"], strict=True))
    if src.shape(given) != data.shape:
        raise ValueError(f"sizes {attrs['sizes']} do not fit data of shape {list(data.shape)} and layout {src}")
    return given


def _compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    src, dst = _layouts(attrs)
    sizes = _sizes(attrs, TensorType(x.shape, x.dtype))
    beyond = [n for n in dst.names if _may_exceed(sizes[n], src.block(n), dst.block(n))]

    def element(*i: Expr) -> Expr:
        at = coordinates(dst, i)
        inside: Expr = te.const(True, "bool")
        for name in beyond:
            inside = inside & (at[name].linear < te.const(sizes[name]))
        return te.select(inside, read_at(x, src, at), te.const(0, x.dtype))

    return [over(outputs[0].shape, "layout_transform", element)]


def _may_exceed(size: Dim, src: int, dst: int) -> bool:
    """Whether blocks of the result reach beyond what the source holds (its own padding is zeros already)."""
    held, needed = ceildiv(size, src) * src, ceildiv(size, dst) * dst
    return not (held == needed or (isinstance(held, int) and isinstance(needed, int) and needed <= held))


def _array(attrs: Attrs, x: np.ndarray[Any, Any]) -> tuple[Any]:
    src, dst = _layouts(attrs)
    sizes = _sizes(attrs, TensorType(x.shape))
    plain = to_plain(x, src, dst.names)
    return (from_plain(plain[tuple(slice(known(sizes[n])) for n in dst.names)], dst, dst.names),)


register(
    "layout_transform", inputs=["data"], pattern=OpPattern.INJECTIVE, compute=_compute, reference=_array,
    doc="The same tensor in another layout, as from NCHW to NCHW8c. A size that a block does not divide is padded with "
        "zeros.",
    params={"src_layout": Param("layout of the data", layout_name),
            "dst_layout": Param("layout of the result", layout_name),
            "sizes": Param("plain sizes in the order of src_layout, where its blocks are padded; None: nothing is",
                           optional(dims), None)},
    infer_type=lambda attrs, t: (TensorType(_layouts(attrs)[1].shape(_sizes(attrs, t[0])), t[0].dtype, t[0].device),),
)  # fmt: skip
