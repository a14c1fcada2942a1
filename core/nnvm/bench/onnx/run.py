"""``nnvm bench FILE.onnx``: from parsed arguments to the table, the JSON and the exit status."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from nnvm.bench.config import BenchConfig
from nnvm.bench.engine import chosen_engines
from nnvm.bench.errors import BenchError
from nnvm.bench.onnx.engines import ONNX
from nnvm.bench.pinning import choose_cores
from nnvm.bench.report import print_result
from nnvm.bench.run import check_writable, make_console, run_bench, write_json
from nnvm.progress import progress_bar

__all__ = ["RECORDED", "main"]

#: Packages whose versions belong to the record.
RECORDED = ("nnvm-torch", "llvmlite", "numpy", "onnx", "onnxruntime", "openvino")


def main(args: argparse.Namespace) -> int:
    """0: everything ran and was right; 1: something failed or was wrong; BenchError: wrong use."""
    console = make_console()
    config = make_config(args, console)
    if args.json:
        check_writable(Path(args.json))
    with progress_bar() as tell:
        result = run_bench(config, ONNX, RECORDED, tell, lambda partial: write_json(partial, args.json))
    print_result(result, console)
    return 0 if result.good else 1


def make_config(args: argparse.Namespace, console: Console) -> BenchConfig:
    """Raises BenchError for what can be seen to be wrong before anything runs."""
    for model in args.models:
        if not Path(model).is_file():
            raise BenchError(f"no file {model}")
    for name, file in args.input:
        if not Path(file).is_file():
            raise BenchError(f"--input {name}={file}: no file {file}")
    shapes: dict[str, tuple[int, ...]] = {}
    for name, sizes in args.shape:
        if not all(isinstance(n, int) for n in sizes):
            raise BenchError(f"--shape {name}={','.join(map(str, sizes))}: a benchmark needs numbers")
        shapes[name] = sizes
    against: Sequence[str] = args.against or ("onnxruntime",)
    subject = ONNX.find(args.engine).name
    engines, skipped = chosen_engines(ONNX, (), [*against, subject])
    for line in skipped:
        console.print(f"skipped {line}", style="dim", highlight=False)
    baseline = next((name for name in engines if name != subject), subject)
    engines = tuple(dict.fromkeys((baseline, subject, *engines)))
    return BenchConfig(
        models=tuple(str(Path(model).resolve()) for model in args.models),
        engines=engines,
        subject=subject,
        baseline=baseline,
        threads=args.threads,
        cores=choose_cores(args.threads, args.cores),
        batch=args.batch,
        rounds=args.rounds,
        seconds=args.seconds,
        seed=args.seed,
        timeout=args.timeout,
        keep_caches=args.keep_caches,
        shapes=shapes,
        inputs=dict(args.input),
    )
