"""GPUs: which target a device is, the ops that have no kernel of ours there and run in ATen, and the products that may
run there in the vendor's library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

import nnvm.ops  # noqa: F401  registers the ops
from nnvm.graph import op as ops
from nnvm.target import Target
from nnvm_torch.recurrent_layer import eager_layer
from nnvm_torch.tensors import torch_dtype

__all__ = ["target_of"]

Attrs = Mapping[str, Any]


def target_of(device: torch.device, wanted: str | None = None) -> Target | None:
    """What to compile for on `device`; None: this machine's processor.

    Raises:
        ValueError: `wanted` is another kind of machine than the device.
        ModuleNotFoundError: Triton is not installed.
    """
    chosen = Target.parse(wanted) if wanted is not None else None
    if device.type == "cpu":
        if chosen is not None and chosen.is_gpu and not _interprets():
            raise ValueError(f"target={wanted!r} needs tensors on a GPU; these are on the CPU (with TRITON_INTERPRET=1 "
                             "Triton's interpreter runs its kernels there)")  # fmt: skip
        return chosen
    if chosen is not None and not chosen.is_gpu:
        raise ValueError(f"target={wanted!r}, but the tensors are on {device}")
    return chosen if chosen is not None else _gpu(device)


def _interprets() -> bool:
    from nnvm.runtime.triton_interpret import is_interpreting

    return is_interpreting()


def _gpu(device: torch.device) -> Target:
    if torch.version.hip is not None:
        arch = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        return Target.parse(f"hip -arch={arch}")
    major, minor = torch.cuda.get_device_capability(device)
    tf32 = " -mtf32" if torch.backends.cuda.matmul.allow_tf32 else ""
    return Target.parse(f"cuda -arch=sm_{major}{minor}{tf32}")


# -- ops that run in ATen


def _call(function: Callable[..., Any], attrs: Attrs) -> Callable[..., Sequence[torch.Tensor]]:
    """`function(attrs, *tensors)` as the executor calls it."""

    def call(env: Mapping[str, int], *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        out = function(attrs, *tensors)
        return (out,) if isinstance(out, torch.Tensor) else tuple(out)

    return call


def _in_aten(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers how a frontend node of op `name` runs on tensors: `function(attrs, *tensors)`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        ops.get(name).set_attr("host_call", lambda attrs: _call(function, attrs))
        return function

    return register


@_in_aten("cumsum")
def _cumsum(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(attrs["axis"], dtype=_dtype(attrs))


@_in_aten("cumprod")
def _cumprod(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return x.cumprod(attrs["axis"], dtype=_dtype(attrs))


def _dtype(attrs: Attrs) -> torch.dtype | None:
    return None if attrs["dtype"] is None else torch_dtype(attrs["dtype"])


@_in_aten("sort")
def _sort(attrs: Attrs, x: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.sort(x, dim=attrs["axis"], descending=attrs["descending"], stable=True)


@_in_aten("argsort")
def _argsort(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return torch.argsort(x, dim=attrs["axis"], descending=attrs["descending"], stable=True)


@_in_aten("topk")
def _topk(attrs: Attrs, x: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.topk(x, attrs["k"], attrs["axis"], attrs["largest"], True)


_REDUCE = {"add": "sum", "prod": "prod", "amax": "amax", "amin": "amin", "mean": "mean"}


@_in_aten("scatter")
def _scatter(attrs: Attrs, data: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    index = index.long()
    if attrs["reduce"] == "none":
        return data.scatter(attrs["axis"], index, src)
    return data.scatter_reduce(attrs["axis"], index, src, _REDUCE[attrs["reduce"]], include_self=attrs["include_self"])


@_in_aten("index_put")
def _index_put(attrs: Attrs, data: torch.Tensor, values: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    where: list[torch.Tensor | None] = [None] * (max(attrs["axes"]) + 1)
    for axis, index in zip(attrs["axes"], indices):
        where[axis] = index.long()
    out: torch.Tensor = torch.ops.aten.index_put(data, where, values, attrs["accumulate"])
    return out


@_in_aten("cummax")
def _cummax(attrs: Attrs, x: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.cummax(x, attrs["axis"])


@_in_aten("cummin")
def _cummin(attrs: Attrs, x: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.cummin(x, attrs["axis"])


@_in_aten("logcumsumexp")
def _logcumsumexp(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return torch.logcumsumexp(x, attrs["axis"])


@_in_aten("searchsorted")
def _searchsorted(attrs: Attrs, boundaries: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(boundaries.contiguous(), x.contiguous(), right=attrs["right"])


@_in_aten("orthogonal_polynomial")
def _orthogonal_polynomial(attrs: Attrs, x: torch.Tensor, degree: torch.Tensor) -> torch.Tensor:
    kind, _, letter = attrs["family"].partition("_")
    function = getattr(torch.special, f"{'shifted_' * attrs['shifted']}{kind}_polynomial_{letter}")
    out: torch.Tensor = function(x, degree)
    return out


@_in_aten("recurrent")
def _recurrent(attrs: Attrs, gates: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor,
               *more: torch.Tensor) -> Sequence[torch.Tensor]:  # fmt: skip
    """As a layer on its gates, which an identity takes for their products with the input."""
    kind, bias = attrs["kind"], gates.new_zeros(len(weight))
    if kind == "gru" and more:
        bias[2 * hidden.shape[1] :] = more[0]
    identity = torch.eye(len(weight), dtype=gates.dtype, device=gates.device)
    cells = more[0] if kind == "lstm" else None
    params = [identity, weight, torch.zeros_like(bias), bias]
    results = eager_layer(gates, params, hidden, cells, kind, attrs["reverse"])
    return results[: 3 if kind == "lstm" else 2]


# -- products that may run in the vendor's library


def _dense(attrs: Attrs, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, weight, bias)


def _matmul(attrs: Attrs, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.matmul(a.mT if attrs["transpose_a"] else a, b.mT if attrs["transpose_b"] else b)
    return out


def _convolution(attrs: Attrs, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    low, high = zip(*attrs["padding"])
    if low != high:
        x = F.pad(x, [n for pair in reversed(attrs["padding"]) for n in pair])
        low = (0,) * len(low)
    out: torch.Tensor = torch.convolution(x, weight, bias, attrs["strides"], low, attrs["dilation"], False,
                                          [0] * len(low), attrs["groups"])  # fmt: skip
    return out.contiguous()


def _is_plain(spatial: str, attrs: Attrs) -> bool:
    """Whether a convolution's tensors lie as PyTorch's do."""
    plain = attrs["data_layout"] == f"NC{spatial}" and attrs["kernel_layout"] == f"OI{spatial}"
    return plain and attrs["channels"] is None and attrs["out_layout"] in (None, f"NC{spatial}")


def _in_library(name: str, function: Callable[..., Any], plain: Callable[[Attrs], bool]) -> None:
    """Registers a product's call in the library; `plain`: whether the attributes are those that it knows."""
    ops.get(name).set_attr("library_call", lambda attrs: _call(function, attrs) if plain(attrs) else None)


_in_library("dense", _dense, lambda attrs: attrs["kernel_layout"] == "NK" and attrs["units"] is None)
_in_library("matmul", _matmul, lambda attrs: True)
for _rank, _spatial in ((1, "W"), (2, "HW"), (3, "DHW")):
    _in_library(f"conv{_rank}d", _convolution, partial(_is_plain, _spatial))
