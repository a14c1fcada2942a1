"""Soak: many calls over varying shapes, with recompilations and changed weights; and many models compiled and dropped.

    python -m benchmarks.soak                       100,000 calls, then 200 models (about an hour on one core)
    python -m benchmarks.soak --calls 2000 --models 20

Prints the resident memory at ten points and at the end a verdict: memory after the warm-up (the first fifth) grows by
at most 1 %, every answer checked is eager's, and the memory of dropped models comes back. The exit status is 0 where
all of that holds. What Python and the allocator keep is collected (and trimmed, where the C library can) before each
reading.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

import nnvm_torch

__all__ = ["drop_models", "main", "resident_bytes", "run_calls"]

#: Growth of resident memory that counts as flat, in parts of it.
FLAT = 0.01
#: Calls between comparisons with eager.
CHECKED_EVERY = 50


class Model(nn.Module):
    """Convolutions, a normalisation, attention over the pixels and a head: small, and of every kind of kernel."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        q, k, v = (t.unsqueeze(1) for t in self.qkv(y).chunk(3, -1))
        return self.head((nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1) + y).mean(1))


def resident_bytes() -> int:
    """Resident memory of the process, after what is not in use was given back."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def run_calls(calls: int, log: Callable[[str], None] = print) -> bool:
    """Calls compiled models so often; is memory flat after the warm-up, and was every answer right?"""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Model().eval()
    compiled = [torch.compile(model, backend="nnvm", dynamic=True), nnvm_torch.compile(model, dynamic={"n": (1, 16)})]
    states = [{k: torch.randn_like(v) * 0.1 if v.is_floating_point() else v for k, v in model.state_dict().items()}
              for _ in range(3)]  # fmt: skip
    for s in states:
        s["norm.running_var"] = s["norm.running_var"].abs() + 0.5
    readings: list[int] = []
    worst, start, recompiled = 0.0, time.perf_counter(), 0
    with torch.no_grad():
        for i in range(calls):
            n, size = (int(torch.randint(2, 9, (), generator=generator)) for _ in range(2))
            x = torch.randn(n, 3, 2 + size, 3 + size, generator=generator)
            if i % 97 == 0:
                model.load_state_dict(states[i // 97 % 3])
            elif i % 31 == 0:
                model.head.weight.mul_(1.01 if i % 62 else 1 / 1.01)
            elif i % 499 == 0:
                model.qkv.weight = nn.Parameter(states[i % 3]["qkv.weight"].clone())
            if calls >= 200 and i % (calls // 20) == calls // 40:  # all code is dropped and compiled again
                torch._dynamo.reset()
                compiled[1] = nnvm_torch.compile(model, dynamic={"n": (1, 16)})
                nnvm_torch.reset()
                recompiled += 1
            # the second compiles each image size for itself, so it sees few of them
            which = i % 2
            got = compiled[which](x if which == 0 else x[..., :4, :5].contiguous())
            if i % CHECKED_EVERY < 2:
                want = model(x if which == 0 else x[..., :4, :5])
                worst = max(worst, float((got - want).abs().max() / want.abs().max().clamp_min(1e-3)))
            if (i + 1) % max(1, calls // 10) == 0:
                readings.append(resident_bytes())
                log(f"{i + 1:7d} calls  {time.perf_counter() - start:7.1f} s  {readings[-1] / 2**20:8.1f} MiB resident"
                    f"  largest relative error so far {worst:.1e}")  # fmt: skip
    settled = readings[len(readings) // 5 :]
    growth = (settled[-1] - settled[0]) / settled[0] if settled else 0.0
    good = growth <= FLAT and worst < 1e-4
    log(f"calls: {calls}, {recompiled} times compiled again; memory {growth:+.2%} after the warm-up (at most "
        f"{FLAT:.0%}); largest relative error {worst:.1e}: {'good' if good else 'NOT GOOD'}")  # fmt: skip
    return good


def drop_models(models: int, log: Callable[[str], None] = print) -> bool:
    """Compiles so many models and drops each; does their memory come back?"""
    x = torch.randn(2, 3, 6, 6)
    readings: list[int] = []
    start = time.perf_counter()

    def one(seed: int) -> None:
        torch.manual_seed(seed)
        model = Model(8 + 8 * (seed % 3)).eval()
        run = torch.compile(model, backend="nnvm") if seed % 2 else nnvm_torch.compile(model)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), atol=1e-4, rtol=1e-4)
        if seed % 2:
            torch._dynamo.reset()  # Dynamo keeps what it compiled

    for i in range(models):
        one(i)
        nnvm_torch.reset()
        if (i + 1) % max(1, models // 10) == 0:
            readings.append(resident_bytes())
            log(f"{i + 1:7d} models {time.perf_counter() - start:7.1f} s  {readings[-1] / 2**20:8.1f} MiB resident")
    settled = readings[len(readings) // 5 :]
    growth = (settled[-1] - settled[0]) / settled[0] if settled else 0.0
    alive = sum(isinstance(o, Model) for o in gc.get_objects())
    good = growth <= FLAT and alive <= 1
    log(f"models: {models} compiled and dropped, {alive} alive; memory {growth:+.2%} after the warm-up (at most "
        f"{FLAT:.0%}): {'good' if good else 'NOT GOOD'}")  # fmt: skip
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--calls", type=int, default=100_000, help="calls (100000)")
    parser.add_argument("--models", type=int, default=200, help="models that are compiled and dropped (200)")
    args = parser.parse_args(arguments)
    results = [run_calls(args.calls) if args.calls else True, drop_models(args.models) if args.models else True]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
