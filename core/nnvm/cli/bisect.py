"""``nnvm bisect``: the options. The work is done by ``nnvm_torch.bisect``, which is imported only when it runs."""

from __future__ import annotations

import argparse
import importlib

from .arguments import positive_int
from .command import CliError, Command

__all__ = ["COMMAND"]

DESCRIPTION = """\
Run a script that uses torch.compile(..., backend="nnvm") and check every compiled graph: its first calls are made in
eager and in float64 too. At the first difference it says which graph pass makes it wrong, which fused group (with the
lines of your code) differs from what its operators mean, or which ATen call was converted wrongly, and writes a
folder with a script that shows the difference alone: repro.py and its inputs.

The exit status is 0 where all agree, 1 where something differs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=positive_int, default=1, help="calls of each graph that are checked (1)")
    parser.add_argument("--out", metavar="DIR", default="nnvm-bisect", help="where the reproduction goes (nnvm-bisect)")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def run(args: argparse.Namespace) -> int:
    try:
        work = importlib.import_module("nnvm_torch.bisect")
    except ModuleNotFoundError as error:
        raise CliError(f"needs the package {error.name}: pip install {error.name}", status=1) from error
    status: int = work.main(args.script, args.arguments, args.calls, args.out)
    return status


COMMAND = Command("bisect", "find what makes results of a script wrong", DESCRIPTION, add_arguments, run)
