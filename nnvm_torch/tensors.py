"""Between torch's types and nnvm's, and the executor's memory as torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from nnvm import dim as dims
from nnvm.dim import Dim
from nnvm.dtype import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from nnvm.graph import TensorType
from nnvm.runtime.memory import aligned
from nnvm_torch.large_pages import large_memory

__all__ = [
    "HANDLE", "HANDLE_TYPE", "TORCH_DTYPES", "PooledMemory", "TorchMemory", "UnsupportedSize", "WithoutMemory",
    "constant_tensor", "copy_elements", "dim_of", "dim_of_expr", "dtype_of", "extent", "is_foreign", "laid_out",
    "numpy_of", "on_device", "shape_of", "span", "strides_of", "torch_dtype", "type_of",
]  # fmt: skip

TORCH_DTYPES: dict[torch.dtype, DType] = {
    torch.float32: F32, torch.float64: F64, torch.float16: F16, torch.bfloat16: BF16, torch.bool: BOOL,
    torch.int8: I8, torch.int16: I16, torch.int32: I32, torch.int64: I64,
    torch.uint8: U8, torch.uint16: U16, torch.uint32: U32, torch.uint64: U64,
}  # fmt: skip
_OF_DTYPE = {d: t for t, d in TORCH_DTYPES.items()}

#: The element type of a value that only ATen touches (complex, quantised, sparse, another device): native code never
#: sees it, and the executor hands the torch tensor on as it is.
HANDLE = DType("handle", "u", 8)
HANDLE_TYPE = TensorType((0,), HANDLE)


class UnsupportedSize(Exception):
    """A size that is no expression of sizes known at the call."""


def torch_dtype(d: DType) -> torch.dtype:
    return _OF_DTYPE[d]


def dtype_of(t: torch.dtype) -> DType | None:
    """The DType; None where nnvm has none."""
    return TORCH_DTYPES.get(t)


#: How a size is written, where its name alone would say less of it.
_written: ContextVar[Mapping[str, Dim]] = ContextVar("_written")


@contextmanager
def written_as(sizes: Mapping[str, Dim]) -> Iterator[None]:
    """Inside, `dim_of` writes the named sizes as these, which have the same values."""
    token = _written.set(sizes)
    try:
        yield
    finally:
        _written.reset(token)


def dim_of(size: Any) -> Dim:
    """The dimension of an int or a `torch.SymInt`; UnsupportedSize where it is data-dependent or no integer."""
    if isinstance(size, int):
        return size
    return dim_of_expr(size.node.expr)


def dim_of_expr(e: sympy.Expr) -> Dim:
    """`dim_of` of the expression of a size."""
    if e.is_Integer:
        return int(e)
    if e.is_Symbol:
        if not str(e).startswith("s"):
            raise UnsupportedSize(f"size {e} depends on data")
        return _written.get({}).get(str(e), dims.symbol(str(e)))
    parts = [dim_of_expr(a) for a in e.args]
    kind = type(e).__name__
    if kind == "Add":
        return sum(parts[1:], parts[0])
    if kind == "Mul":
        out: Dim = 1
        for p in parts:
            out = out * p
        return out
    if kind == "Pow" and isinstance(parts[1], int) and parts[1] >= 0:
        return dims.numel((parts[0],) * parts[1])
    if kind in ("FloorDiv", "CleanDiv"):
        return parts[0] // parts[1]
    if kind in ("Mod", "PythonMod"):
        return parts[0] % parts[1]
    if kind == "ModularIndexing":
        return parts[0] // parts[1] % parts[2]
    if kind in ("Max", "Min"):
        fold = dims.dim_max if kind == "Max" else dims.dim_min
        out = parts[0]
        for p in parts[1:]:
            out = fold(out, p)
        return out
    if kind == "Abs":
        return dims.dim_abs(parts[0])
    raise UnsupportedSize(f"size {e} uses {kind}")


def shape_of(t: torch.Tensor) -> tuple[Dim, ...]:
    return tuple(dim_of(d) for d in t.shape)


_CPU = torch.device("cpu")
#: The device whose memory the graph at hand lives in; the CPU where none is said.
_home: ContextVar[torch.device] = ContextVar("_home")


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Inside, tensors of `device` are those that compiled code takes; all others are left to ATen."""
    token = _home.set(device)
    try:
        yield
    finally:
        _home.reset(token)


