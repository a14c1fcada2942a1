"""Failures that become a row of the table: a line that says why, and what to do about it."""

from __future__ import annotations

import importlib.util

__all__ = ["BenchError", "one_line", "require"]


class BenchError(Exception):
    """A model or an engine cannot be measured; the message is what the user reads."""


def require(package: str, distribution: str | None = None, otherwise: str = "") -> None:
    """Raises BenchError with the pip command when ``package`` cannot be imported."""
    if importlib.util.find_spec(package) is None:
        hint = f", or {otherwise}" if otherwise else ""
        raise BenchError(f"{package} is not installed: pip install {distribution or package}{hint}")


def one_line(error: BaseException, limit: int = 300) -> str:
    """The exception as one line: its type and the first lines of its message, without the advice that torch appends."""
    if isinstance(error, BenchError):
        return str(error)
    lines: list[str] = []
    for line in str(error).splitlines():
        if line.startswith(("Set TORCHDYNAMO_VERBOSE", "Set TORCH_LOGS", "You can suppress")):
            break
        if line.strip():
            lines.append(line.strip())
    text = f"{type(error).__name__}: {' '.join(lines)}".removesuffix(": ")
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
