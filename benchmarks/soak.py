"""Soak: many calls over varying shapes, with recompilations and changed weights; and many models compiled and dropped.

    python -m benchmarks.soak                       100,000 calls, then 200 models (hours on one busy core)
    python -m benchmarks.soak --calls 2000 --models 20

Each runs three times, in a process of its own: with `nnvm_torch.compile`, with ``torch.compile(backend="nnvm")``, and
with ``torch.compile(backend="aot_eager")``, which compiles nothing. The last is the floor: Dynamo keeps the guards of
everything it ever compiled (finalizers of modules and functions that they look at hold them), whatever the backend.

Prints the resident memory at ten points and a verdict: memory after the warm-up (the first fifth) grows by at most 1 %,
under Dynamo by at most 1 % more than with aot_eager; every answer checked is eager's; dropped models are gone. The exit
status is 0 where all of that holds. What Python and the allocator keep is collected (and trimmed, where the C library
can) before each reading.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nnvm_torch

__all__ = ["WAYS", "Outcome", "drop_models", "main", "resident_bytes", "run_calls", "verdict"]

#: Growth of resident memory that counts as flat, in parts of it.
FLAT = 0.01
#: Calls between comparisons with eager.
CHECKED_EVERY = 50
#: Largest error of an answer, relative to the largest element.
ACCURATE = 1e-4

#: Name -> (module, dynamic sizes?) -> compiled module.
WAYS: dict[str, Callable[[nn.Module, bool], Callable[..., Any]]] = {
    "nnvm_torch.compile": lambda m, dynamic: nnvm_torch.compile(m, dynamic={"n": (1, 16)} if dynamic else None),
    "torch.compile": lambda m, dynamic: torch.compile(m, backend="nnvm", dynamic=dynamic or None),
    "aot_eager": lambda m, dynamic: torch.compile(m, backend="aot_eager", dynamic=dynamic or None),
}
#: What a way is judged beside.
FLOORS = {"torch.compile": "aot_eager"}


@dataclass(frozen=True)
class Outcome:
    """What one run gave.

    Attributes:
        way: key of `WAYS`.
        what: calls or models, how many.
        settled, last: resident bytes after the warm-up and at the end.
        worst: largest error found, relative to the largest element of a result.
        alive: models that were dropped and are alive.
    """

    way: str
    what: str
    settled: int
    last: int
    worst: float = 0.0
    alive: int = 0

    @property
    def growth(self) -> float:
        return (self.last - self.settled) / self.settled


class Model(nn.Module):
    """Convolutions, a normalisation, attention over the pixels and a head: small, and of every kind of kernel."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        q, k, v = (t.unsqueeze(1) for t in self.qkv(y).chunk(3, -1))
        out: torch.Tensor = self.head((nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1) + y).mean(1))
        return out


