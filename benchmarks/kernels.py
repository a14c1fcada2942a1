"""``python -m benchmarks.kernels [NAME ...]``: single operators against ATen, interleaved in one process.

A case is a small module with one operator in it (or a chain that fuses), at shapes that networks have. Both sides get
the same fresh inputs; times are the least of many calls, so that what else runs on the machine counts little. The
ratio is ATen's time over nnvm's; errors are relative to a float64 run, over the range of the output.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

import nnvm_torch
from nnvm.bench.accuracy import output_error
from nnvm.bench.pinning import choose_cores, pinned
from nnvm_torch.bench.engines.base import arrays_of

__all__ = ["CASES", "main"]

Case = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def conv(inputs: int, outputs: int, size: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Case:
    """With ReLU; on the blocked layout that it has inside of a network."""
    def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)
        return nn.Sequential(layer, nn.ReLU()), (torch.randn(1, inputs, size, size),)

    return make


def linear(rows: int, inputs: int, outputs: int) -> Case:
    return lambda: (nn.Linear(inputs, outputs), (torch.randn(rows, inputs),))


def call(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Case:
    return lambda: (Call(function), tuple(torch.randn(s) for s in shapes))


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES: dict[str, Case] = {
    "conv3x3-64-56": conv(64, 64, 56),
    "conv3x3-128-28": conv(128, 128, 28),
    "conv3x3-256-14": conv(256, 256, 14),
    "conv3x3-512-7": conv(512, 512, 7),
    "conv3x3-s2-128-56": conv(128, 128, 56, stride=2),
    "conv3x3-s2-512-14": conv(512, 512, 14, stride=2),
    "conv1x1-256-64-56": conv(256, 64, 56, 1),
    "conv1x1-1024-256-14": conv(1024, 256, 14, 1),
    "conv7x7-s2-3-224": conv(3, 64, 224, 7, 2),
    "depthwise3x3-144-56": conv(144, 144, 56, groups=144),
    "depthwise5x5-672-14": conv(672, 672, 14, 5, groups=672),
    "depthwise5x5-1152-7": conv(1152, 1152, 7, 5, groups=1152),
    "linear-1-768-3072": linear(1, 768, 3072),
    "linear-128-768-768": linear(128, 768, 768),
    "linear-128-3072-768": linear(128, 3072, 768),
    "matmul-512": call(torch.matmul, (512, 512), (512, 512)),
    "matmul-batched-12-128-64": call(torch.matmul, (12, 128, 64), (12, 64, 128)),
    "attention-12-128-64": call(F.scaled_dot_product_attention, *[(1, 12, 128, 64)] * 3),
    "attention-12-512-64": call(F.scaled_dot_product_attention, *[(1, 12, 512, 64)] * 3),
    "attention-causal-12-512-64": call(causal, *[(1, 12, 512, 64)] * 3),
    "attention-decode-12-512-64": call(F.scaled_dot_product_attention, (1, 12, 1, 64), *[(1, 12, 512, 64)] * 2),
    "softmax-128-1024": call(lambda x: x.softmax(-1), (128, 1024)),
    "layer-norm-128-768": lambda: (nn.LayerNorm(768), (torch.randn(128, 768),)),
    "gelu-128-3072": call(F.gelu, (128, 3072)),
    "silu-mul-128-3072": call(lambda x, y: F.silu(x) * y, *[(128, 3072)] * 2),
    "add-relu-1M": call(lambda x, y: torch.relu(x + y), *[(1 << 20,)] * 2),
    "sum-rows-1024-1024": call(lambda x: x.sum(-1), (1024, 1024)),
    "sum-columns-1024-1024": call(lambda x: x.sum(0), (1024, 1024)),
    "transpose-1024-1024": call(lambda x: x.t().contiguous(), (1024, 1024)),
    "max-pool-64-112": lambda: (nn.MaxPool2d(3, 2, 1), (torch.randn(1, 64, 112, 112),)),
    "upsample-64-28": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), (torch.randn(1, 64, 28, 28),)),
}


def measure(case: Case, seconds: float) -> dict[str, float]:
    """Microseconds of both, their ratio, and the errors."""
    module, inputs = case()
    module.eval()
    with torch.no_grad():
        fast = nnvm_torch.compile(module, inputs)
        sides = {"aten": module, "nnvm": fast}
        wanted = arrays_of(module.double()(*(x.double() for x in inputs)))
        module.float()
        out: dict[str, float] = {f"{k}_error": output_error(arrays_of(f(*inputs)), wanted) for k, f in sides.items()}
        best = dict.fromkeys(sides, float("inf"))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, function in sides.items():
                start = time.perf_counter()
                function(*inputs)
                best[name] = min(best[name], time.perf_counter() - start)
    out |= {name: value * 1e6 for name, value in best.items()}
    return {**out, "ratio": out["aten"] / out["nnvm"]}


def run(names: list[str], seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names:
        torch.manual_seed(0)
        yield name, measure(CASES[name], seconds)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases, or patterns as conv*; all of them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time of each case (1)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="list the cases")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(CASES))
        return 0
    patterns = args.names or ["*"]
    if bad := [p for p in patterns if not fnmatch.filter(CASES, p)]:
        print(f"benchmarks.kernels: no case {bad[0]!r}; --list names them", file=sys.stderr)
        return 2
    names = [n for n in CASES if any(fnmatch.fnmatch(n, p) for p in patterns)]
    table = Table("kernel", "ATen µs", "nnvm µs", "ratio", "error, nnvm / ATen")
    found: dict[str, dict[str, float]] = {}
    with pinned(choose_cores(args.threads)):
        torch.set_num_threads(args.threads)
        for name, r in run(names, args.seconds):
            found[name] = r
            errors = f"{r['nnvm_error']:.1e} / {r['aten_error']:.1e}"
            table.add_row(name, f"{r['aten']:.0f}", f"{r['nnvm']:.0f}", f"{r['ratio']:.2f}", errors)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
