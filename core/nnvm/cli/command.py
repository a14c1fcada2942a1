"""What a subcommand is, and how it ends with a line instead of a traceback."""

from __future__ import annotations

import argparse
import errno
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CliError", "Command", "one_line", "one_line_errors"]

#: Characters of an error's line; what a library says may be pages.
_LONGEST = 800


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
        run: does the work and returns the exit status. Any exception becomes a line and the status 1.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def one_line(error: BaseException) -> str:
    """What an exception says, as one line of at most a screen."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    found = " ".join(text.split())
    return found if len(found) <= _LONGEST else f"{found[: _LONGEST - 1]}…"


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Any error as a CliError of one line; with `debug` its traceback is shown as well."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader went away, which `main` knows how to end
    except Exception as error:
        if debug:
            traceback.print_exception(error)
        if isinstance(error, CliError):
            raise CliError(one_line(error), error.status) from error
        if isinstance(error, FileNotFoundError) and error.filename and error.strerror == os.strerror(errno.ENOENT):
            raise CliError(f"no file {error.filename}", status=1) from error
        kind = "" if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: "
        more = "" if debug or not kind else " (--debug shows where)"
        raise CliError(f"{kind}{one_line(error) or 'no details'}{more}", status=1) from error
