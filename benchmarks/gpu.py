"""``python -m benchmarks.gpu``: nnvm on one GPU against eager and Inductor, in a few minutes.

Kernels bound by memory (bytes a second against a device copy), products (against cuBLAS through ATen), kernels of
every kind (error against float64 beside eager's), our own CUDA graphs (on and off: the same results, none
overwritten by a later call), and models: errors, and latency captured in CUDA graphs on all sides. What tells most
comes first: each model in one setting, against Inductor and then against its slow search, then the other settings.

Each step stands alone: one that fails or takes too long is listed with its reason, and the figures so far are kept.
After an error that leaves the GPU's context unusable a new process goes on. What the time limit left out is listed,
never guessed.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import nnvm_torch
from benchmarks import gpu_parts as parts
from benchmarks.gpu_parts import DTYPES, KERNELS, MODELS, PEERS, PRODUCTS, STREAMS
from nnvm.cli.arguments import name_list, positive_float

__all__ = ["main", "steps"]

#: Seconds that a step may take, at most.
LONGEST = 100.0
#: (part, label, what measures it)
Step = tuple[str, str, Callable[[], Any]]


class TimeUpError(Exception):
    """A step took too long."""


def settings(dtypes: list[str], batches: list[str]) -> list[tuple[str, int]]:
    """Types and batches, so that each type and each batch comes early."""
    grid = [(i + j, i, d, int(b)) for i, d in enumerate(dtypes) for j, b in enumerate(batches)]
    return [(d, b) for _, _, d, b in sorted(grid)]


def steps(args: argparse.Namespace) -> Iterator[Step]:
    """All that is to be measured, what tells most first."""
    first = args.dtypes[0]
    for name in STREAMS:
        yield "bandwidth", f"{name} {first}", lambda n=name: parts.bandwidth(n, first)
    for shape in PRODUCTS:
        yield "products", f"{' x '.join(map(str, shape))} {first}", lambda s=shape: parts.product(s, first)
    for name in KERNELS:
        yield "kernels", f"{name} {args.dtypes[-1]}", lambda n=name: parts.kernel(n, args.dtypes[-1])
    slow = [p for p in args.peers if "autotune" in p]
    quick = [p for p in args.peers if p not in slow]
    for place, (dtype, batch) in enumerate(settings(args.dtypes, args.batches)):
        for peers in (quick, slow) if slow else (quick,):
            for m in args.models:
                label = f"{m} {batch} {dtype} {' '.join(peers)}".rstrip()
                yield "models", label, lambda m=m, b=batch, d=dtype, p=peers: asdict(parts.measure_model(m, b, d, p))
        if place == 0:
            for m in args.models[:2]:
                yield "cuda_graphs", f"{m} {dtype}", lambda m=m, d=dtype: parts.captured_calls(m, d)
    for dtype in args.dtypes[:-1]:
        for name in KERNELS:
            yield "kernels", f"{name} {dtype}", lambda n=name, d=dtype: parts.kernel(n, d)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """TimeUpError after so many seconds inside."""

    def stop(number: int, frame: Any) -> None:
        raise TimeUpError(f"longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(todo: Iterator[Step], report: dict[str, Any], end: float, keep: Callable[[], None]) -> bool:
    """Measures step by step into `report`, until `end` (of `time.time`). False: the GPU's context is lost."""
    for part, label, measure in todo:
        if f"{part}: {label}" in report["done"]:
            continue
        left = end - time.time()
        if left <= 1:
            report["left_out"].append(f"{part}: {label}")
            continue
        report["done"].append(f"{part}: {label}")
        keep()
        try:
            with limited(min(left, LONGEST)):
                report[part][label] = measure()
        except Exception as error:  # whatever fails is told, and the rest is measured
            reason = str(error).strip().partition("\n")[0][:200]
            report["failed"].append(f"{part}: {label}: {type(error).__name__}: {reason}")
        keep()
        try:
            _forget()
        except RuntimeError:
            return False
    return True


