"""``nnvm bench``: the options. ``nnvm.bench`` and ``nnvm_torch.bench`` do the work; they are imported when it runs."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

from .arguments import core_list, name_list, named_file, positive_float, positive_int, shape
from .command import CliError, Command

__all__ = ["COMMAND"]

DESCRIPTION = """\
Compare nnvm with eager PyTorch and with other engines, side by side.

Every engine runs in a process of its own, on the same cores with the same number of threads; rounds are interleaved
and only one process runs at a time. Each row has the median latency, the speed relative to eager (median of the
per-round ratios, with its quartiles), the largest error against a float64 run relative to the range of the output,
the time of the first call, and the peak memory of the process.

MODEL is one of
  zoo:NAME           a network of ours in plain torch (nothing else to install)
  torchvision:NAME   a classifier of torchvision        timm:NAME   any model of timm
  hf:NAME            a transformers model built from a configuration; also a model type, or a config.json
  FILE.py:FACTORY    yours: FACTORY() returns (module, example_inputs)
  NAME               whichever of these has it, zoo first
  FILE.onnx          an ONNX file; needs no PyTorch. Inputs are random, of the declared types; errors are relative to
                     ONNX Runtime without optimisations where it is installed. --shape gives sizes that the file leaves
                     open, --input NAME=FILE.npy takes an input from a file
All weights but those of files are random; nothing is downloaded. Without MODEL: resnet18, mobilenet_v2 and minilm.

ENGINE is one of
  eager  nnvm  nnvm-direct  inductor  inductor-freezing  inductor-max-autotune  nnvm-onnx  onnxruntime  openvino
  backend:NAME       any other backend of torch.compile
  ort, ov            short for onnxruntime and openvino; with nnvm, these are the engines of ONNX files
  all                in --against: every engine that is installed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="what to run; see above")
    parser.add_argument(
        "--against",
        type=name_list,
        default=(),
        metavar="ENGINE,...",
        help="engines to compare with (eager; onnxruntime for ONNX files)",
    )
    parser.add_argument("--engine", default="nnvm", metavar="ENGINE", help="the engine under test (nnvm)")
    parser.add_argument("--threads", type=positive_int, default=1, help="threads of every engine (1)")
    parser.add_argument("--cores", type=core_list, metavar="0,2-3", help="cores to pin to (the last physical ones)")
    parser.add_argument(
        "--batch", type=positive_int, default=1, help="batch size; of an ONNX file: its first size, where open (1)"
    )
    parser.add_argument(
        "--shape", action="append", default=[], type=shape, metavar="NAME=SIZES",
        help="shape of an input of an ONNX file, as x=1,3,224,224; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--input", action="append", default=[], type=named_file, metavar="NAME=FILE",
        help="an .npy file for an input of an ONNX file, instead of random values; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="type of weights and inputs"
    )
    parser.add_argument("--rounds", type=positive_int, default=21, help="interleaved rounds (21)")
    parser.add_argument(
        "--seconds", type=positive_float, default=4.0, help="measuring time for each engine and model (4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and inputs (0)")
    parser.add_argument(
        "--timeout", type=positive_float, default=600.0, help="seconds until a worker counts as hung (600)"
    )
    parser.add_argument("--keep-caches", action="store_true", help="let engines use their disk caches (warm compile)")
    parser.add_argument(
        "--profile", action="store_true", help="instead: nnvm's kernels one by one, against what the machine reaches"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured to FILE")
    parser.add_argument("--list", action="store_true", help="list the models and engines, and what is installed")


def torch_side() -> ModuleType:
    """``nnvm_torch.bench.run``, or the one line that says what to install."""
    try:
        return importlib.import_module("nnvm_torch.bench.run")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise CliError("needs PyTorch, except for ONNX files: pip install torch", status=1) from None
        if error.name == "nnvm_torch":
            raise CliError("needs the package nnvm_torch, except for ONNX files: pip install nnvm-torch",
                           status=1) from None  # fmt: skip
        raise


def side(args: argparse.Namespace) -> ModuleType:
    """What runs the models that were named: ONNX files need no PyTorch."""
    files = [model for model in args.models if model.endswith(".onnx")]
    if not files:
        return torch_side()
    if len(files) < len(args.models):
        raise CliError("give ONNX files and models that PyTorch builds to commands of their own: their engines differ")
    if args.profile:
        raise CliError("--profile is for models that PyTorch builds; `nnvm show FILE.onnx -o page.html --time` shows "
                       "the kernels of an ONNX file")  # fmt: skip
    return importlib.import_module("nnvm.bench.onnx.run")


def run(args: argparse.Namespace) -> int:
    from nnvm.bench.errors import BenchError

    try:
        main = side(args).main
    except ModuleNotFoundError as error:
        raise CliError(f"needs the package {error.name}: pip install {error.name}", status=1) from error
    try:
        status: int = main(args)
    except BenchError as error:
        raise CliError(str(error)) from error
    return status


COMMAND = Command("bench", "compare nnvm with eager PyTorch and other engines", DESCRIPTION, add_arguments, run)
