"""``python -m benchmarks.gpu``: nnvm on one GPU against eager and Inductor, in a few minutes.

Five parts, each a table: kernels of every kind (error against float64 beside eager's), models (the same, and latency
captured in CUDA graphs on all sides), kernels bound by memory (bytes a second against a device copy), products (against
cuBLAS through ATen), and our own CUDA graphs (`cuda_graphs`, on and off: the same results, none overwritten by a later
call). What the time limit left out is listed, never guessed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from nnvm.cli.arguments import name_list, positive_float
from nnvm_torch.bench.models.sources import load_model, resolve

MODELS = ("resnet50", "bert_base", "vit_b_16", "gpt2_prefill", "mobilenet_v2", "unet_small", "llama_block_decode")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PEERS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "inductor-max-autotune": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
}
Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One model in one setting: milliseconds by engine, and errors relative to the output's range."""

    model: str
    batch: int
    dtype: str
    milliseconds: dict[str, float]
    error: float
    eager_error: float


def graphed(call: Call) -> Call:
    """`call` captured in a CUDA graph; the inputs stay where they are."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def interleaved(calls: dict[str, Call], rounds: int = 15) -> dict[str, float]:
    """Median milliseconds of each, measured in turns, with enough calls in a turn to last about 5 ms."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(1, int(5.0 / max(_milliseconds(call, 3), 1e-3)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_milliseconds(call, repeats[name]))
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def _milliseconds(call: Call, repeats: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / repeats


def relative_error(got: Any, right: Any) -> float:
    """The largest difference over all outputs, relative to the range of each."""
    pairs = zip(_tensors(got), _tensors(right), strict=True)
    return max(float((g.double() - r).abs().max() / r.abs().max().clamp_min(1e-30)) for g, r in pairs)


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    torch.utils._pytree.tree_map_only(torch.Tensor, found.append, value)
    return [t for t in found if t.is_floating_point()]


def measure_model(name: str, batch: int, dtype: str, peers: Sequence[str]) -> Row:
    case = load_model(resolve(name), batch, torch.float32, 0)
    inputs = [t.cuda() for t in case.fresh(1, 0)]
    reference = case.module.double().cuda()
    with torch.no_grad():
        right = reference(*(t.double() if t.is_floating_point() else t for t in inputs))
        model = reference.to(DTYPES[dtype])
        given = [t.to(DTYPES[dtype]) if t.is_floating_point() else t for t in inputs]
        engines: dict[str, Callable[..., Any]] = {"eager": model}
        for engine, options in {
            "nnvm": {"backend": "nnvm", "options": {"cuda_graphs": False}},
            **{p: PEERS[p] for p in peers},
        }.items():
            torch._dynamo.reset()
            engines[engine] = torch.compile(model, **options)
            engines[engine](*given)
        errors = {e: relative_error(engines[e](*given), right) for e in ("eager", "nnvm")}
        calls = {e: graphed(lambda run=run: run(*given)) for e, run in engines.items()}  # type: ignore[misc]
        times = interleaved(calls)
    return Row(name, batch, dtype, times, errors["nnvm"], errors["eager"])


#: A function of random tensors of these shapes for each way of scheduling; an int is an index tensor below it.
KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "chain": (lambda a, b: F.gelu(a * 2 + b).clamp(-1, 1), ((130, 70), (70,))),
    "transpose": (lambda a: a.transpose(1, 2).contiguous() + 1, ((3, 70, 130),)),
    "concat, pad": (lambda a, b: F.pad(torch.cat([a, b], 1), (1, 2)).relu(), ((4, 5, 33), (4, 7, 33))),
    "softmax": (lambda a: a.softmax(-1), ((70, 300),)),
    "long softmax": (lambda a: a.softmax(-1), ((2, 20000),)),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (96,), w, b), ((70, 96), (96,), (96,))),
    "sums of columns": (lambda a: a.sum(0), ((900, 70),)),
    "long sum": (lambda a: a.abs().sum(1), ((3, 70000),)),
    "variance": (lambda a: a.var(1), ((30, 500),)),
    "pooling": (lambda a: F.max_pool2d(a, 3, 2, 1) + F.avg_pool2d(a, 3, 2, 1), ((2, 6, 33, 33),)),
    "matmul": (lambda a, b: (a @ b).relu(), ((3, 130, 70), (3, 70, 90))),
    "linear": (lambda a, w, b: F.gelu(F.linear(a, w, b)), ((100, 256), (200, 256), (200,))),
    "split linear": (lambda a, w: F.linear(a, w), ((16, 4096), (16, 4096))),
    "convolution": (lambda a, w, b: F.conv2d(a, w, b, 2, 1).relu(), ((1, 24, 17, 17), (40, 24, 3, 3), (40,))),
    "depthwise": (lambda a, w: F.conv2d(a, w, None, 1, 1, 1, 16), ((1, 16, 17, 17), (16, 1, 3, 3))),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((1, 2, 70, 64),) * 3),
    "decode": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), ((1, 2, 1, 64), *((1, 2, 90, 64),) * 2)),
    "masked attention": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
                         ((1, 2, 70, 64), (1, 2, 90, 64), (1, 2, 90, 64), (70, 90))),
    "embedding": (lambda w, i: F.embedding(i, w).sin(), ((50, 30), 50)),
    "index_add": (lambda a, s, i: a.index_add(0, i, s), ((50, 30), (40, 30), 50)),
    "cumsum": (lambda a: a.cumsum(1) + a.cumsum(0), ((5, 3000),)),
}  # fmt: skip