def is_foreign(t: torch.Tensor) -> str | None:
    """Why native code cannot take the (fake) tensor `t`; None where it can."""
    if t.dtype not in TORCH_DTYPES:
        return f"dtype {str(t.dtype).removeprefix('torch.')}"
    if t.layout != torch.strided:
        return f"layout {str(t.layout).removeprefix('torch.')}"
    if t.device != _home.get(_CPU):
        return f"device {t.device}"
    if t.is_neg():
        return "a negative view"
    return None


def type_of(t: torch.Tensor) -> TensorType:
    """Shape and dtype of a (fake) tensor; the handle type where native code cannot take it."""
    return HANDLE_TYPE if is_foreign(t) else TensorType(shape_of(t), TORCH_DTYPES[t.dtype])


def strides_of(t: torch.Tensor) -> tuple[Dim, ...] | None:
    """Strides in elements; None for a contiguous tensor."""
    strides = tuple(dim_of(s) for s in t.stride())
    expected: Dim = 1
    guarded: Dim = 1  # as PyTorch writes them where a size may be 0; then there is no element, and strides are any
    for size, stride in zip(reversed(shape_of(t)), reversed(strides)):
        if size == 1:
            continue
        if stride not in (expected, guarded):
            return None if 0 in t.shape and dims.is_static(shape_of(t)) else strides
        expected, guarded = expected * size, guarded * dims.dim_max(1, size)
    return None


def numpy_of(t: torch.Tensor) -> np.ndarray:  # type: ignore[type-arg]
    """The values of a tensor as nnvm carries them: bfloat16 as its uint16 bits. A copy."""
    t = t.detach().resolve_neg().cpu().contiguous()
    if t.dtype == torch.bfloat16:
        t = t.view(torch.uint16)
    return np.array(t.numpy())


def constant_tensor(value: np.ndarray, type: TensorType) -> torch.Tensor:  # type: ignore[type-arg]
    """A constant of the graph as a torch tensor."""
    flat = torch.from_numpy(np.ascontiguousarray(value).reshape(type.shape).copy())
    return flat.view(torch.bfloat16) if type.dtype == BF16 else flat


def span(t: torch.Tensor) -> int:
    """Elements from the first to the last one in memory; `t` has some."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))


def extent(t: torch.Tensor) -> tuple[int, int] | None:
    """Addresses of the first byte and of that after the last one; None where it has no elements, or no memory that it
    tells of (other layouts, fake tensors, tensors made of others)."""
    if isinstance(t, FakeTensor) or t.layout is not torch.strided or t.is_nested or not t.numel():
        return None
    try:
        start = t.data_ptr()
    except RuntimeError:
        return None
    return (start, start + span(t) * t.element_size()) if start else None


def laid_out(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself where its strides are these, else a copy that has them."""
    if t.stride() == strides:
        return t
    out = torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device)
    copy_elements(out, t)
    return out


def copy_elements(target: torch.Tensor, source: torch.Tensor) -> None:
    """Elements of `target` may share memory, where those of `source` are equal; ATen copies to no tensor of which it
    sees that at once, by an axis of stride 0 (1 of its answers; it does not look further)."""
    if torch._debug_has_internal_overlap(target) != 1 or not target.numel():
        target.copy_(source)
        return
    size = span(target)
    place = torch.arange(size, device=target.device).as_strided(target.shape, target.stride())
    target.as_strided((size,), (1,))[place.reshape(-1)] = source.reshape(-1)


#: `torch.empty_strided` on the CPU at a third of its cost: what Inductor's code calls. None where PyTorch has no such.
_empty_cpu: Callable[..., torch.Tensor] | None = getattr(getattr(torch._C._dynamo, "guards", None),
                                                         "_empty_strided_cpu", None)  # fmt: skip


