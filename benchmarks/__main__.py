"""``python -m benchmarks SUITE``: runs a suite and keeps its JSON and its table in ``benchmarks/results``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from nnvm.bench.config import BenchConfig
from nnvm.bench.engine import chosen_engines
from nnvm.bench.errors import BenchError
from nnvm.bench.pinning import choose_cores
from nnvm.bench.report import markdown, print_result
from nnvm.bench.results import BenchResult
from nnvm.bench.run import make_console, run_bench, write_json
from nnvm.cli.arguments import name_list, positive_float, positive_int
from nnvm.progress import progress_bar
from nnvm_torch.bench.engines import ENGINES, TORCH
from nnvm_torch.bench.environment import RECORDED
from nnvm_torch.bench.models.sources import resolve
from nnvm_torch.bench.run import BASELINE

from .suites import SUITES

RESULTS = Path(__file__).parent / "results"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    listed = "; ".join(f"{name}: {suite.summary}" for name, suite in SUITES.items())
    parser.add_argument("suite", choices=SUITES, metavar="SUITE", help=listed)
    parser.add_argument(
        "--peers", type=name_list, default=(), metavar="ENGINE,...|all",
        help="engines besides eager and nnvm (the suite's own: none, but for onnx)",
    )  # fmt: skip
    parser.add_argument("--engine", default="nnvm", help="the engine under test (nnvm)")
    parser.add_argument("--models", type=name_list, default=(), metavar="MODEL,...", help="only these")
    parser.add_argument("--threads", type=positive_int, default=1)
    parser.add_argument("--batch", type=positive_int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--rounds", type=positive_int, default=21)
    parser.add_argument("--seconds", type=positive_float, default=6.0, help="for each engine and model (6)")
    parser.add_argument("--timeout", type=positive_float, default=900.0)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the files go")
    return parser.parse_args(argv)


def result_name(suite: str, result: BenchResult) -> str:
    """The same for the same suite on the same kind of machine, so that a new run shows as a diff of the old."""
    config, environment = result.config, result.environment
    parts = [suite, environment["llvm_cpu"], f"t{config.threads}", f"b{config.batch}", config.dtype]
    if config.subject != "nnvm":
        parts.append(config.subject)
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower())


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        suite = SUITES[args.suite]
        engines, skipped = chosen_engines(TORCH, (BASELINE, args.engine), args.peers or suite.peers)
        models = tuple(map(resolve, args.models)) or suite.models
        cores = choose_cores(args.threads)
    except BenchError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    for line in skipped:
        print(f"skipped {line}")
    config = BenchConfig(
        models=models,
        engines=tuple(sorted(engines, key=engine_order)),
        subject=args.engine,
        baseline=BASELINE,
        threads=args.threads,
        cores=cores,
        batch=args.batch,
        dtype=args.dtype,
        rounds=args.rounds,
        seconds=args.seconds,
        timeout=args.timeout,
    )
    args.results.mkdir(parents=True, exist_ok=True)

    def save(result: BenchResult) -> None:
        base = args.results / result_name(args.suite, result)
        write_json(result, base.with_suffix(".json"))
        base.with_suffix(".md").write_text(markdown(result), encoding="utf-8")

    with progress_bar() as tell:
        result = run_bench(config, TORCH, RECORDED, tell, save)
    print_result(result, make_console())
    return 0 if result.good else 1


def engine_order(name: str) -> int:
    """The order of the registry, so that tables of different runs have the same rows in the same places."""
    names = list(ENGINES)
    return names.index(name) if name in names else len(names)


if __name__ == "__main__":
    raise SystemExit(main())
