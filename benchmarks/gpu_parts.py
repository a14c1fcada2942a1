"""What `benchmarks.gpu` measures, part by part; each function is one step of its run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from nnvm_torch.bench.models.sources import load_model, resolve

__all__ = ["DTYPES", "KERNELS", "MODELS", "PEERS", "PRODUCTS", "STREAMS", "Row", "bandwidth", "captured_calls",
           "kernel", "measure_model", "product"]  # fmt: skip

MODELS = ("resnet50", "bert_base", "vit_b_16", "gpt2_prefill", "mobilenet_v2", "unet_small", "llama_block_decode")
#: ``tf32``: float32 whose products may be rounded to it, as matrix products and convolutions both.
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "tf32": torch.float32, "float32": torch.float32}
PEERS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "inductor-max-autotune": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
}
Call = Callable[[], Any]
#: Where everything runs, and options of nnvm's beside those of each part.
DEVICE = "cuda"
NNVM: dict[str, Any] = {}
#: Turns of a measurement.
ROUNDS = 15


@dataclass(frozen=True)
class Row:
    """One model in one setting, by engine: milliseconds of a call, seconds of the first one, and errors relative to the
    output's range."""

    model: str
    batch: int
    dtype: str
    milliseconds: dict[str, float]
    first_call: dict[str, float]
    errors: dict[str, float]


@contextmanager
def _precision(dtype: str) -> Iterator[None]:
    """Products of float32 are exact, or may be rounded to tf32: for all engines, and for convolutions too."""
    before, now = torch.get_float32_matmul_precision(), torch.backends.cudnn
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    flags = {"enabled": now.enabled, "benchmark": now.benchmark, "deterministic": now.deterministic}
    try:
        with torch.backends.cudnn.flags(**flags, allow_tf32=dtype == "tf32"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _on_device(values: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """Arguments where they are measured; floats as `dtype`."""
    return [v.to(DEVICE, dtype if v.is_floating_point() else v.dtype) if isinstance(v, torch.Tensor) else v
            for v in values]  # fmt: skip


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="nnvm", options={**NNVM, **options})


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


def interleaved(calls: dict[str, Call]) -> dict[str, float]:
    """Median milliseconds of each, measured in turns, with enough calls in a turn to last about 5 ms."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(1, int(5.0 / max(_milliseconds(call, 3), 1e-3)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
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
    """A model by eager, nnvm and `peers`, with its calls in CUDA graphs on all sides."""
    case = load_model(resolve(name), batch, torch.float32, 0)
    inputs = case.fresh(1, 0)
    reference = case.module.double().to(DEVICE)
    with torch.no_grad(), _precision(dtype):
        right = reference(*_on_device(inputs, torch.float64))
        model = reference.to(DTYPES[dtype])
        given = _on_device(inputs, DTYPES[dtype])
        engines: dict[str, Callable[..., Any]] = {"eager": model, "nnvm": _compiled(model, cuda_graphs=False)}
        seconds: dict[str, float] = {}
        for peer in peers:
            torch._dynamo.reset()
            engines[peer] = torch.compile(model, **PEERS[peer])
        errors = {}
        for engine, run in engines.items():
            start = time.monotonic()
            errors[engine] = relative_error(run(*given), right)
            seconds[engine] = time.monotonic() - start
        calls = {e: graphed(lambda run=run: run(*given)) for e, run in engines.items()}  # type: ignore[misc]
        times = interleaved(calls)
    return Row(name, batch, dtype, times, seconds, errors)


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


def kernel(name: str, dtype: str) -> tuple[float, float]:
    """Errors of nnvm and of eager, each relative to the largest element of the float64 result."""
    function, shapes = KERNELS[name]
    generator = torch.Generator().manual_seed(0)
    args = [torch.randint(0, s, (40,), generator=generator) if isinstance(s, int)
            else torch.randn(s, generator=generator) for s in shapes]  # fmt: skip
    given = _on_device(args, DTYPES[dtype])
    wide = [a.double() if a.is_floating_point() else a for a in given]
    with torch.no_grad(), _precision(dtype):
        got, right = _compiled(function)(*given), function(*wide)
        return relative_error(got, right), relative_error(function(*given), right)


#: Kernels that do little but read and write: of matrices x and y and a row w; how often they pass over a matrix.
STREAMS: dict[str, tuple[Callable[..., Any], str, int]] = {
    "gelu(x + bias)": (lambda x, w: F.gelu(x + w), "xw", 2),
    "x * y + x": (lambda x, y: x * y + x, "xy", 3),
    "layer_norm": (lambda x, w: F.layer_norm(x, x.shape[-1:], w, w), "xw", 2),
    "softmax": (lambda x: x.softmax(-1), "x", 2),
    "sum over rows": (lambda x: x.sum(0), "x", 1),
    "variance": (lambda x: x.var(1), "x", 1),
    "transpose": (lambda x: x.t().contiguous(), "x", 2),
}


def bandwidth(name: str, dtype: str, rows: int = 16384, columns: int = 4096) -> tuple[float, float]:
    """GB/s of nnvm and of a device copy."""
    function, names, passes = STREAMS[name]
    shapes = {"x": (rows, columns), "y": (rows, columns), "w": (columns,)}
    args = [torch.randn(shapes[n], device=DEVICE, dtype=DTYPES[dtype]) for n in names]
    target, nbytes = torch.empty_like(args[0]), args[0].numel() * args[0].element_size()
    fast = _compiled(function, cuda_graphs=False)
    with torch.no_grad():
        fast(*args)
        taken = interleaved({"nnvm": graphed(lambda: fast(*args)), "copy": graphed(lambda: target.copy_(args[0]))})
    return passes * nbytes / taken["nnvm"] / 1e6, 2 * nbytes / taken["copy"] / 1e6


#: Dense layers with a bias and a GELU: rows, columns, steps.
PRODUCTS = ((1, 4096, 4096), (128, 768, 3072), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 1024, 4096))


def product(shape: tuple[int, int, int], dtype: str) -> tuple[float, float]:
    """TFLOP/s of our template and of ATen."""
    m, n, k = shape
    x, w, b = (torch.randn(*s, device=DEVICE, dtype=DTYPES[dtype]) for s in ((m, k), (n, k), (n,)))

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b))

    fast = _compiled(layer, disabled_passes=["ChooseLibrary"], cuda_graphs=False)
    with torch.no_grad(), _precision(dtype):
        fast(x, w, b)
        times = interleaved({"nnvm": graphed(lambda: fast(x, w, b)), "aten": graphed(lambda: layer(x, w, b))})
    flops = 2 * m * n * k / 1e9
    return flops / times["nnvm"], flops / times["aten"]


def captured_calls(name: str, dtype: str) -> tuple[bool, bool, float, float]:
    """Whether calls in CUDA graphs of ours give what calls without give, whether what the caller keeps stays as it was,
    and milliseconds without and with graphs; over inputs at other and at the same addresses."""
    case = load_model(resolve(name), 1, torch.float32, 0)
    model = case.module.to(DEVICE, DTYPES[dtype])
    with torch.no_grad(), _precision(dtype):
        engines = {label: _compiled(model, cuda_graphs=label == "on") for label in ("off", "on")}
        inputs = [_on_device(case.fresh(seed, 0), DTYPES[dtype]) for seed in range(6)]
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
    return same, stays, times["off"], times["on"]