def kernels(dtype: torch.dtype, device: str = "cuda", **options: Any) -> Iterator[tuple[str, float, float]]:
    """(kernel, error of nnvm, error of eager), each relative to the largest element of the float64 result."""
    generator = torch.Generator().manual_seed(0)
    for name, (function, shapes) in KERNELS.items():
        args = [torch.randint(0, s, (40,), generator=generator) if isinstance(s, int)
                else torch.randn(s, generator=generator) for s in shapes]  # fmt: skip
        given = [a.to(device, dtype) if a.is_floating_point() else a.to(device) for a in args]
        wide = [a.double() if a.is_floating_point() else a for a in given]
        torch._dynamo.reset()
        with torch.no_grad():
            got = torch.compile(function, backend="nnvm", options=options)(*given)
            right = function(*wide)
            yield name, relative_error(got, right), relative_error(function(*given), right)


def bandwidths(dtype: torch.dtype) -> Iterator[tuple[str, float, float]]:
    """(kernel, GB/s of nnvm, GB/s of a device copy) of kernels that do little but read and write."""
    rows, columns = 16384, 4096
    x, y = (torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in range(2))
    w = torch.randn(columns, device="cuda", dtype=dtype)
    nbytes = x.numel() * x.element_size()
    kernels: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]] = {
        "gelu(x + bias)": (lambda a, b: torch.nn.functional.gelu(a + b), (x, w), 2),
        "x * y + x": (lambda a, b: a * b + a, (x, y), 3),
        "layer_norm": (lambda a, b: torch.nn.functional.layer_norm(a, a.shape[-1:], b, b), (x, w), 2),
        "softmax": (lambda a: a.softmax(-1), (x,), 2),
        "sum over rows": (lambda a: a.sum(0), (x,), 1),
        "transpose": (lambda a: a.t().contiguous(), (x,), 2),
    }
    target = torch.empty_like(x)
    copied = interleaved({"copy": graphed(lambda: target.copy_(x))})["copy"]
    for name, (function, args, passes) in kernels.items():
        torch._dynamo.reset()
        fast = torch.compile(function, backend="nnvm")
        with torch.no_grad():
            fast(*args)
            taken = interleaved({"nnvm": graphed(lambda run=fast, a=args: run(*a))})["nnvm"]  # type: ignore[misc]
        yield name, passes * nbytes / taken / 1e6, 2 * nbytes / copied / 1e6


def products(dtype: torch.dtype) -> Iterator[tuple[str, float, float]]:
    """(shape, TFLOP/s of our template, TFLOP/s of ATen) of dense layers with a bias and a GELU."""
    for m, n, k in ((1, 4096, 4096), (128, 768, 3072), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 1024, 4096)):
        x, w, b = (torch.randn(*s, device="cuda", dtype=dtype) for s in ((m, k), (n, k), (n,)))

        def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))

        torch._dynamo.reset()
        fast = torch.compile(layer, backend="nnvm", options={"disabled_passes": ["ChooseLibrary"]})
        with torch.no_grad():
            fast(x, w, b)
            calls = {"nnvm": graphed(lambda f=fast, a=(x, w, b): f(*a)),  # type: ignore[misc]
                     "aten": graphed(lambda f=layer, a=(x, w, b): f(*a))}  # type: ignore[misc]  # fmt: skip
        times = interleaved(calls)
        flops = 2 * m * n * k / 1e9
        yield f"{m} x {n} x {k}", flops / times["nnvm"], flops / times["aten"]


