"""Products in training that MKL and oneDNN, which ATen calls, compute sooner than our kernels, by rule.

In training a weight is another one at each call, so that it cannot be packed once. The libraries pack and compute it at
150 to 165 GFLOP/s of one core with AVX-512; what ours reach of a plain weight depends on the shape, as below. The
numbers were measured over some sixty shapes with one thread of an Emerald Rapids processor, PyTorch 2.13; for other
processors there is no rule, and our kernels stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

import nnvm.ops  # noqa: F401  registers the ops
from nnvm.compiler.choose_library import Choice, ChooseOnCpu
from nnvm.dtype import F32
from nnvm.graph import op as ops
from nnvm.graph.node import Node
from nnvm.graph.passes.layout_conv import for_library
from nnvm.target import Target

__all__ = ["cpu_rule"]

Attrs = Mapping[str, Any]
Sizes = tuple[int, ...]

#: Operations a second: the library's and ours for long sums over whole vectors.
_LIBRARY, _OURS = 160e9, 135e9
#: Seconds of a call of ATen's from the executor, and bytes a second that a kernel for the rest moves in the cache.
_CALL, _MOVED = 8e-6, 20e9
#: float32 values of a vector.
_LANES = 16
#: Products with fewer operations are not worth a call: of long sums over whole vectors, and with a short side.
_LEAST, _LEAST_FEW = 2e8, 3e7


def cpu_rule(target: Target | None) -> ChooseOnCpu | None:
    """The rule for a target (None: this machine); None where nothing was measured."""
    target = target or Target.current()
    has_libraries = torch._C.has_mkl and torch._C._has_mkldnn
    return _choose if has_libraries and not target.is_gpu and target.has("avx512f") else None


def _choose(product: Node, rest: float) -> Choice | None:
    """Of float32 products of known sizes; `rest`: bytes that a kernel for what is fused behind them moves."""
    types = [e.type for e in (*product.inputs, *product.outputs)]
    rule = _RULES.get(product.op.name)
    if rule is None or any(t.dtype != F32 or not all(isinstance(d, int) for d in t.shape) for t in types):
        return None
    shapes = [tuple(d for d in t.shape if isinstance(d, int)) for t in types]
    found = rule(product, shapes[0], shapes[1], shapes[-1])
    if found is None:
        return None
    ours, library = found
    return Choice(ours, library + _CALL + (rest / _MOVED if rest else 0.0), False)


def _product(rows: int, columns: int, steps: int, along: bool) -> tuple[float, float] | None:
    """[rows, steps] times [steps, columns]; `along`: the second operand has its steps next to each other."""
    operations = 2.0 * rows * columns * steps
    few = min(rows, columns, steps) <= 2 * _LANES
    if operations < (_LEAST_FEW if few else _LEAST):
        return None
    library = operations / _LIBRARY
    behind = 1.11 if along else 1.06
    if few:
        behind += 0.15
    elif operations > 2e9 or steps >= 512:
        behind += 0.06
    return library * behind, library


def _dense(node: Node, data: Sizes, weight: Sizes, out: Sizes) -> tuple[float, float] | None:
    return _product(math.prod(data[:-1]), weight[0], data[-1], True)


def _matmul(node: Node, a: Sizes, b: Sizes, out: Sizes) -> tuple[float, float] | None:
    if math.prod(out[:-2]) > 1 or len(out) < 2:
        return None  # a batch of small ones
    steps = a[-2] if node.attrs["transpose_a"] else a[-1]
    return _product(out[-2], out[-1], steps, node.attrs["transpose_b"])


def _convolution(node: Node, data: Sizes, weight: Sizes, out: Sizes) -> tuple[float, float] | None:
    """Images in plain layout; None where ours is known to be at least as fast, or nothing is known."""
    if len(data) != 4 or any(d != 1 for d in node.attrs["dilation"]):
        return None
    groups, inner = node.attrs["groups"], weight[1]
    taps, strided = math.prod(weight[2:]), any(s != 1 for s in node.attrs["strides"])
    operations = 2.0 * math.prod(out) * inner * taps
    if strided:  # a plain layout is slow then: `for_library` left it so for the library
        return (operations / (0.1 * _OURS), operations / _LIBRARY) if for_library(node) else None
    filled = out[3] / (_LANES * math.ceil(out[3] / _LANES))  # vectors run along the rows of an image
    if groups > 1:
        if groups == data[1] == out[1]:
            return operations / (18e9 * filled), operations / 14e9
        return operations / (0.3 * _OURS * filled), operations / (0.6 * _LIBRARY)
    if inner < _LANES:
        return None
    moved = 4.0 * (math.prod(data) + math.prod(out))  # from and to the library's layout, in memory that is new if long
    library = operations / _LIBRARY + moved / (3e9 if moved > 4e6 else 8e9)
    if taps == 1:
        return operations / (60e9), operations / (0.9 * _LIBRARY) if inner > _LANES else library
    return operations / (_OURS * filled), library


_RULES: dict[str, Callable[[Node, Sizes, Sizes, Sizes], tuple[float, float] | None]] = {
    "dense": _dense, "matmul": _matmul, "conv2d": _convolution,
}  # fmt: skip


# -- products written where the plan has memory for them


def _writes(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers how a library writes the product of op `name`: `function(attrs, *tensors, result)`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        ops.get(name).set_attr("library_into", lambda attrs: lambda env, *tensors: function(attrs, *tensors))
        return function

    return register


@_writes("dense")
def _dense_into(attrs: Attrs, x: torch.Tensor, weight: torch.Tensor, *rest: torch.Tensor) -> None:
    *bias, out = rest
    rows, result = x.view(-1, weight.shape[1]), out.view(-1, weight.shape[0])
    if bias:
        torch.addmm(bias[0], rows, weight.t(), out=result)
    else:
        torch.mm(rows, weight.t(), out=result)


@_writes("matmul")
def _matmul_into(attrs: Attrs, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.matmul(a.mT if attrs["transpose_a"] else a, b.mT if attrs["transpose_b"] else b, out=out)
