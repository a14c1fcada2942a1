"""Rules on shapes and dtypes that families of ops share. Errors are ValueErrors that show the shapes."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim, Shape
from nnvm.graph.types import TensorType

__all__ = [
    "broadcast_shapes",
    "check_kind",
    "known",
    "reduced_shape",
    "resolve_axes",
    "resolve_axis",
    "same_dtype",
    "show",
]

#: Names of DType.kind for messages.
_KINDS = {"f": "float", "i": "signed integer", "u": "unsigned integer", "b": "bool"}


def show(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def resolve_axis(axis: int, rank: int, what: str = "axis") -> int:
    """`axis` counted from the front; a scalar counts as rank 1, as in PyTorch."""
    limit = max(rank, 1)
    if not -limit <= axis < limit:
        raise ValueError(f"{what} {axis} is out of range for rank {rank} (expected {-limit} to {limit - 1})")
    return axis % limit


def resolve_axes(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted; None is all of them. A repeated axis is an error."""
    if axes is None:
        return tuple(range(rank))
    out = sorted(resolve_axis(a, rank) for a in axes)
    if len(set(out)) != len(out):
        raise ValueError(f"axis {next(a for a in out if out.count(a) > 1)} appears twice in {tuple(axes)}")
    return tuple(a for a in out if a < rank)


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    return tuple(1 if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape by numpy's rule. Unequal symbolic sizes do not broadcast: nothing says that one is 1."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = []
    for i in range(rank):
        size: Dim = 1
        for s in shapes:
            d = s[len(s) - rank + i] if len(s) - rank + i >= 0 else 1
            if size == 1:
                size = d
            elif d != size and d != 1:
                raise ValueError(f"shapes {' and '.join(map(show, shapes))} do not broadcast: {size} against {d}")
        out.append(size)
    return tuple(out)


def same_dtype(*types: TensorType) -> None:
    if any(t.dtype != types[0].dtype for t in types):
        raise ValueError(f"inputs of different dtypes {', '.join(str(t.dtype) for t in types)}; insert a cast")


def known(size: Dim) -> int:
    """A size that must be a number; ValueError where it is symbolic."""
    if not isinstance(size, int):
        raise ValueError(f"the size {size} must be known")
    return size


def check_kind(t: TensorType, kinds: str, what: str = "input") -> None:
    """ValueError unless the dtype's kind is one of the letters in `kinds` (see DType.kind)."""
    if t.dtype.kind not in kinds:
        raise ValueError(f"{what} must be {' or '.join(_KINDS[k] for k in kinds)}, got {t.dtype}")
