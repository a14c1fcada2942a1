"""``nnvm bench``: from parsed arguments to the table, the JSON and the exit status."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from pathlib import Path

from rich.console import Console

from nnvm.atomic_write import atomic_write
from nnvm.bench.config import BenchConfig
from nnvm.bench.engine import chosen_engines, missing_package
from nnvm.bench.errors import BenchError
from nnvm.bench.pinning import choose_cores
from nnvm.bench.report import print_result
from nnvm.bench.run import check_writable, make_console, run_bench, write_json
from nnvm.progress import progress_bar

from .engines import ENGINES, TORCH
from .environment import RECORDED
from .models.sources import SOURCES, model_names, resolve
from .profile import print_profile, profile_model
from .zoo import ZOO

__all__ = ["BASELINE", "DEFAULT_MODELS", "main"]

#: Ratios are relative to it.
BASELINE = "eager"

MOST_LISTED = 200
DEFAULT_MODELS = ("zoo:resnet18", "zoo:mobilenet_v2", "zoo:minilm")


def main(args: argparse.Namespace) -> int:
    """0: everything ran and was right; 1: something failed or was wrong; BenchError: wrong use."""
    console = make_console()
    if args.list:
        print_lists(console)
        return 0
    config = make_config(args, console)
    if args.json:
        check_writable(Path(args.json))
    if args.profile:
        return profile(config, args.json, console)
    with progress_bar() as tell:
        result = run_bench(config, TORCH, RECORDED, tell, lambda partial: write_json(partial, args.json))
    print_result(result, console)
    return 0 if result.good else 1


def profile(config: BenchConfig, path: str | None, console: Console) -> int:
    """The kernels of each model; with a path, as JSON too."""
    found = {}
    for model in config.models:
        rows, roof = profile_model(model, threads=config.threads, cores=config.cores, batch=config.batch,
                                   dtype=config.dtype)  # fmt: skip
        print_profile(model, rows, roof, console)
        found[model] = {"roof": dataclasses.asdict(roof), "kernels": [r.to_json() for r in rows]}
        if path:
            with atomic_write(path) as file:
                file.write((json.dumps(found, indent=1) + "\n").encode())
    return 0


def make_config(args: argparse.Namespace, console: Console) -> BenchConfig:
    """Raises BenchError for a name that nothing can be."""
    if args.shape or args.input:
        raise BenchError("--shape and --input are for ONNX files; a model of PyTorch brings its own inputs")
    engines, skipped = chosen_engines(TORCH, (BASELINE, args.engine), args.against or (BASELINE,))
    for line in skipped:
        console.print(f"skipped {line}", style="dim", highlight=False)
    return BenchConfig(
        models=tuple(resolve(model) for model in args.models) or DEFAULT_MODELS,
        engines=engines,
        subject=TORCH.find(args.engine).name,
        baseline=BASELINE,
        threads=args.threads,
        cores=choose_cores(args.threads, args.cores),
        batch=args.batch,
        dtype=args.dtype,
        rounds=args.rounds,
        seconds=args.seconds,
        seed=args.seed,
        timeout=args.timeout,
        keep_caches=args.keep_caches,
    )


def print_lists(console: Console) -> None:
    """What there is, and what would have to be installed for the rest."""
    console.print("[bold]Engines[/bold]")
    for engine in ENGINES.values():
        missing = missing_package(engine)
        console.print(f"  {engine.name:<24}{engine.summary}{f' ({missing})' if missing else ''}", highlight=False)
    console.print(f"  {'backend:NAME':<24}torch.compile(backend=NAME)", highlight=False)
    for source in SOURCES:
        names = model_names(source)
        console.print(f"\n[bold]Models {source}:[/bold]")
        if source == "zoo":
            for name, model in ZOO.items():
                console.print(f"  {name:<24}{model.summary}", highlight=False, markup=False)
        elif not names:
            console.print("  none: the package is missing or does not fit this torch", highlight=False)
        elif len(names) > MOST_LISTED:
            console.print(f"  {len(names)} models, too many to list here", highlight=False)
        else:
            console.print(textwrap.indent(textwrap.fill(" ".join(names), console.width - 2), "  "), highlight=False)