def captured_calls(name: str, dtype: torch.dtype) -> tuple[str, bool, bool, float, float]:
    """(model, whether calls in CUDA graphs give what calls without give, whether what the caller keeps stays as it was,
    milliseconds without and with graphs), over inputs at other and at the same addresses."""
    case = load_model(resolve(name), 1, torch.float32, 0)
    model = case.module.to(dtype).cuda()

    def fresh(seed: int) -> list[torch.Tensor]:
        made = [t.cuda() for t in case.fresh(1, seed)]
        return [t.to(dtype) if t.is_floating_point() else t for t in made]

    engines = {}
    with torch.no_grad():
        for label, graphs in (("off", False), ("on", True)):
            torch._dynamo.reset()
            engines[label] = torch.compile(model, backend="nnvm", options={"cuda_graphs": graphs})
            engines[label](*fresh(0))
        inputs = [fresh(seed) for seed in range(6)]
        kept = [(engines["on"](*given), engines["off"](*given)) for given in inputs]
        before = [[t.clone() for t in _tensors(got)] for got, _ in kept]
        for _ in range(3):
            for given in inputs:
                engines["on"](*given)
        same = all(
            torch.equal(g, r) for got, right in kept for g, r in zip(_tensors(got), _tensors(right), strict=True)
        )
        stays = all(torch.equal(g, b) for (got, _), held in zip(kept, before) for g, b in zip(_tensors(got), held))
        times = interleaved({label: lambda run=run: run(*inputs[0]) for label, run in engines.items()})  # type: ignore[misc]
    return name, same, stays, times["off"], times["on"]


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--models", type=name_list, default=MODELS, metavar="MODEL,...")
    parser.add_argument("--batches", type=name_list, default=("1", "8", "64"), metavar="N,...")
    parser.add_argument("--dtypes", type=name_list, default=tuple(DTYPES), metavar="DTYPE,...")
    parser.add_argument("--peers", type=name_list, default=tuple(PEERS), metavar="ENGINE,...")
    parser.add_argument("--minutes", type=positive_float, default=8.0, help="after which nothing new begins (8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    args = parser.parse_args(argv)
    for given, known in ((args.dtypes, DTYPES), (args.peers, PEERS)):
        if wrong := [g for g in given if g not in known]:
            parser.error(f"no {wrong[0]!r}; there are {', '.join(known)}")
    if not all(b.isdigit() and int(b) > 0 for b in args.batches):
        parser.error(f"batches are counts, not {','.join(args.batches)}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    if not torch.cuda.is_available():
        print("benchmarks.gpu needs a GPU that torch can use: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    console, end = Console(), time.monotonic() + 60 * args.minutes
    rows: list[Row] = []
    left: list[str] = []
    half = torch.float16
    narrow: dict[str, list[tuple[str, float, float]]] = {"bandwidth": list(bandwidths(half)),
                                                         "products": list(products(half))}  # fmt: skip
    correct = [(f"{name}, {label}", *errors) for label, dtype in DTYPES.items() for name, *errors in kernels(dtype)]
    graphs = [captured_calls(m, half) for m in args.models[:2]]
    settings = [(m, int(b), d) for d in args.dtypes for b in args.batches for m in args.models]
    for model, batch, dtype in settings:
        if time.monotonic() > end:
            left.append(f"{model} {batch} {dtype}")
            continue
        try:
            rows.append(measure_model(model, batch, dtype, args.peers))
        except torch.OutOfMemoryError:
            left.append(f"{model} {batch} {dtype} (out of memory)")
    _show(console, rows, narrow, args.peers)
    _show_graphs(console, graphs)
    _show_errors(console, correct)
    if left:
        console.print(f"left out: {', '.join(left)}")
    if args.json is not None:
        report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "models": [asdict(r) for r in rows],
                  **narrow, "cuda_graphs": graphs, "kernels": correct, "left_out": left}  # fmt: skip
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


def _show(console: Console, rows: Sequence[Row], narrow: dict[str, list[tuple[str, float, float]]],
          peers: Sequence[str]) -> None:  # fmt: skip
    table = Table("model", "batch", "dtype", "eager ms", "nnvm ms", "nnvm / eager", *peers, "error, nnvm / eager")
    for r in rows:
        t = r.milliseconds
        ratios = [f"{t['eager'] / t[p]:.2f} x" for p in peers]
        table.add_row(r.model, str(r.batch), r.dtype, f"{t['eager']:.3f}", f"{t['nnvm']:.3f}",
                      f"{t['eager'] / t['nnvm']:.2f} x", *ratios, f"{r.error:.1e} / {r.eager_error:.1e}")  # fmt: skip
    console.print(table)
    for title, unit, other in (("bandwidth", "GB/s", "copy"), ("products", "TFLOP/s", "ATen")):
        small = Table(title, f"nnvm {unit}", f"{other} {unit}", "ratio")
        for name, ours, theirs in narrow[title]:
            small.add_row(name, f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}")
        console.print(small)


def _show_graphs(console: Console, graphs: Sequence[tuple[str, bool, bool, float, float]]) -> None:
    table = Table("CUDA graphs", "same results", "results stay", "off ms", "on ms", "off / on")
    for name, same, stays, off, on in graphs:
        table.add_row(name, str(same), str(stays), f"{off:.3f}", f"{on:.3f}", f"{off / on:.2f} x")
    console.print(table)


def _show_errors(console: Console, errors: Sequence[tuple[Any, ...]]) -> None:
    """The kernels that are less accurate than eager by more than rounding once more explains."""
    wrong = [e for e in errors if not e[1] <= 4 * e[2] + 1e-6]
    console.print(f"kernels: {len(errors) - len(wrong)} of {len(errors)} as accurate as eager")
    for name, ours, eagers in wrong:
        console.print(f"  {name}: error {ours:.1e}, eager's {eagers:.1e}")


if __name__ == "__main__":
    sys.exit(main())
