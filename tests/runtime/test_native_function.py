"""Machine code as Python functions."""

from __future__ import annotations

import gc
import weakref

from nnvm.runtime.loaded_code import load_ir
from nnvm.runtime.native_function import NativeFunction, context_of, python_api

#: Gives the context's second word plus the number of arguments.
IR = """
declare ptr @PyByteArray_AsString(ptr)
declare ptr @PyLong_FromLongLong(i64)

define ptr @added(ptr %self, ptr %args, i64 %count) {
  %context = call ptr @PyByteArray_AsString(ptr %self)
  %at = getelementptr i64, ptr %context, i64 1
  %word = load i64, ptr %at
  %sum = add i64 %word, %count
  %result = call ptr @PyLong_FromLongLong(i64 %sum)
  ret ptr %result
}
"""


class Kept:
    """Something that a function is to keep alive."""


def added() -> NativeFunction:
    return NativeFunction(load_ir(IR, ["added"], python_api("PyByteArray_AsString", "PyLong_FromLongLong")), "added")


def test_each_function_has_its_context():
    code = added()
    first, second = code.bound(context_of([0, 40])), code.bound(context_of([9, -(1 << 40)]))
    assert (first(), first(None, "x"), second(1)) == (40, 42, 1 - (1 << 40))
    assert first.__name__ == "added"


def test_a_function_keeps_its_code_and_what_it_was_given():
    kept = Kept()
    function, alive = added().bound(context_of([0, 7]), (kept,)), weakref.ref(kept)
    del kept
    gc.collect()
    assert alive() is not None and function(0) == 8
    del function
    assert alive() is None
