"""What kernels raise, on whatever they run."""

from __future__ import annotations

__all__ = ["KernelError", "KernelIndexError", "KernelZeroDivisionError", "failure"]


class KernelError(RuntimeError):
    """A kernel failed at run time: an Assert or Check did not hold, or an integer was divided by 0."""


class KernelIndexError(KernelError, IndexError):
    """An index was out of range."""


class KernelZeroDivisionError(KernelError, ZeroDivisionError):
    """An integer was divided by zero. Its message is that of PyTorch's RuntimeError."""


def failure(message: str) -> KernelError:
    """The exception of a failure message, by the name it begins with (``IndexError: ...``)."""
    kind, _, rest = message.partition(":")
    known = {"IndexError": KernelIndexError, "ZeroDivisionError": KernelZeroDivisionError}.get(kind.strip())
    if known is None:
        return KernelError(message)
    return known(rest.strip() or (kind if kind == "ZeroDivisionError" else "index out of range"))
