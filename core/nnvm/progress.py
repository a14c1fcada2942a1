"""A progress bar on stderr where that is a terminal; nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Gives what to call with a text and the part that is done, of 1. It redraws only when called, never beside a
    measurement, and is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda text, done: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:  # compiled models run with numpy and llvmlite alone
        yield lambda text, done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0)

        def tell(text: str, done: float) -> None:
            bar.update(task, description=text.replace("[", r"\["), completed=done, refresh=True)

        yield tell
