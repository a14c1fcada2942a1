"""``nnvm bench``: from parsed arguments to the table, the JSON and the exit status."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from nnvm.cli.command import CliError

from .config import BASELINE, BenchConfig
from .driver import run_model
from .engines import ENGINES, find_engine, missing_package
from .environment import environment
from .errors import BenchError
from .models.sources import SOURCES, model_names, resolve
from .pinning import choose_cores
from .profile import print_profile, profile_model
from .report import WIDTH_WITHOUT_TERMINAL, print_result
from .results import BenchResult
from .zoo import ZOO

__all__ = ["DEFAULT_MODELS", "chosen_engines", "main", "run_bench", "write_json"]

MOST_LISTED = 200
DEFAULT_MODELS = ("zoo:resnet18", "zoo:mobilenet_v2", "zoo:minilm")


def main(args: argparse.Namespace) -> int:
    """0: everything ran and was right; 1: something failed or was wrong; CliError: wrong use."""
    console = make_console()
    if args.list:
        print_lists(console)
        return 0
    try:
        config = make_config(args, console)
    except BenchError as error:
        raise CliError(str(error)) from None
    if args.json:
        check_writable(Path(args.json))
    if args.profile:
        return profile(config, args.json, console)
    result = run_bench(config, lambda partial: write_json(partial, args.json))
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
            Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def make_console() -> Console:
    """Lines are not folded to 80 columns when nobody's terminal is that narrow."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def make_config(args: argparse.Namespace, console: Console) -> BenchConfig:
    """Raises BenchError for a name that nothing can be."""
    engines, skipped = chosen_engines(args.engine, args.against)
    for line in skipped:
        console.print(f"skipped {line}", style="dim", highlight=False)
    return BenchConfig(
        models=tuple(resolve(model) for model in args.models) or DEFAULT_MODELS,
        engines=engines,
        subject=args.engine,
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


def chosen_engines(subject: str, against: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Engines in table order (baseline, subject, the others), and why some of ``all`` are left out."""
    names: list[str] = [BASELINE, subject]
    skipped: list[str] = []
    for name in against:
        if name != "all":
            names.append(name)
            continue
        for engine in ENGINES.values():
            missing = missing_package(engine)
            if missing is None:
                names.append(engine.name)
            else:
                skipped.append(f"{engine.name}: {missing}")
    for name in names:
        find_engine(name)
    return tuple(dict.fromkeys(names)), skipped


def run_bench(config: BenchConfig, after_model: Callable[[BenchResult], None] = lambda result: None) -> BenchResult:
    """Measures everything; ``after_model`` sees what there is so far, so that an interruption does not lose it."""
    result = BenchResult(config, environment())
    with progress_bar(len(config.models)) as tell:
        for index, model in enumerate(config.models):

            def progress(step: str, part: float, index: int = index, model: str = model) -> None:
                tell(f"{model}: {step}", index + part)

            result.models.append(run_model(model, config, progress))
            after_model(result)
    return result


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr where that is a terminal. It redraws only when told to, never beside a measurement."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text, done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total)

        def tell(text: str, done: float) -> None:
            bar.update(task, description=text.replace("[", r"\["), completed=done, refresh=True)

        yield tell


def check_writable(path: Path) -> None:
    """A wrong path is said before an hour of measuring, not after."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise CliError(f"--json {path}: no such folder")


def write_json(result: BenchResult, path: str | Path | None) -> None:
    if path:
        Path(path).write_text(json.dumps(result.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


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
