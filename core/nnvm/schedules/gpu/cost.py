"""How long a product takes on a GPU, by rule: by our template, and by a vendor's library with a kernel after it.

A roofline for whole tiles: a tile of m x n takes 2 m n k operations at its share of the GPU's peak, tiles run in waves
of one per multiprocessor, and no launch is faster than what it moves through memory. (S. Williams et al., Roofline,
2009.) The peaks are those of the data sheets, dense; the fractions of them that code reaches are assumptions, which
measuring on the GPU replaces (`nnvm.tuning.records`).
"""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.dim import numel
from nnvm.dtype import F64, DType
from nnvm.schedules.gpu.matmul import Product, product_of, tile_shape
from nnvm.schedules.gpu.select import placed
from nnvm.schedules.row_program import row_program
from nnvm.target import Target
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Space

__all__ = ["Gpu", "ProductSize", "gpu_of", "library_seconds", "product_size", "template_seconds"]


@dataclass(frozen=True)
class Gpu:
    """A GPU's limits.

    Attributes:
        units: multiprocessors.
        bandwidth: of its memory, bytes a second.
        flops: operations a second by the kind of multiplication: ``float32`` without tensor cores, ``tf32``, ``half``
            (float16 and bfloat16), ``float64``.
    """

    units: int
    bandwidth: float
    flops: dict[str, float]


def _gpu(units: int, terabytes: float, **teraflops: float) -> Gpu:
    return Gpu(units, terabytes * 1e12, {k: v * 1e12 for k, v in teraflops.items()})


#: By architecture: A100, A40, L40, H100 (SXM), B200, MI300X.
_GPUS = {
    "sm_80": _gpu(108, 2.0, float32=19.5, tf32=156, half=312, float64=19.5),
    "sm_86": _gpu(84, 0.7, float32=37.4, tf32=75, half=150, float64=0.6),
    "sm_89": _gpu(142, 0.86, float32=90.5, tf32=90.5, half=181, float64=1.4),
    "sm_90": _gpu(132, 3.35, float32=67, tf32=495, half=989, float64=67),
    "sm_100": _gpu(148, 8.0, float32=80, tf32=1100, half=2250, float64=40),
    "gfx942": _gpu(304, 5.3, float32=163, tf32=653, half=1307, float64=163),
}
#: Fractions of the peak that a full wave of tiles reaches: our templates', and the libraries'. Without tensor cores a
#: `tl.dot` is a loop of multiply-adds from registers; convolutions gather their rows.
_OURS = {"float32": 0.35, "tf32": 0.55, "half": 0.6, "float64": 0.35}
_LIBRARY = {"float32": 0.85, "tf32": 0.75, "half": 0.75, "float64": 0.85}
_OURS_GATHERS, _LIBRARY_GATHERS = 0.7, 0.75
#: Of the memory's bandwidth.
_STREAMING = 0.85
#: Seconds of a launch in a CUDA graph, and tiles that a library chooses from.
_LAUNCH = 3e-6
_LIBRARY_TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (32, 32))


@dataclass(frozen=True)
class ProductSize:
    """Rows, columns, steps and number of a (batched) product; `gathers`: it is a convolution."""

    m: int
    n: int
    k: int
    batch: int
    element: DType
    gathers: bool


def gpu_of(target: Target) -> Gpu:
    """The limits of a target; of one that is not listed, those of the latest one before it."""
    arch = target.cpu.rstrip("a") if target.kind == "cuda" else target.cpu
    if arch in _GPUS:
        return _GPUS[arch]
    if target.kind != "cuda":
        return _GPUS["gfx942"]
    before = [a for a in _GPUS if a.startswith("sm_") and int(a[3:]) <= int(arch[3:])]
    return _GPUS[before[-1] if before else "sm_80"]


def product_size(inputs: list[Tensor], outputs: list[Tensor]) -> ProductSize | None:
    """The product that a computation is, for the template of `nnvm.schedules.gpu.matmul`; None where it is none, or its
    sizes are not known."""
    program = row_program(outputs, placed(inputs, outputs, {})[0], Space(), keep=False)
    product: Product | None = product_of(program) if program is not None and not program.rest else None
    if product is None:
        return None
    batch = numel(tuple(a.extent for a in product.batch))
    m, n, k = product.sizes
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(batch, int)):
        return None
    return ProductSize(m, n, k, batch, product.element, len(product.steps) > 1)


def template_seconds(p: ProductSize, nbytes: float, target: Target) -> float:
    """Of our kernel, everything fused; `nbytes`: that it reads and writes."""
    gpu, kind = gpu_of(target), _kind(p, target.has("tf32"))
    shape = tile_shape(p.m, p.n, p.batch, p.element, p.gathers)
    fraction = _OURS[kind] * (_OURS_GATHERS if p.gathers else 1)
    return _LAUNCH + max(_waves(p, shape.m, shape.n, gpu, gpu.flops[kind] * fraction), _moved(nbytes, gpu))


def library_seconds(p: ProductSize, product_bytes: float, rest_bytes: float, target: Target) -> float:
    """Of the product by the library and a kernel for what follows (`rest_bytes` 0: nothing does)."""
    gpu, kind = gpu_of(target), _kind(p, target.has("tf32"))
    fraction = _LIBRARY[kind] * (_LIBRARY_GATHERS if p.gathers else 1)
    computed = min(_waves(p, m, n, gpu, gpu.flops[kind] * fraction) for m, n in _LIBRARY_TILES)
    seconds = _LAUNCH + max(computed, _moved(product_bytes, gpu))
    return seconds + (_LAUNCH + _moved(rest_bytes, gpu) if rest_bytes else 0.0)


def _kind(p: ProductSize, tf32: bool) -> str:
    if p.element.is_half:
        return "half"
    return "float64" if p.element == F64 else "tf32" if tf32 else "float32"


def _waves(p: ProductSize, m: int, n: int, gpu: Gpu, flops: float) -> float:
    """Seconds for all tiles of m x n, one on each multiprocessor at a time; long sums over few tiles are split."""
    tiles = -(-p.m // m) * -(-p.n // n) * p.batch
    parts = max(1, min(gpu.units // tiles, p.k // 512))
    waves = -(-tiles * parts // gpu.units)
    return waves * 2.0 * m * n * p.k / parts / (flops / gpu.units)


def _moved(nbytes: float, gpu: Gpu) -> float:
    return nbytes / (gpu.bandwidth * _STREAMING)
