"""Ops without inputs: their outputs depend on attributes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dtype import F32, F64
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over
from nnvm.ops.params import dim, dims, element_type, scalar, scalar_or_dim
from nnvm.te.expr import Const, Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Types = tuple[TensorType, ...]


def _full_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    t = outputs[0].dtype
    return [over(outputs[0].shape, "full", lambda *i: te.cast(te.const(attrs["value"], t), t))]


def _full_array(attrs: Attrs) -> tuple[Any]:
    t = attrs["dtype"].compute
    value = te.const(attrs["value"], t)
    assert isinstance(value, Const)
    return (np.full(attrs["shape"], value.value, t.numpy),)


register(
    "full", params={"shape": Param("the shape", dims), "dtype": Param("element type", element_type, F32),
                    "value": Param("every element, which may be an expression of sizes", scalar_or_dim, 0)},
    doc="A tensor of one value, which wraps as an integer of the type.",
    infer_type=lambda attrs, inputs: (TensorType(attrs["shape"], attrs["dtype"]),),
    pattern=OpPattern.ELEMWISE, is_constant=True, compute=_full_compute,
    reference=_full_array,
)  # fmt: skip


def _arange_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    t = outputs[0].dtype
    # start + i * step in float64, rounded once, as in PyTorch
    at = F64 if t.is_float else t

    def element(*i: Expr) -> Expr:
        return te.cast(te.cast(i[0], at) * te.const(attrs["step"], at) + te.const(attrs["start"], at), t)

    return [over(outputs[0].shape, "arange", element)]


def _arange_array(attrs: Attrs) -> tuple[Any]:
    wide = np.float64 if attrs["dtype"].is_float else np.int64
    return (np.arange(attrs["length"]).astype(wide) * wide(attrs["step"]) + wide(attrs["start"]),)


register(
    "arange", doc="start, start + step, ...: `length` numbers.", pattern=OpPattern.ELEMWISE, is_constant=True,
    params={"start": Param("the first", scalar, 0), "step": Param("between neighbours", scalar, 1),
            "length": Param("how many", dim), "dtype": Param("element type", element_type, F32)},
    infer_type=lambda attrs, inputs: (TensorType((attrs["length"],), attrs["dtype"]),), compute=_arange_compute,
    reference=_arange_array,
)  # fmt: skip
