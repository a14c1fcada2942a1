"""All models of a run, one after the other, and what is written of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from nnvm.atomic_write import atomic_write

from .config import BenchConfig
from .driver import run_model
from .engine import Side
from .environment import environment
from .errors import BenchError
from .report import WIDTH_WITHOUT_TERMINAL
from .results import BenchResult

__all__ = ["Tell", "check_writable", "make_console", "run_bench", "write_json"]

#: Told what is going on, and which part of the work is done.
Tell = Callable[[str, float], None]


def run_bench(
    config: BenchConfig, side: Side, packages: Sequence[str], tell: Tell,
    after_model: Callable[[BenchResult], None] = lambda result: None,
) -> BenchResult:  # fmt: skip
    """Measures everything; ``after_model`` sees what there is so far, so that an interruption does not lose it.

    `packages`: whose versions are recorded. `tell`: never called beside a measurement.
    """
    result = BenchResult(config, environment(packages))
    for index, model in enumerate(config.models):

        def progress(step: str, part: float, index: int = index, model: str = model) -> None:
            tell(f"{model}: {step}", (index + part) / len(config.models))

        result.models.append(run_model(model, config, side, progress))
        after_model(result)
    return result


def make_console() -> Console:
    """Lines are not folded to 80 columns when nobody's terminal is that narrow."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def check_writable(path: Path) -> None:
    """A wrong path is said before an hour of measuring, not after: BenchError."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise BenchError(f"--json {path}: no such folder")


def write_json(result: BenchResult, path: str | Path | None) -> None:
    """As `atomic_write` does it, so that an interruption leaves what was there; nothing without a path."""
    if path:
        text = json.dumps(result.to_json(), indent=1, ensure_ascii=False) + "\n"
        with atomic_write(path) as file:
            file.write(text.encode())
