"""Element types and arrays of ONNX messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnvm.dtype import BF16, DType
from nnvm.dtype import dtype as as_dtype
from nnvm.frontend.onnx.formats import Format, format_of, stored
from nnvm.frontend.onnx.table import Unsupported

__all__ = ["array_of", "element_type", "format_array_of"]

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