def _forget() -> None:
    """Frees what a step compiled and kept. RuntimeError: the GPU answers no more."""
    torch._dynamo.reset()
    nnvm_torch.reset()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def gpu_name() -> str | None:
    """The GPU at hand; None: there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--models", type=name_list, default=MODELS, metavar="MODEL,...")
    parser.add_argument("--batches", type=name_list, default=("1", "8", "64"), metavar="N,...")
    parser.add_argument("--dtypes", type=name_list, default=tuple(DTYPES), metavar="DTYPE,...")
    parser.add_argument("--peers", type=name_list, default=tuple(PEERS), metavar="ENGINE,...")
    parser.add_argument("--minutes", type=positive_float, default=7.5, help="of everything together (7.5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures, after each step")
    parser.add_argument("--resume", action="store_true", help="go on with FILE, until the time given in it")
    args = parser.parse_args(argv)
    for given, known in ((args.dtypes, DTYPES), (args.peers, PEERS)):
        if wrong := [g for g in given if g not in known]:
            parser.error(f"no {wrong[0]!r}; there are {', '.join(known)}")
    if not all(b.isdigit() and int(b) > 0 for b in args.batches):
        parser.error(f"batches are counts, not {','.join(args.batches)}")
    if args.resume and args.json is None:
        parser.error("--resume needs --json FILE")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    if (name := gpu_name()) is None:
        print("benchmarks.gpu needs a GPU that torch can use: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    path = args.json or Path(tempfile.mkdtemp()) / "gpu.json"
    if args.resume:
        report = json.loads(path.read_text(encoding="utf-8"))
    else:
        report = {"gpu": name, "torch": torch.__version__,
                  "end": time.time() + 60 * args.minutes, "bandwidth": {}, "products": {}, "kernels": {},
                  "cuda_graphs": {}, "models": {}, "failed": [], "left_out": [], "done": []}  # fmt: skip

    def keep() -> None:
        path.write_text(json.dumps(report, indent=1), encoding="utf-8")

    if not run(steps(args), report, report["end"], keep):
        given = list(sys.argv[1:] if argv is None else argv)
        more = [] if args.resume else ["--resume", *([] if args.json else ["--json", str(path)])]
        return subprocess.run([sys.executable, "-m", "benchmarks.gpu", *given, *more]).returncode
    show(Console(), report, args.peers)
    return 0


def show(console: Console, report: dict[str, Any], peers: tuple[str, ...]) -> None:
    """The report as tables."""
    console.print(f"{report['gpu']}, torch {report['torch']}")
    table = Table("model", "batch", "dtype", "eager ms", "nnvm ms", "eager / nnvm", *(f"{p} / nnvm" for p in peers),
                  "error, nnvm / eager", "first call s")  # fmt: skip
    for r in report["models"].values():
        t, errors = r["milliseconds"], r["errors"]
        ratios = [f"{t[p] / t['nnvm']:.2f} x" if p in t else "" for p in ("eager", *peers)]
        table.add_row(r["model"], str(r["batch"]), r["dtype"], f"{t['eager']:.3f}", f"{t['nnvm']:.3f}", *ratios,
                      f"{errors['nnvm']:.1e} / {errors['eager']:.1e}", f"{r['first_call']['nnvm']:.0f}")  # fmt: skip
    console.print(table)
    for peer in ("eager", *peers):
        ratios = [t[peer] / t["nnvm"] for r in report["models"].values() if peer in (t := r["milliseconds"])]
        if ratios:
            mean = torch.tensor(ratios, dtype=torch.float64).log().mean().exp()
            console.print(f"{peer} / nnvm: geometric mean {mean:.2f} over {len(ratios)}, least {min(ratios):.2f}")
    for title, unit, other in (("bandwidth", "GB/s", "copy"), ("products", "TFLOP/s", "ATen")):
        small = Table(title, f"nnvm {unit}", f"{other} {unit}", "ratio")
        for name, (ours, theirs) in report[title].items():
            small.add_row(name, f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}")
        console.print(small)
    graphs = Table("CUDA graphs", "same results", "results stay", "off ms", "on ms", "off / on")
    for name, (same, stays, off, on) in report["cuda_graphs"].items():
        graphs.add_row(name, str(same), str(stays), f"{off:.3f}", f"{on:.3f}", f"{off / on:.2f} x")
    console.print(graphs)
    _show_errors(console, report["kernels"])
    for title in ("failed", "left_out"):
        if report[title]:
            console.print(f"{title.replace('_', ' ')} ({len(report[title])}): " + "; ".join(report[title]))


def _show_errors(console: Console, errors: dict[str, tuple[float, float]]) -> None:
    """The kernels that are less accurate than eager by more than rounding once more explains."""
    wrong = {name: e for name, e in errors.items() if not e[0] <= 4 * e[1] + 1e-6}
    console.print(f"kernels: {len(errors) - len(wrong)} of {len(errors)} as accurate as eager")
    for name, (ours, eagers) in wrong.items():
        console.print(f"  {name}: error {ours:.1e}, eager's {eagers:.1e}")


if __name__ == "__main__":
    sys.exit(main())
