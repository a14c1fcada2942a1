"""Element types of 8 bits and less that no kernel computes with: float8, float4, and integers of 4 and 2 bits.

A tensor of such a type is carried as bytes: the floats as their codes in uint8, the integers as int8 or uint8 values.
Formats: ONNX's document "Float stored in 8 bits" and OCP's "Microscaling Formats (MX)" 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dtype import I8, U8, DType
from nnvm.graph import NodeEntry

__all__ = ["Format", "Narrow", "format_named", "format_of", "packed", "stored"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """A narrow element type.

    Attributes:
        name: ONNX's, in lower case.
        kind: ``f`` float, ``i`` signed, ``u`` unsigned integer.
        bits: width of an element.
        mantissa, bias: bits after the point and offset of the exponent, of floats.
        largest: greatest finite value.
        nan, infinity: codes without a sign, None where the format has none.
        has_negative_zero: whether the code that -0 would have means -0 (it is NaN in the ``fnuz`` types).
    """

    name: str
    kind: str
    bits: int
    mantissa: int = 0
    bias: int = 0
    largest: float = 0.0
    nan: int | None = None
    infinity: int | None = None
    has_negative_zero: bool = True

    @property
    def store(self) -> DType:
        """The type that its elements are carried in."""
        return I8 if self.kind == "i" else U8

    @property
    def low(self) -> int:
        return -(1 << self.bits - 1) if self.kind == "i" else 0

    @property
    def high(self) -> int:
        return (1 << self.bits - (self.kind == "i")) - 1

    @property
    def numpy(self) -> np.dtype[Any]:
        """The type that the package `onnx` gives its arrays."""
        import ml_dtypes

        name = _ARRAY_NAMES.get(self.name, self.name)
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


_FORMATS = (
    Format("float8e4m3fn", "f", 8, 3, 7, 448.0, nan=0x7F),
    Format("float8e4m3fnuz", "f", 8, 3, 8, 240.0, nan=0x80, has_negative_zero=False),
    Format("float8e5m2", "f", 8, 2, 15, 57344.0, nan=0x7E, infinity=0x7C),
    Format("float8e5m2fnuz", "f", 8, 2, 16, 57344.0, nan=0x80, has_negative_zero=False),
    Format("float8e8m0", "f", 8, 0, 127, 2.0**127, nan=0xFF),
    Format("float4e2m1", "f", 4, 1, 1, 6.0),
    Format("int4", "i", 4), Format("uint4", "u", 4), Format("int2", "i", 2), Format("uint2", "u", 2),
)  # fmt: skip
#: Names of numpy types (package ml_dtypes) where they differ from ONNX's.
_ARRAY_NAMES = {
    "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu", "float4e2m1": "float4_e2m1fn",
}  # fmt: skip
_BY_NAME = {f.name: f for f in _FORMATS}


@dataclass(frozen=True)
class Narrow:
    """A value of a narrow type: `entry` holds its elements as they are carried."""

    entry: NodeEntry
    format: Format


def format_named(name: str) -> Format | None:
    """The format of the numpy type of this name; None where it is none of them."""
    return next((f for f in _FORMATS if _ARRAY_NAMES.get(f.name, f.name) == name), None)


def format_of(code: int) -> Format | None:
    """The format of an `onnx.TensorProto` element type; None where it is none of them."""
    import onnx

    return _BY_NAME.get(onnx.TensorProto.DataType.Name(code).lower())  # type: ignore[arg-type]


def stored(array: Array, f: Format) -> Array:
    """Elements as the package `onnx` gives them, as they are carried."""
    return np.array(array.view(np.uint8) if f.kind == "f" else array.astype(f.store.numpy), order="C")


def packed(array: Array, f: Format) -> Array:
    """The reverse of `stored`."""
    return array.view(f.numpy) if f.kind == "f" else array.astype(f.numpy)