def resident_bytes() -> int:
    """Resident memory of the process, after what is not in use was given back."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def run_calls(way: str, calls: int, log: Callable[[str], None] = print) -> Outcome:
    """Calls a compiled model so often, with batches and images of changing sizes, changed weights and code that is
    dropped and compiled again 20 times. (`nnvm_torch.compile` compiles for each image size, so it sees few of them.)"""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Model().eval()
    run = WAYS[way](model, True)
    states = [{k: torch.randn_like(v) * 0.1 if v.is_floating_point() else v for k, v in model.state_dict().items()}
              for _ in range(3)]  # fmt: skip
    for s in states:
        s["norm.running_var"] = s["norm.running_var"].abs() + 0.5
    readings: list[int] = []
    worst, start = 0.0, time.perf_counter()
    with torch.no_grad():
        for i in range(calls):
            n, size = (int(torch.randint(2, 9, (), generator=generator)) for _ in range(2))
            x = torch.randn(n, 3, 2 + size, 3 + size, generator=generator)
            if way == "nnvm_torch.compile":
                x = x[..., :4, :5].contiguous()
            if i % 97 == 0:
                model.load_state_dict(states[i // 97 % 3])
            elif i % 31 == 0:
                model.head.weight.mul_(1.01 if i % 62 else 1 / 1.01)
            elif i % 499 == 0:
                model.qkv.weight = nn.Parameter(states[i % 3]["qkv.weight"].clone())
            if calls >= 200 and i % (calls // 20) == calls // 40:  # all code is dropped and compiled again
                torch._dynamo.reset()
                nnvm_torch.reset()
                run = WAYS[way](model, True)
            got = run(x)
            if i % CHECKED_EVERY == 0:
                worst = max(worst, _error(got, model(x)))
            if (i + 1) % max(1, calls // 10) == 0:
                readings.append(resident_bytes())
                log(f"{i + 1:7d} calls  {time.perf_counter() - start:7.1f} s  {readings[-1] / 2**20:8.1f} MiB resident"
                    f"  largest relative error so far {worst:.1e}")  # fmt: skip
    return _outcome(way, f"{calls} calls", readings, worst)


def drop_models(way: str, models: int, log: Callable[[str], None] = print) -> Outcome:
    """Compiles so many models and drops each."""
    x = torch.randn(2, 3, 6, 6)
    readings: list[int] = []
    worst, start = 0.0, time.perf_counter()
    for i in range(models):
        worst = max(worst, _compiled_once(way, i, x))
        torch._dynamo.reset()  # Dynamo keeps what it compiled
        nnvm_torch.reset()
        if (i + 1) % max(1, models // 10) == 0:
            readings.append(resident_bytes())
            log(f"{i + 1:7d} models {time.perf_counter() - start:7.1f} s  {readings[-1] / 2**20:8.1f} MiB resident")
    alive = sum(type(o) is Model for o in gc.get_objects())
    return replace(_outcome(way, f"{models} models", readings, worst), alive=alive)


def _compiled_once(way: str, seed: int, x: torch.Tensor) -> float:
    """The error of a model that lives no longer than this call."""
    torch.manual_seed(seed)
    model = Model(8 + 8 * (seed % 3)).eval()
    with torch.no_grad():
        return _error(WAYS[way](model, False)(x), model(x))


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-3))


def _outcome(way: str, what: str, readings: Sequence[int], worst: float) -> Outcome:
    return Outcome(way, what, readings[max(0, len(readings) // 5 - 1)], readings[-1], worst)


def verdict(outcome: Outcome, floor: Outcome | None = None) -> tuple[bool, str]:
    """(does it hold?, in words). `floor`: the same run without our compiler; its growth is not ours."""
    own = outcome.growth
    words = f"{outcome.way}: {outcome.what}; memory {outcome.growth:+.2%} after the warm-up"
    if floor is not None:
        own = (outcome.last - outcome.settled - max(0, floor.last - floor.settled)) / outcome.settled
        words += f", {own:+.2%} beside {floor.way} ({floor.growth:+.2%})"
    good = own <= FLAT and outcome.worst < ACCURATE and outcome.alive == 0
    alive = f", {outcome.alive} of the models alive" if outcome.alive else ""
    words += f" (at most {FLAT:.0%}); largest relative error {outcome.worst:.1e}{alive}"
    return good, f"{words}: {'good' if good else 'NOT GOOD'}"


def _apart(part: str, way: str, count: int) -> Outcome:
    """One run in a process of its own, whose readings are printed as they come."""
    print(f"{way}, {count} {part}", flush=True)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.soak", "--one", part, way, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        last = ""
        for line in child.stdout:
            if last:
                print(last, end="", flush=True)
            last = line
    if child.returncode:
        raise RuntimeError(f"the process of {way} ended with status {child.returncode}")
    return Outcome(**json.loads(last))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--calls", type=int, default=100_000, help="calls (100000)")
    parser.add_argument("--models", type=int, default=200, help="models that are compiled and dropped (200)")
    parser.add_argument("--one", nargs=3, metavar=("PART", "WAY", "COUNT"), help="one run, in this process: calls or "
                        f"models, one of {', '.join(WAYS)}, how many; prints the outcome as JSON")  # fmt: skip
    args = parser.parse_args(arguments)
    if args.one:
        part, way, count = args.one
        done = {"calls": run_calls, "models": drop_models}[part](way, int(count), lambda s: print(s, flush=True))
        print(json.dumps(asdict(done)))
        return 0
    good = True
    for part, count in (("calls", args.calls), ("models", args.models)):
        outcomes = {way: _apart(part, way, count) for way in WAYS} if count else {}
        for way, outcome in outcomes.items():
            if way in FLOORS.values():
                continue
            holds, words = verdict(outcome, outcomes.get(FLOORS.get(way, "")))
            print(words, flush=True)
            good = good and holds
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
