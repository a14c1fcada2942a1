"""Machine code as Python functions: a call costs what one of a built-in function does, a fraction of one by ctypes.

The code has the calling convention of CPython's own functions (METH_FASTCALL) and calls nothing of Python but functions
of its stable ABI (https://docs.python.org/3/c-api/stable.html), so that it knows the layout of no Python object::

    PyObject *code(PyObject *self, PyObject *const *args, Py_ssize_t count)

`self` is a bytearray, the function's context: ``PyByteArray_AsString(self)`` is the address of its words.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from nnvm.runtime.loaded_code import LoadedCode

__all__ = ["NativeFunction", "context_of", "python_api"]

_METH_FASTCALL = 0x0080


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


_new = ctypes.pythonapi.PyCFunction_NewEx
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]  # the last one: any object, held


class NativeFunction:
    """Loaded code of the above convention; it stays loaded as long as this lives."""

    def __init__(self, code: LoadedCode, name: str) -> None:
        self._code = code
        self._method = _MethodDef(name.encode(), code[name], _METH_FASTCALL, None)

    def bound(self, context: bytearray, keep: tuple[Any, ...] = ()) -> Callable[..., Any]:
        """A Python function that hands `context` to the code, and keeps it alive, as it does the code and `keep`: what
        the words point to. The number and the types of its arguments are not checked."""
        made: Callable[..., Any] = _new(ctypes.addressof(self._method), context, (self, *keep))
        return made


def context_of(words: Sequence[int]) -> bytearray:
    """A context of 64-bit words."""
    return bytearray((ctypes.c_int64 * len(words))(*words))


def python_api(*names: str) -> dict[str, int]:
    """Addresses of functions of Python's C API, as `load_ir` takes them for what a module declares."""
    return {n: ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value or 0 for n in names}
