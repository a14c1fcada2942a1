"""``nnvm bench``: the options. The work is done by ``nnvm_torch.bench``, which is imported only when it runs."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

from nnvm.cpu_list import parse_cpu_list

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
All weights are random; nothing is downloaded. Without MODEL: resnet18, mobilenet_v2 and minilm.

ENGINE is one of
  eager  nnvm  nnvm-direct  inductor  inductor-freezing  inductor-max-autotune  onnxruntime  openvino
  backend:NAME       any other backend of torch.compile
  all                in --against: every engine that is installed
"""


def positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def name_list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def core_list(text: str) -> tuple[int, ...]:
    try:
        return parse_cpu_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of processors as 0,2-4: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="what to run; see above")
    parser.add_argument(
        "--against", type=name_list, default=("eager",), metavar="ENGINE,...", help="engines to compare with (eager)"
    )
    parser.add_argument("--engine", default="nnvm", metavar="ENGINE", help="the engine under test (nnvm)")
    parser.add_argument("--threads", type=positive_int, default=1, help="threads of every engine (1)")
    parser.add_argument("--cores", type=core_list, metavar="0,2-3", help="cores to pin to (the last physical ones)")
    parser.add_argument("--batch", type=positive_int, default=1, help="batch size (1)")
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
            raise CliError("needs PyTorch: pip install torch", status=1) from None
        if error.name == "nnvm_torch":
            raise CliError("needs the nnvm_torch package: pip install nnvm-torch", status=1) from None
        raise


def run(args: argparse.Namespace) -> int:
    status: int = torch_side().main(args)
    return status


COMMAND = Command("bench", "compare nnvm with eager PyTorch and other engines", DESCRIPTION, add_arguments, run)
