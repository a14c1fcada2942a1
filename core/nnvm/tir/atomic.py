"""The greater and the less of floats by integer comparisons of their bits, which is what GPUs do atomically.

Bits of a float without a sign are ordered as those of a signed integer, and below them all that have one; of two with a
sign the less has the greater bits as an unsigned integer. A NaN is on top where its sign is right.
"""

from __future__ import annotations

__all__ = ["nan_bits"]


def nan_bits(op: str, width: int) -> int:
    """The NaN that stays whatever it is combined with by `op` (``max`` or ``min``), as a signed integer of `width` (32
    or 64) bits."""
    quiet = 0x7FC00000 if width == 32 else 0x7FF8000000000000
    return quiet if op == "max" else quiet - (1 << (width - 1))
