"""LLVM spellings of element types and constants.

In registers the half types are their 16 bits (``i16``) and bool is ``i1``; in memory bool is ``i8``.
"""

from __future__ import annotations

import math
import struct
from functools import cache, lru_cache

import numpy as np

from nnvm.dtype import DType, f32_to_bf16

__all__ = ["lanes_literal", "literal", "mask_type", "memory_type", "register_type", "suffix", "vector"]


def _scalar(t: DType) -> str:
    if t.is_bool:
        return "i1"
    if t.is_float and not t.is_half:
        return "float" if t.bits == 32 else "double"
    return f"i{t.bits}"


def vector(scalar: str, lanes: int) -> str:
    """The vector type of `lanes` elements; the scalar itself for one lane."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def register_type(t: DType, lanes: int = 1) -> str:
    return vector(_scalar(t), lanes)


@cache
def memory_type(t: DType, lanes: int = 1) -> str:
    return vector("i8" if t.is_bool else _scalar(t), lanes)


def mask_type(lanes: int) -> str:
    return vector("i1", lanes)


@cache
def suffix(llvm_type: str) -> str:
    """The type as intrinsics' names spell it: ``v8f32`` for ``<8 x float>``."""
    lanes, _, scalar = llvm_type.strip("<>").rpartition(" x ")
    name = {"float": "f32", "double": "f64", "ptr": "p0"}.get(scalar, scalar)
    return f"v{lanes}{name}" if lanes else name


def lanes_literal(scalar: str, values: tuple[int, ...]) -> str:
    """A vector constant of integers."""
    return "<" + ", ".join(f"{scalar} {v}" for v in values) + ">"


def literal(value: int | float | bool, t: DType, lanes: int = 1) -> str:
    """A constant of type `t`, repeated in every lane."""
    return _literal(value, math.copysign(1.0, value), t, lanes)


@lru_cache(maxsize=4096)
def _literal(value: int | float | bool, sign: float, t: DType, lanes: int) -> str:
    """`sign` is part of the key: 0.0 and -0.0 are equal."""
    text = _scalar_literal(value, t)
    if lanes == 1:
        return text
    if text in ("0", "false", "0x0000000000000000"):
        return "zeroinitializer"
    return "<" + ", ".join([f"{_scalar(t)} {text}"] * lanes) + ">"


def _scalar_literal(value: int | float | bool, t: DType) -> str:
    if t.is_bool:
        return "true" if value else "false"
    if not t.is_float:
        return str(int(value))
    with np.errstate(over="ignore"):
        if t.name == "float16":
            return str(int(np.float32(value).astype(np.float16).view(np.uint16)))
        if t.name == "bfloat16":
            return str(int(f32_to_bf16(np.float32(value))))
        number = float(np.float32(value)) if t.bits == 32 else float(value)
    if number != number:
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
