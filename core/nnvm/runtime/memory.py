"""Where an Executor gets memory from. Frontends give their own `Memory` (torch tensors); this one is numpy's."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_char
from functools import partial
from typing import Any, Protocol

import numpy as np

from nnvm.dtype import DType

__all__ = ["ALIGNMENT", "Memory", "NumpyMemory", "address_of", "aligned"]

#: Alignment of arenas and of storages inside them, in bytes: a cache line, and the widest vector.
ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Address of the first element; a quarter of the time of ``array.ctypes.data`` where the array can be written."""
    if array.flags.writeable:
        try:
            return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]  # typed as a buffer from 3.12 on
        except (TypeError, ValueError, BufferError):  # no elements, strides, or a type that buffers do not know
            pass
    return int(array.ctypes.data)


class Memory(Protocol):
    """Makes and looks at tensors of one kind.

    Attributes:
        keeps_arenas: whether the arena of a call that returned may be given to another; not where calls only start work
            that goes on.
    """

    keeps_arenas: bool

    def address(self, tensor: Any, /) -> int:
        """That of the first element of a tensor that native code reads or writes."""

    def absent(self, tensor: Any, /) -> int:
        """0, the address of a tensor without elements; RuntimeError for one with elements that have no memory."""

    def maker(self, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None) -> Callable[[], Any]:
        """What makes a new uninitialised tensor at each call; `strides` in elements, None for contiguous."""

    def empty(self, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None) -> Any:
        """One such tensor."""

    def arena(self, nbytes: int) -> Any:
        """New uninitialised bytes."""

    def view(self, arena: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        """A contiguous tensor on `arena`, without a copy, from byte `offset` on."""

    def reshape(self, tensor: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        """A contiguous tensor on the memory of the contiguous `tensor`, from byte `offset` on; `tensor` itself,
        whatever its strides, where that is all of it."""

    def contiguous(self, tensor: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """`tensor` itself where it is contiguous, else a copy; ValueError where shape or dtype differ."""

    def copy(self, target: Any, source: Any) -> None:
        """Copies the elements of `source` into `target` of the same shape, whatever the strides."""

    def pointer(self, tensor: Any) -> int:
        """`address`; 0 of what has none, which native code never touches."""

    def flags(self, count: int) -> Any:
        """Where launches on a GPU tell that a check failed: an object whose `address`, the same for host and device, is
        that of `count` int32 that are 0; None where kernels run on the host."""


class NumpyMemory:
    """Memory as numpy arrays."""

    keeps_arenas = True
    address = staticmethod(address_of)

    def absent(self, tensor: Any, /) -> int:
        return 0

    def maker(self, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None) -> Callable[[], Any]:
        if strides is None:
            return partial(np.empty, shape, dtype.numpy)
        return partial(_strided, shape, np.dtype(dtype.numpy), strides)

    def empty(self, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None) -> Any:
        return self.maker(shape, dtype, strides)()

    def arena(self, nbytes: int) -> Any:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + nbytes]

    def view(self, arena: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        return np.ndarray(shape, dtype.numpy, buffer=arena, offset=offset)

    def reshape(self, tensor: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        if offset == 0 and tensor.shape == shape and tensor.dtype == dtype.numpy:
            return tensor
        return np.ndarray(shape, dtype.numpy, buffer=tensor, offset=offset)

    def contiguous(self, tensor: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        array = np.asarray(tensor)
        if array.shape != shape or array.dtype != dtype.numpy:
            raise ValueError(f"expected {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}")
        return np.ascontiguousarray(array)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def pointer(self, tensor: Any) -> int:
        return address_of(tensor)

    def flags(self, count: int) -> Any:
        return None


def _strided(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...]) -> Any:
    """A new array of these strides, in elements."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
    return np.lib.stride_tricks.as_strided(np.empty(span, dtype), shape, [s * dtype.itemsize for s in strides])