class _Flags:
    """Integers in pinned memory of the host, which a GPU reaches at the same address."""

    def __init__(self, count: int) -> None:
        self.tensor = torch.zeros(count, dtype=torch.int32, pin_memory=True)
        self.address = self.tensor.data_ptr()


class WithoutMemory(RuntimeError):
    """An argument has elements and no memory for them: autograd's zeros, or storage that was resized away."""


class TorchMemory:
    """The executor's memory: torch's allocator, so that its statistics and its caching count ours too.

    On a GPU that is the caching allocator, which knows streams: a call takes its arena from there each time, and what
    it gives back is reused on the same stream only.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device if device is not None else torch.device("cpu")
        self.keeps_arenas = self.device.type == "cpu"
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr

    def absent(self, tensor: torch.Tensor, /) -> int:
        if tensor.numel():
            raise WithoutMemory(f"a tensor of shape {list(tensor.shape)} has no memory for its elements")
        return 0

    def maker(self, shape: tuple[int, ...], dtype: DType,
              strides: tuple[int, ...] | None) -> Callable[[], torch.Tensor]:  # fmt: skip
        steps = torch.empty(shape, device="meta").stride() if strides is None else strides
        if self.device.type == "cpu" and _empty_cpu is not None:
            return partial(_empty_cpu, shape, steps, _OF_DTYPE[dtype])
        return partial(torch.empty_strided, shape, steps, dtype=_OF_DTYPE[dtype], device=self.device)

    def empty(self, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None) -> torch.Tensor:
        return self.maker(shape, dtype, strides)()

    def arena(self, nbytes: int) -> torch.Tensor:
        large = large_memory(nbytes) if self.device.type == "cpu" else None
        if large is not None:
            return torch.frombuffer(large, dtype=torch.uint8)
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def flags(self, count: int) -> Any:
        return None if self.device.type == "cpu" else _Flags(count)

    def view(self, arena: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        nbytes = dims.numel(shape) * dtype.bytes
        return arena[offset : offset + nbytes].view(_OF_DTYPE[dtype]).view(shape)  # type: ignore[operator]

    def reshape(self, tensor: Any, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        if (
            tensor is None
            or dtype == HANDLE
            or (offset == 0 and tuple(tensor.shape) == shape and tensor.dtype == _OF_DTYPE[dtype])
        ):
            return tensor
        flat = tensor.reshape(-1)[offset // dtype.bytes :]
        return flat[: dims.numel(shape)].view(_OF_DTYPE[dtype]).view(shape)

    def contiguous(self, tensor: torch.Tensor, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        if dtype == HANDLE:
            return tensor
        if tuple(tensor.shape) != shape or tensor.dtype != _OF_DTYPE[dtype]:
            raise ValueError(f"expected {dtype}{list(shape)}, got {tensor.dtype}{list(tensor.shape)}")
        return tensor.resolve_neg().contiguous()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        copy_elements(target, source)

    def pointer(self, tensor: torch.Tensor | None) -> int:
        # AOTAutograd passes None for the tokens that keep its effects in order
        if tensor is None or tensor.layout != torch.strided:
            return 0
        return tensor.data_ptr() or self.absent(tensor)


class PooledMemory(TorchMemory):
    """The CPU's memory, where new tensors lie one after the other on large pages, as far as `nbytes` go.

    What one of them took is free again when all are gone."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self._rest = large_memory(nbytes) or memoryview(b"")

    def maker(self, shape: tuple[int, ...], dtype: DType,
              strides: tuple[int, ...] | None) -> Callable[[], torch.Tensor]:  # fmt: skip
        otherwise = super().maker(shape, dtype, strides)
        return partial(self._cut, shape, dtype, otherwise) if strides is None else otherwise

    def _cut(self, shape: tuple[int, ...], dtype: DType, otherwise: Callable[[], torch.Tensor]) -> torch.Tensor:
        count = dims.numel(shape)
        assert isinstance(count, int)
        if not 0 < count * dtype.bytes <= len(self._rest):
            return otherwise()
        flat = torch.frombuffer(self._rest, dtype=_OF_DTYPE[dtype], count=count)
        self._rest = self._rest[aligned(count * dtype.bytes) :]
        return flat.view(shape)
