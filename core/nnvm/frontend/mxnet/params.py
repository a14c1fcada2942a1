"""MXNet's files of arrays (``.params``), as `mx.nd.save` writes them.

Little endian: the number 0x112 and a reserved one; how many arrays there are, and the arrays; how many names, and the
names, each with its length before it. An array is, by the version in its first four bytes: the kind of storage (from
version 2 on), its rank and sizes, the device, the element type, and its elements. Before version 1 those four bytes are
the rank, and sizes have 32 bits. (Source: MXNet's C API and the serialisation of NDArray, read as a specification.)
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

__all__ = ["ParamsError", "is_params", "load_params"]

Array = np.ndarray[Any, Any]

_MAGIC = 0x112
_VERSIONS = {0xF993FAC8: 1, 0xF993FAC9: 2, 0xF993FACA: 3}
#: Axes of an array, at most.
_MAX_RANK = 32
_STORAGE = {1: "row_sparse", 2: "csr"}
#: Element types by their number; bfloat16 is kept as its bits.
_TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?", 8: "<i2", 9: "<u2", 10: "<u4",
          11: "<u8", 12: "<u2"}  # fmt: skip


class ParamsError(ValueError):
    """The bytes are no file of arrays, or hold one that cannot be read."""


def is_params(data: bytes) -> bool:
    """Whether the bytes begin as such a file does."""
    return data[:8] == struct.pack("<Q", _MAGIC)


def load_params(data: bytes) -> dict[str, Array]:
    """The arrays by name; ``arg:`` and ``aux:`` before a name are taken away.

    Raises:
        ParamsError: broken or truncated bytes, a sparse array, an unknown element type, a name twice.
    """
    reader = _Reader(data)
    magic, _ = reader.unpack("<QQ", "the header")
    if magic != _MAGIC:
        raise ParamsError(f"no file of MXNet's arrays: it begins with {magic:#x}, not {_MAGIC:#x}")
    count = reader.count(4, "arrays")
    arrays = [_array(reader, i) for i in range(count)]
    names = reader.count(8, "names")
    if names != count:
        raise ParamsError(f"{count} arrays have {names} names")
    out: dict[str, Array] = {}
    for array in arrays:
        (length,) = reader.unpack("<Q", "the length of a name")
        try:
            name = bytes(reader.take(length, "a name")).decode()
        except UnicodeDecodeError as e:
            raise ParamsError(f"a name is no text: {e}") from None
        name = name.removeprefix("arg:").removeprefix("aux:")
        if name in out:
            raise ParamsError(f"two arrays are called {name}")
        out[name] = array
    return out


def _array(reader: _Reader, i: int) -> Array:
    what = f"array {i}"
    (first,) = reader.unpack("<I", what)
    version = _VERSIONS.get(first, 0)
    if version >= 2:
        (storage,) = reader.unpack("<i", what)
        if storage != 0:
            kind = _STORAGE.get(storage, f"unknown ({storage})")
            raise ParamsError(f"{what} is stored as {kind}; save it dense (tostype('default'))")
    rank = first if version == 0 else reader.unpack("<i", what)[0]
    if not 0 <= rank <= _MAX_RANK:
        raise ParamsError(f"{what} has {rank} axes")
    if rank == 0 and version < 3:
        raise ParamsError(f"{what} is empty: it was saved before it had a shape")
    shape = reader.unpack(f"<{rank}{'I' if version == 0 else 'q'}", what)
    if any(d < 0 for d in shape):
        raise ParamsError(f"{what} has the sizes {shape}")
    *_, code = reader.unpack("<iii", what)  # kind and number of the device, element type
    if code not in _TYPES:
        raise ParamsError(f"{what} has elements of the unknown type {code}")
    dtype, size = np.dtype(_TYPES[code]), 1
    for d in shape:
        size *= d
    raw = reader.take(size * dtype.itemsize, f"{what} of {' x '.join(map(str, shape))} {dtype}")
    array: Array = np.frombuffer(raw, dtype).reshape(shape).copy()
    return array


class _Reader:
    """Walks through bytes; ParamsError says at what they ended."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = memoryview(data), 0

    def take(self, n: int, what: str) -> memoryview:
        left = len(self._data) - self._at
        if n > left:
            raise ParamsError(f"the file ends inside {what}: {n} bytes are wanted, {left} are left")
        self._at += n
        return self._data[self._at - n : self._at]

    def unpack(self, form: str, what: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form), what))

    def count(self, least: int, what: str) -> int:
        """A number of things that take at least so many bytes each."""
        (n,) = self.unpack("<Q", f"the number of {what}")
        left = len(self._data) - self._at
        if n * least > left:
            raise ParamsError(f"the file says that it holds {n} {what}, and {left} bytes are left for them")
        return int(n)
