"""``nnvm export-c``: a compiled model for programs without Python."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .arguments import output
from .command import CliError, Command

__all__ = ["COMMAND"]

DESCRIPTION = """\
Write a model that `nnvm compile` made as C: a header with nnvm_create, nnvm_run and nnvm_destroy, the source behind it,
the kernels as a static library, the weights as a safetensors file, and an example program. Where there is a C compiler
(what CC says; cc, gcc or clang; aarch64-linux-gnu-gcc and the like for other machines; or the one in the Python package
ziglang, which compiles for all of them) it makes a shared library of it too; the header says how to make a program.

examples
  nnvm export-c model.nnvm -o model_c --level x86-64-v3
  nnvm compile model.onnx -o arm.nnvm --target aarch64 && nnvm export-c arm.nnvm -o model_c
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE.nnvm", help="the compiled model")
    parser.add_argument("-o", "--output", type=output, metavar="DIR", required=True, help="the folder to write to")
    parser.add_argument("--level", metavar="NAME", help="the code to take, where the file has several")
    parser.add_argument("--json", action="store_true", help="say what was written as JSON")


def run(args: argparse.Namespace) -> int:
    from nnvm.artifact.c_source import compiler, export_c, link_shared
    from nnvm.runtime.artifact.container import ArtifactError, Container
    from nnvm.runtime.artifact.module import read_spec

    try:
        container = Container(args.model)
        files = export_c(container, Path(args.output), args.level)
        levels = {level.name: level.triple for level in read_spec(container).levels}
        command = compiler(levels[args.level or next(iter(levels))])
        if command is not None:
            files.append(link_shared(files, command))
    except (ArtifactError, RuntimeError) as error:
        raise CliError(str(error), status=1) from error
    except ValueError as error:
        raise CliError(f"--level: {error}") from error
    if args.json:
        print(json.dumps({"files": [str(f) for f in files]}, indent=2))
    else:
        print("\n".join(f"wrote {f} ({f.stat().st_size} bytes)" for f in files))
        if command is None:
            print("no C compiler for this level was found, so there is no shared library: set CC to one, or "
                  "pip install ziglang")  # fmt: skip
    return 0


COMMAND = Command("export-c", "write a compiled model as C", DESCRIPTION, add_arguments, run)
