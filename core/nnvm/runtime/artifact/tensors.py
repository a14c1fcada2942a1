"""The section of weights: a safetensors file as it is, read in place.

safetensors allows no holes between tensors; so that each begins at a multiple of 64 bytes (a cache line, the widest
vector) there are tensors of uint8 between them, whose names begin with ``.align``.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm.dtype import DType, dtype

__all__ = ["read_tensors", "write_tensors"]

Array = np.ndarray[Any, Any]
_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
          "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
          "bool": "BOOL"}  # fmt: skip
_TYPES = {short: dtype(name) for name, short in _NAMES.items()}
_LINE = 64
_PAD = ".align"


def write_tensors(tensors: Mapping[str, tuple[Array, DType]]) -> list[bytes | memoryview]:
    """The file in pieces. Arrays are contiguous, bfloat16 as its uint16 bits; no name begins with ``.align``."""
    entries: dict[str, Any] = {}
    pieces: list[bytes | memoryview] = []
    at = 0
    for name, (array, t) in tensors.items():
        if pad := -at % _LINE:
            entries[f"{_PAD}{len(entries)}"] = {"dtype": "U8", "shape": [pad], "data_offsets": [at, at + pad]}
            pieces.append(bytes(pad))
            at += pad
        entries[name] = {"dtype": _NAMES[t.name], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        pieces.append(array.reshape(-1).view(np.uint8).data if array.size else b"")
        at += array.nbytes
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % _LINE)
    return [struct.pack("<Q", len(head)) + head, *pieces]


def read_tensors(data: memoryview) -> dict[str, Array]:
    """Read-only arrays on `data`, by name (bfloat16 as uint16 bits). ValueError says what is wrong with the file."""
    if len(data) < 8:
        raise ValueError("the weights have no header")
    (size,) = struct.unpack_from("<Q", data)
    if size > len(data) - 8:
        raise ValueError(f"the weights' header has {size} bytes of {len(data) - 8}")
    entries = json.loads(bytes(data[8 : 8 + size]))
    if not isinstance(entries, dict):
        raise ValueError("the weights' header is no table")
    body = data[8 + size :]
    return {name: _array(name, e, body) for name, e in entries.items() if name[:1] != "." and name != "__metadata__"}


def _array(name: str, entry: Any, body: memoryview) -> Array:
    try:
        t, shape, (start, end) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        fits = all(type(n) is int and n >= 0 for n in (*shape, start, end)) and len(shape) <= 32
        fits = fits and end <= len(body) and end - start == math.prod(shape) * t.bytes
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the entry of the weight {name!r} is damaged") from error
    if not fits or start % t.bytes:
        raise ValueError(f"the weight {name!r} does not lie where its entry says")
    return np.ndarray(tuple(shape), t.numpy, buffer=body, offset=start) if end > start else np.empty(shape, t.numpy)
