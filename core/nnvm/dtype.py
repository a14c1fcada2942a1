"""Element types and their promotion. Shapes count elements; ``DType.bytes`` is the size of one in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = [
    "BF16", "BOOL", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64",
    "DType", "bf16_to_f32", "dtype", "f32_to_bf16", "promote",
]  # fmt: skip


@dataclass(frozen=True)
class DType:
    """A scalar element type.

    Attributes:
        name: canonical name, equal to numpy's and PyTorch's (``float32``, ``bfloat16``, ``int64``, ``bool``).
        kind: ``f`` float, ``i`` signed, ``u`` unsigned, ``b`` bool.
        bits: width in bits of the value; ``bool`` has 1 (and occupies one byte).
    """

    name: str
    kind: str
    bits: int

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    @property
    def bytes(self) -> int:
        """Bytes one element occupies in memory."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer; bool is neither."""
        return self.kind in "iu"

    @property
    def is_signed(self) -> bool:
        return self.kind in "if"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def is_half(self) -> bool:
        """A float narrower than 32 bits: stored narrow, computed in float32."""
        return self.kind == "f" and self.bits == 16

    @property
    def compute(self) -> DType:
        """The type arithmetic on this one is done in (float32 for the half types, itself otherwise)."""
        return F32 if self.is_half else self

    @cached_property
    def numpy(self) -> np.dtype:  # type: ignore[type-arg]
        """The numpy type of the same layout; bfloat16 is carried as its uint16 bits."""
        return np.dtype("uint16" if self.name == "bfloat16" else self.name)

    @property
    def min(self) -> int | float | bool:
        """Least value: -inf for floats."""
        return -float("inf") if self.is_float else False if self.is_bool else -(1 << self.bits - 1) * self.is_signed

    @property
    def max(self) -> int | float | bool:
        """Greatest value: inf for floats."""
        return float("inf") if self.is_float else True if self.is_bool else (1 << self.bits - self.is_signed) - 1


F16, F32, F64 = DType("float16", "f", 16), DType("float32", "f", 32), DType("float64", "f", 64)
BF16 = DType("bfloat16", "f", 16)
I8, I16, I32, I64 = (DType(f"int{b}", "i", b) for b in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"uint{b}", "u", b) for b in (8, 16, 32, 64))
BOOL = DType("bool", "b", 1)

_BY_NAME = {t.name: t for t in (F16, F32, F64, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL)}


def dtype(x: DType | str | type | np.dtype) -> DType:  # type: ignore[type-arg]
    """The DType of a name, a numpy dtype or a DType; ValueError lists the known names."""
    if isinstance(x, DType):
        return x
    name = x if isinstance(x, str) else np.dtype(x).name
    if name not in _BY_NAME:
        raise ValueError(f"unknown dtype {x!r}; known: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def promote(a: DType, b: DType) -> DType:
    """The common type of two tensors' elements, by PyTorch's rules for tensors of equal priority.

    >>> promote(I64, F16), promote(F16, BF16), promote(U8, I8), promote(BOOL, I32)
    (float16, float32, int16, int32)
    """
    if a == b:
        return a
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return F32 if a.bits == b.bits else max(a, b, key=lambda t: t.bits)
    if a.is_signed == b.is_signed:
        return max(a, b, key=lambda t: t.bits)
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned.bits == 64:
        return F32
    return _BY_NAME[f"int{2 * unsigned.bits}"]


def f32_to_bf16(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """float32 values to bfloat16 bits (uint16), rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded).reshape(np.shape(x))


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """bfloat16 bits (uint16) to float32, exactly."""
    return (np.ascontiguousarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(np.shape(bits))
