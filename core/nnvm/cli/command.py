"""What a subcommand is, and the one exception that it may raise to end with a line instead of a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CliError", "Command"]


class CliError(Exception):
    """Ends the command: the message goes to stderr as one line, ``status`` to the shell (2 is wrong use)."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Command:
    """A subcommand of ``nnvm``.

    Attributes:
        name: what the user types.
        summary: one line for ``nnvm --help``.
        description: what ``nnvm NAME --help`` says above the options; kept as it is laid out.
        add_arguments: declares the options. It must stay cheap: it runs for every ``nnvm`` call.
        run: does the work and returns the exit status.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
