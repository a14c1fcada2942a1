"""What one call costs outside of kernels: models that compute next to nothing, a call of each way by turns.

    python -m benchmarks.calls                      a tiny MLP, and 64 layers with 128 parameters
    python -m benchmarks.calls --seconds 10

The ways: eager; ``torch.compile`` with a backend that gives a result that it has, which is the cost of Dynamo's guards;
``torch.compile(backend="nnvm")``; `nnvm_torch.compile`, without and with ``freeze=True``. Each figure is the least of
many short runs, so that a busy machine tells nearly the same as an idle one.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import nnvm_torch

Call = Callable[[torch.Tensor], Any]


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return layers.eval(), torch.randn(1, 32)


def _deep() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(64))).eval(), torch.randn(1, 8)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {"mlp": _mlp, "deep": _deep}


def empty(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose calls give the result of the first one."""
    results: list[Any] = []

    def call(*args: Any) -> Any:
        if not results:
            results.append(gm.forward(*args))
        return results[0]

    return call


def measure(ways: dict[str, Call], x: torch.Tensor, seconds: float) -> dict[str, float]:
    """Seconds of a call of each way: the least of runs of 20 calls, by turns."""
    least = dict.fromkeys(ways, float("inf"))
    for call in ways.values():
        for _ in range(3):
            call(x)
    gc.collect()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, call in ways.items():
            start = time.perf_counter()
            for _ in range(20):
                call(x)
            least[name] = min(least[name], (time.perf_counter() - start) / 20)
    return least


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each model (default 5)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, make in MODELS.items():
        model, x = make()
        with torch.no_grad():
            ways: dict[str, Call] = {
                "eager": model,
                "torch.compile, empty backend": torch.compile(copy.deepcopy(model), backend=empty),
                "torch.compile, nnvm": torch.compile(copy.deepcopy(model), backend="nnvm"),
                "nnvm_torch.compile": nnvm_torch.compile(model, x),
                "nnvm_torch.compile, freeze": nnvm_torch.compile(copy.deepcopy(model), x, freeze=True),
            }
            least = measure(ways, x, args.seconds)
        print(f"{name}:")
        for way, taken in least.items():
            print(f"  {way:30} {taken * 1e6:8.1f} us   {taken / least['eager']:5.2f} x eager")
    return 0


if __name__ == "__main__":
    sys.exit(main())
