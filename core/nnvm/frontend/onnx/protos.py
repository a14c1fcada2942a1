"""Element types and arrays of ONNX messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnvm.dim import SymDim
from nnvm.dtype import BF16, DType
from nnvm.dtype import dtype as as_dtype
from nnvm.frontend.onnx.formats import Format, format_of, stored
from nnvm.frontend.onnx.table import Unsupported
from nnvm.graph import TensorType

__all__ = ["array_of", "element_code", "element_type", "format_array_of", "type_proto"]

Array = np.ndarray[Any, Any]


def element_type(code: int) -> DType:
    """The DType of an `onnx.TensorProto` element type; Unsupported where there is none."""
    import onnx

    name = onnx.TensorProto.DataType.Name(code).lower()  # type: ignore[arg-type]
    name = {"float": "float32", "double": "float64"}.get(name, name)
    try:
        return as_dtype(name)
    except ValueError:
        raise Unsupported(f"element type {name}") from None


def element_code(dtype: DType) -> int:
    """The `onnx.TensorProto` element type of a DType."""
    import onnx

    name = {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype.name, dtype.name.upper())
    return int(onnx.TensorProto.DataType.Value(name))


def type_proto(t: TensorType) -> Any:
    """A TensorType as `onnx.TypeProto`; sizes that are no names are left open."""
    from onnx import helper

    dims = [d if isinstance(d, int) else str(d) if isinstance(d, SymDim) and str(d).isidentifier() else None
            for d in t.shape]  # fmt: skip
    return helper.make_tensor_type_proto(element_code(t.dtype), dims)


def format_array_of(tensor: Any) -> tuple[Array, Format] | None:
    """The elements of a TensorProto of a narrow type, as they are carried; None of any other type."""
    from onnx import numpy_helper

    f = format_of(tensor.data_type)
    return None if f is None else (stored(np.asarray(numpy_helper.to_array(tensor)), f), f)


def array_of(tensor: Any) -> tuple[Array, DType]:
    """A TensorProto's elements, bfloat16 as its uint16 bits."""
    from onnx import numpy_helper

    dtype = element_type(tensor.data_type)
    array = np.asarray(numpy_helper.to_array(tensor))
    return np.array(array.view(np.uint16) if dtype == BF16 else array, order="C"), dtype
