"""Python's operators on what is computed later: each names the op that it stands for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Arithmetic"]


class Arithmetic(ABC):
    """Base of classes whose values take part in ``+ - * / ** @``, among themselves and with numbers."""

    #: numpy's numbers leave the operation to us: ``np.float32(2) * x`` is ``x.__rmul__(np.float32(2))``.
    __array_ufunc__ = None

    @abstractmethod
    def _apply(self, name: str, *operands: Any) -> Any:
        """The op `name` applied to the operands, of which one is this value."""

    def __add__(self, other: Any) -> Any:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return self._apply("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._apply("power", other, self)

    def __matmul__(self, other: Any) -> Any:
        return self._apply("matmul", self, other)

    def __abs__(self) -> Any:
        return self._apply("abs", self)

    def __neg__(self) -> Any:
        return self._apply("negative", self)
