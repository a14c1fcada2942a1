"""The type of a tensor in the graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nnvm.dim import Dim, Shape, is_static, numel
from nnvm.dtype import F32, DType

__all__ = ["TensorType"]


@dataclass(frozen=True)
class TensorType:
    """Shape, element type, device and layout of one tensor.

    Attributes:
        shape: dimensions; an int or a `SymDim` each. Tensors inside a graph are contiguous in this order.
        dtype: element type.
        device: where it lives, ``cpu`` or ``cuda:0``.
        layout: meaning of the axes where a pass cares (``NCHW``, ``NCHW8c``); None: nobody does.
    """

    shape: Shape
    dtype: DType = F32
    device: str = "cpu"
    layout: str | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return is_static(self.shape)

    @property
    def numel(self) -> Dim:
        return numel(self.shape)

    @property
    def nbytes(self) -> Dim:
        """Bytes of the contiguous tensor."""
        return self.numel * self.dtype.bytes

    def with_shape(self, shape: Shape) -> TensorType:
        return replace(self, shape=tuple(shape), layout=None)

    def with_dtype(self, dtype: DType) -> TensorType:
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" @{self.device}"
        layout = f" {self.layout}" if self.layout else ""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{layout}{where}"
