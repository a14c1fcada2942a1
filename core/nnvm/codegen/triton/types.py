"""Element types and constants as Triton writes them."""

from __future__ import annotations

import math

from nnvm.dtype import F32, DType

__all__ = ["constant", "pointer_type", "type_name"]

_NAMES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64", "bool": "int1"}
_POINTERS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1"}


def type_name(t: DType) -> str:
    """``tl.float32``, ``tl.int1``, ..."""
    return f"tl.{_NAMES.get(t.name, t.name)}"


def pointer_type(t: DType) -> str:
    """The type of a pointer in a kernel's signature: ``*fp32``, ``*i64``, ``*u8``, ..."""
    return "*" + (_POINTERS.get(t.name) or f"{t.kind}{t.bits}")


def number(value: float | int | bool) -> str:
    """A number as a Python expression that Triton understands."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def constant(value: float | int | bool, t: DType, rank: int) -> str:
    """A constant of type `t`; Triton would make a float32 or an int32 of a bare number."""
    if t == F32:
        return number(value)
    return f"tl.full({[1] * rank}, {number(value)}, {type_name(t)})"
