"""``nnvm run``: a compiled model on arrays from files."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnvm.atomic_write import atomic_write

from .arguments import output, positive_int
from .command import CliError, Command, one_line

if TYPE_CHECKING:  # what is imported here would make every `nnvm` call wait
    from nnvm.runtime.artifact.module import Module

__all__ = ["COMMAND"]

DESCRIPTION = """\
Run a model that `nnvm compile` wrote, on arrays from .npy or .npz files. It needs numpy and llvmlite alone; a model
compiled for a GPU needs that and its driver.

examples
  nnvm run model.nnvm                                  its inputs and outputs, without running it
  nnvm run model.nnvm --input x.npy                    the only input, or the one called like the file
  nnvm run model.nnvm --input ids=a.npy --input mask=b.npy -o out.npz
  nnvm run model.nnvm --input all.npz -o out.npz       arrays by name
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE.nnvm", help="the compiled model")
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]FILE",
        help="an array in an .npy file, or arrays by name in an .npz file; may be repeated",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=output, metavar="FILE", help="write the outputs by name to an .npz file")
    parser.add_argument("--level", metavar="NAME", help="the code to use, as x86-64-v2 (default: the best for here)")
    parser.add_argument(
        "--threads", type=positive_int, metavar="N",
        help="threads of the system's OpenMP, which is loaded for it (default: one thread)",
    )  # fmt: skip
    parser.add_argument("--calls", type=positive_int, default=1, help="calls, of which the median time is told (1)")
    parser.add_argument("--json", action="store_true", help="say what came out as JSON")


def run(args: argparse.Namespace) -> int:
    from nnvm.runtime import openmp
    from nnvm.runtime.artifact.module import ArtifactError, load
    from nnvm.runtime.cuda_driver import CudaError

    if args.output is not None and not args.output.endswith(".npz"):
        raise CliError("-o writes an .npz file: give it that ending")
    if args.threads is not None and not openmp.set_threads(args.threads):
        raise CliError(f"--threads: there is no OpenMP runtime here (looked for {', '.join(openmp.LIBRARIES)})",
                       status=1)  # fmt: skip
    try:
        module = load(args.model, level=args.level)
        if not args.input and module.inputs:
            print(_described(module, args.json))
            return 0
        arrays = _arrays(module, args.input)
        times = []
        for _ in range(args.calls):
            start = time.perf_counter()
            outputs = module.run(arrays)
            times.append(time.perf_counter() - start)
    except (ArtifactError, CudaError, KeyError, TypeError, ValueError) as error:
        raise CliError(one_line(error), status=1) from error
    if args.output is not None:
        _write(args.output, outputs)
    print(_said(module, outputs, sorted(times)[len(times) // 2], args.json))
    return 0


def _arrays(module: Module, given: list[str]) -> dict[str, Any]:
    """Arrays by input name."""
    from nnvm.array_file import load_arrays

    names = [t.name for t in module.inputs]
    arrays: dict[str, Any] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or Path(text).is_file():  # a file may have an equals sign in its name
            name, file = "", text
        loaded = load_arrays(file)
        if not isinstance(loaded, dict):
            stem = Path(file).stem
            loaded = {name or (stem if stem in names or len(names) != 1 else names[0]): loaded}
        elif name:
            if len(loaded) != 1:
                raise CliError(f"--input {text}: {file} holds {len(loaded)} arrays; leave out the name")
            loaded = {name: next(iter(loaded.values()))}
        arrays.update(loaded)
    return arrays


def _write(file: str, outputs: dict[str, Any]) -> None:
    """An .npz file; names may be any text, so they are not given as keywords."""
    import zipfile

    from numpy.lib import format as npy

    with atomic_write(file) as out, zipfile.ZipFile(out, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def _described(module: Module, as_json: bool) -> str:
    sides = {"inputs": module.inputs, "outputs": module.outputs}
    if as_json:
        return json.dumps({"model": module.name, "level": module.level,
                           **{k: {t.name: str(t) for t in v} for k, v in sides.items()}}, indent=2)  # fmt: skip
    lines = [f"{module.name}, code for {module.level}; --input gives it arrays"]
    lines += [f"  {kind[:-1]:6} {t.name}: {t}" for kind, side in sides.items() for t in side]
    return "\n".join(lines)


def _said(module: Module, outputs: dict[str, Any], seconds: float, as_json: bool) -> str:
    from nnvm.runtime.openmp import max_threads

    types = {t.name: t.dtype for t in module.outputs}
    facts = {name: _facts(array, types[name]) for name, array in outputs.items()}
    if as_json:
        told = {"model": module.name, "level": module.level, "threads": max_threads()}
        return json.dumps({**told, "milliseconds": round(seconds * 1e3, 4), "outputs": facts}, indent=2)
    lines = [f"{module.name}, code for {module.level}, at most {max_threads()} threads: {seconds * 1e3:.3f} ms"]
    for name, f in facts.items():
        values = "".join(f", {k} {f[k]:.6g}" for k in ("min", "max", "mean") if k in f)
        lines.append(f"  {name}: {f['dtype']}{f['shape']}{values}")
    return "\n".join(lines)


def _facts(array: Any, dtype: Any) -> dict[str, Any]:
    from nnvm.dtype import BF16, bf16_to_f32

    facts: dict[str, Any] = {"dtype": str(dtype), "shape": list(array.shape)}
    values = bf16_to_f32(array) if dtype == BF16 else array
    if array.size:
        found = {"min": values.min(), "max": values.max(), "mean": values.mean(dtype="float64")}
        facts.update({k: float(v) for k, v in found.items() if math.isfinite(v)})  # JSON knows no other numbers
    return facts


COMMAND = Command("run", "run a compiled model on arrays from files", DESCRIPTION, add_arguments, run)
