"""Arrays by name as bytes, in the format of NNVM and TVM (``.params`` files).

Little endian: a magic number and 8 bytes of zeros; the names, each with its length before it; the arrays, each with a
magic number, its device, rank, element type, sizes, bytes and data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["load_param_dict", "save_param_dict"]

Array = np.ndarray[Any, Any]

_LIST_MAGIC = 0xF7E58D4F05049CB7
_ARRAY_MAGIC = 0xDD5E40F096B4A13F
_CPU = 1
#: Codes of the kinds of element types, as in DLPack.
_CODES = {"i": 0, "u": 1, "f": 2}


def save_param_dict(params: Mapping[str, Any]) -> bytearray:
    """The arrays as bytes, which `load_param_dict` and `GraphModule.load_params` read.

    TypeError names an array of a type that the format has not.
    """
    out = bytearray(struct.pack("<QQQ", _LIST_MAGIC, 0, len(params)))
    for name in params:
        raw = name.encode()
        out += struct.pack("<Q", len(raw)) + raw
    out += struct.pack("<Q", len(params))
    for name, value in params.items():
        out += _array_bytes(name, np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value))
    return out


def load_param_dict(data: bytes | bytearray) -> dict[str, Array]:
    """The arrays that `save_param_dict`, NNVM or TVM wrote. ValueError where the bytes are no such file."""
    reader = _Reader(data)
    magic, _, count = reader.unpack("<QQQ")
    if magic != _LIST_MAGIC:
        raise ValueError("these bytes are no parameters as save_param_dict writes them")
    names = [reader.take(reader.unpack("<Q")[0]).decode() for _ in range(count)]
    (arrays,) = reader.unpack("<Q")
    if arrays != count:
        raise ValueError(f"{count} names for {arrays} arrays")
    return {name: _read_array(name, reader) for name in names}


def _array_bytes(name: str, array: Array) -> bytes:
    kind = "u" if array.dtype.kind == "b" else array.dtype.kind
    if kind not in _CODES:
        raise TypeError(f"the parameter {name} is {array.dtype}; only integers, floats and bools can be saved")
    bits = 1 if array.dtype.kind == "b" else array.dtype.itemsize * 8
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    head = struct.pack("<QQiiiBBH", _ARRAY_MAGIC, 0, _CPU, 0, array.ndim, _CODES[kind], bits, 1)
    return head + struct.pack(f"<{array.ndim}qq", *array.shape, len(data)) + data


def _read_array(name: str, reader: _Reader) -> Array:
    magic, _, _, _, ndim, code, bits, lanes = reader.unpack("<QQiiiBBH")
    kinds = {v: k for k, v in _CODES.items()}
    if magic != _ARRAY_MAGIC or code not in kinds or lanes != 1:
        raise ValueError(f"the array of {name} is none that can be read (type code {code}, {lanes} lanes)")
    *shape, size = reader.unpack(f"<{ndim}qq")
    dtype = np.dtype(bool) if bits == 1 else np.dtype(f"<{kinds[code]}{bits // 8}")
    array: Array = np.frombuffer(reader.take(size), dtype).reshape(shape).copy()
    return array


class _Reader:
    """Walks through bytes; ValueError where they end too early."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data, self._at = bytes(data), 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise ValueError("the parameters end before all arrays are read")
        self._at += size
        return part

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)))
