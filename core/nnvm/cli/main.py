"""Entry point of the ``nnvm`` console script.

A new subcommand is a module with a ``COMMAND`` and one more line in ``COMMANDS``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from . import bench, bisect, compile, doctor, export_c, run, show
from .command import CliError, Command, one_line_errors

__all__ = ["COMMANDS", "main"]

#: In the order in which ``nnvm --help`` lists them.
COMMANDS: tuple[Command, ...] = (
    show.COMMAND,
    compile.COMMAND,
    run.COMMAND,
    export_c.COMMAND,
    bench.COMMAND,
    bisect.COMMAND,
    doctor.COMMAND,
)


EPILOG = """\
exit status: 0 it went well · 1 something failed (a file, a model, a row of a benchmark) · 2 wrong use ·
130 interrupted. Errors are one line on stderr; --debug, after the command, shows the traceback too.
"""


def version() -> str:
    """The installed version of nnvm-torch, or ``unknown`` where it runs from a source tree that is not installed."""
    try:
        return importlib.metadata.version("nnvm-torch")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nnvm", description="The nnvm compiler.", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"nnvm-torch {version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(subparser)
        subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        subparser.set_defaults(command=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0 good, 1 something failed, 2 wrong use, 130 interrupted."""
    args = build_parser().parse_args(argv)
    command: Command = args.command
    try:
        with one_line_errors(args.debug):
            status = command.run(args)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a reader that went away is still no traceback
            return status
    except CliError as error:
        print(f"nnvm {command.name}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print(f"nnvm {command.name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) went away. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
