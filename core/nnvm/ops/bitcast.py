"""Elements as their bits: IEEE values as integers of the same width, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over
from nnvm.ops.params import element_type
from nnvm.ops.shape_rules import check_kind
from nnvm.te.expr import Bitcast
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _infer_type(attrs: Attrs, inputs: Types) -> Types:
    (x,), to = inputs, attrs["dtype"]
    check_kind(x, "fiu")
    if x.dtype.is_half or to.is_half:
        raise ValueError(f"{x.dtype} as {to}: half types are widened where they are read, their bits are not at hand")
    if to.is_bool or to.bits != x.dtype.bits:
        raise ValueError(f"the bits of {x.dtype} cannot be read as {to}: both must have the same width")
    return (x.with_dtype(to),)


def _compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,), to = inputs, attrs["dtype"]
    return [over(x.shape, "bitcast", lambda *i: x[i] if x.dtype == to else Bitcast(x[i], to))]


def _reference(attrs: Attrs, x: Array) -> tuple[Array]:
    flat = np.ascontiguousarray(x)
    return (flat.view(attrs["dtype"].numpy).reshape(np.shape(x)),)


register(
    "bitcast", inputs=["data"], params={"dtype": Param("the new element type, of the same width", element_type)},
    doc="The bits of each element read as another type of the same width.", infer_type=_infer_type,
    pattern=OpPattern.ELEMWISE, compute=_compute, inplace=((0, 0),), reference=_reference,
)  # fmt: skip
